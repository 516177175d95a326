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
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/nft"
	"sluice.dev/sluice/internal/driver/nftables/program"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/wake"
)

// Options are those of any driver, and what tests change beside.
type Options struct {
	driver.Options
	// Shared leaves the table without an owner even where the kernel could
	// protect it from others, as on kernels before 6.9.
	Shared bool
	// Apart has rules asked in chains of their own, as large ones are, however small they are.
	Apart bool
}

// Driver programs the network namespace of the thread that opened it.
type Driver struct {
	prog   *program.Program
	canOwn bool // the kernel can protect a table
	log    *slog.Logger

	background sync.WaitGroup
	life       context.Context // of what works in the background
	end        context.CancelFunc
	forget     forgetter
	reader     reader
	remembered func(context.Context) ([]state.Remembered, error)
	close      func() error // once

	told atomic.Pointer[[]driver.SetAside]

	mu    sync.Mutex // held by every method, and by what works in the background for moments
	sock  *nft.Socket
	owned bool         // the table is protected
	state *state.State // what the kernel holds, as far as we know; nil before the first adoption
	table string       // its name
	// building: it is a table that no packet is judged by yet.
	building  bool
	aside     *aside   // what the kernel refused
	failures  failures // adoptions that failed one after the other
	sums      []sum    // of each set's content, by id
	chainRefs *program.ChainRefs
	gen       uint32    // the kernel's generation up to which nobody else interfered
	doubt     bool      // others may have changed what we programmed: trust no note
	looked    time.Time // when the kernel was last compared with what is wanted
	adopted   parts     // those of which state is what the kernel holds
}

var _ driver.Driver = (*Driver)(nil)

// Capabilities implements driver.Driver.
func (d *Driver) Capabilities() driver.Capabilities {
	c := driver.Capabilities{Name: "nftables", Can: driver.All, Counter: d, Rememberer: d, Lister: d}
	if !d.prog.HasPolicy() {
		c.Can &^= driver.Policy | driver.HostPolicy | driver.UntrackedPolicy
	}
	return c
}

// Held implements driver.Driver.
func (d *Driver) Held(f func(*state.State)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != nil {
		f(d.state)
	}
}

// Open opens the driver's sockets in the calling thread's network namespace,
// where they stay. It changes nothing.
func Open(o Options) (*Driver, error) {
	log := o.Log
	if log == nil {
		log = slog.Default()
	}
	sock, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	forget, err := nft.Dial()
	if err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	read, err := nft.Dial()
	if err != nil {
		return nil, errors.Join(err, forget.Close(), sock.Close())
	}
	d := &Driver{
		table: program.TableName, aside: newAside(), prog: program.New(o.Policy), canOwn: !o.Shared && Protection.Met(context.Background()) == nil, log: log, sock: sock,
		forget: forgetter{reader: forget, wake: wake.New()},
		reader: reader{sock: read}, remembered: o.Remembered,
	}
	if o.Apart {
		d.prog.AskApart()
	}
	d.life, d.end = context.WithCancel(context.Background())
	d.close = sync.OnceValue(d.closeAll)
	d.background.Go(d.forgetAffinity)
	return d, nil
}

// Close implements driver.Driver.
func (d *Driver) Close() error { return d.close() }

func (d *Driver) closeAll() error {
	d.end()
	d.background.Wait()
	return errors.Join(d.forget.reader.Close(), d.reader.sock.Close(), d.sock.Close())
}

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.adopted.all(partsOf(delta)) {
		return nil, errors.New("update before everything was adopted that the change is about")
	}
	next := d.aside.clone()
	p := d.planUpdate(next.recall(delta, d.state))
	p.aside = next
	return p, nil
}

