package verdict

import (
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
		if text := noFrontend(services, f.Destination); text != "" {
			return &translation{step: Step{Stage: Service, Text: text}}
		}
		return nil
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

// noFrontend says what befalls an address of services that has no such port; "" if it is none.
func noFrontend(s *state.Services, to netip.Addr) string {
	if _, is := s.ClusterIPs[to]; is {
		return "refused: the service has no such port"
	}
	if _, other := s.OtherIPs[to]; !other && model.Within(to, s.Settings.ServiceCIDRs) {
		return "dropped: an address of services that no service has"
	}
	return ""
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
