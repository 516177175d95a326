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
		p.portElements(tunnelPorts, &state.Ports{Ranges: tunnels}, yield)
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

// tunnelPorts is the number of tunnels among the ports; no SetID is zero.
const tunnelPorts state.SetID = 0

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

// portElements yields the blocks of a set of ports. A hash set of blocks, unlike one of intervals, loses
// elements as fast as it gets them.
func (p *program) portElements(id state.SetID, ports *state.Ports, yield func(*element)) {
	for _, r := range ports.Ranges {
		eachBlock(r, func(size int, first uint16) {
			e := element{set: p.policy.ports}
			e.appendUint32(uint32(portsID(id, size)))
			e.append(uint8(r.Protocol), 0, 0, 0)
			e.appendPort(first)
			yield(&e)
		})
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
	at, prog := p.podPlace(f), progs[id]
	switch {
	case prog != nil:
		return goTo(p.entry(at, prog))
	case id != "":
		return goTo(at.denied)
	}
	return returnIt
}

// useChain is told of a chain that something leads to, and how to write it.
type useChain func(name string, write func() *ruling)

// workloadRulings yields the chains that the elements of a workload lead to.
func (p *program) workloadRulings(a netip.Addr, w *state.Workload, programs programs, yield useChain) {
	at := p.podPlace(p.family(a.Is4()).ip)
	if prog := programs[w.Egress]; prog != nil && w.Device != 0 {
		p.ruling(at, prog, yield)
	}
	if prog := programs[w.Ingress]; prog != nil {
		p.ruling(at, prog, yield)
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
		to := hostPlace.denied
		if prog := programs[j.id]; prog != nil {
			to = p.entry(hostPlace, prog)
		}
		e := element{set: j.set, verdict: jumpTo(to), comment: truncate(h.Name + " " + h.Device)}
		e.appendUint32(uint32(device))
		yield(&e)
	}
}

// hostRulings yields the chains of a host endpoint. What judges before connection tracking has base
// chains of its own, as every packet pays for one.
func (p *program) hostRulings(device int, h *state.Host, programs programs, yield useChain) {
	for _, j := range p.hostJudges(h) {
		if prog := programs[j.id]; prog != nil {
			p.ruling(hostPlace, prog, yield)
		}
	}
	raw := func(name string, num uint32, by field, id state.ProgramID) {
		prog := programs[id]
		if prog == nil {
			return
		}
		base := chain{
			hook:    &hook{"filter", num, -300, ""},
			comment: "doNotTrack policies at " + h.Device,
			rules:   []rule{newRule("").device(by, uint32(device)).jump(p.entry(untrackedPlace, prog))},
		}
		base.name = name + "-" + digestRules(base.rules)
		yield(base.name, func() *ruling { return &ruling{chain: base, next: []*ruling{p.write(untrackedPlace, prog)}} })
	}
	raw("raw-in", unix.NF_INET_PRE_ROUTING, fieldDevice, h.UntrackedIn)
	raw("raw-out", unix.NF_INET_LOCAL_OUT, fieldOutDevice, h.UntrackedOut)
}

// eachPolicyRuling yields all chains that the policy leads to.
func (p *program) eachPolicyRuling(s *state.Policy, yield useChain) {
	for a, w := range s.Workloads {
		p.workloadRulings(a, w, s.Programs, yield)
	}
	for d, h := range s.Hosts {
		p.hostRulings(d, h, s.Programs, yield)
	}
	p.deniedRulings(s.Denied, p.deniedSets(), yield)
}

// judged names a program at a place.
type judged struct {
	place string
	id    state.ProgramID
}

// writings are the chains of programs. Their names are known as long as the programs are in use; what they hold, until the
// kernel has it.
type writings struct {
	names   map[judged]string
	written map[judged]*ruling
	large   map[policyAt]*ruling
}

func newWritings() writings {
	return writings{map[judged]string{}, map[judged]*ruling{}, map[policyAt]*ruling{}}
}

// write returns the first chain of a program.
func (p *program) write(at place, prog *state.Program) *ruling {
	key := judged{at.name, prog.ID}
	r := p.written[key]
	if r == nil {
		r = p.judge(at, prog)
		p.written[key], p.names[key] = r, r.name
	}
	return r
}

// entry is the name of the first chain of a program.
func (p *program) entry(at place, prog *state.Program) string {
	if name, ok := p.names[judged{at.name, prog.ID}]; ok {
		return name
	}
	return p.write(at, prog).name
}

func (p *program) ruling(at place, prog *state.Program, yield useChain) {
	yield(p.entry(at, prog), func() *ruling { return p.write(at, prog) })
}

// forgetWritten drops what the kernel has, and the names of programs that are not in use.
func (p *program) forgetWritten(s *state.Policy) {
	clear(p.written)
	clear(p.large)
	maps.DeleteFunc(p.names, func(j judged, _ string) bool { return s == nil || s.Programs[j.id] == nil })
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
