package nftables

import (
	"maps"
	"net/netip"

	"sluice.dev/sluice/internal/state"
)

// policy plans a change of policy, at the cost of what is named in it.
func (c *change) policy(before *state.Policy, d state.PolicyDelta) {
	p := c.d.prog
	changeMembers(before.PodDevices, d.PodDevices, func(i int) { p.deviceElement(p.policy.podDevices, i, c.add) },
		func(i int) { p.deviceElement(p.policy.podDevices, i, c.remove) })
	changeMembers(before.HostDevices, d.HostDevices, func(i int) { p.deviceElement(p.policy.hostDevices, i, c.add) },
		func(i int) { p.deviceElement(p.policy.hostDevices, i, c.remove) })
	if len(d.PodDevices)+len(d.Workloads) > 0 {
		c.checked(before, d)
	}
	if d.PodCIDRs != nil {
		c.replace(func(yield func(*element)) { p.ownPodElements(before.PodCIDRs, yield) },
			func(yield func(*element)) { p.ownPodElements(*d.PodCIDRs, yield) })
	}
	for id, members := range d.Groups {
		changeMembers(before.Groups[id], members, func(a netip.Addr) { p.memberElement(id, a, c.add) },
			func(a netip.Addr) { p.memberElement(id, a, c.remove) })
	}
	for id, ports := range d.NamedPorts {
		changeMembers(before.NamedPorts[id], ports, func(n state.NamedPort) { p.namedElement(id, n, c.add) },
			func(n state.NamedPort) { p.namedElement(id, n, c.remove) })
	}
	for id, ports := range d.PortSets {
		// Ranges that give way to others under their number may overlap them, so both changes have to be one.
		c.batch.atOnce = c.batch.atOnce || ports != nil && before.PortSets[id] != nil
		c.replace(elementsOf(id, before.PortSets[id], p.portElements), elementsOf(id, ports, p.portElements))
	}
	for id, l := range d.Lists {
		c.list(id, before.Lists[id], l)
	}
	c.judges(before, d)
}

// elementsOf binds the elements of a value under its key; nil has none.
func elementsOf[K comparable, V any](k K, v *V, elements func(K, *V, func(*element))) func(func(*element)) {
	if v == nil {
		return nil
	}
	return func(yield func(*element)) { elements(k, v, yield) }
}

// changeMembers calls add and remove for what really changes of a set.
func changeMembers[K comparable](have map[K]struct{}, want map[K]bool, add, remove func(K)) {
	for k, in := range want {
		_, had := have[k]
		switch {
		case in && !had:
			add(k)
		case !in && had:
			remove(k)
		}
	}
}

// checked plans a change of the interfaces that lead to pods.
func (c *change) checked(before *state.Policy, d state.PolicyDelta) {
	p := c.d.prog
	after := state.Policy{PodDevices: maps.Clone(before.PodDevices), Workloads: maps.Clone(before.Workloads)}
	after.Apply(state.PolicyDelta{PodDevices: d.PodDevices, Workloads: d.Workloads})
	have, want := checkedDevices(before), checkedDevices(&after)
	for i := range want {
		if _, had := have[i]; !had {
			p.deviceElement(p.policy.checked, i, c.add)
		}
	}
	for i := range have {
		if _, stays := want[i]; !stays {
			p.deviceElement(p.policy.checked, i, c.remove)
		}
	}
}

// list sends the difference of two lists alone, however long they are.
func (c *change) list(id state.SetID, before, after *state.List) {
	var old, now []netip.Prefix
	if before != nil {
		old = before.Prefixes
	}
	if after != nil {
		now = after.Prefixes
	}
	e := new(element)
	diffPrefixes(old, now,
		func(p netip.Prefix) { c.remove(c.d.prog.listElement(e, id, p)) },
		func(p netip.Prefix) { c.add(c.d.prog.listElement(e, id, p)) })
}

// judges plans what leads packets to programs, and the programs' chains.
func (c *change) judges(before *state.Policy, d state.PolicyDelta) {
	p := c.d.prog
	after := before.Programs
	if len(d.Programs) > 0 {
		after = maps.Clone(before.Programs)
		for id, prog := range d.Programs {
			if prog != nil {
				after[id] = prog
			} else {
				delete(after, id)
			}
		}
	}
	// What is used anew counts before what is used no more, so that what stays is never seen to go.
	for a, w := range d.Workloads {
		old := before.Workloads[a]
		if w != nil {
			p.workloadRulings(a, w, after, c.use)
		}
		if old != nil {
			p.workloadRulings(a, old, before.Programs, c.release)
		}
		c.replace(workload(p, a, old, before.Programs), workload(p, a, w, after))
	}
	for i, h := range d.Hosts {
		old := before.Hosts[i]
		if h != nil {
			p.hostRulings(i, h, after, c.use)
		}
		if old != nil {
			p.hostRulings(i, old, before.Programs, c.release)
		}
		c.replace(host(p, i, old, before.Programs), host(p, i, h, after))
	}
	if d.Denied != nil {
		c.deny(before.Denied, *d.Denied)
	}
}

func workload(p *program, a netip.Addr, w *state.Workload, progs programs) func(func(*element)) {
	if w == nil {
		return nil
	}
	return func(yield func(*element)) { p.workloadElements(a, w, progs, yield) }
}

func host(p *program, device int, h *state.Host, progs programs) func(func(*element)) {
	if h == nil {
		return nil
	}
	return func(yield func(*element)) { p.hostElements(device, h, progs, yield) }
}

// clonePolicy copies what Apply changes.
func clonePolicy(p *state.Policy) *state.Policy {
	if p == nil {
		return nil
	}
	c := *p
	c.Programs, c.Workloads, c.Hosts = maps.Clone(p.Programs), maps.Clone(p.Workloads), maps.Clone(p.Hosts)
	c.PortSets, c.Lists = maps.Clone(p.PortSets), maps.Clone(p.Lists)
	c.PodDevices, c.HostDevices = maps.Clone(p.PodDevices), maps.Clone(p.HostDevices)
	c.Groups, c.NamedPorts = cloneMembers(p.Groups), cloneMembers(p.NamedPorts)
	return &c
}

func cloneMembers[M comparable](groups map[state.SetID]map[M]struct{}) map[state.SetID]map[M]struct{} {
	c := make(map[state.SetID]map[M]struct{}, len(groups))
	for id, members := range groups {
		c[id] = maps.Clone(members)
	}
	return c
}
