package verdict

import (
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Stage is a place on a packet's way where it is checked.
type Stage string

// The stages, in the order in which a packet meets them. Those of a host endpoint are named after
// its policies.
const (
	DenyList       Stage = "deny list"
	UntrackedIn    Stage = "host, untracked in"
	UntrackedOut   Stage = "host, untracked out"
	PreDNAT        Stage = "host, before services"
	Lists          Stage = "address lists"
	Service        Stage = "service"
	Masquerade     Stage = "masquerade"
	Self           Stage = "itself"
	Source         Stage = "source" // whether what comes from there may have that address
	Egress         Stage = "egress"
	Destination    Stage = "destination" // whether the address is one that is known
	Ingress        Stage = "ingress"
	HostForwardIn  Stage = "host, forward"
	HostForwardOut Stage = "host, forward out"
	HostInput      Stage = "host, in"
	HostOutput     Stage = "host, out"
	Others         Stage = "other rules" // of other programs
)

// Step is what became of a flow at one stage.
type Step struct {
	Node  string    `json:"node,omitempty"` // where it is taken; empty where only one node is in question
	Stage Stage     `json:"stage"`
	Of    model.Ref `json:"of,omitzero"`  // the pod, host endpoint, list or service that it belongs to
	At    string    `json:"at,omitempty"` // the host endpoint's interface, or the kind of the service's address
	Verdict
	Drop state.Drop `json:"drop,omitempty"` // the reason, where it is denied
	Text string     `json:"text,omitempty"` // for people, where no rule decided
	Flow Flow       `json:"-"`              // as it was there, in answers
}

// KnownThere reports whether the step is unknown here, and its node may know it.
func (s Step) KnownThere() bool { return s.Outcome == Unknown && s.Text != byClientPort }

func podRef(name model.Name) model.Ref { return model.Ref{Kind: model.PodKind, Name: name} }

// Denial returns the step that drops the flow, if one does.
func Denial(steps []Step) (Step, bool) {
	i := slices.IndexFunc(steps, func(s Step) bool { return s.Outcome == Denied })
	if i < 0 {
		return Step{}, false
	}
	return steps[i], true
}

// Forward walks what a new connection meets that the node passes on: from a pod, to a pod, or both,
// or neither. in and out are the indexes of the interfaces by which it comes and goes; 0 is not
// known: a pod of this node is taken to send by its own interface then, others by one of the node's
// that has no host endpoint. The steps are those of all stages, also after one that denies, except
// for what drops a packet outside any rules, which is the last.
func Forward(p *state.Policy, f Flow, in, out int) []Step {
	if w := p.Workloads[f.Source]; w != nil && f.Source == f.Destination && sentBy(p, f, in) == w.Device && w.Device != 0 {
		return []Step{{Stage: Self, Of: podRef(w.Pod), Verdict: Verdict{Outcome: Allowed}, Text: "a pod always reaches itself"}}
	}
	steps, on := sent(p, f, in, nil)
	if !on {
		return steps
	}
	if steps, on = received(p, f, out, steps); !on {
		return steps
	}
	if h := p.Hosts[in]; h != nil {
		steps = host(p, h, HostForwardIn, h.ForwardIn, f, steps)
	}
	if h := p.Hosts[out]; h != nil {
		steps = host(p, h, HostForwardOut, h.ForwardOut, f, steps)
	}
	return steps
}

// Input walks what a new connection to the node itself meets; in as for Forward. What comes in by
// the loopback interface is not to be asked about: it passes.
func Input(p *state.Policy, f Flow, in int) []Step {
	if neighbourDiscovery(f) {
		return nil
	}
	steps, on := sent(p, f, in, nil)
	if !on {
		return steps
	}
	if h := p.Hosts[in]; h != nil {
		steps = host(p, h, HostInput, h.Input, f, steps)
	}
	return steps
}

// Output walks what a new connection of the node itself meets, which leaves by the interface out.
// The node always reaches its own pods.
func Output(p *state.Policy, f Flow, out int) []Step {
	if h := p.Hosts[out]; h != nil {
		return host(p, h, HostOutput, h.Output, f, nil)
	}
	return nil
}

// Arrive walks what a packet meets before services are translated: deny lists, and host endpoints'
// policies that come before connection tracking and before services. f is the flow as its client
// sent it; in as for Forward, but 0 is taken to have deny lists.
func Arrive(p *state.Policy, f Flow, in int) (steps []Step) {
	here := slices.ContainsFunc(p.Denied.Devices, func(d state.Device) bool { return in == 0 || d.Index == in })
	for _, list := range p.Denied.Lists {
		if here && onList(list, f.Source, everyLength[:f.Source.BitLen()+1]) {
			return []Step{{Stage: DenyList, Of: listRef(list), Drop: state.DropDenyList, Text: "the source is listed; dropped where it arrives, at " + deniedAt(p)}}
		}
	}
	h := p.Hosts[in]
	if h == nil {
		return nil
	}
	steps = host(p, h, UntrackedIn, h.UntrackedIn, f, nil)
	if untracked(steps) {
		return steps
	}
	return host(p, h, PreDNAT, h.PreDNAT, f, steps)
}

// listRef is the object that a list was made of.
func listRef(list *state.List) (r model.Ref) {
	_ = r.UnmarshalText([]byte(list.Name)) // which takes every text
	return r
}

// deniedAt names the interfaces of deny lists.
func deniedAt(p *state.Policy) string {
	var names []string
	for _, d := range p.Denied.Devices {
		names = append(names, d.Name)
	}
	return strings.Join(names, ", ")
}

// everyLength are the lengths that a prefix can have.
var everyLength = func() (all [129]uint8) {
	for i := range all {
		all[i] = uint8(i)
	}
	return all
}()

// Depart walks what a packet of the node itself meets before services are translated.
func Depart(p *state.Policy, f Flow, out int) []Step {
	if h := p.Hosts[out]; h != nil {
		return host(p, h, UntrackedOut, h.UntrackedOut, f, nil)
	}
	return nil
}

// untracked reports whether one of the steps takes the flow out of connection tracking: services do
// not translate it then, and host endpoints do not check it again. The failsafe ports do not.
func untracked(steps []Step) bool {
	return slices.ContainsFunc(steps, func(s Step) bool {
		return s.Allowed() && s.Rule != "" && s.Policy.Kind != model.Failsafe && (s.Stage == UntrackedIn || s.Stage == UntrackedOut)
	})
}

// sentBy is the interface that a flow comes in by.
func sentBy(p *state.Policy, f Flow, in int) int {
	if w := p.Workloads[f.Source]; in == 0 && w != nil {
		return w.Device
	}
	return in
}

// sent checks what the source may send. A packet goes on unless it is not known whose it is.
func sent(p *state.Policy, f Flow, in int, steps []Step) (_ []Step, on bool) {
	device := sentBy(p, f, in)
	w := p.Workloads[f.Source]
	if tunnelled(p, f, device) {
		return append(steps, Step{Stage: Source, Of: senderRef(w), Drop: state.DropTunnel, Text: "pods may not send what tunnels carry: --pod-tunnels lets them"}), false
	}
	if w != nil && w.Device == device && device != 0 {
		return evaluate(p, Egress, podRef(w.Pod), w.Egress, f, state.DropPolicy, steps), true
	}
	drop := stranger(p, f, device, w != nil && in == 0)
	if drop == "" {
		return steps, true
	}
	return append(steps, Step{Stage: Source, Of: senderRef(w), Drop: drop, Text: strangers[drop]}), false
}

var strangers = map[state.Drop]string{
	state.DropSpoofed:       "it comes from a pod's interface, and not with that pod's address",
	state.DropUnknownPod:    "an address of this node's pods, and no pod is known that sends from it by this interface",
	state.DropUnknownDevice: "nothing is known yet of the interface by which it comes",
}

// stranger says why a packet is dropped whose interface and source address are not those of a known
// pod; "" if it is not.
func stranger(p *state.Policy, f Flow, device int, homeless bool) state.Drop {
	_, pod := p.PodDevices[device]
	_, own := p.HostDevices[device]
	switch {
	case pod:
		return state.DropSpoofed
	case homeless, model.Within(f.Source, p.PodCIDRs):
		return state.DropUnknownPod
	case device != 0 && !own:
		return state.DropUnknownDevice
	}
	return ""
}

// neighbourDiscovery reports what a host on an IPv6 link sends: multicast listener discovery (RFC
// 2710, RFC 3810), router solicitations, neighbour solicitations and advertisements (RFC 4861).
func neighbourDiscovery(f Flow) bool {
	if f.Protocol != icmpv6 {
		return false
	}
	t := f.ICMPType
	return t >= 130 && t <= 133 || t == 135 || t == 136 || t == 143
}

// received checks what may reach the destination.
func received(p *state.Policy, f Flow, out int, steps []Step) (_ []Step, on bool) {
	if w := p.Workloads[f.Destination]; w != nil {
		return evaluate(p, Ingress, podRef(w.Pod), w.Ingress, f, state.DropPolicy, steps), true
	}
	if model.Within(f.Destination, p.PodCIDRs) {
		return append(steps, Step{Stage: Destination, Drop: state.DropUnknownPod, Text: "an address of this node's pods that no known pod has"}), false
	}
	if _, own := p.HostDevices[out]; out != 0 && !own {
		return append(steps, Step{Stage: Destination, Drop: state.DropUnknownPod, Text: "it leaves by a pod's interface, or by one of which nothing is known, and no known pod has the address"}), false
	}
	return steps, true
}

// tunnelled reports whether a pod sends what a tunnel carries: VXLAN, Geneve, IPv4 or IPv6 in IP,
// GRE.
func tunnelled(p *state.Policy, f Flow, device int) bool {
	switch {
	case p.PodTunnels || device == 0:
		return false
	case f.Protocol == 17 && (f.DestinationPort == 4789 || f.DestinationPort == 8472 || f.DestinationPort == 6081):
	case f.Protocol == 4 || f.Protocol == 41 || f.Protocol == 47:
	default:
		return false
	}
	if _, pod := p.PodDevices[device]; pod {
		return true
	}
	for _, w := range p.Workloads {
		if w.Device == device {
			return true
		}
	}
	return false
}

func senderRef(w *state.Workload) model.Ref {
	if w == nil {
		return model.Ref{}
	}
	return podRef(w.Pod)
}

// host appends a step for a host endpoint that has rules at the stage.
func host(p *state.Policy, h *state.Host, stage Stage, id state.RulesID, f Flow, steps []Step) []Step {
	if id == "" {
		return steps
	}
	first := len(steps)
	steps = evaluate(p, stage, model.Ref{Kind: model.HostEndpointKind, Name: model.Name{Name: h.Name}}, id, f, state.DropHost, steps)
	steps[first].At = h.Device
	return steps
}

func evaluate(p *state.Policy, stage Stage, of model.Ref, id state.RulesID, f Flow, drop state.Drop, steps []Step) []Step {
	v, depends := evaluateAny(p, id, f)
	s := Step{Stage: stage, Of: of, Verdict: v, Drop: drop}
	if s.Outcome != Denied {
		s.Drop = ""
	}
	switch {
	case depends:
		s.Text = byClientPort
	case id == "":
		s.Text = "no policy applies"
	case p.Rules[id] == nil:
		s.Text = "its policies are not known yet"
	case s.Tier == "" && s.Allowed():
		s.Text = "no rule applies"
	case s.Tier == "":
		s.Text = "no policy allows it"
	}
	return append(steps, s)
}
