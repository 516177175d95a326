package compile

import (
	"cmp"
	"net/netip"

	"sluice.dev/sluice/internal/model"
)

// claimAddress follows that a node has an address, or no longer has, and adds newer nodes to again
// that have CIDRs with the address in them.
func (c *Compiler) claimAddress(a netip.Addr, n *model.Node, there bool, again map[string]bool) {
	if there {
		c.addrs.add(a, n, again)
		c.nodeAddrs.Insert(single(a))
	}
	has := c.addrs.winner(a) == n.Name
	if !there {
		if c.addrs.drop(a, n, again); len(c.addrs[a]) == 0 {
			c.nodeAddrs.Delete(single(a))
		}
	}
	if !has {
		return
	}
	for _, of := range c.cidrs.Supernets(single(a)) {
		if !there {
			of.known = of.known && of.eldest != a
		} else if of.known && c.elder(a, of.eldest) {
			of.eldest = a
		}
		if !c.everyone {
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
		for p := range c.nodeAddrs.Subnets(cidr) {
			if c.elder(p.Addr(), of.eldest) {
				of.eldest = p.Addr()
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
