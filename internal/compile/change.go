package compile

import (
	"net/netip"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// change remembers, during an Update, what the keys that were touched held
// before, so that a value that went and came back is no change.
type change struct {
	frontends    map[state.FrontendKey]*state.Frontend
	healthChecks map[model.Name]*state.HealthCheck
}

// newChange expects so many services to change.
func newChange(services int) change {
	return change{
		frontends:    make(map[state.FrontendKey]*state.Frontend, services),
		healthChecks: map[model.Name]*state.HealthCheck{},
	}
}

// setFrontend puts f under k, or removes k where f is nil.
func (c *Compiler) setFrontend(k state.FrontendKey, f *state.Frontend) {
	old := c.state.Frontends[k]
	if old == f {
		return
	}
	if _, touched := c.change.frontends[k]; !touched {
		c.change.frontends[k] = old
	}
	if f == nil {
		delete(c.state.Frontends, k)
	} else {
		c.state.Frontends[k] = f
	}
}

// setHealth makes h the service's health check, or takes it away where h is nil.
func (c *Compiler) setHealth(name model.Name, h *state.HealthCheck) {
	if _, touched := c.change.healthChecks[name]; !touched {
		c.change.healthChecks[name] = c.health(name)
	}
	if h == nil {
		delete(c.state.HealthChecks, name)
	} else {
		c.state.HealthChecks[name] = *h
	}
}

// health returns the service's health check; nil if it has none.
func (c *Compiler) health(name model.Name) *state.HealthCheck {
	if h, ok := c.state.HealthChecks[name]; ok {
		return &h
	}
	return nil
}

// flush returns what differs from before the Update.
func (c *Compiler) flush() state.Delta {
	d := state.Delta{
		Frontends:    c.change.frontends,
		HealthChecks: c.change.healthChecks,
		ClusterIPs:   c.clusterIPs.flush(),
		OtherIPs:     c.otherIPs.flush(),
		Hairpins:     c.hairpins.flush(),
	}
	for k, old := range d.Frontends {
		if now := c.state.Frontends[k]; now.Equal(old) {
			delete(d.Frontends, k)
		} else {
			d.Frontends[k] = now
		}
	}
	for name, old := range d.HealthChecks {
		now := c.health(name)
		if now == old || now != nil && old != nil && *now == *old {
			delete(d.HealthChecks, name)
		} else {
			d.HealthChecks[name] = now
		}
	}
	c.change = change{}
	return d
}

// refs counts how many services refer to each address in a set of the state.
type refs struct {
	set  map[netip.Addr]struct{}
	more map[netip.Addr]int  // references beyond the first; most addresses have none
	was  map[netip.Addr]bool // touched since the last flush: whether it was in the set
}

func newRefs(set map[netip.Addr]struct{}) refs {
	return refs{set: set, more: map[netip.Addr]int{}, was: map[netip.Addr]bool{}}
}

func (r *refs) add(addrs []netip.Addr) {
	for _, a := range addrs {
		if _, in := r.set[a]; in {
			r.more[a]++
			continue
		}
		r.touch(a, false)
		r.set[a] = struct{}{}
	}
}

func (r *refs) remove(addrs []netip.Addr) {
	for _, a := range addrs {
		switch r.more[a] {
		case 0:
			r.touch(a, true)
			delete(r.set, a)
		case 1:
			delete(r.more, a)
		default:
			r.more[a]--
		}
	}
}

func (r *refs) touch(a netip.Addr, in bool) {
	if _, touched := r.was[a]; !touched {
		r.was[a] = in
	}
}

// flush returns the addresses that came (true) or went (false) since the last one.
func (r *refs) flush() map[netip.Addr]bool {
	d := r.was
	for a, was := range d {
		if _, in := r.set[a]; in == was {
			delete(d, a)
		} else {
			d[a] = in
		}
	}
	r.was = map[netip.Addr]bool{}
	return d
}
