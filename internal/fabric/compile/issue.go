package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// fault notes what is wrong with a node.
func (n *node) fault(format string, args ...any) {
	n.faults = append(n.faults, fmt.Sprintf(format, args...))
}

// judge notes what a pool wants and cannot have with a pod CIDR of the node: addresses come from
// that whatever the pool says, and packets travel as it says.
func (n *node) judge(cidr netip.Prefix, pool *model.IPPool) {
	if pool.Disabled {
		n.fault("its pods get addresses of its pod CIDR %s though IPPool %s is disabled: drain the node and give it another, or enable the pool", cidr, pool.Name)
	}
	if !pool.Nodes.IsZero() && !pool.Nodes.Matches(model.LabelMap(n.Labels)) {
		n.fault("its pods get addresses of its pod CIDR %s though the nodeSelector of IPPool %s does not select it: give it another pod CIDR, or change the selector", cidr, pool.Name)
	}
}

// Issues returns what is wrong with the objects as of the last Update, sorted by object. The caller
// only reads it.
func (c *Compiler) Issues() []model.Issue {
	if !c.listed {
		c.issues, c.listed = c.list(), true
	}
	return c.issues
}

// lacking says what a node lacks that is on no subnet of this one.
func (c *Compiler) lacking(l lack) string {
	if c.cfg.BGP {
		return fmt.Sprintf("it is on no subnet of this node, IPPool %s has no tunnel, and no BGP peer announces its pods of %s: "+
			"'sluice bgp' on both nodes says which sessions there are; or set vxlanMode to CrossSubnet", l.pool.Name, l.cidr)
	}
	return fmt.Sprintf("it is on no subnet of this node, and IPPool %s has no tunnel: its pods of %s are reached only if the network between knows them; "+
		"set vxlanMode to CrossSubnet, or announce routes with BGP", l.pool.Name, l.cidr)
}

func (c *Compiler) list() (list []model.Issue) {
	var inside []string
	nested := map[cidrOf][]string{}
	for _, n := range c.nodes {
		ref := n.Ref()
		for _, reason := range n.faults {
			list = append(list, ref.Issue(reason))
		}
		for _, l := range n.lacks {
			if !c.foreign[l.cidr] { // or else somebody has announced the way
				list = append(list, ref.Issue(c.lacking(l)))
			}
		}
		for i, cidr := range n.cidrs {
			around, other := c.holder(netip.PrefixFrom(cidr.Addr(), max(cidr.Bits()-1, 0)), nil)
			switch {
			case other == nil || other == n:
			case i >= len(n.PodCIDRs): // a block, which Calico gives out whatever pod CIDRs there are
				if other.Name == c.cfg.Node {
					inside = append(inside, fmt.Sprintf("%s of Node %s", cidr, n.Name))
				}
			case n.denied[cidr] == "" && older(n.Node, other.Node) < 0: // who came later is to have another
				later := cidrOf{other.Name, around}
				nested[later] = append(nested[later], fmt.Sprintf("%s of Node %s", cidr, n.Name))
			}
		}
	}
	if slices.Sort(inside); len(inside) > 0 {
		list = append(list, c.own.Ref().Issue("its pod CIDRs hold blocks of other nodes: "+model.FirstFew(inside, 3)+
			"; a pod that gets an address there from another IPAM than Calico's is not reached: give the node another pod CIDR before that"))
	}
	for later, within := range nested {
		slices.Sort(within)
		ref := model.Ref{Kind: model.NodeKind, Name: model.Name{Name: later.node}}
		list = append(list, ref.Issue(fmt.Sprintf("its pod CIDR %s holds what other nodes have before it, %s: its pods there are not reached; give it another", later.cidr, model.FirstFew(within, 3))))
	}
	list = append(list, c.ownIssues()...)
	list = append(list, c.poolIssues()...)
	list = append(list, c.LearnedIssues()...)
	slices.SortFunc(list, model.Issue.Compare)
	return list
}

// cidrOf is a pod CIDR of a node that came later than those with pod CIDRs in it.
type cidrOf struct {
	node string
	cidr netip.Prefix
}

// podsElsewhere reports whether another node has pods of a family that a pool holds.
func (c *Compiler) podsElsewhere(is4 bool) bool {
	for _, n := range c.nodes {
		held := func(p netip.Prefix) bool { return p.Addr().Is4() == is4 && c.pool(p) != nil }
		if n.Name != c.cfg.Node && slices.ContainsFunc(n.cidrs, held) {
			return true
		}
	}
	return false
}

// ownIssues say why this node reaches no pods of a family that there are some of.
func (c *Compiler) ownIssues() (list []model.Issue) {
	if c.own == nil {
		return nil
	}
	switch said := c.own.Key(); {
	case said == c.cfg.Key:
	case c.cfg.Key == model.PublicKey{}:
		list = append(list, c.own.Ref().Issue("other nodes encrypt what they send to its pods, and this one does not take it without --encrypt; "+
			"kubectl annotate node "+c.own.Name+" projectcalico.org/WireguardPublicKey-"))
	default:
		list = append(list, c.own.Ref().Issue("nothing is encrypted from here and to here: its annotation projectcalico.org/WireguardPublicKey is not "+c.cfg.Key.String()))
	}
	for _, is4 := range []bool{true, false} {
		if local := c.local(is4); local != nil {
			if by := c.lost(local.Prefix.Addr(), c.own); by != "" {
				list = append(list, c.own.Ref().Issue(fmt.Sprintf("its address %s is %s: neither reaches the other's pods; give it another address", local.Prefix.Addr(), by)))
			}
			continue
		}
		if !c.podsElsewhere(is4) {
			continue
		}
		reason := fmt.Sprintf("it has no %s address", model.FamilyName(is4))
		if a := c.own.Address(is4); a.IsValid() {
			reason = fmt.Sprintf("its address %s is on no interface of this machine", a)
		}
		list = append(list, c.own.Ref().Issue(reason+", so it reaches no "+model.FamilyName(is4)+" pods of other nodes"))
	}
	return list
}

// comparePools puts the smaller first.
func comparePools(a, b *model.IPPool) int {
	return cmp.Or(cmp.Compare(b.CIDR.Bits(), a.CIDR.Bits()), a.CIDR.Compare(b.CIDR), strings.Compare(a.Name, b.Name))
}

// poolIssues name the pools that overlap others: those within one, which come after it, and those
// of the same CIDR. Those that flags say are there for what is in no other.
func (c *Compiler) poolIssues() (list []model.Issue) {
	sorted := slices.SortedFunc(slices.Values(c.pools), func(a, b *model.IPPool) int {
		return cmp.Or(a.CIDR.Compare(b.CIDR), strings.Compare(b.Name, a.Name))
	})
	for i, p := range sorted {
		after := sorted[i+1:]
		n := sort.Search(len(after), func(j int) bool { return !p.CIDR.Overlaps(after[j].CIDR) })
		if n == 0 || slices.Contains(c.cfg.Pools, p) {
			continue
		}
		other, inForce, count, more := after[0], model.InForceRest, "counts", ""
		if winner, _ := c.byCIDR.Get(p.CIDR); winner != p {
			other, inForce = winner, model.InForceNothing
		}
		if n > 1 {
			count, more = "count", fmt.Sprintf(" and %d more", n-1)
		}
		issue := p.Ref().Issue(fmt.Sprintf("its cidr %s overlaps %s of IPPool %s%s, which %s for the addresses in both; change one of them", p.CIDR, other.CIDR, other.Name, more, count))
		issue.InForce, issue.Everywhere = inForce, true
		list = append(list, issue)
	}
	return list
}
