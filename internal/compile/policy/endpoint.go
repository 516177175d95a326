package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// endpoint is a pod or a host endpoint of this node, whatever its version.
type endpoint struct {
	item     *item // nil: it is gone
	plans    [stages]*plan
	planned  *item     // the item that it was when it got them
	policies []*policy // that they are of, if it is a pod
	// linked: it is a host endpoint that has an interface.
	linked bool
}

// setEndpoint follows a pod that may be, or have been, of this node.
func (c *Compiler) setEndpoint(name model.Name, old, next *item) {
	e := c.podEndpoints[name]
	if old != nil && old.local {
		c.readdress(old)
		for _, a := range old.addrs {
			c.claims[a] = slices.DeleteFunc(c.claims[a], func(o *endpoint) bool { return o == e })
			if len(c.claims[a]) == 0 {
				delete(c.claims, a)
			}
		}
	}
	if next == nil || !next.local {
		if e != nil {
			e.item = nil
			delete(c.podEndpoints, name)
			c.changed[e] = struct{}{}
		}
		return
	}
	if e == nil {
		e = &endpoint{}
		c.podEndpoints[name] = e
	}
	e.item = next
	for _, a := range next.addrs {
		c.claims[a] = append(c.claims[a], e)
	}
	c.readdress(next)
	c.changed[e] = struct{}{}
}

func (c *Compiler) readdress(it *item) {
	for _, a := range it.addrs {
		c.readdressed[a] = struct{}{}
	}
}

// replan gives the endpoint the plans of the policies that select it now: those that apply to its class.
func (c *Compiler) replan(e *endpoint, applying map[*class][]*policy) {
	switch {
	case e.item == nil || e.item.host != nil && !e.linked:
		for s := range stages {
			c.use(e, s, nil)
		}
	case e.item.host != nil:
		c.replanHost(e)
	default:
		list, known := applying[e.item.class]
		if !known {
			list = c.applying(e.item.labels)
			applying[e.item.class] = list
		}
		if e.planned == e.item {
			list = c.standing(e, list)
		}
		e.planned, e.policies = e.item, list
		c.use(e, podIngress, c.plan(podIngress, list, model.Allow))
		c.use(e, podEgress, c.plan(podEgress, list, model.Allow))
	}
}

// program returns the endpoint's program at a stage.
func (e *endpoint) program(s stage) state.ProgramID {
	if e.plans[s] == nil {
		return ""
	}
	return idOf(e.plans[s].program)
}

// publishEndpoints writes what changed of pods and host endpoints.
func (c *Compiler) publishEndpoints() {
	hosts := c.reassign
	for e := range c.unpublished {
		switch {
		case e.item == nil:
		case e.item.host != nil:
			hosts = true
		default:
			c.readdress(e.item)
		}
	}
	for a := range c.readdressed {
		c.workloads.Set(a, c.workload(a))
	}
	if hosts {
		c.publishHosts()
	}
	clear(c.unpublished)
	clear(c.readdressed)
	c.reassign = false
}

// workload returns what is at an address; nil: nothing.
func (c *Compiler) workload(a netip.Addr) *state.Workload {
	claims := c.claims[a]
	if len(claims) == 0 {
		return nil
	}
	e := slices.MinFunc(claims, compareClaims)
	w := &state.Workload{Pod: e.item.pod.Name, Ingress: e.program(podIngress), Egress: e.program(podEgress)}
	w.Device, w.Bridged = c.links.to(a)
	return w
}

// compareClaims orders pods that claim one address: one that is about to go comes last.
func compareClaims(a, b *endpoint) int {
	return cmp.Or(
		cmp.Compare(one(a.item.pod.Terminating), one(b.item.pod.Terminating)),
		a.item.pod.Name.Compare(b.item.pod.Name))
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
