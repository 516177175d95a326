package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Drop is a packet that was dropped, with the names of its ends.
type Drop struct {
	Time      time.Time     `json:"time"`
	Reason    state.Drop    `json:"reason"`
	From      verdict.Party `json:"from"`
	To        verdict.Party `json:"to"`
	Protocol  string        `json:"protocol"`            // "TCP", "ICMP 8", "protocol 47"
	Interface string        `json:"interface,omitempty"` // the interface through which it came, or would have left
	Says      string        `json:"says"`                // the reason, for people, from the present state

	// Step is the decisive step, if it was one of policy.
	Step *verdict.Step `json:"step,omitempty"`
}

// explain names a packet's ends, and derives from the present state why it was dropped.
func (a *Agent) explain(p Packet) Drop {
	f := p.Flow
	d := Drop{Time: p.Time, Reason: p.Reason, Protocol: f.ProtocolName(),
		From: a.party(f.Source, f.SourcePort), To: a.party(f.Destination, f.DestinationPort)}
	a.compiling.Lock()
	defer a.compiling.Unlock()
	d.Interface = a.interfaces[cmp.Or(p.In, p.Out)]
	s := a.Compiler.State()
	if front := s.Services.Frontends[state.FrontendKey{Addr: f.Destination, Protocol: model.Protocol(f.Protocol), Port: f.DestinationPort}]; front != nil && d.To.Object == (model.Ref{}) {
		d.To.Object = model.Ref{Kind: model.ServiceKind, Name: front.Service}
	}
	if s.Policy != nil {
		d.decided(p, walk(s.Policy, p))
	}
	if d.Says == "" {
		d.Says = d.circumstance()
	}
	if d.Step != nil {
		a.Store.Read(func(v *store.View) { d.Says = strings.Join(append([]string{d.Says}, refusals(v, *d.Step)...), "; ") })
	}
	return d
}

// walk evaluates the packet against the present state, from where it met the kernel's chains.
func walk(p *state.Policy, packet Packet) []verdict.Step {
	f, in, out := packet.Flow, packet.In, packet.Out
	switch {
	case packet.Reason == state.DropCut:
		return forbidden(p, packet)
	case packet.Reason == state.DropDenyList:
		return verdict.Arrive(p, f, in)
	case in != 0 && out != 0:
		return verdict.Forward(p, f, in, out)
	case out != 0:
		return append(verdict.Depart(p, f, out), verdict.Output(p, f, out)...)
	}
	return append(verdict.Arrive(p, f, in), verdict.Input(p, f, in)...)
}

// forbidden evaluates the connection of an established packet, which went in the packet's direction
// or the opposite one. Mostly, the end with the lower port is the server.
func forbidden(p *state.Policy, packet Packet) []verdict.Step {
	back := packet
	back.In, back.Out = packet.Out, packet.In
	back.Flow.Source, back.Flow.Destination = packet.Flow.Destination, packet.Flow.Source
	back.Flow.SourcePort, back.Flow.DestinationPort = packet.Flow.DestinationPort, packet.Flow.SourcePort
	ways := []Packet{packet, back}
	if packet.Flow.SourcePort < packet.Flow.DestinationPort {
		slices.Reverse(ways)
	}
	for _, way := range ways {
		way.Reason = state.DropPolicy
		steps := walk(p, way)
		if _, denied := verdict.Denial(steps); denied {
			return steps
		}
	}
	return nil
}

// decided records which of the steps dropped the packet, if one still does.
func (d *Drop) decided(p Packet, steps []verdict.Step) {
	step, denied := verdict.Denial(steps)
	switch p.Reason {
	case state.DropPolicy, state.DropHost, state.DropDenyList, state.DropCut:
	default:
		return
	}
	if !denied {
		if p.Reason != state.DropCut {
			d.Says = "nothing denies it any more: the policies have changed since"
		}
		return
	}
	d.Step = &step
	d.Says = fmt.Sprintf("%s, %s: %s", step.Subject(), step.Stage, step.Reason())
	if p.Reason == state.DropCut {
		d.Says = "established, and forbidden since: " + d.Says
	}
}

// circumstance explains a reason other than a policy.
func (d *Drop) circumstance() string {
	switch d.Reason {
	case state.DropSpoofed:
		return fmt.Sprintf("no known pod behind %s has this address: its pod is not known yet, or the address is forged", cmp.Or(d.Interface, "its interface"))
	case state.DropUnknownPod:
		return "an address of this node's pods, but of no pod that is known here with its policies"
	case state.DropUnknownDevice:
		return fmt.Sprintf("it is not known yet which pod is behind %s", cmp.Or(d.Interface, "its interface"))
	case state.DropCut:
		return "established, and forbidden since"
	case state.DropForeignError:
		return "an ICMP error about a connection that is not the sender's own, as far as known"
	case state.DropStray:
		return "a TCP segment from a pod, of no connection that this node knows: it would arrive untranslated, and its receiver would end the connection; some are normal as connections end, and if they go on, see that requests come to the pod by this node, too"
	case state.DropSourceRanges:
		return "it comes from outside of the Service's loadBalancerSourceRanges"
	case state.DropForeignTunnel:
		return "a packet of the pod network's tunnels, from an address that no Node has"
	}
	return string(d.Reason)
}

// party names the pod or node that has an address, if one has.
func (a *Agent) party(addr netip.Addr, port uint16) verdict.Party {
	p := verdict.Party{Address: addr, Port: port}
	if pod := a.Store.PodByAddr(addr); pod != nil {
		p.Object, p.Node = pod.Ref(), pod.Node
	} else if node := a.nodes.of(a.Store, addr); node != "" {
		p.Object, p.Node = model.Ref{Kind: model.NodeKind, Name: model.Name{Name: node}}, node
	}
	return p
}
