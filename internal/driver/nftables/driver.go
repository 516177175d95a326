// Package nftables carries out the desired state with one nftables table of a
// constant number of chains, rules and sets: what grows with the cluster are
// elements of maps. See docs/architecture.md for the path of a packet.
//
// What was programmed outlives the driver in the kernel alone. The table says what
// it holds in a set of notes, a digest of each set's content; a driver that starts
// compares those with what it wants before it reads anything else.
package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/conntrack"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
)

// Options configure a Driver; the zero value is right for an agent.
type Options struct {
	// Log receives what happens in the background; nil: slog.Default().
	Log *slog.Logger
	// Shared leaves the table without an owner even where the kernel could
	// protect it from others, as on kernels before 6.9.
	Shared bool
	// Policy makes the driver judge what may pass; states must have a Policy then.
	Policy bool
	// KeepEstablished lets connections go on that policy has come to forbid.
	KeepEstablished bool
	// Remembered, if set, is asked where another program has sent clients of services with session affinity, by an adoption that
	// finds no table: the new one begins with that, so that those clients stay where they are. It is called
	// from the goroutine that adopts. What it returns beside an error counts, and what it says of backends that are none is left out.
	Remembered func(context.Context) ([]state.Remembered, error)
}

// Driver programs the network namespace of the thread that opened it.
type Driver struct {
	prog    *program
	canOwn  bool // the kernel can protect a table
	ct      *conntrack.Conn
	cleaner *conntrack.Cleaner
	log     *slog.Logger

	background sync.WaitGroup
	life       context.Context // of what works in the background
	end        context.CancelFunc
	forget     forgetter
	reader     reader
	remembered func(context.Context) ([]state.Remembered, error)
	cut        *cutter      // nil: without policy, or what is established goes on
	close      func() error // once

	mu      sync.Mutex // held by every method, and by what works in the background for moments
	sock    *socket
	owned   bool         // the table is protected
	state   *state.State // what the kernel holds, as far as we know; nil before the first adoption
	sums    []sum        // of each set's content, by id
	roster  *roster
	gen     uint32    // the kernel's generation up to which nobody else interfered
	doubt   bool      // others may have changed what we programmed: trust no note
	looked  time.Time // when the kernel was last compared with what is wanted
	adopted bool      // state is what the kernel holds
	kept    int       // elements in the kernel that stay though the state does not name them
}

var (
	_ driver.Driver  = (*Driver)(nil)
	_ driver.Auditor = (*Driver)(nil)
	_ driver.Keeper  = (*Driver)(nil)
)

// Open opens the driver's sockets in the calling thread's network namespace,
// where they stay. It changes nothing.
func Open(o Options) (*Driver, error) {
	log := o.Log
	if log == nil {
		log = slog.Default()
	}
	sock, err := dial()
	if err != nil {
		return nil, err
	}
	ct, err := conntrack.Open()
	if err != nil {
		return nil, errors.Join(err, sock.close())
	}
	forget, err := dial()
	if err != nil {
		return nil, errors.Join(err, ct.Close(), sock.close())
	}
	read, err := dial()
	if err != nil {
		return nil, errors.Join(err, forget.close(), ct.Close(), sock.close())
	}
	d := &Driver{
		prog: newProgram(o.Policy), canOwn: !o.Shared && canOwn(sock), log: log,
		ct: ct, cleaner: conntrack.NewCleaner(ct, log), sock: sock,
		forget: forgetter{reader: forget, wake: make(chan struct{}, 1)},
		reader: reader{sock: read}, remembered: o.Remembered,
	}
	d.life, d.end = context.WithCancel(context.Background())
	d.close = sync.OnceValue(d.closeAll)
	if o.Policy && !o.KeepEstablished {
		if d.cut, err = newCutter(); err != nil {
			return nil, errors.Join(err, d.Close())
		}
		d.background.Go(d.cutForbidden)
	}
	d.background.Go(d.forgetAffinity)
	return d, nil
}

// Close implements driver.Driver.
func (d *Driver) Close() error { return d.close() }

func (d *Driver) closeAll() error {
	d.end()
	d.background.Wait()
	if d.cut != nil {
		d.cut.routes.Close()
	}
	d.cleaner.Close()
	return errors.Join(d.ct.Close(), d.forget.reader.close(), d.reader.sock.close(), d.sock.close())
}

