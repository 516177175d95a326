package reconcile

import (
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
)

// Part is a part of the state, which is reconciled apart from the others.
type Part int

// The parts.
const (
	Services Part = iota
	Policy
	Fabric
	Farms
)

// parts has all that is different between parts.
var parts = [...]struct {
	name    string
	needs   driver.Capability
	there   func(*state.State) bool
	copy    func(to, from *state.State)
	changes func(state.Delta) int // how much of a change is of the part
	pick    func(to *state.Delta, from state.Delta)
	kept    func(driver.Kept) int
}{
	Services: {
		"services", driver.Services, func(s *state.State) bool { return s.Services != nil }, func(to, from *state.State) { to.Services = from.Services },
		func(d state.Delta) int { return d.Services.Len() }, func(to *state.Delta, from state.Delta) { to.Services = from.Services },
		func(k driver.Kept) int { return k.Services },
	},
	Policy: {
		"policy", driver.Policy, func(s *state.State) bool { return s.Policy != nil }, func(to, from *state.State) { to.Policy = from.Policy },
		func(d state.Delta) int { return d.Policy.Len() }, func(to *state.Delta, from state.Delta) { to.Policy = from.Policy },
		func(k driver.Kept) int { return k.Policy },
	},
	Fabric: {
		"fabric", driver.Fabric, func(s *state.State) bool { return s.Fabric != nil }, func(to, from *state.State) { to.Fabric = from.Fabric },
		func(d state.Delta) int { return d.Fabric.Len() }, func(to *state.Delta, from state.Delta) { to.Fabric = from.Fabric },
		func(k driver.Kept) int { return k.Fabric },
	},
	Farms: {
		"farms", driver.Farms, func(s *state.State) bool { return s.Farms != nil }, func(to, from *state.State) { to.Farms = from.Farms },
		func(d state.Delta) int { return d.Farms.Len() }, func(to *state.Delta, from state.Delta) { to.Farms = from.Farms },
		func(driver.Kept) int { return 0 },
	},
}

// String returns "services", "policy", "fabric" or "farms".
func (p Part) String() string { return parts[p].name }
