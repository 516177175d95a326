package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
)

// mostPassing bounds for how many packets of one question the kernel is asked.
const mostPassing = 50

// onTheWay names the faults in the ways from here to the ends of connections that pass this node,
// and to the nodes of these ends.
func (a *Agent) onTheWay(connections []verdict.Answer, others *foreign.Rules) (faults []string) {
	crossed := map[string]map[bool]struct{}{} // by node and family
	for _, con := range connections {
		for _, p := range con.Paths {
			nodes := map[string]bool{con.From.Node: true, p.To.Node: true}
			for _, step := range p.Steps {
				nodes[step.Node] = true
			}
			for name := range nodes {
				if nodes[a.Node] && name != a.Node {
					multimap.Add(crossed, name, p.To.Address.Is4())
				}
			}
		}
	}
	packets := a.passing(connections)
	faults = append(a.unsound(packets), a.lost(packets)...)
	if len(crossed) == 0 {
		return faults
	}
	issues := a.objectsOfWays()
	if a.Paths != nil {
		issues = append(issues, a.Paths.Issues()...)
	}
	var between []string
	for _, i := range issues {
		if i.Object.Kind == model.NodeKind && crossed[i.Object.Name.Name] != nil {
			between = append(between, i.String())
		}
	}
	slices.Sort(between)
	return slices.Concat(faults, a.unheard(crossed, others), between)
}

// Passing is a packet that the node sends on its way: its own, or one that comes in.
type Passing struct {
	From, To netip.Addr // an invalid From is one of the node's own, which the kernel chooses
	In       Hop        // the zero Hop: the node itself sends it
	Out      Hop        // that is wanted; the zero Hop: any

	forwarded bool // neither end is the node itself
}

// Hop is an interface, by its index or its name, and the gateway on it, if that is known.
type Hop struct {
	Index  int
	Device string
	Via    netip.Addr
}

// passing are the packets of connections that this node sends on their way, and of their answers;
// each once.
func (a *Agent) passing(connections []verdict.Answer) (packets []Passing) {
	if a.Lost == nil {
		return nil
	}
	a.compiling.Lock()
	defer a.compiling.Unlock()
	known := map[[2]netip.Addr]bool{}
	for _, con := range connections {
		for _, p := range con.Paths {
			from, here := con.From.Address, con.From.Node == a.Node || p.To.Node == a.Node
			for i := len(p.Steps) - 1; i >= 0; i-- {
				if s := p.Steps[i]; s.Node == a.Node {
					here = true
					if s.Flow.Source.IsValid() { // another node may have put its own in place of the sender's
						from = s.Flow.Source
					}
				}
			}
			if _, refused := verdict.Denial(p.Steps); refused && p.To.Address == con.To.Address && con.To.Object.Kind == model.ServiceKind {
				continue // it goes nowhere
			}
			ends := [2]netip.Addr{from, p.To.Address}
			if !here || known[ends] || from == ends[1] || !from.IsGlobalUnicast() || !ends[1].IsGlobalUnicast() {
				continue
			}
			if len(packets) >= mostPassing {
				return packets
			}
			known[ends] = true
			sender, receiver := a.endOf(ends[0]), a.endOf(ends[1])
			packets = append(packets, sender.to(receiver), receiver.to(sender))
		}
	}
	return packets
}

// end is an end of a connection, as this node reaches it.
type end struct {
	addr   netip.Addr
	hop    Hop  // by which it is reached
	own    bool // it is the node's own
	wanted bool // the state says so, whatever the routes are
}

// endOf asks the kernel where the state does not tell.
func (a *Agent) endOf(addr netip.Addr) end {
	s := a.Compiler.State()
	if s.Policy != nil {
		if pod := s.Policy.Workloads[addr]; pod != nil && pod.Device != 0 {
			return end{addr: addr, hop: Hop{Index: pod.Device}, wanted: true}
		}
	}
	if s.Fabric != nil {
		if r := s.Fabric.To(addr); r != nil && r.Device != "" {
			return end{addr: addr, hop: Hop{Device: r.Device, Via: r.Via}, wanted: true}
		}
	}
	way := a.Route(addr)
	if way.Own {
		return end{addr: addr, own: true}
	}
	return end{addr: addr, hop: Hop{Index: way.Device}}
}

// to is a packet of the end's to another one.
func (e end) to(o end) Passing {
	p := Passing{From: e.addr, To: o.addr, In: e.hop, forwarded: !e.own && !o.own}
	if !e.own && e.hop == (Hop{}) {
		p.From = netip.Addr{} // where it comes in is not known
	}
	if o.wanted {
		p.Out = o.hop
	}
	return p
}

