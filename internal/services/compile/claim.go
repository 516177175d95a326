package compile

import (
	"cmp"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/lib/sorted"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// contests decide which service gets what several want: addresses and ports, and the ports of
// health checks.
type contests struct {
	services map[model.Name]*service
	// contested holds, for each frontend key that several services claim, what each of them wants
	// there.
	contested map[state.FrontendKey]*contest[state.Frontend]
	// healthPorts holds what claims each healthCheckNodePort.
	healthPorts map[uint16]*contest[HealthCheck]

	now          *state.Services // what is written here, except for health checks
	frontends    diff.Map[state.FrontendKey, state.Frontend]
	healthChecks diff.Map[model.Name, HealthCheck]
	// The reasons are services that refer to the address.
	clusterIPs, otherIPs, hairpins diff.Set[netip.Addr]
}

// contest has the services that claim the same, in order: however many they are, one more or less
// costs little.
type contest[T any] struct {
	by    map[model.Name]*claimant[T]
	order []*claimant[T] // the first has it
}

// claimant is a service that claims something.
type claimant[T any] struct {
	svc   *model.Service
	wants *T
	own   bool // it comes before those that have chosen it themselves
}

func newContest[T any]() *contest[T] { return &contest[T]{by: map[model.Name]*claimant[T]{}} }

// set records what a service wants; nil: nothing.
func (x *contest[T]) set(name model.Name, next *claimant[T]) {
	if old := x.by[name]; old != nil {
		x.order = sorted.Set(x.order, old, false, compareClaimants)
		delete(x.by, name)
	}
	if next != nil {
		x.order, x.by[name] = sorted.Set(x.order, next, true, compareClaimants), next
	}
}

func compareClaimants[T any](a, b *claimant[T]) int {
	return cmp.Or(one(b.own)-one(a.own), a.svc.Birth().Compare(b.svc.Birth()))
}

// oldest is the one that would have it if no age but that of services counted.
func (x *contest[T]) oldest() *claimant[T] {
	first := x.order[0]
	if i := slices.IndexFunc(x.order, func(c *claimant[T]) bool { return !c.own }); i > 0 && x.order[i].svc.Birth().Compare(first.svc.Birth()) < 0 {
		return x.order[i]
	}
	return first
}

// settle records that the service wants f at key, or nothing there where f is nil, and gives the
// key to the first of those who claim it: one whose cluster IP it is, before those that have chosen
// the address themselves.
func (c *contests) settle(key state.FrontendKey, name model.Name, f *state.Frontend) {
	rivals := c.contested[key]
	set := func(name model.Name, f *state.Frontend) {
		if f == nil {
			rivals.set(name, nil)
		} else {
			rivals.set(name, &claimant[state.Frontend]{c.services[name].svc, f, f.Kind == state.ClusterIP})
		}
	}
	if rivals == nil {
		holder := c.now.Frontends[key]
		if f == nil || holder == nil || holder.Service == name {
			c.frontends.Set(key, f)
			return
		}
		rivals = newContest[state.Frontend]()
		c.contested[key] = rivals
		set(holder.Service, holder)
	}
	set(name, f)
	c.frontends.Set(key, rivals.order[0].wants)
	if len(rivals.order) == 1 {
		delete(c.contested, key)
	}
}

// lesser is the health check until the frontends of next are settled: it promises no more local
// endpoints than the old one.
func lesser(old, next *HealthCheck) *HealthCheck {
	if next == nil {
		return nil
	}
	h, had := *next, 0
	if old != nil {
		had = old.LocalEndpoints
	}
	h.LocalEndpoints = min(h.LocalEndpoints, had)
	return &h
}

// settleHealth records that the service wants its health check to be next, no longer old, and gives
// the port to the first of those who claim it.
func (c *contests) settleHealth(name model.Name, old, next *HealthCheck) {
	if old != nil && (next == nil || next.Port != old.Port) {
		c.healthChecks.Set(name, nil)
		c.claimHealth(old.Port, name, nil)
	}
	if next != nil {
		c.claimHealth(next.Port, name, next)
	}
}

func (c *contests) claimHealth(port uint16, name model.Name, h *HealthCheck) {
	rivals := c.healthPorts[port]
	if rivals == nil {
		rivals = newContest[HealthCheck]()
		c.healthPorts[port] = rivals
	}
	if len(rivals.order) > 0 {
		c.healthChecks.Set(rivals.order[0].wants.Service, nil)
	}
	if h == nil {
		rivals.set(name, nil)
	} else {
		rivals.set(name, &claimant[HealthCheck]{c.services[name].svc, h, false})
	}
	if len(rivals.order) == 0 {
		delete(c.healthPorts, port)
		return
	}
	c.healthChecks.Set(rivals.order[0].wants.Service, rivals.order[0].wants)
}
