package verdict

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Question is a connection that somebody might try.
type Question struct {
	From, To           netip.Addr
	AnyOwn             bool // From is a node that sends from the address that its routes say, perhaps another one
	Protocol           uint8
	FromPort, Port     uint16 // TCP, UDP, SCTP; FromPort may be 0
	ICMPType, ICMPCode uint8
	// Via are the nodes by which it may come in from outside the cluster; empty: by that of To, or
	// else by the one that is asked.
	Via []string
}

// Answer is what becomes of a connection.
type Answer struct {
	From     Party   `json:"from"`
	To       Party   `json:"to"`
	Protocol string  `json:"protocol"` // "TCP", "ICMP 8"
	Outcome  Outcome `json:"verdict"`  // of all paths together: denied if one is
	// Paths are the ways that it may go: one for each backend that a service may pick, and for each
	// node by which it may come in.
	Paths []Path `json:"paths"`
}

// Party is one end of a connection.
type Party struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port,omitempty"`
	Object  model.Ref  `json:"object,omitzero"` // the pod, service or node that has the address
	Node    string     `json:"node,omitempty"`  // the node that has it, or its pod
}

// Path is the way to one destination, over one or more nodes.
type Path struct {
	To      Party    `json:"to"`
	Outcome Outcome  `json:"verdict"`
	Steps   []Step   `json:"steps"`             // in the order in which a packet takes them
	Missing []string `json:"missing,omitempty"` // the rules that would have had to exist, where nothing allows it
	Notes   []string `json:"notes,omitempty"`   // what else matters to it
	Nearest []Near   `json:"nearest,omitempty"` // the rules that come closest to allowing it

	HiddenClient *HiddenClient `json:"hiddenClient,omitempty"`
}

// HiddenClient says that the policies of a node do not see the client of a connection, because the
// node by which it comes in has put an address of its own in place of the client's, and that they
// would decide otherwise if they did.
type HiddenClient struct {
	Client    netip.Addr `json:"client"`
	Seen      netip.Addr `json:"seen"`             // in its place
	Entry     string     `json:"entry"`            // the node that has Seen
	Node      string     `json:"node"`             // whose policies see that
	Otherwise Outcome    `json:"otherwise"`        // what would become of the connection
	Reason    string     `json:"reason,omitempty"` // why, where it would be denied
	Remedy    string     `json:"remedy,omitempty"` // what to do
}

// String says so for people.
func (h HiddenClient) String() string {
	text := fmt.Sprintf("the client is hidden: policies on node %s see %v, an address of node %s, in place of %v; else it would be %v", h.Node, h.Seen, h.Entry, h.Client, h.Otherwise)
	if h.Reason != "" {
		text += " (" + h.Reason + ")"
	}
	return text
}

// Near is a rule that does not match a connection, but nearly.
type Near struct {
	Policy model.PolicyKey `json:"policy"`
	Rule   string          `json:"rule"`  // "ingress[0]"
	Lacks  []string        `json:"lacks"` // "it wants port 80, this is TCP 81"
}

// maxHops bounds the nodes on a path: two, or three where it goes to another node's node port.
const maxHops = 4

// Why says what becomes of a connection: how services translate it, and what the policies of its
// ends and of the nodes' host endpoints make of it, on each node that it passes. An outcome is
// Unknown where nothing that is known denies it, and not all that decides is known; a step says
// what.
func (c *Cluster) Why(q Question) Answer {
	f := Flow{Source: q.From, Destination: q.To, Protocol: q.Protocol, SourcePort: q.FromPort, DestinationPort: q.Port, ICMPType: q.ICMPType, ICMPCode: q.ICMPCode}
	answer := Answer{From: c.party(q.From, q.FromPort), To: c.party(q.To, q.Port), Protocol: f.ProtocolName(), Outcome: Allowed}
	for _, node := range c.entries(q) {
		answer.Paths = append(answer.Paths, c.begin(node, f, q.AnyOwn)...)
	}
	for _, p := range answer.Paths {
		answer.Outcome = answer.Outcome.And(p.Outcome)
	}
	if answer.To.Object == (model.Ref{}) {
		answer.To.Object = serviceOf(answer.Paths)
	}
	return answer
}

