package nftables

import (
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// parts are parts of the state, or-ed: those of one table can be adopted and changed apart.
type parts uint8

const (
	servicesPart parts = 1 << iota
	policyPart
)

// hold reports whether all of others are among the parts.
func (p parts) hold(others parts) bool { return others&^p == 0 }

// partOf is the part that a set belongs to.
func partOf(ruleset *ruleset.Ruleset, s *nft.Set) parts {
	if ruleset.OfPolicy(s) {
		return policyPart
	}
	return servicesPart
}

// part is the part that a unit belongs to.
func (u unit) part() parts {
	switch u.kind {
	case settingsUnit, clusterIPUnit, otherIPUnit, hairpinUnit, peerUnit, frontendUnit:
		return servicesPart
	}
	return policyPart
}

// partsIf are the parts of which it is true.
func partsIf(services, policy bool) (p parts) {
	if services {
		p |= servicesPart
	}
	if policy {
		p |= policyPart
	}
	return p
}

// partsOf are the parts that a change names, and partsIn those that a state has.
func partsOf(d state.Delta) parts  { return partsIf(d.Services.Len() > 0, d.Policy.Len() > 0) }
func partsIn(s *state.State) parts { return partsIf(s.Services != nil, s.Policy != nil) }

// in is one state with some parts, and another one with all others.
func (p parts) in(s, others *state.State) *state.State {
	c := *others
	if p.hold(servicesPart) {
		c.Services = s.Services
	}
	if p.hold(policyPart) {
		c.Policy = s.Policy
	}
	return &c
}

// failures are those of adoptions of each part.
type failures [policyPart + 1]table.Failures

// of is the larger count of those of some parts.
func (f failures) of(p parts) table.Failures { return max(f[p&servicesPart], f[p&policyPart]) }

func (f *failures) set(p parts, n table.Failures) {
	for _, one := range []parts{servicesPart, policyPart} {
		if p.hold(one) {
			f[one] = n
		}
	}
}

// add counts an adoption of parts that failed.
func (f *failures) add(p parts, err error) {
	for _, one := range []parts{servicesPart, policyPart} {
		if p.hold(one) {
			f[one].Add(err)
		}
	}
}