// planUpdate plans a change, as one transaction or what stands for one.
func (d *Driver) planUpdate(delta state.Delta) *plan {
	c := d.newChange()
	if delta.Services.Settings != nil {
		c.rewrite(
			func(yield func(*nft.Element)) { d.prog.SettingsElements(d.state.Services.Settings, yield) },
			func(yield func(*nft.Element)) { d.prog.SettingsElements(*delta.Services.Settings, yield) })
	}
	changeMembers(c, d.state.Services.ClusterIPs, delta.Services.ClusterIPs, d.prog.ClusterIPElement)
	changeMembers(c, d.state.Services.OtherIPs, delta.Services.OtherIPs, d.prog.OtherIPElement)
	changeMembers(c, d.state.Services.Hairpins, delta.Services.Hairpins, d.prog.HairpinElement)
	for k, f := range delta.Services.Frontends {
		c.frontend(k, d.state.Services.Frontends[k], f)
	}
	if d.prog.HasPolicy() && delta.Policy.Len() > 0 {
		c.policy(d.state.Policy, delta.Policy)
	}
	p := c.plan(partsOf(delta), func() {
		d.state.Apply(delta)
		d.prog.ForgetWritten(d.state.Policy)
	})
	p.refused = func(ctx context.Context, sent uint32, refusal error) error {
		if err := d.takeBack(ctx, p.of, sent, refusal); !d.refused(err) {
			return err
		}
		return d.admit(ctx, delta)
	}
	return p
}

// plan is a transaction and what it makes of the driver.
type plan struct {
	d     *Driver
	of    parts // that it is about
	batch *nft.Batch
	done  func()

	// refused does what can be done where the kernel refused the transaction; nil: nothing.
	refused func(ctx context.Context, sent uint32, refusal error) error
	// then, if set, follows what was carried out.
	then func(ctx context.Context) error
	// aside is what is set aside as soon as the plan is carried out; nil: what was.
	aside  *aside
	adopts bool
	kept   driver.Kept

	found *nft.Table // as it was read; nil: there was none, or it is ours
	spent bool
}

// Len implements driver.Plan.
func (p *plan) Len() int { return p.batch.Changes }

// Kept implements driver.Plan.
func (p *plan) Kept() driver.Kept { return p.kept }

// String implements driver.Plan.
func (p *plan) String() string { return p.batch.String() }

var errSpent = errors.New("apply a plan a second time")

// Apply implements driver.Plan. The whole plan is one transaction of the kernel, unless that
// refuses a part of it.
func (p *plan) Apply(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.spent {
		return errSpent
	}
	if err := p.d.claim(ctx, program.TableName, p.found); err != nil {
		return fmt.Errorf("change nftables: %w", err)
	}
	p.spent = true
	if p.aside != nil {
		p.d.aside = p.aside
	}
	err := p.d.carryOut(ctx, p)
	switch {
	case err == nil:
		p.d.tell()
	case p.adopts:
		p.d.failed(p.of, err)
	}
	return err
}

func (d *Driver) carryOut(ctx context.Context, p *plan) error {
	sent, err := d.commit(ctx, p.batch, p.of)
	switch {
	case err == nil:
		p.done()
	case p.refused == nil || !d.refused(err):
		return err
	default:
		if err := p.refused(ctx, sent, err); err != nil {
			return err
		}
	}
	if p.then != nil {
		return p.then(ctx)
	}
	return nil
}

// commit sends a batch and, where others could interfere, watches for their transactions around it.
// Beside an error it returns the number of the batch's transactions that were carried out before.
// The parts that it is about are no longer adopted, until the caller says so.
func (d *Driver) commit(ctx context.Context, b *nft.Batch, of parts) (sent uint32, err error) {
	d.adopted = d.adopted.without(of)
	var before uint32
	if !d.owned {
		if before, err = d.sock.Generation(ctx); err != nil {
			return 0, err
		}
	}
	if sent, err = b.Send(d.sock); err != nil {
		err = fmt.Errorf("change nftables: %w", err)
	}
	if !d.owned {
		after, genErr := d.sock.Generation(ctx)
		if genErr == nil && before == d.gen && after == before+sent {
			d.gen = after // nobody else came in between; otherwise Tampered looks closer
		}
	}
	return sent, err // what was sent is done, whether or not the generation could be read again
}
