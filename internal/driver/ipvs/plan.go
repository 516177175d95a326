package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// plan is a change of IPVS and the routes around one of nftables. What new connections need is
// there before nftables lets them come, and what none needs any more goes afterwards.
type plan struct {
	driver.Plan // of nftables
	d           *Driver

	change
	// astray are flows to what nobody has served until now. Connection tracking knows them as not
	// translated: IPVS would serve them, and nothing would masquerade them.
	astray []conntrack.Filter
	// served are frontends that nftables sends to backends by itself, as it is the first time that
	// IPVS is to do so: none of their flows is astray.
	served map[state.FrontendKey]bool
	// frontends are those that it is about, nil where one goes; foreign are where other programs
	// have virtual servers.
	frontends map[state.FrontendKey]*state.Frontend
	foreign   map[state.FrontendKey]bool
	// done has the driver hold what the plan leads to.
	done func()
}

// Len implements driver.Plan.
func (p *plan) Len() int {
	return p.Plan.Len() + p.change.len()
}

// String implements driver.Plan.
func (p *plan) String() string {
	return p.text(p.Plan.String())
}

// Apply implements driver.Plan.
func (p *plan) Apply(ctx context.Context) error {
	refused, err := p.prepare()
	if err != nil {
		return err
	}
	if err := p.Plan.Apply(ctx); err != nil {
		return err
	}
	if len(refused) > 0 { // nftables must not lead to what is not there
		delta := state.Delta{}
		delta.Services.Frontends = map[state.FrontendKey]*state.Frontend{}
		for k := range refused {
			delta.Services.Frontends[k] = nil
		}
		without, err := p.d.Driver.Update(ctx, delta)
		if err == nil {
			err = without.Apply(ctx)
		}
		if err != nil {
			return err
		}
	}
	if _, err := p.d.tracked.Delete(ctx, p.astray, nil); err != nil {
		return err
	}
	return p.finish(refused)
}

// prepare does all that comes before nftables. It returns what IPVS refused, and why.
func (p *plan) prepare() (map[state.FrontendKey]string, error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.d.prepare(&p.change)
}

// finish does all that comes after nftables.
func (p *plan) finish(refused map[state.FrontendKey]string) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if err := p.d.finish(&p.change, refused); err != nil {
		return err
	}
	p.done()
	for k, f := range p.frontends {
		delete(p.d.aside, k)
		delete(p.d.have, k)
		why := refused[k]
		if why == "" && p.foreign[k] {
			why = foreign
		}
		switch {
		case f != nil && why != "":
			p.d.aside[k] = setAside{f, why}
		case f != nil:
			p.d.have[k] = f
		}
	}
	p.d.publish()
	return nil
}

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	base, err := d.Driver.Update(ctx, delta)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &plan{Plan: base, d: d, frontends: delta.Services.Frontends, done: func() {}}
	if delta.Services.Len() == 0 {
		return p, nil
	}
	if d.have == nil {
		return nil, errors.New("update services that were never adopted")
	}
	touched := map[netip.Addr]int{}
	for _, k := range slices.SortedFunc(maps.Keys(delta.Services.Frontends), state.FrontendKey.Compare) {
		now := delta.Services.Frontends[k]
		p.turn(k, d.serverOf(k, d.have[k]), d.serverOf(k, now))
		if usesRoute(now) {
			touched[k.Addr]++
		}
		if usesRoute(d.had(k)) {
			touched[k.Addr]--
		}
	}
	p.routes, p.done, err = d.planRoutes(touched)
	return p, err
}

// turn plans that one version of a virtual server follows another.
func (p *plan) turn(k state.FrontendKey, old, now *server) {
	n := len(p.after)
	p.before, p.after = changes(p.before, p.after, k, old, now)
	if old == nil && p.served[k] {
		p.before, p.after = append(p.before, p.after[n:]...), p.after[:n]
	}
	if k.Protocol == model.UDP && now.serves() && !old.serves() {
		at := netip.AddrPortFrom(k.Addr, k.Port)
		p.astray = append(p.astray, conntrack.Filter{Protocol: k.Protocol, Frontend: at, Backend: at})
	}
}

// had is a frontend as it was given before, whether or not IPVS took it.
func (d *Driver) had(k state.FrontendKey) *state.Frontend {
	if f := d.have[k]; f != nil {
		return f
	}
	return d.aside[k].frontend
}

// Adopt implements driver.Driver.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	if want.Services == nil {
		return d.Driver.Adopt(ctx, want, keep)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	have, others, found, err := d.read()
	if err != nil {
		return nil, err
	}
	p := &plan{d: d, frontends: maps.Clone(want.Services.Frontends), foreign: others}
	if len(have)+len(found) == 0 {
		if p.served, err = d.Driver.Frontends(ctx); err != nil {
			return nil, err
		}
	}
	d.compare(p, have, keep.Services)
	if err := d.compareRoutes(p, found, want.Services, keep.Services); err != nil {
		return nil, err
	}
	if p.Plan, err = d.Driver.Adopt(ctx, p.without(want), keep); err != nil {
		return nil, err
	}
	return p, nil
}

// compare plans what makes of the kernel's virtual servers those of the plan's frontends. With
// keep, those that no frontend names stay.
func (d *Driver) compare(p *plan, have map[state.FrontendKey]*server, keep bool) {
	keys := slices.Collect(maps.Keys(p.frontends))
	for k := range have {
		if _, named := p.frontends[k]; !named && !keep {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, state.FrontendKey.Compare)
	for _, k := range keys {
		if p.foreign[k] {
			continue
		}
		p.turn(k, have[k], d.serverOf(k, p.frontends[k]))
	}
}

// compareRoutes does the same for routes and parameters.
func (d *Driver) compareRoutes(p *plan, found routes, want *state.Services, keep bool) error {
	routed, err := d.adopt(&p.change, found, usesOf(want))
	if err != nil {
		return err
	}
	if keep {
		p.routes.remove = routes{}
	}
	p.done = func() {
		routed()
		d.have, d.aside = map[state.FrontendKey]*state.Frontend{}, map[state.FrontendKey]setAside{}
	}
	return nil
}

// without is the state for nftables: without frontends that IPVS cannot serve.
func (p *plan) without(want *state.State) *state.State {
	some := *want
	some.Services = want.Services.Clone()
	for k := range p.foreign {
		delete(some.Services.Frontends, k)
	}
	return &some
}
