package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Farms carries out the farms of a balancer: a virtual server for each address, protocol and port
// of a farm. It programs the network namespace of the thread that opened it.
type Farms struct {
	host

	// Under the host's mutex.
	tried  map[string]bool             // schedulers that the kernel has
	state  *state.Farms                // what was last applied, with what is set aside; nil before the first adoption
	unable map[string]string           // farms that IPVS cannot carry out, and why
	fronts map[state.FrontendKey]front // of all other farms
	aside  map[state.FrontendKey]bool  // fronts that the kernel does not have
	tally  driver.Tally[destinationKey]
}

var _ driver.Driver = (*Farms)(nil)

// front is what a virtual address and port of a farm come to.
type front struct {
	farm   string
	server *server // nil: it has gone
	aside  string  // why the kernel does not have it; "": it has
}

// OpenFarms opens the driver's sockets in the calling thread's network namespace, where they stay.
// It changes nothing. Former values of kernel parameters are noted in the file record, from which
// they can be restored; "": they are not noted.
func OpenFarms(record string) (*Farms, error) {
	d := &Farms{tried: map[string]bool{}, unable: map[string]string{}, fronts: map[state.FrontendKey]front{}, aside: map[state.FrontendKey]bool{}}
	if err := d.open(ownerFarms, FarmRouteProtocol, record, farmParameters); err != nil {
		return nil, err
	}
	return d, nil
}

// Capabilities implements driver.Driver.
func (d *Farms) Capabilities() driver.Capabilities {
	return driver.Capabilities{Name: "ipvs", Can: driver.Farms | driver.Survives | driver.AuditsCheaply}
}

// forFarms is told where the kernel has no IPVS.
var forFarms = &probe.Requirement{Name: "IPVS", Since: "5.9", Modules: []string{"ip_vs"}}

// Probe implements driver.Driver.
func (d *Farms) Probe(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := forFarms.MetBy(func() error { _, err := d.conn.services(); return err })
	switch {
	case errors.Is(err, probe.ErrNotSupported):
		return fmt.Errorf("%w: 'modprobe ip_vs' loads it where the kernel has it as a module", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: the balancer needs the capability CAP_NET_ADMIN in the network namespace it serves", err)
	}
	return err
}

// Check says what of a farm the driver cannot carry out, or this kernel; nil: it can do all. The
// error names the attribute as nftlb does. Safe for concurrent use.
func (d *Farms) Check(f *model.Farm) error {
	if err := checkFarm(f); err != nil {
		return err
	}
	scheduler := methodOf(f).scheduler
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.tried[scheduler] {
		if err := tryScheduler(d.conn, scheduler); err != nil {
			return fmt.Errorf("scheduler: IPVS cannot do %s: %w", f.Scheduler, err)
		}
		d.tried[scheduler] = true
	}
	return nil
}

// Held implements driver.Driver.
func (d *Farms) Held(f func(*state.State)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil {
		return
	}
	held := d.state
	if aside := d.SetAside(); len(aside) > 0 {
		held = held.Clone()
		for _, a := range aside {
			delete(held.Farms, a.Name.Name)
		}
	}
	f(&state.State{Farms: held})
}

func (d *Farms) publish() {
	var all []driver.SetAside
	add := func(farm, inForce, reason string) {
		all = append(all, driver.SetAside{Kind: string(model.FarmKind), Name: model.Name{Name: farm}, InForce: inForce, Reason: reason})
	}
	for farm, why := range d.unable {
		add(farm, model.InForceNothing, why)
	}
	for k := range d.aside {
		add(d.fronts[k].farm, model.InForceRest, fmt.Sprintf("%s is not served: %s", k, d.fronts[k].aside))
	}
	d.Publish(all)
}

// farmPlan is a change of IPVS and the routes.
type farmPlan struct {
	d *Farms
	change
	fronts map[state.FrontendKey]front // that it is about
	done   func()
}

// Len implements driver.Plan.
func (p *farmPlan) Len() int { return p.change.len() }

// String implements driver.Plan.
func (p *farmPlan) String() string { return p.text("") }

// Kept implements driver.Plan.
func (p *farmPlan) Kept() driver.Kept { return driver.Kept{} }

// Apply implements driver.Plan.
func (p *farmPlan) Apply(context.Context) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	refused, err := p.d.prepare(&p.change)
	if err == nil {
		err = p.d.finish(&p.change, refused)
	}
	if err != nil {
		return err
	}
	p.done()
	for k, one := range p.fronts {
		if why := refused[k]; why != "" {
			one.aside = why
		}
		if delete(p.d.aside, k); one.aside != "" {
			p.d.aside[k] = true
		}
		if p.d.fronts[k] = one; one.server == nil {
			delete(p.d.fronts, k)
		}
	}
	p.d.publish()
	return nil
}

