package compile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// pool is an IPAddressPool as it was compiled.
type pool struct {
	*model.IPAddressPool
	four, six  room
	adverts    []*advert       // that announce its addresses
	excess     string          // the first advertisement beyond; "": there is none
	bgp        []*bgpAdvert    // those by BGP, with Config.BGP alone
	moreBGP    bool            // there are more than those
	namespaces map[string]bool // those that it names; nil: none, and no selector
	used       int             // addresses that Services have
}

// room is what a pool has of a family.
type room struct {
	spans []*span
	full  int // how many of the first spans have no free address
}

// room returns what the pool has of a family.
func (p *pool) room(is4 bool) *room {
	if is4 {
		return &p.four
	}
	return &p.six
}

// span is a range of addresses that one pool gives out.
type span struct {
	model.AddressRange
	of *pool
	at int // its index in the spans of its room
	// next is the first address that may be free: all below it are taken or never given out. The
	// zero Addr: none is free.
	next netip.Addr
}

// permits reports whether a Service may have an address of the pool.
func (p *pool) permits(s *service) bool {
	return (p.namespaces == nil || p.namespaces[s.Name.Namespace] || s.namespace != nil && p.NamespaceSelector.Matches(namespaceLabels{s.namespace})) &&
		p.Services.Matches(model.LabelMap(s.LoadBalancer.Labels))
}

// avoids reports whether the pool gives out no address like this.
func (p *pool) avoids(a netip.Addr) bool {
	last := a.AsSlice()[a.BitLen()/8-1]
	return p.AvoidBuggy && a.Is4() && (last == 0 || last == 255)
}

// setPools takes over the pools. All addresses have to be given anew after that.
func (c *Compiler) setPools(v *store.View) {
	ranked := v.IPAddressPools()
	slices.SortFunc(ranked, func(a, b *model.IPAddressPool) int {
		return cmp.Or(cmp.Compare(precedence(a), precedence(b)), a.Name.Compare(b.Name))
	})
	c.lookup = model.NewPools(ranked)
	c.pools, c.poolIssues, c.named = nil, nil, map[model.Name]*pool{}
	for _, o := range ranked {
		p := &pool{IPAddressPool: o}
		c.named[o.Name] = p
		if len(o.Namespaces) > 0 || !o.NamespaceSelector.IsZero() {
			p.namespaces = map[string]bool{}
			for _, name := range o.Namespaces {
				p.namespaces[name] = true
			}
		}
		c.pools = append(c.pools, p)
	}
	c.spans = shareOut(slices.SortedFunc(slices.Values(c.pools), model.ByBirth))
	for _, p := range c.pools {
		if text := c.lost(p); text != "" {
			issue := p.Ref().Issue(text)
			issue.InForce, issue.Everywhere = model.InForceRest, true
			c.poolIssues = append(c.poolIssues, issue)
		}
	}
	for i := range c.spans {
		s := &c.spans[i]
		in := s.of.room(s.First.Is4())
		s.at, in.spans = len(in.spans), append(in.spans, s)
	}
}

// precedence is the order in which pools are tried: those for some Services first, by their
// priority.
func precedence(p *model.IPAddressPool) int {
	switch {
	case !p.Confined:
		return 1 << 62
	case p.Priority == 0:
		return 1 << 61
	}
	return p.Priority
}

// namespaceLabels are the labels of a namespace, and its name.
type namespaceLabels struct{ *model.Namespace }

// Label implements model.Labels.
func (n namespaceLabels) Label(key string) (string, bool) {
	if key == model.MetadataNameLabel {
		return n.Name, true
	}
	v, ok := n.Labels[key]
	return v, ok
}

// shareOut gives each pool its addresses: one that several have is the first pool's. The spans are
// sorted, and none overlaps another.
func shareOut(pools []*pool) (spans []span) {
	var edges []netip.Addr // where ranges begin, and what comes after their last addresses
	for _, p := range pools {
		for _, r := range p.Ranges {
			edges = append(edges, r.First)
			if next := r.Last.Next(); next.IsValid() {
				edges = append(edges, next)
			}
		}
	}
	slices.SortFunc(edges, netip.Addr.Compare)
	edges = slices.Compact(edges)
	// All addresses from an edge to the next one are of the same pool. From each, skip leads to the
	// next that may be nobody's yet, so that none is looked at again for each range around it.
	owners, skip := make([]*pool, len(edges)), make([]int, len(edges)+1)
	for i := range skip {
		skip[i] = i
	}
	open := func(i int) int {
		for ; skip[i] != i; i = skip[i] {
			skip[i] = skip[skip[i]]
		}
		return i
	}
	for _, p := range pools {
		for _, r := range p.Ranges {
			i, _ := slices.BinarySearchFunc(edges, r.First, netip.Addr.Compare)
			for i = open(i); i < len(edges) && r.Contains(edges[i]); i = open(i) {
				owners[i], skip[i] = p, i+1
			}
		}
	}
	for i, p := range owners {
		if p == nil {
			continue
		}
		end := model.Last(netip.PrefixFrom(edges[i], 0))
		if i+1 < len(edges) && edges[i+1].Is4() == end.Is4() {
			end = edges[i+1].Prev()
		}
		if n := len(spans); n > 0 && spans[n-1].of == p && spans[n-1].Last.Next() == edges[i] {
			spans[n-1].Last = end
		} else {
			spans = append(spans, span{AddressRange: model.AddressRange{First: edges[i], Last: end}, of: p, next: edges[i]})
		}
	}
	return spans
}