// begin follows a flow from the first node that it meets. A node itself may send from several
// addresses.
func (c *Cluster) begin(name string, f Flow, anyOwn bool) []Path {
	n := c.Nodes[name]
	if n == nil || !anyOwn || n.way(f.Destination).Own {
		return c.visit(name, f, trail{})
	}
	sources := n.sources(f)
	if len(sources) == 0 {
		return c.visit(name, f, trail{})
	}
	var ways [][]Path
	for _, a := range sources {
		g, t := f, trail{own: true}
		if g.Source = a; a != f.Source {
			t = t.note(fmt.Sprintf("node %s sends from %v", name, a))
		}
		ways = append(ways, c.visit(name, g, t))
	}
	return agree(ways, Step{Node: name, Stage: Source, Verdict: Verdict{Outcome: Unknown},
		Text: fmt.Sprintf("it depends on which address the node sends from: one of %v", sources)})
}

// serviceOf is the service that the first of the steps belongs to that are one.
func serviceOf(paths []Path) model.Ref {
	for _, p := range paths {
		for _, s := range p.Steps {
			if s.Stage == Service {
				return s.Of
			}
		}
	}
	return model.Ref{}
}

// entries are the nodes that a connection may meet first.
func (c *Cluster) entries(q Question) []string {
	if node := c.Home(q.From); node != "" {
		return []string{node}
	}
	if len(q.Via) > 0 {
		return q.Via
	}
	if node := c.Home(q.To); node != "" {
		return []string{node}
	}
	return []string{c.Here}
}

func (c *Cluster) party(a netip.Addr, port uint16) Party {
	return Party{Address: a, Port: port, Object: c.Object(a), Node: c.Home(a)}
}

// trail is what a connection has met so far.
type trail struct {
	steps   []Step
	missing []string
	notes   []string
	hops    int
	own     bool // the node that it meets first is its source, by any address
}

// take returns the trail with further steps, taken at a node.
func (t trail) take(node string, f Flow, steps []Step) trail {
	t.steps = slices.Clip(t.steps)
	for _, s := range steps {
		s.Node, s.Flow = node, f
		t.steps = append(t.steps, s)
	}
	return t
}

func (t trail) lack(missing []string) trail {
	t.missing = append(slices.Clip(t.missing), missing...)
	return t
}

func (t trail) note(text string) trail {
	t.notes = append(slices.Clip(t.notes), text)
	return t
}

// end is the path of a connection that gets no further, or has arrived.
func (c *Cluster) end(f Flow, t trail) []Path {
	p := Path{To: c.party(f.Destination, f.DestinationPort), Outcome: Allowed, Steps: t.steps, Missing: t.missing, Notes: t.notes}
	for _, s := range t.steps {
		p.Outcome = p.Outcome.And(s.Outcome)
	}
	return []Path{p}
}

// visit follows a flow from where it meets a node. What comes from elsewhere may come in by one of
// several interfaces.
func (c *Cluster) visit(name string, f Flow, t trail) []Path {
	n := c.Nodes[name]
	t.hops++
	if n == nil || t.hops > maxHops {
		return c.end(f, t.take(name, f, []Step{{Verdict: Verdict{Outcome: Unknown}, Text: "what this node makes of it is not known here"}}))
	}
	v := visit{c: c, name: name, n: n, p: n.policy(), trail: t}
	v.own = t.hops == 1 && (t.own || n.way(f.Source).Own)
	if v.own || v.local(f.Source) {
		return v.enter(f, 0)
	}
	var ways [][]Path
	devices := n.devices(f.Source)
	for _, in := range devices {
		ways = append(ways, v.enter(f, in))
	}
	return agree(ways, v.unsure(f, devices, "comes in"))
}

// visit is a connection at one node.
type visit struct {
	c    *Cluster
	name string
	n    *Node
	p    *state.Policy
	own  bool // the node itself is its source
	in   Flow // as it comes in
	trail
}

// local reports whether the node has a pod of the address, and the connection starts there.
func (v *visit) local(a netip.Addr) bool { return v.hops == 1 && v.p.Workloads[a] != nil }

