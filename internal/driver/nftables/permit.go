package nftables

import "sluice.dev/sluice/internal/driver/nftables/nft"

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
func (p *program) eachPolicyElement(s *state.Policy, yield func(*nft.Element)) {
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
		e := new(nft.Element)
		for _, c := range l.Prefixes {
			yield(p.listElement(e, id, c))
		}
	}
	e := new(nft.Element)
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

func (p *program) deviceElement(s *nft.Set, device int, yield func(*nft.Element)) {
	e := nft.Element{Set: s}
	e.AppendUint32(uint32(device))
	yield(&e)
}

func (p *program) ownPodElements(cidrs []netip.Prefix, yield func(*nft.Element)) {
	for _, fp := range p.fam {
		fp.cidrElements(fp.policy.ownPods, cidrs, yield)
	}
}

func (p *program) memberElement(id state.SetID, a netip.Addr, yield func(*nft.Element)) {
	fp := p.family(a.Is4())
	e := nft.Element{Set: fp.policy.members}
	e.AppendUint32(uint32(groupID(id)))
	e.Append(fp.ip.Addr(a)...)
	yield(&e)
}

// listElement writes into e, as lists are long.
func (p *program) listElement(e *nft.Element, id state.SetID, c netip.Prefix) *nft.Element {
	fp := p.family(c.Addr().Is4())
	*e = nft.Element{Set: fp.policy.members}
	e.AppendUint32(uint32(listID(id, uint8(c.Bits()))))
	e.Append(fp.ip.Addr(c.Addr())...)
	return e
}

func (p *program) namedElement(id state.SetID, n state.NamedPort, yield func(*nft.Element)) {
	fp := p.family(n.Addr.Is4())
	e := nft.Element{Set: fp.policy.named}
	e.AppendUint32(uint32(id))
	e.AppendDestination(fp.ip, n.Addr, uint8(n.Protocol), n.Port)
	yield(&e)
}

// portElements yields the blocks of a set of ports. A hash set of blocks, unlike one of intervals, loses
// elements as fast as it gets them.
func (p *program) portElements(id state.SetID, ports *state.Ports, yield func(*nft.Element)) {
	for _, r := range ports.Ranges {
		eachBlock(r, func(size int, first uint16) {
			e := nft.Element{Set: p.policy.ports}
			e.AppendUint32(uint32(portsID(id, size)))
			e.Append(uint8(r.Protocol), 0, 0, 0)
			e.AppendPort(first)
			yield(&e)
		})
	}
}

// workloadElements yields what leads packets to a pod's programs.
func (p *program) workloadElements(a netip.Addr, w *state.Workload, programs programs, yield func(*nft.Element)) {
	fp := p.family(a.Is4())
	comment := truncate(w.Pod.String())
	if w.Device != 0 {
		e := nft.Element{Set: fp.policy.from, Verdict: p.podVerdict(fp.ip, w.Egress, programs), Comment: comment}
		e.AppendUint32(uint32(w.Device))
		e.Append(fp.ip.Addr(a)...)
		yield(&e)
	}
	e := nft.Element{Set: fp.policy.to, Verdict: p.podVerdict(fp.ip, w.Ingress, programs), Comment: comment}
	e.Append(fp.ip.Addr(a)...)
	yield(&e)
	e = nft.Element{Set: fp.policy.selves}
	e.Append(fp.ip.Addr(a)...)
	e.Append(fp.ip.Addr(a)...)
	yield(&e)
}

// podVerdict is returnIt where no policy applies. A program that the state lacks denies.
func (p *program) podVerdict(f nft.Family, id state.ProgramID, progs programs) nft.Verdict {
	at, prog := p.podPlace(f), progs[id]
	switch {
	case prog != nil:
		return nft.Goto(p.entry(at, prog))
	case id != "":
		return nft.Goto(at.denied)
	}
	return nft.Return
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
	set *nft.Set
	id  state.ProgramID
}

func (p *program) hostJudges(h *state.Host) []hostJudge {
	return []hostJudge{
		{p.policy.before, h.PreDNAT},
		{p.policy.input, h.Input}, {p.policy.output, h.Output},
		{p.policy.forwardIn, h.ForwardIn}, {p.policy.forwardOut, h.ForwardOut},
	}
}

func (p *program) hostElements(device int, h *state.Host, programs programs, yield func(*nft.Element)) {
	for _, j := range p.hostJudges(h) {
		if j.id == "" {
			continue
		}
		to := hostPlace.denied
		if prog := programs[j.id]; prog != nil {
			to = p.entry(hostPlace, prog)
		}
		e := nft.Element{Set: j.set, Verdict: nft.Jump(to), Comment: truncate(h.Name + " " + h.Device)}
		e.AppendUint32(uint32(device))
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
	raw := func(name string, num uint32, by nft.Field, id state.ProgramID) {
		prog := programs[id]
		if prog == nil {
			return
		}
		base := nft.Chain{
			Hook:    nft.FilterHook(num, -300),
			Comment: "doNotTrack policies at " + h.Device,
			Rules:   []nft.Rule{nft.NewRule("").Device(by, uint32(device)).Jump(p.entry(untrackedPlace, prog))},
		}
		base.Name = name + "-" + digestRules(base.Rules)
		yield(base.Name, func() *ruling { return &ruling{Chain: base, next: []*ruling{p.write(untrackedPlace, prog)}} })
	}
	raw("raw-in", unix.NF_INET_PRE_ROUTING, nft.IIF, h.UntrackedIn)
	raw("raw-out", unix.NF_INET_LOCAL_OUT, nft.OIF, h.UntrackedOut)
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
		p.written[key], p.names[key] = r, r.Name
	}
	return r
}

// entry is the name of the first chain of a program.
func (p *program) entry(at place, prog *state.Program) string {
	if name, ok := p.names[judged{at.name, prog.ID}]; ok {
		return name
	}
	return p.write(at, prog).Name
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
