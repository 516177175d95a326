package nftables

import (
	"sluice.dev/sluice/internal/driver/nftables/nft"
	"sluice.dev/sluice/internal/driver/nftables/program"
	"sluice.dev/sluice/internal/state"
)

// parts are parts of the state: those of one table can be adopted and changed apart.
type parts struct{ services, policy bool }

func (p parts) all(of parts) bool { return (p.services || !of.services) && (p.policy || !of.policy) }
func (p parts) any() bool         { return p.services || p.policy }

func (p parts) with(of parts) parts { return parts{p.services || of.services, p.policy || of.policy} }
func (p parts) without(of parts) parts {
	return parts{p.services && !of.services, p.policy && !of.policy}
}

// has reports whether a set is of one of the parts.
func (p parts) has(prog *program.Program, s *nft.Set) bool {
	if prog.OfPolicy(s) {
		return p.policy
	}
	return p.services
}

// hasUnit reports whether a unit is of one of the parts.
func (p parts) hasUnit(u unit) bool {
	switch u.kind {
	case settingsUnit, clusterIPUnit, otherIPUnit, hairpinUnit, frontendUnit:
		return p.services
	}
	return p.policy
}

// partsOf are the parts that a change names.
func partsOf(d state.Delta) parts { return parts{d.Services.Len() > 0, d.Policy.Len() > 0} }

// partsIn are the parts that a state has.
func partsIn(s *state.State) parts { return parts{s.Services != nil, s.Policy != nil} }

// in is the state without other parts.
func (p parts) in(s *state.State) *state.State {
	part := &state.State{}
	if p.services {
		part.Services = s.Services
	}
	if p.policy {
		part.Policy = s.Policy
	}
	return part
}

// failures counts what failed of each part.
type failures struct{ services, policy int }

// of is the larger count of those of some parts.
func (f failures) of(p parts) (n int) {
	if p.services {
		n = f.services
	}
	if p.policy {
		n = max(n, f.policy)
	}
	return n
}

func (f *failures) set(p parts, n int) {
	if p.services {
		f.services = n
	}
	if p.policy {
		f.policy = n
	}
}