// unsound names the faults of this node that concern the packets, beside those in its routes.
func (a *Agent) unsound(packets []Passing) (faults []string) {
	if issue, shown := a.Contests.About(contest.Forwarding); shown && slices.ContainsFunc(packets, func(p Passing) bool { return p.forwarded }) {
		faults = append(faults, issue.String())
	}
	if c, err := ReadConntrack(); err == nil && len(packets) > 0 && c.crowded() != "" {
		faults = append(faults, c.crowded())
	}
	if a.fabric == nil {
		return faults
	}
	if a.fabric.Status().Contested && slices.ContainsFunc(packets, func(p Passing) bool { return p.Out.Device != "" }) {
		faults = append(faults, "another program goes on changing tunnels or routes to other nodes, which are put right each time: end it, or have it leave them alone")
	}
	aside := slices.DeleteFunc(a.Fabric.SetAside(), func(s driver.SetAside) bool {
		return !slices.ContainsFunc(packets, func(p Passing) bool { return p.needs(s) })
	})
	for _, i := range Refusals(aside) {
		faults = append(faults, i.String())
	}
	return faults
}

// needs reports whether a packet goes by what the fabric's driver has set aside: a device, a
// neighbour or a route.
func (p Passing) needs(s driver.SetAside) bool {
	what, _, _ := strings.Cut(s.Name.Name, " ")
	if to, err := netip.ParsePrefix(what); err == nil {
		return to.Contains(p.To)
	}
	return what != "" && (what == p.Out.Device || what == p.Out.Via.String())
}

// lost names the packets that this node does not send on, by the reason.
func (a *Agent) lost(packets []Passing) (faults []string) {
	missed := map[string][]string{} // addresses, by why
	how := map[string]string{}      // it is shown for the first of them
	for _, p := range packets {
		why, shown := a.Lost(p)
		if why == "" {
			continue
		}
		if to := p.To.String(); !slices.Contains(missed[why], to) {
			missed[why] = append(missed[why], to)
		}
		how[why] = cmp.Or(how[why], shown)
	}
	for why, addrs := range missed {
		faults = append(faults, fmt.Sprintf("node %s does not reach %s: %s; see '%s'", a.Node, model.FirstFew(addrs, 3), why, how[why]))
	}
	slices.Sort(faults)
	return faults
}

// unheard names the nodes that do not answer through their tunnel, with the rule of another program
// here that drops the tunnel's packets, if one does. crossed has the nodes to look at, by family.
func (a *Agent) unheard(crossed map[string]map[bool]struct{}, others *foreign.Rules) (faults []string) {
	if a.Heard == nil {
		return nil
	}
	silent := map[[3]string][]string{} // nodes by tunnel, and why it does not answer
	for of, h := range a.Heard.Heard() {
		if _, crosses := crossed[of.Node][of.To.Is4()]; crosses && of.Carrier != (model.Carrier{}) && h.Silent() {
			tunnel := [3]string{of.Device, of.Carrier.String(), cmp.Or(a.dropped(of, others), h.Why)}
			silent[tunnel] = append(silent[tunnel], of.Node)
		}
	}
	for tunnel, nodes := range silent {
		slices.Sort(nodes)
		why := cmp.Or(tunnel[2], fmt.Sprintf("a firewall between the nodes is likely to drop %s, and with it this connection", tunnel[1]))
		faults = append(faults, fmt.Sprintf("through %s %s not heard: %s; see 'sluice fabric'", tunnel[0], areNodes(nodes), why))
	}
	slices.Sort(faults)
	return faults
}

// dropped says which rule of another program here drops packets of a tunnel; "": none is known to.
func (a *Agent) dropped(of model.FarEnd, others *foreign.Rules) string {
	to := a.Route(of.Remote)
	if len(to.Sources) == 0 {
		return ""
	}
	out := foreign.Way{Source: to.Sources[0], Destination: of.Remote, Protocol: of.Carrier.Protocol, DestinationPort: of.Carrier.Port, Out: to.Device, FromNode: true, Tunnel: true}
	in := foreign.Way{Source: of.Remote, Destination: to.Sources[0], Protocol: of.Carrier.Protocol, DestinationPort: of.Carrier.Port, In: to.Device, ToNode: true, Tunnel: true}
	for _, way := range []foreign.Way{out, in} {
		way.Asked = netip.AddrPortFrom(way.Destination, way.DestinationPort)
		if _, does, err := others.Meets(way); err == nil && does != nil {
			return does.Seen + "; " + does.Do
		}
	}
	return ""
}

// areNodes is "node a is", or "nodes a and b are".
func areNodes(nodes []string) string {
	if len(nodes) == 1 {
		return nodesNamed(nodes) + " is"
	}
	return nodesNamed(nodes) + " are"
}

// nodesNamed is "node a", or "nodes a and b".
func nodesNamed(nodes []string) string {
	const most = 3
	if len(nodes) == 1 {
		return "node " + nodes[0]
	}
	return "nodes " + model.FirstFew(nodes, most)
}
