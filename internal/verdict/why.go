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
	Protocol           uint8
	FromPort, Port     uint16 // TCP, UDP, SCTP; FromPort may be 0
	ICMPType, ICMPCode uint8

	Here string // the name of the node that is asked, as Node says it

	// What is known of addresses beside the state. Each may be nil.
	Name  func(netip.Addr) string                 // "pod shop/web", "node n1"; "": not known
	Node  func(netip.Addr) string                 // the node of the pod that has the address; "": no pod's
	Route func(netip.Addr) (device int, own bool) // the interface by which it is reached, 0: not known; whether it is this node's own
}

// Answer is what becomes of the connection, as far as this node is concerned.
type Answer struct {
	From     string `json:"from"` // "10.1.0.5 (pod shop/web)"
	To       string `json:"to"`
	Protocol string `json:"protocol"` // "TCP 5432", "ICMP 8"
	// Allowed: nothing forbids it on any of the paths. Where a service has several backends, some
	// may be allowed and others not.
	Allowed bool `json:"allowed"`
	// Elsewhere are the nodes that decide on the connection where this one does not: it is neither
	// allowed nor denied then, and nothing else is told.
	Elsewhere []string `json:"elsewhere,omitempty"`

	Steps   []Step   `json:"steps,omitempty"`   // before the paths part: what comes before services, and the service
	Missing []string `json:"missing,omitempty"` // as of Path, for Steps
	Paths   []Path   `json:"paths,omitempty"`   // one for each backend, or one; none if a step denies
}

// Path is the way to one destination.
type Path struct {
	To      string   `json:"to"`
	Allowed bool     `json:"allowed"`
	Steps   []Step   `json:"steps,omitempty"`
	Missing []string `json:"missing,omitempty"` // the rules that would have had to exist, where nothing allows it
	Notes   []string `json:"notes,omitempty"`   // what is decided elsewhere, or not at all
}

// Why says what becomes of a connection: whether a service translates it and to which backends, and
// what the policies of both its ends and of this node's host endpoints make of it. s without a
// Policy allows all that services do.
func Why(s *state.State, q Question) Answer {
	a := asker{s: s, q: q, p: s.Policy}
	if a.p == nil {
		a.p = state.NewPolicy()
	}
	a.in, a.fromNode = a.route(q.From)
	f := Flow{Source: q.From, Destination: q.To, Protocol: q.Protocol, SourcePort: q.FromPort, DestinationPort: q.Port, ICMPType: q.ICMPType, ICMPCode: q.ICMPCode}
	answer := Answer{From: a.label(q.From), To: a.end(q.To, q.Port), Protocol: f.what()}
	if answer.Elsewhere = a.otherNodes(); answer.Elsewhere != nil {
		return answer
	}
	if a.fromNode {
		out, _ := a.route(q.To)
		answer.Steps = Depart(a.p, f, out)
	} else if a.p.Workloads[q.From] == nil {
		answer.Steps = Arrive(a.p, f, a.in)
	}
	a.untracked = untracked(answer.Steps)
	backends := []netip.AddrPort{netip.AddrPortFrom(q.To, q.Port)}
	if step, to, ok := a.service(); ok && !a.untracked {
		answer.Steps = append(answer.Steps, step)
		backends = to
	}
	if _, denied := Denied(answer.Steps); denied {
		answer.Missing = a.allMissing(answer.Steps, f)
		return answer
	}
	answer.Allowed = true
	for _, b := range backends {
		f.Destination, f.DestinationPort = b.Addr(), b.Port()
		path := a.path(f)
		answer.Allowed = answer.Allowed && path.Allowed
		answer.Paths = append(answer.Paths, path)
	}
	return answer
}

// asker answers one question.
type asker struct {
	s         *state.State
	p         *state.Policy
	q         Question
	in        int
	fromNode  bool
	untracked bool
}

// route asks for the way to an address; that to a pod of this node is known in the state.
func (a *asker) route(to netip.Addr) (device int, own bool) {
	if w := a.p.Workloads[to]; w != nil {
		return w.Device, false
	}
	if a.q.Route == nil {
		return 0, false
	}
	return a.q.Route(to)
}

// service translates the destination; not ok: no service has anything to do with it.
func (a *asker) service() (step Step, backends []netip.AddrPort, ok bool) {
	key := state.FrontendKey{Addr: a.q.To, Protocol: model.Protocol(a.q.Protocol), Port: a.q.Port}
	step = Step{Stage: Service}
	f := a.s.Services.Frontends[key]
	if f == nil {
		step.Text, ok = a.noFrontend()
		return step, nil, ok
	}
	step.Of = f.Service.String() + " (" + f.Kind.String() + ")"
	backends = f.Backends
	outside := f.LocalOnly && !a.fromNode && !model.Within(a.q.From, a.s.Services.Settings.ClusterCIDRs)
	if outside {
		backends = f.Local
	}
	switch {
	case len(f.SourceRanges) > 0 && !model.Within(a.q.From, f.SourceRanges):
		step.Text = "dropped: no source range of the service holds " + a.q.From.String()
		return step, nil, true
	case len(backends) > 0:
		step.Allowed = true
		step.Text = model.Count(len(backends), "backend")
	case len(f.Backends) > 0:
		step.Text = "dropped: externalTrafficPolicy is Local, and no endpoint is on this node"
	case f.Reject:
		step.Text = "refused: the service has no endpoint that is ready"
	default:
		step.Text = "dropped: a Local traffic policy, and no endpoint is on this node"
	}
	if outside && step.Allowed {
		step.Text += " on this node; the client's address is kept"
	}
	return step, backends, true
}

