package compile

import (
	"net/netip"

	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Update is Step with room for all.
func (c *Compiler) Update(v *store.View, d store.Dirty, podCIDRs []netip.Prefix) state.PolicyDelta {
	return c.Step(v, d, podCIDRs, all)
}
