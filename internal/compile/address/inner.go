package address

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// inner is a range in which pods or cluster IPs are: no Service is given an address there. A
// Service whose status has one keeps it, as taking it away would break what works.
type inner struct {
	model.AddressRange
	what string
}

// innerRanges returns those that pools have a part of, sorted, none within another.
func (c *Compiler) innerRanges(v *store.View) (list []inner) {
	add := func(p netip.Prefix, what string) {
		r := model.AddressRange{First: p.Masked().Addr(), Last: last(p)}
		if len(c.spansIn(r)) > 0 {
			list = append(list, inner{r, what})
		}
	}
	for _, p := range c.cfg.ServiceCIDRs {
		add(p, "cluster IPs, --service-cidr")
	}
	for _, p := range c.cfg.ClusterCIDRs {
		add(p, "pods, --cluster-cidr")
	}
	for _, n := range v.Nodes() {
		for _, p := range n.PodCIDRs {
			add(p, "pods of Node "+n.Name)
		}
	}
	slices.SortFunc(list, func(a, b inner) int {
		return cmp.Or(a.First.Compare(b.First), b.Last.Compare(a.Last), cmp.Compare(a.what, b.what))
	})
	outer := list[:0]
	for _, r := range list {
		if len(outer) == 0 || !outer[len(outer)-1].Contains(r.Last) {
			outer = append(outer, r)
		}
	}
	return outer
}

// last is the last address of a CIDR.
func last(p netip.Prefix) netip.Addr {
	b, skip := p.Addr().As16(), 128-p.Addr().BitLen()
	for i := skip + p.Bits(); i < 128; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	if skip > 0 {
		return netip.AddrFrom16(b).Unmap()
	}
	return netip.AddrFrom16(b)
}

// spansIn returns the spans that a range has a part of.
func (c *Compiler) spansIn(r model.AddressRange) []span {
	first, _ := slices.BinarySearchFunc(c.spans, r.First, func(s span, a netip.Addr) int { return s.Last.Compare(a) })
	end := first
	for end < len(c.spans) && c.spans[end].First.Compare(r.Last) <= 0 {
		end++
	}
	return c.spans[first:end]
}

// innerOf returns the inner range that has an address; nil: none has.
func (c *Compiler) innerOf(a netip.Addr) *inner {
	i, found := slices.BinarySearchFunc(c.inner, a, func(r inner, a netip.Addr) int { return r.Last.Compare(a) })
	if i < len(c.inner) && (found || c.inner[i].Contains(a)) {
		return &c.inner[i]
	}
	return nil
}

// innerIssues name the pools that have addresses of pods or cluster IPs.
func (c *Compiler) innerIssues() (list []model.Issue) {
	of := map[*pool][]string{}
	for i := range c.inner {
		for _, s := range c.spansIn(c.inner[i].AddressRange) {
			_, both := without(s.AddressRange, c.inner[i].AddressRange)
			of[s.of] = append(of[s.of], fmt.Sprintf("%s (%s)", both, c.inner[i].what))
		}
	}
	for p, texts := range of {
		issue := p.Ref().Issue("it has " + model.FirstFew(texts, maxNamed) + ", of which no Service gets an address; take them out")
		issue.Everywhere = true
		list = append(list, issue)
	}
	return list
}
