package policy

import (
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// setHostEndpoint follows a host endpoint that may be, or have been, of this node.
func (c *Compiler) setHostEndpoint(name string, next *item) {
	e := c.hostEndpoints[name]
	if next == nil || next.host.Node != c.cfg.Node {
		if e != nil {
			e.item = nil
			delete(c.hostEndpoints, name)
			c.changed[e] = struct{}{}
			c.reassign = true
		}
		return
	}
	if e == nil {
		e = &endpoint{}
		c.hostEndpoints[name] = e
	}
	e.item = next
	c.changed[e] = struct{}{}
	c.reassign = true
}

// assign gives each interface the host endpoint that covers it: one that names it, then
// one that has an address of it, then one for all of the node's own; the first by name among equals.
func (c *Compiler) assign() {
	if !c.reassign {
		return
	}
	c.assigned = map[int]*endpoint{}
	linked := map[*endpoint]bool{}
	for i := range c.links.Links.Links {
		l := &c.links.Links.Links[i]
		if e := c.covering(l); e != nil {
			c.assigned[l.Index] = e
			linked[e] = true
		}
	}
	for _, e := range c.hostEndpoints {
		if e.linked != linked[e] {
			e.linked = linked[e]
			c.changed[e] = struct{}{}
		}
	}
}

func (c *Compiler) covering(l *model.Link) *endpoint {
	var best *endpoint
	rank := 0
	for _, name := range slices.Sorted(maps.Keys(c.hostEndpoints)) {
		if r := coverage(c.hostEndpoints[name].item.host, l); r > rank {
			best, rank = c.hostEndpoints[name], r
		}
	}
	return best
}

// coverage says how well a host endpoint fits an interface; 0: not at all.
func coverage(h *model.HostEndpoint, l *model.Link) int {
	switch {
	case l.Pod:
		return 0
	case h.Interface == l.Name:
		return 3
	case h.Interface == "" && slices.ContainsFunc(h.Addresses, onLink(l)):
		return 2
	case h.Interface == "*" && l.Host && l.Name != "lo":
		return 1
	}
	return 0
}

// replanHost gives a host endpoint its plans. Calico's doc of HostEndpoint: what no policy selects is
// denied, unless its profile allows it; what only passes through is not.
func (c *Compiler) replanHost(e *endpoint) {
	list := c.applying(e.item.labels)
	own := model.Deny
	if e.item.host.DefaultAllow {
		own = model.Allow
	}
	for s := hostInput; s < stages; s++ {
		fallback := model.Allow
		if s == hostInput || s == hostOutput {
			fallback = own
		}
		c.use(e, s, c.plan(s, list, fallback))
	}
}

func (c *Compiler) publishHosts() {
	for index := range c.policy.Hosts {
		if c.assigned[index] == nil {
			c.hostTable.Set(index, nil)
		}
	}
	for index, e := range c.assigned {
		c.hostTable.Set(index, &state.Host{
			Name: e.item.host.Name, Device: c.links.byIndex[index].Name,
			Input: e.program(hostInput), Output: e.program(hostOutput),
			ForwardIn: e.program(hostForwardIn), ForwardOut: e.program(hostForwardOut),
			PreDNAT:     e.program(hostPreDNAT),
			UntrackedIn: e.program(hostUntrackedIn), UntrackedOut: e.program(hostUntrackedOut),
		})
	}
}