// enter follows a flow that comes in by an interface; 0: by that of its pod, or from the node.
func (v *visit) enter(f Flow, in int) []Path {
	v.in = f
	var steps []Step
	switch {
	case v.own:
		steps = Depart(v.p, f, v.n.way(f.Destination).Device)
	case !v.local(f.Source):
		if steps = Arrive(v.p, f, in); v.n.Hidden.DenyLists {
			steps = append(steps, Step{Stage: DenyList, Verdict: Verdict{Outcome: Unknown}, Text: "its deny lists come from files of its own, which its agent alone knows"})
		}
	}
	if v.n.Hidden.Lists {
		steps = append(steps, Step{Stage: Lists, Verdict: Verdict{Outcome: Unknown}, Text: "policies ask for address lists from files of its own, which its agent alone knows"})
	}
	untracked := untracked(steps)
	backends := []netip.AddrPort{netip.AddrPortFrom(f.Destination, f.DestinationPort)}
	var front *state.Frontend
	if !untracked {
		if s := v.service(f); s != nil {
			steps, backends, front = append(steps, s.step), s.backends, s.front
		}
	}
	t := v.take(v.name, f, steps).lack(v.c.allMissing(steps, f))
	if _, denied := Denial(steps); denied {
		return v.c.end(f, t)
	}
	var paths []Path
	for _, b := range backends {
		to := f
		to.Destination, to.DestinationPort = b.Addr(), b.Port()
		devices := v.n.devices(to.Destination)
		var ways [][]Path
		for _, out := range devices {
			ways = append(ways, v.leave(to, in, out, untracked, front, t))
		}
		paths = append(paths, agree(ways, v.unsure(f, devices, "leaves"))...)
	}
	return paths
}

// leave follows a flow after translation, to its pod or node or to the next node.
func (v *visit) leave(f Flow, in, out int, untracked bool, front *state.Frontend, t trail) []Path {
	toNode := v.n.way(f.Destination).Own
	var steps []Step
	switch {
	case v.n.State.Policy == nil: // who asks is told so once
	case v.own && toNode:
		t = t.note("the node reaches itself: no policy judges it")
	case v.own:
		steps = Output(v.p, f, out)
		if v.p.Workloads[f.Destination] != nil {
			t = t.note("a node always reaches its own pods")
		}
	case toNode:
		steps = Input(v.p, f, in)
	default:
		steps = Forward(v.p, f, in, out)
	}
	byRoute(steps)
	if untracked {
		steps = slices.DeleteFunc(steps, func(s Step) bool { return strings.HasPrefix(string(s.Stage), "host") })
	}
	t = t.lack(v.c.allMissing(steps, f))
	steps = append(steps, v.others(f, in, out, toNode)...)
	t = t.take(v.name, f, steps)
	if denial, denied := Denial(steps); denied && denial.Drop != state.DropPolicy && denial.Drop != state.DropHost {
		return v.c.end(f, t)
	}
	next := v.c.Home(f.Destination)
	if toNode || next == v.name || v.p.Workloads[f.Destination] != nil {
		return v.c.end(f, t)
	}
	nat := !untracked && outgoing(v.n.State.Services.Settings, f)
	if next == "" {
		if _, denied := Denial(steps); denied {
			return v.c.end(f, t)
		}
		if nat {
			t = t.note(v.outgoingNote(f))
		}
		return v.c.end(f, t.note("of no pod or node of the cluster: what is beyond node "+v.name+" is not judged"))
	}
	return v.onward(next, f, front, nat, t)
}

// others are what the rules of other programs do with the flow.
func (v *visit) others(f Flow, in, out int, toNode bool) []Step {
	if v.n.Others == nil {
		return nil
	}
	if in == 0 {
		in = v.n.way(f.Source).Device
	}
	if out == 0 {
		out = v.n.way(f.Destination).Device
	}
	return v.n.Others(Crossing{Asked: v.in, Flow: f, In: in, Out: out, FromNode: v.own, ToNode: toNode})
}

// outgoingNote says as whom those beyond the node see the client.
func (v *visit) outgoingNote(f Flow) string {
	as := "an address of node " + v.name
	if sources := v.n.sources(f); len(sources) == 1 {
		as = fmt.Sprintf("%v, %s", sources[0], as)
	}
	return "it leaves with " + as + ", as its source: natOutgoing of an IPPool, or --nat-outgoing"
}

