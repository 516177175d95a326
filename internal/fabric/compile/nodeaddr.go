package compile

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/sorted"
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
	if !s.spoiled {
		s.sorted = sorted.Set(s.sorted, a, there, netip.Addr.Compare)
	}
}

// in yields the addresses that a CIDR holds, in order. claimed are all.
func (s *nodeAddrs) in(cidr netip.Prefix, claimed nodeClaims[netip.Addr]) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		if s.spoiled {
			s.sorted, s.spoiled = slices.SortedFunc(maps.Keys(claimed), netip.Addr.Compare), false
		}
		i, _ := slices.BinarySearchFunc(s.sorted, cidr.Masked().Addr(), netip.Addr.Compare)
		for ; i < len(s.sorted) && cidr.Contains(s.sorted[i]) && yield(s.sorted[i]); i++ {
		}
	}
}

// claimAddress follows that a node has an address, or no longer has, and adds newer nodes to again
// that have CIDRs with the address in them.
func (c *Compiler) claimAddress(a netip.Addr, n *model.Node, there bool, again map[string]bool) {
	if there {
		c.addrs.add(a, n, again)
	}
	has := c.addrs.winner(a) == n.Name
	if !there {
		c.addrs.drop(a, n, again)
	}
	c.nodeAddrs.set(a, len(c.addrs[a]) > 0)
	if !has {
		return
	}
	for _, of := range c.cidrs.Supernets(single(a)) {
		if !there {
			of.known = of.known && of.eldest != a
		} else if of.known && c.elder(a, of.eldest) {
			of.eldest = a
		}
		if !c.nodeAddrs.spoiled { // or else all nodes are compiled again
			name(younger(of.open(), n), again)
		}
	}
}

// nodeIn returns an address because of which a node does not have the pods of a CIDR that holds it:
// its own, or that of the oldest node if it was there before; invalid: there is none.
func (c *Compiler) nodeIn(cidr netip.Prefix, n *node) netip.Addr {
	if a := n.Node.Address(cidr.Addr().Is4()); a.IsValid() && cidr.Contains(a) {
		return a
	}
	of, _ := c.cidrs.Get(cidr)
	if !of.known {
		of.eldest, of.known = netip.Addr{}, true
		for a := range c.nodeAddrs.in(cidr, c.addrs) {
			if c.elder(a, of.eldest) {
				of.eldest = a
			}
		}
	}
	if of.eldest.IsValid() && older(c.addrs[of.eldest][0], n.Node) < 0 {
		return of.eldest
	}
	return netip.Addr{}
}

// elder reports whether an address is of an older node than another, or lower, or there is no
// other.
func (c *Compiler) elder(a, other netip.Addr) bool {
	return !other.IsValid() || cmp.Or(older(c.addrs[a][0], c.addrs[other][0]), a.Compare(other)) < 0
}

// holdsOwn reports whether a CIDR holds this node's address: packets to it do not leave the node.
func (c *Compiler) holdsOwn(cidr netip.Prefix) bool {
	own := c.local(cidr.Addr().Is4())
	return own != nil && cidr.Contains(own.Prefix.Addr())
}
