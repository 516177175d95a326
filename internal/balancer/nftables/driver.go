// Package nftables carries out the farms of a balancer with an nftables table of the family inet,
// and one of the family netdev for packets that are served as they arrive. Rules are constant
// except for a chain for each way of choosing that is in use; farms and backends are elements of
// maps.
//
// What was programmed goes on working while no process of ours runs. Each table identifies its
// ruleset in a note; a driver that finds another one builds its own beside it, and only then
// removes the other.
package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Driver programs the network namespace of the thread that opened it.
type Driver struct {
	*farmTable // of family inet: all but what ingress has
	// ingress has what packets meet as they arrive by an interface.
	ingress *farmTable
	links   *netlink.Handle
	log     *slog.Logger
	close   func() error // once
	tries   tries

	published atomic.Pointer[[]driver.SetAside]

	mu    sync.Mutex   // held by every method
	state *state.Farms // what the kernel holds, as far as we know; nil before the first adoption
	// numbers are those of farms that the kernel holds, or that are about to be.
	numbers *numbers
	aside   asides       // what the kernel refused
	wanted  *state.Farms // the state with that, if there is any
	// failures are adoptions that failed one after the other.
	failures table.Failures
	tally    driver.Tally[elementKey]
}

var _ driver.Driver = (*Driver)(nil)

// Options configure the driver.
type Options struct {
	Log *slog.Logger // nil: slog.Default()
	// Clients are how many clients the kernel may remember for each purpose: rates, connections at
	// once, resets, backends; 0: a million. What is beyond is not remembered.
	Clients uint32
	// MayMiss has rules be as for kernels that need it, see nft.MayMiss: for tests.
	MayMiss bool
	// Shared leaves the tables without an owner even where the kernel could protect them from
	// others, as on kernels before 6.9: for tests.
	Shared bool
}

// Open opens the driver's socket in the calling thread's network namespace, where it stays. It
// changes nothing.
func Open(o Options) (*Driver, error) {
	d := &Driver{log: cmp.Or(o.Log, slog.Default()), numbers: newNumbers(), tries: tries{err: map[string]error{}}}
	mayMiss := o.MayMiss || nft.MayMiss()
	for at, rs := range map[**farmTable]*ruleset{&d.farmTable: newRuleset(cmp.Or(o.Clients, 1<<20), mayMiss), &d.ingress: newIngress(mayMiss)} {
		t, err := openPart(rs)
		if err != nil {
			return nil, err
		}
		t.Shared = o.Shared
		*at = t
	}
	d.ingress.Ours = d.Ours
	var err error
	if d.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open routing socket: %w", err)
	}
	d.close = sync.OnceValue(func() error {
		d.links.Close()
		return errors.Join(d.farmTable.close(), d.ingress.close())
	})
	return d, nil
}

// Close implements driver.Driver.
func (d *Driver) Close() error { return d.close() }

// Capabilities implements driver.Driver.
func (d *Driver) Capabilities() driver.Capabilities {
	return driver.Capabilities{Name: "farms", Can: driver.Farms | driver.Survives | driver.AuditsCheaply, Lister: d}
}

// Frontends implements driver.Lister: the virtual addresses of farms whose connections are tracked,
// if they are single addresses and ports, with backends or without.
func (d *Driver) Frontends(ctx context.Context) (found map[state.FrontendKey]bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err = nft.Uninterrupted(func() error {
		found = map[state.FrontendKey]bool{}
		for _, fp := range d.ruleset.families {
			s := fp.farms[exact]
			err := d.Sock.ReadSet(ctx, TableName, s, func(e nft.Element) {
				if int(e.KeyLen) == nft.KeySize(s.Key) {
					addr, proto, port := nft.Destination(e.Key[:], fp.ip.Bits/8)
					found[state.FrontendKey{Addr: addr, Protocol: model.Protocol(proto), Port: port}] = true
				}
			})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list farms of table %s: %w", TableName, err)
	}
	return found, nil
}

// Held implements driver.Driver.
func (d *Driver) Held(f func(*state.State)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != nil {
		f(&state.State{Farms: d.state})
	}
}

// together is told where the kernel refuses the ruleset.
var together = &probe.Requirement{Name: "the farms' ruleset", Since: "6.1", Modules: []string{"nf_tables", "nft_numgen", "nft_hash", "nft_nat", "nft_masq", "nft_fib_inet", "nft_log", "nft_limit"}}

// Probe implements driver.Driver: it tries the rulesets in tables that no packet meets.
func (d *Driver) Probe(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	for _, t := range d.tables() {
		t.CanOwn() // asked now: soon after a trial, the first adoption waits for the kernel to free it
		err = errors.Join(err, together.Missing(t.try(&state.Farms{})))
	}
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: the balancer needs the capability CAP_NET_ADMIN in the network namespace it serves", err)
	}
	if err != nil {
		return fmt.Errorf("program nftables: %w", err)
	}
	return nil
}

// tables are in the order in which packets meet them.
func (d *Driver) tables() []*farmTable { return []*farmTable{d.ingress, d.farmTable} }

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil {
		return nil, errors.New("update farms that were never adopted")
	}
	change, aside, want := delta.Farms, d.aside, func() *state.Farms { return applied(d.state, delta.Farms) }
	if len(aside) > 0 {
		all := applied(d.wanted, delta.Farms)
		want = func() *state.Farms { return all }
		change, aside = d.retryNamed(all, change)
	}
	p := &plan{d: d, tunnels: changeTunnels(changedTunnels(d.state, change)), aside: aside, want: want, about: change}
	for _, t := range d.tables() {
		p.changes = append(p.changes, t.update(ctx, d.state, change, d.numbers))
	}
	if leaves(d.state, change) {
		slices.Reverse(p.changes)
	}
	p.done = func(ctx context.Context) (err error) {
		for name, f := range change.Farms {
			err = errors.Join(err, d.forgetStrays(ctx, d.state.Farms[name], f))
			if f == nil {
				d.numbers.forget(name)
			}
		}
		d.state.Apply(change)
		return err
	}
	return p, ctx.Err()
}