// lost says which of a pool's addresses belong to an older pool; "": none do.
func (c *Compiler) lost(p *pool) string {
	what := ""
	for _, r := range merged(p.Ranges) {
		for s := range c.spansIn(r) {
			switch {
			case s.of == p:
			case what != "":
				return "it has " + what + ", and more that others have; all that counts to them; take it out of one"
			default:
				what = fmt.Sprintf("%s, as the older IPAddressPool %s has", both(r, s.AddressRange), s.of.Name)
			}
		}
	}
	if what == "" {
		return ""
	}
	return "it has " + what + ", to which they count; take them out of one"
}

// merged returns what ranges cover, sorted, each address once.
func merged(ranges []model.AddressRange) (list []model.AddressRange) {
	for _, r := range slices.SortedFunc(slices.Values(ranges), func(a, b model.AddressRange) int { return a.First.Compare(b.First) }) {
		if n := len(list); n == 0 || !list[n-1].Contains(r.First) {
			list = append(list, r)
		} else if list[n-1].Last.Less(r.Last) {
			list[n-1].Last = r.Last
		}
	}
	return list
}

// both returns what two ranges have that overlap.
func both(r, other model.AddressRange) model.AddressRange {
	if r.First.Less(other.First) {
		r.First = other.First
	}
	if other.Last.Less(r.Last) {
		r.Last = other.Last
	}
	return r
}

// nodeAddresses returns the addresses of nodes that are in pools: only a Service that is older than
// the node may have one.
func (c *Compiler) nodeAddresses(v *store.View) map[netip.Addr]model.AddressOwner {
	all := map[netip.Addr]model.AddressOwner{}
	for _, n := range v.Nodes() {
		n.EachAddress(func(a netip.Addr, o model.AddressOwner) {
			if c.spanOf(a) == nil {
				return
			}
			if has, others := all[a]; others {
				o = o.With(has)
			}
			all[a] = o
		})
	}
	return all
}

// nodeOf names the node that has an address so that a Service may not; "": none.
func (c *Compiler) nodeOf(a netip.Addr, s *service) string {
	if n, ok := c.reserved[a]; ok && n.Before(s.Birth()) && !model.Within(a, c.cfg.AllowNodeAddresses) {
		return n.Name.Name
	}
	return ""
}

// nodesMoved reports whether the addresses in pools that belong to nodes or their pods have
// changed. It is called before setNodes.
func (c *Compiler) nodesMoved(v *store.View, d store.Dirty) bool {
	moved := false
	for name := range d.Objects[model.NodeKind] {
		var was *model.Node
		if i, known := c.placeOf(name.Name); known {
			was = c.nodes[i].Node
		}
		now := v.Node(name.Name)
		moved = moved || !now.SameAddresses(was) || now != nil && !slices.Equal(now.PodCIDRs, was.PodCIDRs)
	}
	return moved && (!maps.Equal(c.reserved, c.nodeAddresses(v)) || !slices.Equal(c.inner, c.innerRanges(v)))
}

// spanOf returns the span that has an address; nil if none has.
func (c *Compiler) spanOf(a netip.Addr) *span {
	if i := c.spanAt(a); i < len(c.spans) && c.spans[i].Contains(a) {
		return &c.spans[i]
	}
	return nil
}

// poolOf returns the pool that has an address; nil if none has.
func (c *Compiler) poolOf(a netip.Addr) *pool {
	if s := c.spanOf(a); s != nil {
		return s.of
	}
	return nil
}

// reopen notes that an address may be free.
func (c *Compiler) reopen(a netip.Addr) {
	if s := c.spanOf(a); s != nil {
		c.freed[a] = true
		if !s.next.IsValid() || a.Less(s.next) {
			s.next = a
		}
		in := s.of.room(a.Is4())
		in.full = min(in.full, s.at)
	}
}

// free returns the lowest address of a family that nobody has; the zero Addr: there is none.
func (c *Compiler) free(p *pool, is4 bool) netip.Addr {
	in := p.room(is4)
	for ; in.full < len(in.spans); in.full++ {
		for s := in.spans[in.full]; s.next.IsValid(); s.next = s.after(s.next) {
			if r := c.innerOf(s.next); r != nil {
				if s.next = r.Last; s.Last.Less(r.Last) {
					s.next = s.Last
				}
				continue
			}
			if c.held[s.next] == nil && len(c.external[s.next]) == 0 && c.reserved[s.next] == (model.AddressOwner{}) && !p.avoids(s.next) {
				return s.next
			}
		}
	}
	return netip.Addr{}
}

// after is the address after another; the zero Addr: there is none.
func (s *span) after(a netip.Addr) netip.Addr {
	if a == s.Last {
		return netip.Addr{}
	}
	return a.Next()
}