// noFrontend says what befalls an address of services that has no such port.
func (a *asker) noFrontend() (text string, ok bool) {
	if _, is := a.s.Services.ClusterIPs[a.q.To]; is {
		return "refused: the service has no such port", true
	}
	if _, other := a.s.Services.OtherIPs[a.q.To]; !other && model.Within(a.q.To, a.s.Services.Settings.ServiceCIDRs) {
		return "dropped: an address of services that no service has", true
	}
	return "", false
}

// path walks a flow after translation.
func (a *asker) path(f Flow) Path {
	path := Path{To: a.end(f.Destination, f.DestinationPort)}
	out, toNode := a.route(f.Destination)
	switch {
	case a.s.Policy == nil: // who asks is told so once
	case a.fromNode && toNode:
		path.Notes = append(path.Notes, "the node reaches itself: no policy judges it")
	case a.fromNode:
		path.Steps = Output(a.p, f, out)
		if a.p.Workloads[f.Destination] != nil {
			path.Notes = append(path.Notes, "a node always reaches its own pods")
		}
	case toNode:
		path.Steps = Input(a.p, f, a.device())
	default:
		path.Steps = Forward(a.p, f, a.device(), out)
	}
	byRoute(path.Steps)
	if a.untracked {
		path.Steps = slices.DeleteFunc(path.Steps, func(s Step) bool { return strings.HasPrefix(string(s.Stage), "host") })
	}
	path.Notes = append(path.Notes, a.elsewhere(f, toNode)...)
	_, denied := Denied(path.Steps)
	path.Allowed = !denied
	path.Missing = a.allMissing(path.Steps, f)
	return path
}

// device is the interface that the flow comes in by; that of a pod of this node follows from its
// address.
func (a *asker) device() int {
	if a.p.Workloads[a.q.From] != nil {
		return 0
	}
	return a.in
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

// otherNodes are the nodes of both ends' pods where this node does not decide: what another node's
// pod sends comes here only to reach what is here, as its own node translates services.
func (a *asker) otherNodes() (nodes []string) {
	_, toNode := a.route(a.q.To)
	if a.fromNode || toNode || a.here(a.q.From) || a.here(a.q.To) {
		return nil
	}
	from, to := a.node(a.q.From), a.node(a.q.To)
	if from == "" && (a.p.Hosts[a.in] != nil || len(a.p.Denied.Lists) > 0) {
		return nil // this node's firewall decides on what it forwards
	}
	for _, n := range []string{from, to} {
		if n != "" && !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// here reports whether a pod of this node has the address.
func (a *asker) here(addr netip.Addr) bool {
	return a.p.Workloads[addr] != nil || a.q.Node != nil && a.q.Here != "" && a.q.Node(addr) == a.q.Here
}

// elsewhere says what this node does not decide; nothing, where it has no policy at all.
func (a *asker) elsewhere(f Flow, toNode bool) (notes []string) {
	if a.s.Policy == nil {
		return nil
	}
	translated := f.Destination != a.q.To || f.DestinationPort != a.q.Port
	from, to := a.node(f.Source), a.node(f.Destination)
	if from != "" && !a.fromNode {
		notes = append(notes, fmt.Sprintf("what %s may send is judged on node %s", a.label(f.Source), from))
	}
	if to != "" && !toNode {
		note := fmt.Sprintf("what may reach %s is judged on node %s", a.label(f.Destination), to)
		if translated && a.masquerades() {
			note += ", which sees an address of this node as the client"
		}
		notes = append(notes, note)
	}
	if !translated && !a.fromNode && !toNode && !a.here(f.Source) && !a.here(f.Destination) {
		notes = append(notes, "neither end is on this node: ask on the node of one of them")
	}
	return notes
}

// node is the other node that has the address's pod.
func (a *asker) node(addr netip.Addr) string {
	if a.q.Node == nil || a.here(addr) {
		return ""
	}
	return a.q.Node(addr)
}

// masquerades reports whether the client's address is replaced when the flow leaves this node.
func (a *asker) masquerades() bool {
	f := a.s.Services.Frontends[state.FrontendKey{Addr: a.q.To, Protocol: model.Protocol(a.q.Protocol), Port: a.q.Port}]
	set := a.s.Services.Settings
	switch {
	case f == nil:
		return false
	case set.MasqueradeAll, f.External() && !f.LocalOnly:
		return true
	case f.External():
		return a.fromNode || model.Within(a.q.From, set.ClusterCIDRs) && !model.Within(a.q.From, set.LocalCIDRs)
	}
	return len(set.ClusterCIDRs) > 0 && !model.Within(a.q.From, set.ClusterCIDRs)
}

// end is a label with a port, where the protocol has ports.
func (a *asker) end(addr netip.Addr, port uint16) string {
	if !ported(a.q.Protocol) {
		return a.label(addr)
	}
	return netip.AddrPortFrom(addr, port).String() + strings.TrimPrefix(a.label(addr), addr.String())
}

// label names an address for people.
func (a *asker) label(addr netip.Addr) string {
	if a.q.Name != nil {
		if name := a.q.Name(addr); name != "" {
			return addr.String() + " (" + name + ")"
		}
	}
	return addr.String()
}