// applied are farms after a change.
func applied(f *state.Farms, d state.FarmsDelta) *state.Farms {
	f = f.Clone()
	f.Apply(d)
	return f
}

// leaves reports whether a farm that is served at ingress will be served by the other table. That
// has to serve it before; otherwise ingress is first. (Where farms go both ways in one change,
// those that come to ingress are in neither table between the two transactions.)
func leaves(have *state.Farms, d state.FarmsDelta) bool {
	for name, now := range d.Farms {
		if old := have.Farms[name]; old != nil && old.Mode == model.DSR && now != nil && now.Mode != model.DSR {
			return true
		}
	}
	return false
}

// Adopt implements driver.Driver.
func (d *Driver) Adopt(ctx context.Context, want *state.State, _ driver.Keep) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if want.Farms == nil {
		return &plan{d: d}, nil
	}
	p, err := d.adopt(ctx, want.Farms.Clone(), d.retry(want.Farms))
	if err != nil {
		d.failures.Add(err)
		return nil, err
	}
	p.adopts = true
	return p, nil
}

// adopt plans to adopt farms without what is set aside.
func (d *Driver) adopt(ctx context.Context, want *state.Farms, aside asides) (*plan, error) {
	next, numbers := aside.without(want), newNumbers()
	p := &plan{d: d, aside: aside, want: func() *state.Farms { return want }, about: state.FarmsDelta{Farms: next.Farms}}
	err := nft.Uninterrupted(func() error {
		p.changes = nil
		for _, t := range d.tables() {
			c, err := t.adopt(ctx, next, numbers, d.state == nil, d.failures)
			if err != nil {
				return err
			}
			p.changes = append(p.changes, c)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if p.tunnels, err = d.adoptTunnels(next.Tunnels); err != nil {
		return nil, err
	}
	p.done = func(ctx context.Context) (err error) {
		if d.state != nil {
			for name, old := range d.state.Farms {
				if now := next.Farms[name]; now != old {
					err = errors.Join(err, d.forgetStrays(ctx, old, now))
				}
			}
		}
		d.state, d.numbers = next, numbers
		for _, t := range d.tables() {
			err = errors.Join(err, t.Drop(ctx, t.Next()))
		}
		return err
	}
	return p, nil
}

// Tampered implements driver.Driver. Some tunnels are looked at, too.
func (d *Driver) Tampered(ctx context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil {
		return false, nil
	}
	for _, t := range d.tables() {
		if tampered, err := t.Tampered(ctx, t.Refs.RuleCount); tampered || err != nil {
			return tampered, err
		}
	}
	return d.tunnelsGone()
}

// Purge implements driver.Driver.
func (d *Driver) Purge(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.tables() {
		if err := t.Purge(ctx); err != nil {
			return err
		}
	}
	d.state = nil
	d.setAside(nil)
	return d.purgeTunnels()
}

// plan is what changes in the tunnels and each table, in order, and what it makes of the driver.
type plan struct {
	d       *Driver
	tunnels tunnelChange
	changes []*tableChange
	done    func(context.Context) error // what follows
	aside   asides                      // what is set aside when it is carried out
	adopts  bool
	// want are all farms that are wanted, and about is the change of what the kernel may refuse.
	want  func() *state.Farms
	about state.FarmsDelta
}

// Len implements driver.Plan.
func (p *plan) Len() (n int) {
	n = len(p.tunnels.add) + len(p.tunnels.remove)
	for _, c := range p.changes {
		n += c.Batch.Changes
	}
	return n
}

// String implements driver.Plan.
func (p *plan) String() (text string) {
	text = p.tunnels.String()
	for _, c := range p.changes {
		if c.replaces != "" {
			text += fmt.Sprintf("replace table %s, as %s:\n", TableName, c.replaces)
		}
		text += c.Batch.String()
	}
	return text
}

// Kept implements driver.Plan.
func (p *plan) Kept() driver.Kept { return driver.Kept{} }

// Apply implements driver.Plan. What the kernel refuses is set aside.
func (p *plan) Apply(ctx context.Context) error {
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	err := p.apply(ctx)
	switch {
	case !p.adopts:
	case err == nil:
		d.failures = 0
	default:
		d.failures.Add(err)
	}
	return err
}

func (p *plan) apply(ctx context.Context) error {
	d := p.d
	err := p.carryOut(ctx)
	if err == nil || !refused(err) {
		return err
	}
	want := p.want()
	found, other := d.refused(want, p.about)
	if len(found) == 0 || other != nil {
		return err
	}
	d.log.Warn("the kernel refuses some of the farms; all others are served", "refused", len(found), "error", err)
	maps.Copy(found, p.aside)
	rest, err := d.adopt(ctx, want, found)
	if err != nil {
		return err
	}
	return rest.carryOut(ctx)
}

func (p *plan) carryOut(ctx context.Context) error {
	for _, to := range p.tunnels.add {
		if err := p.d.addTunnel(to); err != nil {
			return err
		}
	}
	for _, c := range p.changes {
		if err := c.send(ctx); err != nil {
			return err
		}
	}
	for _, to := range p.tunnels.remove {
		if err := p.d.removeTunnel(to); err != nil {
			return err
		}
	}
	if p.done == nil {
		return nil
	}
	if p.d.setAside(p.aside); len(p.aside) > 0 {
		p.d.wanted = p.want()
	}
	return p.done(ctx)
}
