// Package upkeep ends or labels connections that a change of the desired state no longer allows,
// whatever driver carries it out: entries of connection tracking whose backend is gone are deleted,
// and connections that policy has come to forbid are labelled, which the drivers' rulesets drop.
package upkeep

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/passes"
	"sluice.dev/sluice/internal/state"
)

// Driver adds the upkeep of connections to a driver: after a plan is applied, connections are dealt
// with in the background. It implements driver.Driver, and owns the driver that it wraps.
type Driver struct {
	driver.Driver
	ct      *conntrack.Conn
	cleaner *passes.Passes[cleaning]
	links   *link.Reader
	log     *slog.Logger

	life  context.Context // of what works in the background
	end   context.CancelFunc
	farms *farms
	cut   *cutter      // nil: without policy, or what is established goes on
	close func() error // once

	adopted    bool // a plan of Adopt was applied
	unfinished bool // a plan has failed since, and may have been carried out in part
	unlisted   bool // the kernel may hold frontends that Held does not have: of an earlier process

	// applying is held while a plan is applied, so that kept belongs to the state that the driver
	// holds.
	applying sync.Mutex
	kept     *kept

	flows sync.Mutex // of what follows
	seed  maphash.Seed
	tally driver.Tally[uint64] // of bytes, by a digest of the flow: millions may be there
}

// Open gives a driver the upkeep of connections, in the calling thread's network namespace, where
// the driver has to be, with the options that the driver has. If it fails, the driver is closed.
func Open(of driver.Driver, o driver.Options) (*Driver, error) {
	ct, err := conntrack.Open()
	if err != nil {
		return nil, errors.Join(err, of.Close())
	}
	links, err := link.Open()
	if err != nil {
		return nil, errors.Join(err, ct.Close(), of.Close())
	}
	d := &Driver{Driver: of, ct: ct, links: links, log: o.Log, kept: newKept(driver.Kept{}), farms: newFarms(), unlisted: true, seed: maphash.MakeSeed()}
	if d.log == nil {
		d.log = slog.Default()
	}
	d.life, d.end = context.WithCancel(context.Background())
	d.cleaner = passes.Start(passes.Work[cleaning]{Merge: (*cleaning).merge, Pass: d.cleanNow, Pause: cleaning.pause})
	d.close = sync.OnceValue(d.closeAll)
	if o.Policy && !o.KeepEstablished && of.Capabilities().Can&driver.Policy != 0 {
		if d.cut, err = newCutter(d); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// Close does what is left to be done, and closes the driver.
func (d *Driver) Close() error { return d.close() }

func (d *Driver) closeAll() error {
	var err error
	d.cleaner.Close()
	if d.cut != nil {
		err = d.cut.close()
	}
	d.end()
	d.links.Close()
	return errors.Join(err, d.ct.Close(), d.Driver.Close())
}

// AwaitCuts returns once all connections have ended that the plans applied before do not allow, and
// no client is sent to a former backend any more. Safe for concurrent use.
func (d *Driver) AwaitCuts(ctx context.Context) error {
	err := d.cleaner.Wait(ctx)
	if d.cut != nil {
		err = errors.Join(err, d.cut.Wait(ctx))
	}
	if s := d.Capabilities().Settler; s != nil {
		err = errors.Join(err, s.Settle(ctx))
	}
	return err
}

// FlowsCut returns how many established connections were cut because policy came to forbid them, or
// given back. Safe for concurrent use.
func (d *Driver) FlowsCut() uint64 {
	if d.cut == nil {
		return 0
	}
	return d.cut.total.Load()
}

// Adopt implements driver.Driver.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	p, err := d.Driver.Adopt(ctx, want, keep)
	if err != nil {
		return nil, err
	}
	// What was set aside is tried again, which no plan shows.
	changed := !d.adopted || p.Len() > 0 || len(d.SetAside()) > 0
	return &plan{p, d, d.frontendsWithout(ctx, want, keep, p), d.sourcesNow(), func() { d.hasAdopted(want, p.Kept(), changed) }}, nil
}

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	p, err := d.Driver.Update(ctx, delta)
	if err != nil {
		return nil, err
	}
	// What is set aside, or was, has consequences that the change does not name.
	s := state.About{All: len(d.SetAside()) > 0}
	d.Held(func(held *state.State) {
		if held.Policy != nil && d.cut != nil {
			s.Merge(delta.Policy.About(held.Policy))
		}
	})
	return &plan{p, d, d.frontendsNow(delta.Services.Frontends), d.sourcesNow(), func() {
		d.clean(d.farms.follow(delta.Farms.Farms))
		s.All = s.All || len(d.SetAside()) > 0
		if delta.Policy.Len() > 0 {
			d.cut.suspect(s)
		}
	}}, nil
}

// hasAdopted follows an adoption: it looks for connections that began or changed while nothing
// followed them.
func (d *Driver) hasAdopted(want *state.State, kept driver.Kept, changed bool) {
	changed = changed || d.unfinished
	if want.Services != nil {
		d.unlisted = kept.Services > 0
	}
	if want.Farms != nil {
		d.unlisted = false
		d.farms.replace(want.Farms)
	}
	if want.Policy != nil {
		// While something is kept, the kernel knows policies that the state does not.
		if whole := d.kept.Policy > 0 && kept.Policy == 0; changed || whole {
			d.cut.suspect(state.About{All: true})
		}
		d.kept = newKept(kept)
	}
	d.clean(cleaning{sweep: changed})
	d.adopted, d.unfinished = true, false
}

// plan is a plan of the driver's, with what is to follow it.
type plan struct {
	driver.Plan
	d      *Driver
	before map[state.FrontendKey]*state.Frontend // those that it may change
	from   []state.SNAT                          // that there were before it
	then   func()
}

// Apply implements driver.Plan. A plan that fails may have been carried out in part: the next
// adoption deals with the connections then.
func (p *plan) Apply(ctx context.Context) error {
	p.d.applying.Lock()
	defer p.d.applying.Unlock()
	err := p.Plan.Apply(ctx)
	p.d.clean(cleaning{filters: cutsBetween(p.before, p.d.frontendsNow(p.before))})
	if err != nil {
		p.d.unfinished = true
		return err
	}
	p.d.clean(cleaning{lost: lost(p.from, p.d.sourcesNow())})
	p.then()
	return nil
}

var _ driver.Driver = (*Driver)(nil)