// canOwn asks the kernel whether it knows tables that outlive their owner, by
// creating one that is gone before anyone could see it.
func canOwn(s *socket) bool {
	b := newBatch(TableName + "-probe")
	b.addTable(tableFlagOwner | tableFlagPersist)
	b.do(&b.before, unix.NFT_MSG_DELTABLE, 0, "delete it", b.tableName)
	_, err := b.send(s)
	return err == nil
}

// Probe implements driver.Driver: it has the kernel build the whole program in
// a transaction that undoes itself.
func (d *Driver) Probe(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	b := newBatch(TableName + "-probe")
	b.addTable(0)
	b.addProgram(d.prog, nil, nil)
	b.do(&b.after, unix.NFT_MSG_DELTABLE, 0, "delete it", b.tableName)
	switch _, err := b.send(d.sock); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("program nftables: %w: the agent needs the capability CAP_NET_ADMIN in the network namespace it serves", err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("program nftables: %w: %w (Linux 6.1 with nf_tables, nft_nat, nft_masq, nft_fib_inet, nft_reject_inet, nft_numgen, nft_hash and nft_ct is known to do; for policy, with nft_limit, nft_log, nft_objref and nfnetlink_log, too)", driver.ErrNotSupported, err)
	default:
		return fmt.Errorf("program nftables: %w", err)
	}
}

// sum stands for a set's content: the number of its elements and the exclusive or of
// their digests.
type sum struct {
	count  int
	digest uint64
}

func (s *sum) add(e *element)    { s.count++; s.digest ^= e.digest() }
func (s *sum) remove(e *element) { s.count--; s.digest ^= e.digest() }

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.adopted {
		return nil, errors.New("update before anything was adopted")
	}
	c := d.newChange()
	if delta.Settings != nil {
		c.replace(
			func(yield func(*element)) { d.prog.settingsElements(d.state.Settings, yield) },
			func(yield func(*element)) { d.prog.settingsElements(*delta.Settings, yield) })
	}
	changeMembers(c, d.state.ClusterIPs, delta.ClusterIPs, d.prog.clusterIPElement)
	changeMembers(c, d.state.OtherIPs, delta.OtherIPs, d.prog.otherIPElement)
	changeMembers(c, d.state.Hairpins, delta.Hairpins, d.prog.hairpinElement)
	for k, f := range delta.Frontends {
		c.frontend(k, d.state.Frontends[k], f)
	}
	var suspects suspects
	if d.prog.policy != nil && delta.Policy.Len() > 0 {
		c.policy(d.state.Policy, delta.Policy)
		suspects = suspectsOf(d.state.Policy, delta.Policy)
	}
	return c.plan(func() {
		d.state.Apply(delta)
		d.suspect(suspects)
		if len(delta.Policy.Programs) > 0 {
			d.prog.forgetUnused(d.state.Policy)
		}
	}), nil
}

// change gathers the operations that lead from one state to another.
type change struct {
	d     *Driver
	batch *batch
	sums  []sum   // of the sets afterwards
	uses  *roster // afterwards; the driver's own as long as it is the same
	sets  []*set  // of deny lists, if they are others afterwards
	gone  []*set  // and what goes for that
	cuts  []conntrack.Filter
	// unremember is set if a frontend with affinity lost a backend for some client.
	unremember bool
	old        map[setKey]element // scratch
}

type setKey struct {
	set uint32
	elementKey
}

func (d *Driver) newChange() *change {
	return &change{d: d, batch: newBatch(TableName), sums: slices.Clone(d.sums), uses: d.roster, old: map[setKey]element{}}
}

func (c *change) add(e *element) {
	c.batch.add(e)
	c.sums[e.set.id].add(e)
}

func (c *change) remove(e *element) {
	c.batch.delete(e)
	c.sums[e.set.id].remove(e)
}

// replace plans the difference between two lists of elements.
func (c *change) replace(before, after func(yield func(*element))) {
	clear(c.old)
	if before != nil {
		before(func(e *element) { c.old[setKey{e.set.id, e.elementKey}] = *e })
	}
	if after != nil {
		after(func(e *element) {
			key := setKey{e.set.id, e.elementKey}
			old, ok := c.old[key]
			if ok {
				delete(c.old, key)
				if old.sameValue(e) {
					return
				}
				c.remove(&old)
			}
			c.add(e)
		})
	}
	for _, e := range c.old {
		c.remove(&e)
	}
}

