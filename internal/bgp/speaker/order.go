package speaker

import (
	"slices"

	"sluice.dev/sluice/internal/bgp"
)

// carryOut does what an Order says, as far as it can be done; what cannot is a fault.
func (s *Speaker) carryOut(o *bgp.Order) {
	s.more = s.more || s.settings == nil // the first Report says that there is nothing
	anew := s.set(o.Settings)
	for prefix, r := range o.Routes {
		s.setRoute(prefix, r)
	}
	for name, spec := range o.Peers {
		s.setPeer(name, spec)
	}
	if s.settings == nil {
		s.fault("settings", "no session with any peer: the first order has no settings")
		return
	}
	if anew || s.server == nil {
		s.restart()
		return
	}
	s.update()
	s.counter.due = true
}

// set replaces the settings, and reports whether the server has to begin anew with them.
func (s *Speaker) set(n *bgp.Settings) bool {
	if n == nil {
		return false
	}
	old := s.settings
	s.settings, s.policyDue = n, true
	return old == nil || old.AS != n.AS || old.RouterID != n.RouterID || old.Port != n.Port || old.Restart != n.Restart ||
		!slices.Equal(old.Listen, n.Listen)
}

// update brings the server to what it should do. Peers that go are gone before those that come,
// which may have their address, and rules are there before the routes that they are for.
func (s *Speaker) update() {
	if s.server == nil {
		return
	}
	s.removePeers()
	s.policies()
	s.announce()
	s.addPeers()
}

// takePort begins as soon as another speaker has left the port: from then on nobody speaks for this
// node.
func (s *Speaker) takePort() {
	if s.server == nil && s.faults[faultListen] != "" {
		s.restart()
	}
}

// retry does what failed once more.
func (s *Speaker) retry() {
	switch {
	case s.settings == nil:
	case s.server == nil || s.server.missing():
		s.restart()
	default:
		s.tidy()
		s.policyDue = s.findHops(s.partners()...) || s.policyDue
		s.update()
	}
}
