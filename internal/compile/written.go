package compile

import (
	"net/netip"

	"sluice.dev/sluice/internal/compile/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// written is what the compiler writes of services.
type written struct {
	frontends    diff.Map[state.FrontendKey, state.Frontend]
	healthChecks diff.Map[model.Name, state.HealthCheck]
	// The reasons are services that refer to the address.
	clusterIPs, otherIPs, hairpins diff.Set[netip.Addr]
}

// newWritten returns what writes to an empty state.
func newWritten(s *state.State) written {
	return written{
		frontends:    diff.NewMap(s.Frontends, (*state.Frontend).Equal),
		healthChecks: diff.NewMap(map[model.Name]*state.HealthCheck{}, diff.Values[state.HealthCheck]),
		clusterIPs:   diff.NewSet(s.ClusterIPs),
		otherIPs:     diff.NewSet(s.OtherIPs),
		hairpins:     diff.NewSet(s.Hairpins),
	}
}

// flush returns what differs from the last flush.
func (w *written) flush(s *state.State) state.Delta {
	d := state.Delta{
		Frontends:    w.frontends.Flush(),
		HealthChecks: w.healthChecks.Flush(),
		ClusterIPs:   w.clusterIPs.Flush(),
		OtherIPs:     w.otherIPs.Flush(),
		Hairpins:     w.hairpins.Flush(),
	}
	s.Apply(state.Delta{HealthChecks: d.HealthChecks}) // all else is in the state already
	return d
}

func each[T any](all []T, do func(T)) {
	for _, one := range all {
		do(one)
	}
}
