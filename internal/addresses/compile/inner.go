package compile

import (
	"cmp"
	"fmt"
	"iter"
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
		r := model.AddressRange{First: p.Masked().Addr(), Last: model.Last(p)}
		if c.reaches(r, c.spanAt(r.First)) {
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

// spansIn yields the spans that a range has a part of.
func (c *Compiler) spansIn(r model.AddressRange) iter.Seq[*span] {
	return func(yield func(*span) bool) {
		for i := c.spanAt(r.First); c.reaches(r, i) && yield(&c.spans[i]); i++ {
		}
	}
}

// spanAt returns the number of the first span that does not end before an address.
func (c *Compiler) spanAt(a netip.Addr) int {
	i, _ := slices.BinarySearchFunc(c.spans, a, func(s span, a netip.Addr) int { return s.Last.Compare(a) })
	return i
}

// reaches reports whether there is a span of a number that begins before a range ends.
func (c *Compiler) reaches(r model.AddressRange, i int) bool {
	return i < len(c.spans) && c.spans[i].First.Compare(r.Last) <= 0
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
		for s := range c.spansIn(c.inner[i].AddressRange) {
			of[s.of] = append(of[s.of], fmt.Sprintf("%s (%s)", both(s.AddressRange, c.inner[i].AddressRange), c.inner[i].what))
		}
	}
	for p, texts := range of {
		issue := p.Ref().Issue("it has " + model.FirstFew(texts, maxNamed) + ", of which no Service gets an address; take them out")
		issue.Everywhere = true
		list = append(list, issue)
	}
	return list
}
