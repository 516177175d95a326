package ruleset

import (
	"maps"
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file turns the policy of a state into elements and the names of chains, as elements.go does
// it for services.

// RulesByID are those of all endpoints.
type RulesByID = map[state.RulesID]*state.Rules

// EachPolicyElement yields all elements of the policy.
func (rs *Ruleset) EachPolicyElement(s *state.Policy, yield func(*nft.Element)) {
	for d := range s.PodDevices {
		rs.DeviceElement(rs.Policy.PodDevices, d, yield)
	}
	for d := range s.HostDevices {
		rs.DeviceElement(rs.Policy.HostDevices, d, yield)
	}
	for d := range CheckedDevices(s) {
		rs.DeviceElement(rs.Policy.Checked, d, yield)
	}
	rs.PodLists(s.PodCIDRs).Elements(yield)
	for id, members := range s.Groups {
		for a := range members {
			rs.MemberElement(id, a, yield)
		}
	}
	for id, ports := range s.NamedPorts {
		for n := range ports {
			rs.NamedElement(id, n, yield)
		}
	}
	for id, ports := range s.PortSets {
		rs.PortElements(id, ports, yield)
	}
	if !s.PodTunnels {
		rs.PortElements(tunnelPorts, &state.Ports{Ranges: tunnels}, yield)
	}
	for id, l := range s.Lists {
		e := new(nft.Element)
		for _, c := range l.Prefixes {
			yield(rs.ListElement(e, id, c))
		}
	}
	e := new(nft.Element)
	for _, c := range DeniedPrefixes(s.Denied) {
		yield(rs.DeniedElement(rs.DeniedSets(), e, c))
	}
	for a, w := range s.Workloads {
		rs.WorkloadElements(a, w, s.Rules, yield)
	}
	for d, h := range s.Hosts {
		rs.HostElements(d, h, s.Rules, yield)
	}
}

// tunnelPorts is the number of tunnels among the ports; no SetID is zero.
const tunnelPorts state.SetID = 0

// tunnels are how packets are carried in others: VXLAN on its port and on Linux's old one, Geneve,
// IPv4 and IPv6 in IP, GRE.
var tunnels = []state.PortRange{
	{Protocol: model.UDP, First: 4789, Last: 4789}, {Protocol: model.UDP, First: 8472, Last: 8472}, {Protocol: model.UDP, First: 6081, Last: 6081},
	{Protocol: unix.IPPROTO_IPIP, Last: 0xffff}, {Protocol: unix.IPPROTO_IPV6, Last: 0xffff}, {Protocol: unix.IPPROTO_GRE, Last: 0xffff},
}

// CheckedDevices are the interfaces that lead to pods, one or several.
func CheckedDevices(s *state.Policy) map[int]struct{} {
	all := maps.Clone(s.PodDevices)
	for _, w := range s.Workloads {
		if w.Device != 0 {
			all[w.Device] = struct{}{}
		}
	}
	return all
}

// DeviceElement yields what an interface becomes in one of the sets of interfaces.
func (rs *Ruleset) DeviceElement(s *nft.Set, device int, yield func(*nft.Element)) {
	e := nft.Element{Set: s}
	e.AppendUint32(uint32(device))
	yield(&e)
}

// MemberElement yields what a member of a group becomes.
func (rs *Ruleset) MemberElement(id state.SetID, a netip.Addr, yield func(*nft.Element)) {
	fp := rs.Family(a.Is4())
	e := nft.Element{Set: fp.Policy.members}
	e.AppendUint32(groupNumber(id))
	e.Append(fp.IP.Addr(a)...)
	yield(&e)
}

// ListElement is what a prefix of a list becomes. It is written into e, as lists are long.
func (rs *Ruleset) ListElement(e *nft.Element, id state.SetID, c netip.Prefix) *nft.Element {
	fp := rs.Family(c.Addr().Is4())
	*e = nft.Element{Set: fp.Policy.members}
	e.AppendUint32(listNumber(id, uint8(c.Bits())))
	e.Append(fp.IP.Addr(c.Addr())...)
	return e
}

// NamedElement yields what a port with a name becomes.
func (rs *Ruleset) NamedElement(id state.SetID, n state.NamedPort, yield func(*nft.Element)) {
	fp := rs.Family(n.Addr.Is4())
	e := nft.Element{Set: fp.Policy.named}
	e.AppendUint32(namedNumber(id))
	e.AppendDestination(fp.IP, n.Addr, uint8(n.Protocol), n.Port)
	yield(&e)
}

// PortElements yields the blocks of a set of ports. A hash set of blocks, unlike one of intervals,
// loses elements as fast as it gets them.
func (rs *Ruleset) PortElements(id state.SetID, ports *state.Ports, yield func(*nft.Element)) {
	for _, r := range ports.Ranges {
		eachBlock(r, func(size int, first uint16) {
			e := nft.Element{Set: rs.Policy.ports}
			e.AppendUint32(portsNumber(id, size))
			e.Append(uint8(r.Protocol), 0, 0, 0)
			e.AppendPort(first)
			yield(&e)
		})
	}
}

// WorkloadElements yields what leads packets to a pod's rules.
func (rs *Ruleset) WorkloadElements(a netip.Addr, w *state.Workload, all RulesByID, yield func(*nft.Element)) {
	fp := rs.Family(a.Is4())
	comment := truncate(w.Pod.String())
	if w.Device != 0 {
		e := nft.Element{Set: fp.Policy.from, Verdict: rs.podVerdict(fp.IP, w.Egress, all), Comment: comment}
		e.AppendUint32(uint32(w.Device))
		e.Append(fp.IP.Addr(a)...)
		yield(&e)
	}
	e := nft.Element{Set: fp.Policy.To, Verdict: rs.podVerdict(fp.IP, w.Ingress, all), Comment: comment}
	e.Append(fp.IP.Addr(a)...)
	yield(&e)
	e = nft.Element{Set: fp.Policy.selves}
	e.Append(fp.IP.Addr(a)...)
	e.Append(fp.IP.Addr(a)...)
	yield(&e)
}

// podVerdict returns where no policy applies. Rules that the state lacks deny.
func (rs *Ruleset) podVerdict(f nft.Family, id state.RulesID, all RulesByID) nft.Verdict {
	at, rules := rs.podScope(f), all[id]
	switch {
	case rules != nil:
		return nft.Goto(rs.entry(at, rules))
	case id != "":
		return nft.Goto(at.denied)
	}
	return nft.Return
}

// ChainFunc is called with the name of a chain that something refers to, and with what writes it.
type ChainFunc func(name string, write func() *table.DynamicChain)

// WorkloadChains yields the chains that the elements of a workload lead to.
func (rs *Ruleset) WorkloadChains(a netip.Addr, w *state.Workload, all RulesByID, yield ChainFunc) {
	at := rs.podScope(rs.Family(a.Is4()).IP)
	if rules := all[w.Egress]; rules != nil && w.Device != 0 {
		rs.useRules(at, rules, yield)
	}
	if rules := all[w.Ingress]; rules != nil {
		rs.useRules(at, rules, yield)
	}
}

// hostHook is a map by which packets come to rules of a host endpoint.
type hostHook struct {
	set *nft.Set
	id  state.RulesID
	at  scope
}

func (rs *Ruleset) hostHooks(h *state.Host) []hostHook {
	return []hostHook{
		{rs.Policy.before, h.PreDNAT, hostScope},
		{rs.Policy.input, h.Input, hostScope}, {rs.Policy.output, h.Output, hostScope},
		{rs.Policy.forwardIn, h.ForwardIn, hostScope}, {rs.Policy.forwardOut, h.ForwardOut, hostScope},
		{rs.Policy.rawIn, h.UntrackedIn, untrackedScope}, {rs.Policy.rawOut, h.UntrackedOut, untrackedScope},
	}
}

// HostElements yields what leads packets to a host endpoint's rules.
func (rs *Ruleset) HostElements(device int, h *state.Host, all RulesByID, yield func(*nft.Element)) {
	for _, j := range rs.hostHooks(h) {
		if j.id == "" {
			continue
		}
		to := j.at.denied
		if rules := all[j.id]; rules != nil {
			to = rs.entry(j.at, rules)
		}
		e := nft.Element{Set: j.set, Verdict: nft.Goto(to), Comment: truncate(h.Name + " " + h.Device)}
		e.AppendUint32(uint32(device))
		yield(&e)
	}
}

// HostChains yields the chains of a host endpoint, and the base chains that look it up.
func (rs *Ruleset) HostChains(_ int, h *state.Host, all RulesByID, yield ChainFunc) {
	for _, j := range rs.hostHooks(h) {
		if rules := all[j.id]; rules != nil {
			rs.useRules(j.at, rules, yield)
		}
		if c, ok := rs.RawChain(j.set); ok && j.id != "" {
			yield(c.Name, func() *table.DynamicChain { return &table.DynamicChain{Chain: c} })
		}
	}
}

// eachPolicyChain yields all chains that the policy leads to.
func (rs *Ruleset) eachPolicyChain(s *state.Policy, yield ChainFunc) {
	for a, w := range s.Workloads {
		rs.WorkloadChains(a, w, s.Rules, yield)
	}
	for d, h := range s.Hosts {
		rs.HostChains(d, h, s.Rules, yield)
	}
	rs.DenyEntries(s.Denied, yield)
}

// rulesAt names rules in a scope.
type rulesAt struct {
	scope string
	id    state.RulesID
}

// writtenRules caches what the rules of endpoints are written into: the names of first chains as
// long as the rules are in use, the chains until the kernel has them.
type writtenRules struct {
	Names   map[rulesAt]string
	written map[rulesAt]*table.DynamicChain
	large   map[policyAt]*table.DynamicChain
}

func newWrittenRules() writtenRules {
	return writtenRules{map[rulesAt]string{}, map[rulesAt]*table.DynamicChain{}, map[policyAt]*table.DynamicChain{}}
}

// write returns the first chain of an endpoint's rules.
func (rs *Ruleset) write(at scope, rules *state.Rules) *table.DynamicChain {
	key := rulesAt{at.name, rules.ID}
	r := rs.written[key]
	if r == nil {
		r = rs.translate(at, rules)
		rs.written[key], rs.Names[key] = r, r.Name
	}
	return r
}

// ChainsOf are all chains that the rules are written into, wherever they judge.
func (rs *Ruleset) ChainsOf(rules *state.Rules) (all []*table.DynamicChain) {
	for _, at := range []scope{rs.podScope(nft.IPv4), rs.podScope(nft.IPv6), hostScope, untrackedScope} {
		all = append(all, rs.write(at, rules).Tree()...)
	}
	return all
}

// entry is the name of the first chain of an endpoint's rules.
func (rs *Ruleset) entry(at scope, rules *state.Rules) string {
	if name, ok := rs.Names[rulesAt{at.name, rules.ID}]; ok {
		return name
	}
	return rs.write(at, rules).Name
}

func (rs *Ruleset) useRules(at scope, rules *state.Rules, yield ChainFunc) {
	yield(rs.entry(at, rules), func() *table.DynamicChain { return rs.write(at, rules) })
}

// ForgetWritten drops the chains that the kernel has, and the names of rules that are not in use.
func (rs *Ruleset) ForgetWritten(s *state.Policy) {
	clear(rs.written)
	clear(rs.large)
	maps.DeleteFunc(rs.Names, func(r rulesAt, _ string) bool { return s == nil || s.Rules[r.id] == nil })
}
