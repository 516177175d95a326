package fabric

import (
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// nodeAddrs are the addresses that packets between nodes travel to, sorted. Who changes many at
// once spoils the order first; the next look puts it right.
type nodeAddrs struct {
	sorted  []netip.Addr
	spoiled bool
}

// set adds or removes an address.
func (s *nodeAddrs) set(a netip.Addr, there bool) {
	if s.spoiled {
		return
	}
	switch i, has := slices.BinarySearchFunc(s.sorted, a, netip.Addr.Compare); {
	case there && !has:
		s.sorted = slices.Insert(s.sorted, i, a)
	case !there && has:
		s.sorted = slices.Delete(s.sorted, i, i+1)
	}
}

// in returns the lowest address that a CIDR holds; invalid: it holds none. claimed are all.
func (s *nodeAddrs) in(cidr netip.Prefix, claimed claims[netip.Addr]) netip.Addr {
	if s.spoiled {
		s.sorted, s.spoiled = slices.SortedFunc(maps.Keys(claimed), netip.Addr.Compare), false
	}
	i, _ := slices.BinarySearchFunc(s.sorted, cidr.Masked().Addr(), netip.Addr.Compare)
	if i < len(s.sorted) && cidr.Contains(s.sorted[i]) {
		return s.sorted[i]
	}
	return netip.Addr{}
}

// claimAddress takes over that a node has an address, or no longer, and adds to again who has pod
// CIDRs that hold it.
func (c *Compiler) claimAddress(a netip.Addr, n *model.Node, there bool, again map[string]bool) {
	if there {
		c.addrs.add(a, n, again)
	} else {
		c.addrs.drop(a, n, again)
	}
	c.nodeAddrs.set(a, len(c.addrs[a]) > 0)
	for bits := range c.lengths {
		if around, err := a.Prefix(bits); err == nil {
			name(c.cidrs[around][:min(len(c.cidrs[around]), 1)], again)
		}
	}
}

// nodeIn returns the own address, that of the node in question, or any node's if a CIDR holds it;
// invalid: it holds none.
func (c *Compiler) nodeIn(cidr netip.Prefix, n *node) netip.Addr {
	is4 := cidr.Addr().Is4()
	if own := c.local(is4); own != nil && cidr.Contains(own.Prefix.Addr()) {
		return own.Prefix.Addr()
	}
	if a := n.Node.Address(is4); a.IsValid() && cidr.Contains(a) {
		return a
	}
	return c.nodeAddrs.in(cidr, c.addrs)
}
