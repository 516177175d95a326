package verdict

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// translation is what a service makes of a flow at one node.
type translation struct {
	step     Step
	backends []netip.AddrPort
	front    *state.Frontend // nil: no service has this address and port
}

// service translates the destination; nil: no service has anything to do with it.
func (v *visit) service(f Flow) *translation {
	services := v.n.State.Services
	front := services.Frontends[state.FrontendKey{Addr: f.Destination, Protocol: model.Protocol(f.Protocol), Port: f.DestinationPort}]
	if front == nil {
		return v.noFrontend(f.Destination)
	}
	step := Step{Stage: Service, Of: model.Ref{Kind: model.ServiceKind, Name: front.Service}, At: front.Kind.String()}
	backends := front.Backends
	outside := front.LocalOnly && !v.own && !model.Within(f.Source, services.Settings.ClusterCIDRs)
	if outside {
		backends = front.Local
	}
	switch {
	case len(front.SourceRanges) > 0 && !model.Within(f.Source, front.SourceRanges):
		step.Text = "dropped: no source range of the service holds " + f.Source.String()
		return &translation{step: step, front: front}
	case len(backends) > 0:
		step.Outcome = Allowed
		step.Text = model.Count(len(backends), "backend")
		if front.Affinity > 0 && len(backends) > 1 {
			step.Text += ", of which each client keeps to one"
		}
	case len(front.Backends) > 0:
		step.Text = "dropped: externalTrafficPolicy is Local, and no endpoint is on this node"
	case front.Reject:
		step.Text = "refused: the service has no endpoint that is ready"
	default:
		step.Text = "dropped: a Local traffic policy, and no endpoint is on this node"
	}
	if outside && step.Allowed() {
		step.Text += " on this node; the client's address is kept"
	}
	return &translation{step, backends, front}
}

// noFrontend is what befalls an address of services that has no such port; nil if it is none.
func (v *visit) noFrontend(to netip.Addr) *translation {
	services := v.n.State.Services
	step := Step{Stage: Service}
	if _, is := services.ClusterIPs[to]; is {
		var ports []string
		for k, front := range services.Frontends {
			if k.Addr == to {
				step.Of, step.At = model.Ref{Kind: model.ServiceKind, Name: front.Service}, front.Kind.String()
				ports = append(ports, fmt.Sprintf("%v %d", k.Protocol, k.Port))
			}
		}
		const most = 5
		slices.Sort(ports)
		step.Text = "refused: the service has no such port; it has " + model.FirstFew(ports, most)
		return &translation{step: step}
	}
	if _, other := services.OtherIPs[to]; !other && model.Within(to, services.Settings.ServiceCIDRs) {
		step.Text = "dropped: an address of services that no service has"
		return &translation{step: step}
	}
	return nil
}

// masquerades reports whether a translated flow gets an address of the node as its source when it
// leaves; own: the node itself is its client.
func masquerades(set state.Settings, f *state.Frontend, client netip.Addr, own bool) bool {
	switch {
	case f.External() && !f.LocalOnly:
		return true
	case f.External():
		return own || model.Within(client, set.ClusterCIDRs) && !model.Within(client, set.LocalCIDRs)
	case set.MasqueradeAll:
		return true
	}
	known := slices.ContainsFunc(set.ClusterCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == client.Is4() })
	return known && !model.Within(client, set.ClusterCIDRs)
}

// outgoing reports whether a flow gets an address of the node as its source as it goes from a pool
// with natOutgoing to an address of no pool.
func outgoing(set state.Settings, f Flow) bool {
	return model.Within(f.Source, set.OutgoingCIDRs) && !model.Within(f.Destination, set.PoolCIDRs)
}
