package compile

import (
	"net/netip"

	"sluice.dev/sluice/internal/compile/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// written is what the compiler writes of services.
type written struct {
	now          *state.Services
	frontends    diff.Map[state.FrontendKey, state.Frontend]
	healthChecks diff.Map[model.Name, HealthCheck]
	// The reasons are services that refer to the address.
	clusterIPs, otherIPs, hairpins diff.Set[netip.Addr]
}

// newWritten returns what writes to services and health checks that are empty.
func newWritten(s *state.Services, checks map[model.Name]*HealthCheck) written {
	return written{
		now:          s,
		frontends:    diff.NewMap(s.Frontends, (*state.Frontend).Equal),
		healthChecks: diff.NewMap(checks, diff.Values[HealthCheck]),
		clusterIPs:   diff.NewSet(s.ClusterIPs),
		otherIPs:     diff.NewSet(s.OtherIPs),
		hairpins:     diff.NewSet(s.Hairpins),
	}
}

// flush returns what differs from the last flush.
func (w *written) flush() state.ServicesDelta {
	return state.ServicesDelta{
		Frontends:  w.frontends.Flush(),
		ClusterIPs: w.clusterIPs.Flush(),
		OtherIPs:   w.otherIPs.Flush(),
		Hairpins:   w.hairpins.Flush(),
	}
}

func each[T any](all []T, do func(T)) {
	for _, one := range all {
		do(one)
	}
}
