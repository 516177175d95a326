package program

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

// Programs are those of a policy, by id.
type Programs = map[state.ProgramID]*state.Program

// EachPolicyElement yields all elements of the policy.
func (p *Program) EachPolicyElement(s *state.Policy, yield func(*nft.Element)) {
	for d := range s.PodDevices {
		p.DeviceElement(p.Policy.PodDevices, d, yield)
	}
	for d := range s.HostDevices {
		p.DeviceElement(p.Policy.HostDevices, d, yield)
	}
	for d := range CheckedDevices(s) {
		p.DeviceElement(p.Policy.Checked, d, yield)
	}
	p.PodLists(s.PodCIDRs).Elements(yield)
	for id, members := range s.Groups {
		for a := range members {
			p.MemberElement(id, a, yield)
		}
	}
	for id, ports := range s.NamedPorts {
		for n := range ports {
			p.NamedElement(id, n, yield)
		}
	}
	for id, ports := range s.PortSets {
		p.PortElements(id, ports, yield)
	}
	if !s.PodTunnels {
		p.PortElements(tunnelPorts, &state.Ports{Ranges: tunnels}, yield)
	}
	for id, l := range s.Lists {
		e := new(nft.Element)
		for _, c := range l.Prefixes {
			yield(p.ListElement(e, id, c))
		}
	}
	e := new(nft.Element)
	for _, c := range DeniedPrefixes(s.Denied) {
		yield(p.DeniedElement(p.DeniedSets(), e, c))
	}
	for a, w := range s.Workloads {
		p.WorkloadElements(a, w, s.Programs, yield)
	}
	for d, h := range s.Hosts {
		p.HostElements(d, h, s.Programs, yield)
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
func (p *Program) DeviceElement(s *nft.Set, device int, yield func(*nft.Element)) {
	e := nft.Element{Set: s}
	e.AppendUint32(uint32(device))
	yield(&e)
}

// MemberElement yields what a member of a group becomes.
func (p *Program) MemberElement(id state.SetID, a netip.Addr, yield func(*nft.Element)) {
	fp := p.Family(a.Is4())
	e := nft.Element{Set: fp.Policy.members}
	e.AppendUint32(groupNumber(id))
	e.Append(fp.IP.Addr(a)...)
	yield(&e)
}

// ListElement is what a prefix of a list becomes. It is written into e, as lists are long.
func (p *Program) ListElement(e *nft.Element, id state.SetID, c netip.Prefix) *nft.Element {
	fp := p.Family(c.Addr().Is4())
	*e = nft.Element{Set: fp.Policy.members}
	e.AppendUint32(listNumber(id, uint8(c.Bits())))
	e.Append(fp.IP.Addr(c.Addr())...)
	return e
}

// NamedElement yields what a port with a name becomes.
func (p *Program) NamedElement(id state.SetID, n state.NamedPort, yield func(*nft.Element)) {
	fp := p.Family(n.Addr.Is4())
	e := nft.Element{Set: fp.Policy.named}
	e.AppendUint32(namedNumber(id))
	e.AppendDestination(fp.IP, n.Addr, uint8(n.Protocol), n.Port)
	yield(&e)
}

// PortElements yields the blocks of a set of ports. A hash set of blocks, unlike one of intervals,
// loses elements as fast as it gets them.
func (p *Program) PortElements(id state.SetID, ports *state.Ports, yield func(*nft.Element)) {
	for _, r := range ports.Ranges {
		eachBlock(r, func(size int, first uint16) {
			e := nft.Element{Set: p.Policy.ports}
			e.AppendUint32(portsNumber(id, size))
			e.Append(uint8(r.Protocol), 0, 0, 0)
			e.AppendPort(first)
			yield(&e)
		})
	}
}

// WorkloadElements yields what leads packets to a pod's programs.
func (p *Program) WorkloadElements(a netip.Addr, w *state.Workload, programs Programs, yield func(*nft.Element)) {
	fp := p.Family(a.Is4())
	comment := truncate(w.Pod.String())
	if w.Device != 0 {
		e := nft.Element{Set: fp.Policy.from, Verdict: p.podVerdict(fp.IP, w.Egress, programs), Comment: comment}
		e.AppendUint32(uint32(w.Device))
		e.Append(fp.IP.Addr(a)...)
		yield(&e)
	}
	e := nft.Element{Set: fp.Policy.To, Verdict: p.podVerdict(fp.IP, w.Ingress, programs), Comment: comment}
	e.Append(fp.IP.Addr(a)...)
	yield(&e)
	e = nft.Element{Set: fp.Policy.selves}
	e.Append(fp.IP.Addr(a)...)
	e.Append(fp.IP.Addr(a)...)
	yield(&e)
}

// podVerdict returns where no policy applies. A program that the state lacks denies.
func (p *Program) podVerdict(f nft.Family, id state.ProgramID, progs Programs) nft.Verdict {
	at, prog := p.podPlace(f), progs[id]
	switch {
	case prog != nil:
		return nft.Goto(p.entry(at, prog))
	case id != "":
		return nft.Goto(at.denied)
	}
	return nft.Return
}

// ChainFunc is called with the name of a chain that something refers to, and with what writes it.
type ChainFunc func(name string, write func() *table.DynamicChain)

// WorkloadChains yields the chains that the elements of a workload lead to.
func (p *Program) WorkloadChains(a netip.Addr, w *state.Workload, programs Programs, yield ChainFunc) {
	at := p.podPlace(p.Family(a.Is4()).IP)
	if prog := programs[w.Egress]; prog != nil && w.Device != 0 {
		p.useProgram(at, prog, yield)
	}
	if prog := programs[w.Ingress]; prog != nil {
		p.useProgram(at, prog, yield)
	}
}

// hostHook is a place where a host endpoint judges.
type hostHook struct {
	set *nft.Set
	id  state.ProgramID
	at  place
}

func (p *Program) hostHooks(h *state.Host) []hostHook {
	return []hostHook{
		{p.Policy.before, h.PreDNAT, hostPlace},
		{p.Policy.input, h.Input, hostPlace}, {p.Policy.output, h.Output, hostPlace},
		{p.Policy.forwardIn, h.ForwardIn, hostPlace}, {p.Policy.forwardOut, h.ForwardOut, hostPlace},
		{p.Policy.rawIn, h.UntrackedIn, untrackedPlace}, {p.Policy.rawOut, h.UntrackedOut, untrackedPlace},
	}
}

// HostElements yields what leads packets to a host endpoint's programs.
func (p *Program) HostElements(device int, h *state.Host, programs Programs, yield func(*nft.Element)) {
	for _, j := range p.hostHooks(h) {
		if j.id == "" {
			continue
		}
		to := j.at.denied
		if prog := programs[j.id]; prog != nil {
			to = p.entry(j.at, prog)
		}
		e := nft.Element{Set: j.set, Verdict: nft.Goto(to), Comment: truncate(h.Name + " " + h.Device)}
		e.AppendUint32(uint32(device))
		yield(&e)
	}
}

// HostChains yields the chains of a host endpoint, and the base chains that look it up.
func (p *Program) HostChains(_ int, h *state.Host, programs Programs, yield ChainFunc) {
	for _, j := range p.hostHooks(h) {
		if prog := programs[j.id]; prog != nil {
			p.useProgram(j.at, prog, yield)
		}
		if c, ok := p.RawChain(j.set); ok && j.id != "" {
			yield(c.Name, func() *table.DynamicChain { return &table.DynamicChain{Chain: c} })
		}
	}
}

// eachPolicyChain yields all chains that the policy leads to.
func (p *Program) eachPolicyChain(s *state.Policy, yield ChainFunc) {
	for a, w := range s.Workloads {
		p.WorkloadChains(a, w, s.Programs, yield)
	}
	for d, h := range s.Hosts {
		p.HostChains(d, h, s.Programs, yield)
	}
	p.DenyEntries(s.Denied, yield)
}

// programAt names a program at a place.
type programAt struct {
	place string
	id    state.ProgramID
}

// writtenPrograms caches the chains of programs: their names as long as the programs are in use,
// their rules until the kernel has them.
type writtenPrograms struct {
	Names   map[programAt]string
	written map[programAt]*table.DynamicChain
	large   map[policyAt]*table.DynamicChain
}

func newWrittenPrograms() writtenPrograms {
	return writtenPrograms{map[programAt]string{}, map[programAt]*table.DynamicChain{}, map[policyAt]*table.DynamicChain{}}
}

// write returns the first chain of a program.
func (p *Program) write(at place, prog *state.Program) *table.DynamicChain {
	key := programAt{at.name, prog.ID}
	r := p.written[key]
	if r == nil {
		r = p.translate(at, prog)
		p.written[key], p.Names[key] = r, r.Name
	}
	return r
}

// ChainsOf are all chains that the program is written into, wherever it judges.
func (p *Program) ChainsOf(prog *state.Program) (all []*table.DynamicChain) {
	for _, at := range []place{p.podPlace(nft.IPv4), p.podPlace(nft.IPv6), hostPlace, untrackedPlace} {
		all = append(all, p.write(at, prog).Tree()...)
	}
	return all
}

// entry is the name of the first chain of a program.
func (p *Program) entry(at place, prog *state.Program) string {
	if name, ok := p.Names[programAt{at.name, prog.ID}]; ok {
		return name
	}
	return p.write(at, prog).Name
}

func (p *Program) useProgram(at place, prog *state.Program, yield ChainFunc) {
	yield(p.entry(at, prog), func() *table.DynamicChain { return p.write(at, prog) })
}

// ForgetWritten drops the rules that the kernel has, and the names of programs that are not in use.
func (p *Program) ForgetWritten(s *state.Policy) {
	clear(p.written)
	clear(p.large)
	maps.DeleteFunc(p.Names, func(j programAt, _ string) bool { return s == nil || s.Programs[j.id] == nil })
}
