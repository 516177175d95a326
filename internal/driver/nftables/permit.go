package nftables

import (
	"maps"
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file turns the policy of a state into elements and chains, as want.go does it for services.

type programs = map[state.ProgramID]*state.Program

// eachPolicyElement yields all elements of the policy.
func (p *program) eachPolicyElement(s *state.Policy, yield func(*element)) {
	for d := range s.PodDevices {
		p.deviceElement(p.policy.podDevices, d, yield)
	}
	for d := range s.HostDevices {
		p.deviceElement(p.policy.hostDevices, d, yield)
	}
	for d := range checkedDevices(s) {
		p.deviceElement(p.policy.checked, d, yield)
	}
	p.ownPodElements(s.PodCIDRs, yield)
	for id, members := range s.Groups {
		for a := range members {
			p.memberElement(id, a, yield)
		}
	}
	for id, ports := range s.NamedPorts {
		for n := range ports {
			p.namedElement(id, n, yield)
		}
	}
	for id, ports := range s.PortSets {
		p.portElements(id, ports, yield)
	}
	if !s.PodTunnels {
		p.portElements(0, &state.Ports{Ranges: tunnels}, yield)
	}
	for id, l := range s.Lists {
		e := new(element)
		for _, c := range l.Prefixes {
			yield(p.listElement(e, id, c))
		}
	}
	e := new(element)
	for _, c := range deniedPrefixes(s.Denied) {
		yield(p.deniedElement(p.deniedSets(), e, c))
	}
	for a, w := range s.Workloads {
		p.workloadElements(a, w, s.Programs, yield)
	}
	for d, h := range s.Hosts {
		p.hostElements(d, h, s.Programs, yield)
	}
}

// tunnels are how packets are carried in others: VXLAN on its port and on Linux's old one, Geneve, IPv4 and IPv6 in IP, GRE.
var tunnels = []state.PortRange{
	{Protocol: model.UDP, First: 4789, Last: 4789}, {Protocol: model.UDP, First: 8472, Last: 8472}, {Protocol: model.UDP, First: 6081, Last: 6081},
	{Protocol: unix.IPPROTO_IPIP, Last: 0xffff}, {Protocol: unix.IPPROTO_IPV6, Last: 0xffff}, {Protocol: unix.IPPROTO_GRE, Last: 0xffff},
}

// checkedDevices are the interfaces that lead to pods, one or several.
func checkedDevices(s *state.Policy) map[int]struct{} {
	all := maps.Clone(s.PodDevices)
	for _, w := range s.Workloads {
		if w.Device != 0 {
			all[w.Device] = struct{}{}
		}
	}
	return all
}

func (p *program) deviceElement(s *set, device int, yield func(*element)) {
	e := element{set: s}
	e.appendUint32(uint32(device))
	yield(&e)
}

func (p *program) ownPodElements(cidrs []netip.Prefix, yield func(*element)) {
	for _, fp := range p.fam {
		fp.cidrElements(fp.policy.ownPods, cidrs, yield)
	}
}

func (p *program) memberElement(id state.SetID, a netip.Addr, yield func(*element)) {
	fp := p.family(a.Is4())
	e := element{set: fp.policy.members}
	e.appendUint32(uint32(groupID(id)))
	e.append(fp.ip.addr(a)...)
	yield(&e)
}

// listElement writes into e, as lists are long.
func (p *program) listElement(e *element, id state.SetID, c netip.Prefix) *element {
	fp := p.family(c.Addr().Is4())
	*e = element{set: fp.policy.members}
	e.appendUint32(uint32(listID(id, uint8(c.Bits()))))
	e.append(fp.ip.addr(c.Addr())...)
	return e
}

func (p *program) namedElement(id state.SetID, n state.NamedPort, yield func(*element)) {
	fp := p.family(n.Addr.Is4())
	e := element{set: fp.policy.named}
	e.appendUint32(uint32(id))
	e.appendFrontend(fp.ip, n.Addr, uint8(n.Protocol), n.Port)
	yield(&e)
}

// portElements yields the ranges of a set of ports.
func (p *program) portElements(id state.SetID, ports *state.Ports, yield func(*element)) {
	for _, r := range ports.Ranges {
		e := element{set: p.policy.ports}
		e.appendUint32(uint32(id))
		e.append(uint8(r.Protocol), 0, 0, 0)
		n := copy(e.end[:], e.key[:e.keyLen])
		e.appendPort(r.First)
		e.endLen = uint8(n + copy(e.end[n:], []byte{byte(r.Last >> 8), byte(r.Last), 0, 0}))
		yield(&e)
	}
}

// workloadElements yields what leads packets to a pod's programs.
func (p *program) workloadElements(a netip.Addr, w *state.Workload, programs programs, yield func(*element)) {
	fp := p.family(a.Is4())
	comment := truncate(w.Pod.String())
	if w.Device != 0 {
		e := element{set: fp.policy.from, verdict: p.podVerdict(fp.ip, w.Egress, programs), comment: comment}
		e.appendUint32(uint32(w.Device))
		e.append(fp.ip.addr(a)...)
		yield(&e)
	}
	e := element{set: fp.policy.to, verdict: p.podVerdict(fp.ip, w.Ingress, programs), comment: comment}
	e.append(fp.ip.addr(a)...)
	yield(&e)
	e = element{set: fp.policy.selves}
	e.append(fp.ip.addr(a)...)
	e.append(fp.ip.addr(a)...)
	yield(&e)
}

// podVerdict is returnIt where no policy applies. A program that the state lacks denies.
func (p *program) podVerdict(f family, id state.ProgramID, progs programs) verdict {
	b, prog := p.podBench(f), progs[id]
	switch {
	case prog != nil:
		return goTo(p.rulings(b, prog)[0].name)
	case id != "":
		return goTo(b.denied)
	}
	return returnIt
}

// workloadRulings yields the chains that the elements of a workload lead to.
func (p *program) workloadRulings(a netip.Addr, w *state.Workload, programs programs, yield func([]ruling)) {
	b := p.podBench(p.family(a.Is4()).ip)
	if prog := programs[w.Egress]; prog != nil && w.Device != 0 {
		yield(p.rulings(b, prog))
	}
	if prog := programs[w.Ingress]; prog != nil {
		yield(p.rulings(b, prog))
	}
}

// hostJudge is a place where a host endpoint judges.
type hostJudge struct {
	set *set
	id  state.ProgramID
}

func (p *program) hostJudges(h *state.Host) []hostJudge {
	return []hostJudge{
		{p.policy.before, h.PreDNAT},
		{p.policy.input, h.Input}, {p.policy.output, h.Output},
		{p.policy.forwardIn, h.ForwardIn}, {p.policy.forwardOut, h.ForwardOut},
	}
}

func (p *program) hostElements(device int, h *state.Host, programs programs, yield func(*element)) {
	for _, j := range p.hostJudges(h) {
		if j.id == "" {
			continue
		}
		to := hostBench.denied
		if prog := programs[j.id]; prog != nil {
			to = p.rulings(hostBench, prog)[0].name
		}
		e := element{set: j.set, verdict: jumpTo(to), comment: truncate(h.Name + " " + h.Device)}
		e.appendUint32(uint32(device))
		yield(&e)
	}
}

// hostRulings yields the chains of a host endpoint. What judges before connection tracking has base
// chains of its own, as every packet pays for one.
func (p *program) hostRulings(device int, h *state.Host, programs programs, yield func([]ruling)) {
	for _, j := range p.hostJudges(h) {
		if prog := programs[j.id]; prog != nil {
			yield(p.rulings(hostBench, prog))
		}
	}
	raw := func(name string, num uint32, by field, id state.ProgramID) {
		prog := programs[id]
		if prog == nil {
			return
		}
		rulings := p.rulings(untrackedBench, prog)
		base := ruling{next: rulings[0].name, chain: chain{
			hook:    &hook{"filter", num, -300, ""},
			comment: "doNotTrack policies at " + h.Device,
			rules:   []rule{newRule("").device(by, uint32(device)).jump(rulings[0].name)},
		}}
		base.name = name + "-" + digestRules(base.rules)
		yield(append([]ruling{base}, rulings...))
	}
	raw("raw-in", unix.NF_INET_PRE_ROUTING, fieldDevice, h.UntrackedIn)
	raw("raw-out", unix.NF_INET_LOCAL_OUT, fieldOutDevice, h.UntrackedOut)
}

// eachPolicyRuling yields all chains that the policy leads to.
func (p *program) eachPolicyRuling(s *state.Policy, yield func([]ruling)) {
	for a, w := range s.Workloads {
		p.workloadRulings(a, w, s.Programs, yield)
	}
	for d, h := range s.Hosts {
		p.hostRulings(d, h, s.Programs, yield)
	}
	p.deniedRulings(s.Denied, p.deniedSets(), yield)
}

// rulings are the chains of a program, written once as long as the program is in use.
func (p *program) rulings(b bench, prog *state.Program) []ruling {
	key := judged{b.name, prog.ID}
	if r, ok := p.written[key]; ok {
		return r
	}
	r := p.judge(b, prog)
	p.written[key] = r
	return r
}

// judged names a program at a bench.
type judged struct {
	bench string
	id    state.ProgramID
}

// forgetUnused drops what was written of programs that are not in use.
func (p *program) forgetUnused(s *state.Policy) {
	maps.DeleteFunc(p.written, func(j judged, _ []ruling) bool { return s == nil || s.Programs[j.id] == nil })
}

// diffPrefixes yields what two sorted lists do not share.
func diffPrefixes(before, after []netip.Prefix, removed, added func(netip.Prefix)) {
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && before[0].Compare(after[0]) < 0:
			removed(before[0])
			before = before[1:]
		case len(before) == 0 || before[0] != after[0]:
			added(after[0])
			after = after[1:]
		default:
			before, after = before[1:], after[1:]
		}
	}
}
