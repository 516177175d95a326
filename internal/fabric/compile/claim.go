package compile

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/sorted"
	"sluice.dev/sluice/internal/model"
)

// nodeClaims are the nodes that claim what only one can have, the oldest first: it has it.
type nodeClaims[K comparable] map[K][]*model.Node

// add adds a node's claim. If that takes k from another node, all others that claim it are added to
// again.
func (c nodeClaims[K]) add(k K, n *model.Node, again map[string]bool) {
	if c[k] = sorted.Set(c[k], n, true, older); c[k][0] == n {
		name(c[k][1:], again)
	}
}

// drop withdraws a node's claim. If the node had k, all others that claim it are added to again.
func (c nodeClaims[K]) drop(k K, n *model.Node, again map[string]bool) {
	if c[k][0] == n {
		name(c[k][1:], again)
	}
	if c[k] = sorted.Set(c[k], n, false, older); len(c[k]) == 0 {
		delete(c, k)
	}
}

func name(nodes []*model.Node, into map[string]bool) {
	for _, n := range nodes {
		into[n.Name] = true
	}
}

// winner is the node that has what is claimed.
func (c nodeClaims[K]) winner(k K) string { return c[k][0].Name }

// older orders nodes by age.
func older(a, b *model.Node) int { return a.Birth().Compare(b.Birth()) }

// younger are those of some nodes, the oldest first, that came after another.
func younger(nodes []*model.Node, n *model.Node) []*model.Node {
	i, has := slices.BinarySearchFunc(nodes, n, older)
	if has {
		i++
	}
	return nodes[i:]
}

// cidr is who claims a pod CIDR or block, and who has the pods in it, each the oldest first: one at
// most has them, once that is decided.
type cidr struct {
	claims, holders []*model.Node
	// eldest is the address in it of the oldest node that has one; invalid: there is none.
	eldest netip.Addr
	known  bool // or it is to be looked for
}

// open are the nodes that may have the pods in the CIDR as far as older nodes with the same one go.
func (of *cidr) open() []*model.Node {
	if len(of.holders) == 0 {
		return of.claims
	}
	i, _ := slices.BinarySearchFunc(of.claims, of.holders[0], older)
	return of.claims[:i+1]
}

// claimCIDR follows that a node has a pod CIDR or block, or no longer has, and adds the nodes
// to again whose claims that touches.
func (c *Compiler) claimCIDR(p netip.Prefix, n *node, there bool, again map[string]bool) {
	c.reclaimed[p] = true
	of, _ := c.cidrs.Get(p)
	if there {
		if of == nil {
			of = &cidr{}
			c.cidrs.Insert(p, of)
		}
		of.claims = sorted.Set(of.claims, n.Node, true, older)
		return
	}
	if of == nil {
		return // the node's list repeats it
	}
	if why, decided := n.denied[p]; decided && why == "" {
		c.hold(p, n.Node, false, again)
	}
	if of.claims = sorted.Set(of.claims, n.Node, false, older); len(of.claims) == 0 {
		c.cidrs.Delete(p)
	}
}

// hold follows that a node has the pods in a CIDR, or no longer has, and adds the nodes to again to
// which that matters: newer ones with the same CIDR, and those with addresses or smaller CIDRs in
// it.
func (c *Compiler) hold(p netip.Prefix, n *model.Node, there bool, again map[string]bool) {
	of, _ := c.cidrs.Get(p)
	of.holders = sorted.Set(of.holders, n, there, older)
	if c.everyone {
		return
	}
	name(younger(of.claims, n), again)
	for p := range c.nodeAddrs.Subnets(p) {
		name(c.addrs[p.Addr()][:1], again)
	}
	for inner, of := range c.cidrs.Subnets(p) {
		if inner != p {
			name(of.open(), again)
		}
	}
}

// decide decides who has the pods in the CIDRs of the nodes in again, and adds to again the nodes
// to which that matters. A decision depends on claims and decisions of older nodes alone.
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
			for i, p := range n.cidrs {
				why := c.deny(n, i)
				old, known := n.denied[p]
				if known && why == old {
					continue
				}
				n.denied[p], c.reclaimed[p] = why, true
				if had, has := known && old == "", why == ""; had != has {
					c.hold(p, n.Node, has, again)
				}
			}
		}
	}
}

// deny says why a node does not get the pods of its CIDR i; "": it does. A block may lie in the pod
// CIDR of another Node, as Calico gives blocks out whatever pod CIDRs there are, but in no block.
func (c *Compiler) deny(n *node, i int) string {
	cidr := n.cidrs[i]
	if why := c.elsewhere(cidr); why != "" {
		return why
	}
	switch by, holder := c.holder(cidr, n.Node); {
	case holder != nil && by == cidr:
		return fmt.Sprintf("is that of Node %s, %s", holder.Name, holder.Birth().Precedence(n.Birth()))
	case holder != nil && (i < len(n.PodCIDRs) || !slices.Contains(holder.PodCIDRs, by)):
		return fmt.Sprintf("lies in %s of Node %s, %s", by, holder.Name, holder.Birth().Precedence(n.Birth()))
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
	for around, of := range c.cidrs.Supernets(p) {
		if len(of.holders) > 0 && (before == nil || older(of.holders[0], before) < 0) {
			return around, c.nodes[of.holders[0].Name]
		}
	}
	return netip.Prefix{}, nil
}

// lost says who has the address of a node in its place, and why; "": it has it itself.
func (c *Compiler) lost(a netip.Addr, n *model.Node) string {
	if winner := c.addrs[a][0]; winner.Name != n.Name {
		return fmt.Sprintf("that of Node %s, %s", winner.Name, winner.Birth().Precedence(n.Birth()))
	}
	if by, holder := c.holder(single(a), n); holder != nil {
		return fmt.Sprintf("in %s, pods of Node %s, %s", by, holder.Name, holder.Birth().Precedence(n.Birth()))
	}
	return ""
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
