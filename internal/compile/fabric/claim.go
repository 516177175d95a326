package fabric

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// claims are who claims what only one node can have. The oldest of them has it.
type claims[K comparable] map[K][]*model.Node

// add adds a claim, and to again those whose claims are the same.
func (c claims[K]) add(k K, n *model.Node, again map[string]bool) {
	rivals := c[k]
	i, _ := slices.BinarySearchFunc(rivals, n, older)
	name(rivals, again)
	c[k] = slices.Insert(rivals, i, n)
}

// drop takes a node's claim back.
func (c claims[K]) drop(k K, node string, again map[string]bool) {
	rest := slices.DeleteFunc(c[k], func(n *model.Node) bool { return n.Name == node })
	name(rest, again)
	if c[k] = rest; len(rest) == 0 {
		delete(c, k)
	}
}

func name(nodes []*model.Node, into map[string]bool) {
	for _, n := range nodes {
		into[n.Name] = true
	}
}

// winner is the node that has what is claimed.
func (c claims[K]) winner(k K) string { return c[k][0].Name }

// other names another node that claims the same; "" if there is none.
func (c claims[K]) other(k K, node string) string {
	for _, n := range c[k] {
		if n.Name != node {
			return n.Name
		}
	}
	return ""
}

// older orders nodes by age.
func older(a, b *model.Node) int { return a.Birth().Compare(b.Birth()) }

// claimCIDR takes over that a node has a pod CIDR or block, or no longer, and adds to again whose
// claims that touches.
func (c *Compiler) claimCIDR(p netip.Prefix, n *model.Node, there bool, again map[string]bool) {
	by := -1
	if there {
		by = 1
		c.cidrs.add(p, n, again)
	} else {
		c.cidrs.drop(p, n.Name, again)
	}
	lengths := c.lengths[p.Addr().Is4()]
	if lengths[p.Bits()] += by; lengths[p.Bits()] == 0 {
		delete(lengths, p.Bits())
	}
	c.reclaimed[p] = true
	c.nameIn(p, again)
}

// nameIn adds to again who has addresses, or smaller CIDRs, in a CIDR.
func (c *Compiler) nameIn(p netip.Prefix, again map[string]bool) {
	if c.nodeAddrs.spoiled {
		return // all nodes are compiled again
	}
	for a := range c.nodeAddrs.in(p, c.addrs) {
		name(c.addrs[a], again)
	}
	for bits := range c.lengths[p.Addr().Is4()] {
		if bits <= p.Bits() {
			continue
		}
		for inner, rivals := range c.cidrs {
			if p.Bits() < inner.Bits() && p.Contains(inner.Addr()) {
				name(rivals, again)
			}
		}
		return
	}
}

// decide says of the CIDRs of nodes who has the pods in them, and adds to again for whom that
// matters. A decision depends on the claims of older nodes alone, and on their decisions.
func (c *Compiler) decide(again map[string]bool) {
	for decided := -1; decided < len(again); {
		decided = len(again)
		var list []*node
		for name := range again {
			if n := c.nodes[name]; n != nil {
				list = append(list, n)
			}
		}
		slices.SortFunc(list, func(a, b *node) int { return older(a.Node, b.Node) })
		for _, n := range list {
			for i, cidr := range n.cidrs {
				if why := c.deny(n, i); why != n.denied[i] {
					n.denied[i], c.reclaimed[cidr] = why, true
					name(c.cidrs[cidr], again)
					c.nameIn(cidr, again)
				}
			}
		}
	}
}

// deny says why a node does not get the pods of its CIDR i; "": it does. A block may lie in
// another's CIDR, as Calico gives blocks out whatever pod CIDRs there are.
func (c *Compiler) deny(n *node, i int) string {
	cidr := n.cidrs[i]
	switch by, holder := c.holder(cidr, n.Node); {
	case holder != nil && by == cidr:
		return fmt.Sprintf("is that of Node %s, which was there first", holder.Name)
	case holder != nil && i < len(n.PodCIDRs):
		return fmt.Sprintf("lies in %s of Node %s, which was there first", by, holder.Name)
	}
	if at := slices.IndexFunc(c.apiServers, cidr.Contains); at >= 0 { // whoever mends it would not be heard
		return fmt.Sprintf("holds %s, the API server", c.apiServers[at])
	}
	if a := c.nodeIn(cidr, n); a.IsValid() { // packets between nodes would go where those to pods do
		return fmt.Sprintf("holds %s, which is the address of a node", a)
	}
	return ""
}

// holder returns the smallest CIDR that holds a prefix, or is the same, and the node that has the
// pods in it; nil: there is none. Before, if not nil, has those of older nodes alone count.
func (c *Compiler) holder(p netip.Prefix, before *model.Node) (by netip.Prefix, n *node) {
	for bits := range c.lengths[p.Addr().Is4()] {
		if bits > p.Bits() || n != nil && bits < by.Bits() {
			continue
		}
		around, err := p.Addr().Prefix(bits)
		if err != nil {
			continue
		}
		if r := c.has(around, before); r != nil {
			by, n = around, r
		}
	}
	return by, n
}

// has returns the node that has the pods in a CIDR; nil: none has. Before is as for holder.
func (c *Compiler) has(cidr netip.Prefix, before *model.Node) *node {
	for _, rival := range c.cidrs[cidr] {
		if before != nil && older(rival, before) >= 0 {
			break
		}
		if n := c.nodes[rival.Name]; n.denied[slices.Index(n.cidrs, cidr)] == "" {
			return n
		}
	}
	return nil
}

// lost says who has the address of a node in its place; "": it has it itself.
func (c *Compiler) lost(a netip.Addr, n *model.Node) string {
	if winner := c.addrs.winner(a); winner != n.Name {
		return "that of Node " + winner
	}
	if by, holder := c.holder(netip.PrefixFrom(a, a.BitLen()), n); holder != nil {
		return fmt.Sprintf("in %s, pods of Node %s", by, holder.Name)
	}
	return ""
}
