package address

import (
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// Moved returns the addresses that may be others' than at the last call, or whose Services or pool
// changed; with Config.BGP alone. It is for package compile/bgp, as those below are.
func (c *Compiler) Moved() []netip.Addr {
	list := slices.Collect(maps.Keys(c.moved))
	clear(c.moved)
	return list
}

// At returns the pool of an address, and the Services that have it, the oldest first; nil: no
// Service has it, or it is of no pool.
func (c *Compiler) At(a netip.Addr) (*model.IPAddressPool, []*model.Service) {
	is, p := c.addresses[a], c.poolOf(a)
	if is == nil || p == nil {
		return nil, nil
	}
	list := make([]*model.Service, len(is.services))
	for i, s := range is.services {
		list[i] = s.Service
	}
	return p.IPAddressPool, list
}

// Given returns the addresses of pools that Services have, in no order.
func (c *Compiler) Given() []netip.Addr { return slices.Collect(maps.Keys(c.addresses)) }