// changeMembers plans what really changes of a set of values.
func changeMembers[K comparable](c *change, have map[K]struct{}, want map[K]bool, elements func(K, func(*element))) {
	for k, in := range want {
		if _, had := have[k]; in == had {
			continue
		}
		if in {
			elements(k, c.add)
		} else {
			elements(k, c.remove)
		}
	}
}

func (c *change) frontend(k state.FrontendKey, before, after *state.Frontend) {
	elements := func(f *state.Frontend) func(func(*element)) {
		if f == nil {
			return nil
		}
		return func(yield func(*element)) { c.d.prog.frontendElements(k, f, yield) }
	}
	c.d.prog.learnRuling(k, after, c.use)
	c.d.prog.learnRuling(k, before, c.release)
	c.replace(elements(before), elements(after))
	c.cuts = append(c.cuts, cuts(k, before, after)...)
	c.unremember = c.unremember || losesAffinity(before, after)
}

// use counts a use of chains that are added if they are not there.
func (c *change) use(r []ruling) { c.changeUses().use(r...) }

func (c *change) release(r []ruling) { c.changeUses().release(r[0].name) }

func (c *change) changeUses() *roster {
	if c.uses == c.d.roster {
		c.uses = c.d.roster.clone()
	}
	return c.uses
}

// plan closes the transaction.
func (c *change) plan(done func()) *plan {
	if c.uses != c.d.roster {
		c.batch.changeRoster(c.d.roster, c.uses)
	}
	for _, s := range c.gone {
		c.batch.deleteSet(&c.batch.after, s.name)
	}
	c.noteSums()
	return &plan{d: c.d, batch: c.batch, done: func() {
		done()
		c.d.prog.setDenied(c.sets)
		c.d.sums, c.d.roster = c.sums, c.uses
		c.d.adopted = true
		c.d.cleaner.Cut(c.cuts)
		if c.unremember {
			c.d.forget.poke()
		}
	}}
}

// noteSums writes down the sums that changed.
func (c *change) noteSums() {
	for _, s := range c.d.prog.sets {
		now := s
		for _, next := range c.sets {
			if next.id == s.id {
				now = next
			}
		}
		if now == s && c.sums[s.id] == c.d.sums[s.id] {
			continue // as for nearly all sets: no texts need to be made and compared
		}
		if before, after := sumNote(s, c.d.sums[s.id]), sumNote(now, c.sums[s.id]); before != after {
			c.batch.note(c.d.prog, s.id, before, after)
		}
	}
}

// sumNote is the note on a set; a set that was never filled has none.
func sumNote(s *set, sum sum) string {
	if sum.count == 0 && sum.digest == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %d elements, digest %016x", s.name, sum.count, sum.digest)
}

// plan is a transaction and what it makes of the driver.
type plan struct {
	d     *Driver
	batch *batch
	done  func()

	found *found // the table as it was read; nil: there was none, or it is ours
	spent bool
}

// Len implements driver.Plan.
func (p *plan) Len() int { return p.batch.changes }

// String implements driver.Plan.
func (p *plan) String() string { return p.batch.String() }

// Apply implements driver.Plan. The whole plan is one transaction of the kernel.
func (p *plan) Apply(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.spent {
		return errors.New("apply a plan a second time")
	}
	if err := p.d.claim(ctx, p.found); err != nil {
		return fmt.Errorf("change nftables: %w", err)
	}
	p.spent = true
	if err := p.d.commit(ctx, p.batch); err != nil {
		return err
	}
	p.done()
	return nil
}

// commit sends a batch and, where others could interfere, watches for their transactions around it.
func (d *Driver) commit(ctx context.Context, b *batch) error {
	d.adopted = false
	if d.owned {
		if _, err := b.send(d.sock); err != nil {
			return fmt.Errorf("change nftables: %w", err)
		}
		return nil
	}
	before, err := d.generation(ctx)
	if err != nil {
		return err
	}
	sent, err := b.send(d.sock)
	if err != nil {
		return fmt.Errorf("change nftables: %w", err)
	}
	after, err := d.generation(ctx)
	if err == nil && before == d.gen && after == before+sent {
		d.gen = after // nobody else came in between; otherwise Tampered looks closer
	}
	return nil // what was sent is done, whether or not the generation could be read again
}
