package nftables

import "sluice.dev/sluice/internal/driver/nftables/nft"

import (
	"cmp"
	"maps"
	"net/netip"

	"sluice.dev/sluice/internal/state"
)

// policy plans a change of policy, at the cost of what is named in it.
func (c *change) policy(before *state.Policy, d state.PolicyDelta) {
	p := c.d.prog
	device := func(s *nft.Set) func(int, func(*nft.Element)) {
		return func(i int, yield func(*nft.Element)) { p.deviceElement(s, i, yield) }
	}
	changeMembers(c, before.PodDevices, d.PodDevices, device(p.policy.podDevices))
	changeMembers(c, before.HostDevices, d.HostDevices, device(p.policy.hostDevices))
	if len(d.PodDevices)+len(d.Workloads) > 0 {
		changeMembers(c, checkedDevices(before), checkedDelta(before, d), device(p.policy.checked))
	}
	if d.PodCIDRs != nil {
		c.rewrite(func(yield func(*nft.Element)) { p.ownPodElements(before.PodCIDRs, yield) },
			func(yield func(*nft.Element)) { p.ownPodElements(*d.PodCIDRs, yield) })
	}
	for id, members := range d.Groups {
		changeMembers(c, before.Groups[id], members, func(a netip.Addr, yield func(*nft.Element)) { p.memberElement(id, a, yield) })
	}
	for id, ports := range d.NamedPorts {
		changeMembers(c, before.NamedPorts[id], ports, func(n state.NamedPort, yield func(*nft.Element)) { p.namedElement(id, n, yield) })
	}
	for id, ports := range d.PortSets {
		c.replace(elementsOf(id, before.PortSets[id], p.portElements), elementsOf(id, ports, p.portElements))
	}
	for id, l := range d.Lists {
		c.list(id, before.Lists[id], l)
	}
	c.judges(before, d)
}

// elementsOf binds the elements of a value under its key; nil has none.
func elementsOf[K comparable, V any](k K, v *V, elements func(K, *V, func(*nft.Element))) func(func(*nft.Element)) {
	if v == nil {
		return nil
	}
	return func(yield func(*nft.Element)) { elements(k, v, yield) }
}

// checkedDelta is the change of the interfaces that lead to pods.
func checkedDelta(before *state.Policy, d state.PolicyDelta) map[int]bool {
	after := state.Policy{PodDevices: maps.Clone(before.PodDevices), Workloads: maps.Clone(before.Workloads)}
	after.Apply(state.PolicyDelta{PodDevices: d.PodDevices, Workloads: d.Workloads})
	delta := map[int]bool{}
	for i := range checkedDevices(before) {
		delta[i] = false
	}
	for i := range checkedDevices(&after) {
		delta[i] = true
	}
	return delta
}

// list sends the difference of two lists alone, however long they are.
func (c *change) list(id state.SetID, before, after *state.List) {
	var none state.List
	e := new(nft.Element)
	diffPrefixes(cmp.Or(before, &none).Prefixes, cmp.Or(after, &none).Prefixes,
		func(p netip.Prefix) { c.remove(c.d.prog.listElement(e, id, p)) },
		func(p netip.Prefix) { c.add(c.d.prog.listElement(e, id, p)) })
}

// judges plans what leads packets to programs, and the programs' chains.
func (c *change) judges(before *state.Policy, d state.PolicyDelta) {
	p := c.d.prog
	after := before.Programs
	if len(d.Programs) > 0 {
		changed := state.Policy{Programs: maps.Clone(after)}
		changed.Apply(state.PolicyDelta{Programs: d.Programs})
		after = changed.Programs
	}
	workload := func(progs programs) func(netip.Addr, *state.Workload, func(*nft.Element)) {
		return func(a netip.Addr, w *state.Workload, yield func(*nft.Element)) {
			p.workloadElements(a, w, progs, yield)
		}
	}
	host := func(progs programs) func(int, *state.Host, func(*nft.Element)) {
		return func(i int, h *state.Host, yield func(*nft.Element)) { p.hostElements(i, h, progs, yield) }
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
		c.replace(elementsOf(a, old, workload(before.Programs)), elementsOf(a, w, workload(after)))
	}
	for i, h := range d.Hosts {
		old := before.Hosts[i]
		if h != nil {
			p.hostRulings(i, h, after, c.use)
		}
		if old != nil {
			p.hostRulings(i, old, before.Programs, c.release)
		}
		c.replace(elementsOf(i, old, host(before.Programs)), elementsOf(i, h, host(after)))
	}
	if d.Denied != nil {
		c.deny(before.Denied, *d.Denied)
	}
}