// turn plans that the kernel comes to have the fronts that the plan is about.
func (p *farmPlan) turn(have func(state.FrontendKey) *server) {
	for _, k := range slices.SortedFunc(maps.Keys(p.fronts), state.FrontendKey.Compare) {
		if p.fronts[k].aside == "" {
			p.before, p.after = changes(p.before, p.after, k, have(k), p.fronts[k].server)
		}
	}
}

// frontsOf adds what a farm comes to, or says why IPVS cannot carry it out.
func frontsOf(f *state.Farm, to map[state.FrontendKey]front) error {
	if err := checkFarm(f.Farm); err != nil {
		return err
	}
	for k, s := range farmServers(f) {
		to[k] = front{farm: f.Name, server: s}
	}
	return nil
}

// Update implements driver.Driver.
func (d *Farms) Update(_ context.Context, delta state.Delta) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil {
		return nil, errors.New("update farms that were never adopted")
	}
	p := &farmPlan{d: d, fronts: map[state.FrontendKey]front{}}
	for name := range delta.Farms.Farms {
		if old := d.state.Farms[name]; old != nil && d.unable[name] == "" {
			for k := range farmServers(old) {
				p.fronts[k] = front{}
			}
		}
	}
	unable := map[string]string{}
	for name, f := range delta.Farms.Farms {
		if unable[name] = ""; f != nil {
			if err := frontsOf(f, p.fronts); err != nil {
				unable[name] = err.Error()
			}
		}
	}
	touched := map[netip.Addr]int{}
	for k, now := range p.fronts {
		if now.server != nil {
			touched[k.Addr]++
		}
		if d.fronts[k].server != nil {
			touched[k.Addr]--
		}
	}
	p.turn(d.has)
	routes, routed, err := d.planRoutes(touched)
	if err != nil {
		return nil, err
	}
	p.routes = routes
	p.done = func() {
		routed()
		d.state.Apply(delta.Farms)
		for name, why := range unable {
			if delete(d.unable, name); why != "" {
				d.unable[name] = why
			}
		}
	}
	return p, nil
}

// has is a virtual server that the kernel has; nil: it has none.
func (d *Farms) has(k state.FrontendKey) *server {
	if one := d.fronts[k]; one.aside == "" {
		return one.server
	}
	return nil
}

// Adopt implements driver.Driver.
func (d *Farms) Adopt(_ context.Context, want *state.State, _ driver.Keep) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &farmPlan{d: d, fronts: map[state.FrontendKey]front{}, done: func() {}}
	if want.Farms == nil {
		return p, nil
	}
	have, others, found, err := d.read()
	if err != nil {
		return nil, err
	}
	unable, uses := map[string]string{}, map[netip.Addr]int{}
	for name, f := range want.Farms.Farms {
		if err := frontsOf(f, p.fronts); err != nil {
			unable[name] = err.Error()
		}
	}
	for k, one := range p.fronts {
		if uses[k.Addr]++; others[k] {
			one.aside = foreign
			p.fronts[k] = one
		}
	}
	for k := range have {
		if _, wanted := p.fronts[k]; !wanted {
			p.fronts[k] = front{}
		}
	}
	p.turn(func(k state.FrontendKey) *server { return have[k] })
	routed, err := d.adopt(&p.change, found, uses)
	if err != nil {
		return nil, err
	}
	next := want.Farms.Clone()
	p.done = func() {
		routed()
		d.state, d.unable, d.fronts, d.aside = next, unable, map[state.FrontendKey]front{}, map[state.FrontendKey]bool{}
	}
	return p, nil
}

// Tampered implements driver.Driver.
func (d *Farms) Tampered(context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tampered(func(yield func(state.FrontendKey) bool) {
		for k, one := range d.fronts {
			if one.aside == "" && !yield(k) {
				return
			}
		}
	})
}

// Purge implements driver.Driver. Kernel parameters stay as they are, as the record in which they
// are noted has those of the balancer, too.
func (d *Farms) Purge(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = nil
	clear(d.unable)
	clear(d.fronts)
	clear(d.aside)
	d.publish()
	_, err := d.purge()
	return err
}
