package compile

import (
	"net/netip"

	"sluice.dev/sluice/internal/compile/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// claims decide which service gets what several want: addresses and ports, and the ports of health
// checks.
type claims struct {
	services map[model.Name]*service
	// contested holds, for each frontend key that several services claim, what each of them wants
	// there.
	contested map[state.FrontendKey]map[model.Name]*state.Frontend
	// healthPorts holds what claims each healthCheckNodePort.
	healthPorts map[uint16]map[model.Name]*HealthCheck

	now          *state.Services // what is written here, but for health checks
	frontends    diff.Map[state.FrontendKey, state.Frontend]
	healthChecks diff.Map[model.Name, HealthCheck]
	// The reasons are services that refer to the address.
	clusterIPs, otherIPs, hairpins diff.Set[netip.Addr]
}

// settle records that the service wants f at key, or nothing there where f is nil, and gives the
// key to the first of those who claim it.
func (c *claims) settle(key state.FrontendKey, name model.Name, f *state.Frontend) {
	rivals := c.contested[key]
	if rivals == nil {
		holder := c.now.Frontends[key]
		if f == nil || holder == nil || holder.Service == name {
			c.frontends.Set(key, f)
			return
		}
		rivals = map[model.Name]*state.Frontend{holder.Service: holder}
		c.contested[key] = rivals
	}
	if f == nil {
		delete(rivals, name)
	} else {
		rivals[name] = f
	}
	c.frontends.Set(key, rivals[c.holder(rivals)])
	if len(rivals) == 1 {
		delete(c.contested, key)
	}
}

// holder is the service that gets a frontend: one whose cluster IP it is, before those that have
// chosen the address themselves.
func (c *claims) holder(rivals map[model.Name]*state.Frontend) model.Name {
	own := map[model.Name]*state.Frontend{}
	for name, f := range rivals {
		if f.Kind == state.ClusterIP {
			own[name] = f
		}
	}
	if len(own) > 0 {
		return first(c.services, own)
	}
	return first(c.services, rivals)
}

// lesser is what a health check may say until the frontends of next are settled: it promises no
// more than before.
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
func (c *claims) settleHealth(name model.Name, old, next *HealthCheck) {
	if old != nil && (next == nil || next.Port != old.Port) {
		delete(c.healthPorts[old.Port], name)
		c.healthChecks.Set(name, nil)
		c.awardHealth(old.Port)
	}
	if next == nil {
		return
	}
	if c.healthPorts[next.Port] == nil {
		c.healthPorts[next.Port] = map[model.Name]*HealthCheck{}
	}
	c.healthPorts[next.Port][name] = next
	c.awardHealth(next.Port)
}

func (c *claims) awardHealth(port uint16) {
	rivals := c.healthPorts[port]
	if len(rivals) == 0 {
		delete(c.healthPorts, port)
		return
	}
	winner := first(c.services, rivals)
	for name, h := range rivals {
		if name != winner {
			h = nil
		}
		c.healthChecks.Set(name, h)
	}
}

// first is the service that was there first of those that claim something.
func first[T any](services map[model.Name]*service, rivals map[model.Name]T) model.Name {
	var best *model.Service
	for name := range rivals {
		if svc := services[name].svc; best == nil || svc.Birth().Compare(best.Birth()) < 0 {
			best = svc
		}
	}
	return best.Name
}