// onward follows a flow to the next node, which sees an address of this one as its source if that
// is masqueraded: for the service, or as it leaves the pods' network.
func (v *visit) onward(next string, f Flow, front *state.Frontend, outgoing bool, t trail) []Path {
	forService := front != nil && masquerades(v.n.State.Services.Settings, front, f.Source, v.own)
	if !forService && !outgoing {
		return v.c.visit(next, f, t)
	}
	sources := v.n.sources(f)
	if len(sources) == 0 {
		return v.c.end(f, t.take(v.name, f, []Step{{Stage: Masquerade, Verdict: Verdict{Outcome: Unknown},
			Text: "node " + next + " sees an address of this node as the client, and it is not known which"}}))
	}
	var ways [][]Path
	for _, a := range sources {
		g := f
		g.Source = a
		ways = append(ways, v.c.visit(next, g, t.note(fmt.Sprintf("node %s sees %v, an address of node %s, as the client", next, a, v.name))))
	}
	paths := agree(ways, Step{Node: v.name, Stage: Masquerade, Verdict: Verdict{Outcome: Unknown},
		Text: fmt.Sprintf("it depends on which address node %s sees as the client: one of %v", next, sources)})
	if !v.own {
		h := HiddenClient{Client: f.Source, Seen: sources[0], Entry: v.name, Node: next}
		if forService && front.External() && !front.LocalOnly {
			h.Remedy = fmt.Sprintf("set externalTrafficPolicy: Local on Service %v: policies see the client then, and nodes without an endpoint serve nobody outside", front.Service)
		}
		h.compare(paths, v.c.visit(next, f, t))
	}
	return paths
}

// compare tells the paths that would end otherwise if policies saw the client.
func (h HiddenClient) compare(paths, seen []Path) {
	for i := range paths {
		if len(paths) != len(seen) || paths[i].Outcome == Unknown || seen[i].Outcome == Unknown || paths[i].Outcome == seen[i].Outcome {
			continue
		}
		own := h
		own.Otherwise = seen[i].Outcome
		if s, denied := Denial(seen[i].Steps); denied {
			own.Reason = s.Reason()
		}
		paths[i].HiddenClient = &own
	}
}

// agree returns the paths of the first way with the outcomes that all ways give them. Where they
// differ, it is unknown, and unsure says why. A way with another number of paths ends before the
// backend is chosen, or the first does: then all of them are compared.
func agree(ways [][]Path, unsure Step) []Path {
	first := ways[0]
	for i := range first {
		same := func(p Path) bool { return p.Outcome == first[i].Outcome }
		for _, other := range ways[1:] {
			if len(other) == len(first) && !same(other[i]) || len(other) != len(first) && !all(other, same) {
				first[i].Outcome, first[i].HiddenClient = Unknown, nil
				first[i].Steps = append(slices.Clip(first[i].Steps), unsure)
				break
			}
		}
	}
	return first
}

func all(paths []Path, f func(Path) bool) bool {
	return !slices.ContainsFunc(paths, func(p Path) bool { return !f(p) })
}

// unsure says that the outcome depends on the host endpoint by whose interface a flow goes.
func (v *visit) unsure(f Flow, devices []int, does string) Step {
	s := Step{Node: v.name, Stage: HostForwardIn, Flow: f, Verdict: Verdict{Outcome: Unknown}}
	for _, d := range devices {
		if h := v.p.Hosts[d]; h != nil {
			s.Of, s.At = model.Ref{Kind: model.HostEndpointKind, Name: model.Name{Name: h.Name}}, h.Device
		}
	}
	s.Text = fmt.Sprintf("whether it %s by this host endpoint's interface is known on node %s alone", does, v.name)
	return s
}

// unknownSender is what is known of a source that the route places behind a pod's interface.
const unknownSender = "the way to it is a pod's interface, and no pod is known there that has this address: its pod is not known yet, or it is not its own"

// byRoute rewords what became of a source whose interface is not that of a known pod. A packet
// shows its interface; here only the route tells it.
func byRoute(steps []Step) {
	for i := range steps {
		if steps[i].Drop == state.DropSpoofed {
			steps[i].Text = unknownSender
		}
	}
}
