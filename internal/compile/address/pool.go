package address

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
	spans      []*span
	adverts    []*advert       // that announce its addresses
	namespaces map[string]bool // nil: any
	used       int             // addresses that Services have
}

// span is a range of addresses that one pool gives out.
type span struct {
	model.AddressRange
	of *pool
	// next is the first address that may be free: all below it are taken, or not given out. The
	// zero Addr: none is.
	next netip.Addr
}

// permits reports whether a Service may have an address of the pool.
func (p *pool) permits(s *service) bool {
	return (p.namespaces == nil || p.namespaces[s.Name.Namespace]) && p.Services.Matches(model.LabelMap(s.LoadBalancer.Labels))
}

// avoids reports whether the pool gives out no address like this.
func (p *pool) avoids(a netip.Addr) bool {
	last := a.AsSlice()[a.BitLen()/8-1]
	return p.AvoidBuggy && a.Is4() && (last == 0 || last == 255)
}

// setPools takes over the pools and namespaces. All addresses have to be given anew after that.
func (c *Compiler) setPools(v *store.View) {
	c.pools, c.spans, c.poolIssues = nil, nil, nil
	for _, o := range v.IPAddressPools() {
		p := &pool{IPAddressPool: o}
		if len(o.Namespaces) > 0 || !o.NamespaceSelector.IsZero() {
			p.namespaces = map[string]bool{}
			for _, name := range o.Namespaces {
				p.namespaces[name] = true
			}
			for _, n := range v.Namespaces() {
				if o.NamespaceSelector.Matches(namespaceLabels{n}) {
					p.namespaces[n.Name] = true
				}
			}
		}
		c.pools = append(c.pools, p)
	}
	slices.SortFunc(c.pools, func(a, b *pool) int { return a.Birth().Compare(b.Birth()) })
	for _, p := range c.pools {
		c.claim(p)
	}
	slices.SortFunc(c.pools, func(a, b *pool) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), a.Name.Compare(b.Name))
	})
	slices.SortFunc(c.spans, func(a, b span) int { return a.First.Compare(b.First) })
	for i := range c.spans {
		s := &c.spans[i]
		s.of.spans = append(s.of.spans, s)
	}
}

// rank is the order in which pools are tried: those for some Services first, by their priority.
func (p *pool) rank() int {
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

// claim has a pool get its addresses, but for those that an older one has.
func (c *Compiler) claim(p *pool) {
	rivals := map[*pool]model.AddressRange{}
	for _, r := range p.Ranges {
		rest := []model.AddressRange{r}
		for _, taken := range c.spans {
			var parts []model.AddressRange
			for _, r := range rest {
				left, both := without(r, taken.AddressRange)
				parts = append(parts, left...)
				if both.First.IsValid() && rivals[taken.of] == (model.AddressRange{}) {
					rivals[taken.of] = both
				}
			}
			rest = parts
		}
		for _, r := range rest {
			c.spans = append(c.spans, span{AddressRange: r, of: p, next: r.First})
		}
	}
	for rival, both := range rivals {
		if rival == p {
			continue // an address that it names twice
		}
		issue := p.Ref().Issue(fmt.Sprintf("it has %s, as the older IPAddressPool %s has, to which they count; take them out of one", both, rival.Name))
		issue.InForce, issue.Everywhere = model.InForceRest, true
		c.poolIssues = append(c.poolIssues, issue)
	}
}

// without returns what a range has that another does not, and what both have.
func without(r, other model.AddressRange) (rest []model.AddressRange, both model.AddressRange) {
	if r.First.Is4() != other.First.Is4() || r.Last.Less(other.First) || other.Last.Less(r.First) {
		return []model.AddressRange{r}, both
	}
	both = r
	if r.First.Less(other.First) {
		both.First = other.First
		rest = append(rest, model.AddressRange{First: r.First, Last: other.First.Prev()})
	}
	if other.Last.Less(r.Last) {
		both.Last = other.Last
		rest = append(rest, model.AddressRange{First: other.Last.Next(), Last: r.Last})
	}
	return rest, both
}

// nodeAddresses returns the addresses of nodes that are in pools: no Service gets them but those
// that were there before the node.
func (c *Compiler) nodeAddresses(v *store.View) map[netip.Addr]model.Birth {
	all := map[netip.Addr]model.Birth{}
	for _, n := range v.Nodes() {
		for _, a := range slices.Concat(n.IPs, n.OtherIPs) {
			if has, others := all[a]; c.spanOf(a) != nil && (!others || n.Birth().Compare(has) < 0) {
				all[a] = n.Birth()
			}
		}
	}
	return all
}

// nodeOf names the node that has an address rather than a Service; "": none.
func (c *Compiler) nodeOf(a netip.Addr, s *service) string {
	if n, ok := c.reserved[a]; ok && n.Compare(s.Birth()) < 0 {
		return n.Name.Name
	}
	return ""
}

// nodesMoved reports whether other addresses in pools are nodes' or their pods' than before.
func (c *Compiler) nodesMoved(v *store.View) bool {
	return !maps.Equal(c.reserved, c.nodeAddresses(v)) || !slices.Equal(c.inner, c.innerRanges(v))
}

// spanOf returns the span that has an address; nil if none has.
func (c *Compiler) spanOf(a netip.Addr) *span {
	i, found := slices.BinarySearchFunc(c.spans, a, func(s span, a netip.Addr) int { return s.First.Compare(a) })
	if !found {
		i--
	}
	if i < 0 || !c.spans[i].Contains(a) {
		return nil
	}
	return &c.spans[i]
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
		c.freed = true
		if !s.next.IsValid() || a.Less(s.next) {
			s.next = a
		}
	}
}

// free returns the lowest address of a family that nobody has; the zero Addr: there is none.
func (c *Compiler) free(p *pool, is4 bool) netip.Addr {
	for _, s := range p.spans {
		if s.First.Is4() != is4 {
			continue
		}
		for ; s.next.IsValid(); s.next = s.after(s.next) {
			if r := c.innerOf(s.next); r != nil {
				if s.next = r.Last; s.Last.Less(r.Last) {
					s.next = s.Last
				}
				continue
			}
			if len(c.held[s.next]) == 0 && len(c.external[s.next]) == 0 && c.reserved[s.next] == (model.Birth{}) && !p.avoids(s.next) {
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
