package compile

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/gaissmai/bart"

	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// source is what has routes announced: an object, or an address of a pool.
type source struct {
	of   model.Ref
	addr netip.Addr
}

// reason is why a prefix is announced, of which there can be several.
type reason struct {
	source
	by model.Ref // the object that asks for it
}

// prefixReason is where a source has a reason.
type prefixReason struct {
	to  netip.Prefix
	why reason
}

// The sources that are no Services and no addresses.
var (
	fromPods   = source{of: model.Ref{Kind: model.NodeKind}}
	fromRanges = source{of: model.Ref{Kind: model.BGPConfigurationKind}}
)

// followRoutes follows what is announced: what changed, or all.
func (c *Compiler) followRoutes(v *store.View, d store.Dirty, basis bool) {
	if !c.started || changed(d, model.IPPoolKind) {
		c.setPools(v)
	}
	if c.followBlocks(v, d, basis) || basis || changed(d, model.IPPoolKind) {
		c.announce(fromPods, c.podRoutes())
	}
	services := d.Services
	if basis {
		c.announce(fromRanges, c.rangeRoutes())
		services = v.Services()
	}
	for name := range services {
		c.announce(source{of: model.Ref{Kind: model.ServiceKind, Name: name}}, c.serviceRoutes(v, v.Service(name)))
	}
	c.followAdverts(v, d, basis)
	for p := range c.touched {
		c.routes.Set(p, compose(c.reasons[p]))
	}
	clear(c.touched)
}

// announce replaces what a source has announced, where that differs.
func (c *Compiler) announce(from source, list map[prefixReason]speaker.Announcement) {
	for _, p := range c.given[from] {
		if _, still := list[p]; still {
			continue
		}
		c.touched[p.to] = true
		if delete(c.reasons[p.to], p.why); len(c.reasons[p.to]) == 0 {
			delete(c.reasons, p.to)
		}
	}
	delete(c.given, from)
	for p, a := range list {
		c.given[from] = append(c.given[from], p)
		if old, had := c.reasons[p.to][p.why]; had && compareAnnouncements(old, a) == 0 {
			continue
		}
		if c.reasons[p.to] == nil {
			c.reasons[p.to] = map[reason]speaker.Announcement{}
		}
		c.touched[p.to], c.reasons[p.to][p.why] = true, a
	}
}

// compose makes a route of all reasons for it; nil: there is none.
func compose(reasons map[reason]speaker.Announcement) *speaker.Route {
	if len(reasons) == 0 {
		return nil
	}
	r := &speaker.Route{}
	for _, a := range reasons {
		r.Announcements = append(r.Announcements, a)
	}
	slices.SortFunc(r.Announcements, compareAnnouncements)
	r.Announcements = slices.CompactFunc(r.Announcements, func(a, b speaker.Announcement) bool { return compareAnnouncements(a, b) == 0 })
	return r
}

func compareAnnouncements(a, b speaker.Announcement) int {
	return cmp.Or(cmp.Compare(a.LocalPref, b.LocalPref), slices.Compare(a.Peers, b.Peers), slices.Compare(a.Communities, b.Communities))
}

// setPools reads the pools: of several with one CIDR the first by name counts.
func (c *Compiler) setPools(v *store.View) {
	c.pools = new(bart.Table[*model.IPPool])
	for _, p := range slices.Concat(v.IPPools(), c.cfg.Pools) {
		if other, has := c.pools.Get(p.CIDR); !has || p.Name < other.Name {
			c.pools.Insert(p.CIDR, p)
		}
	}
}

// exported reports whether routes to pods' addresses are announced, as the pool that they are of
// says.
func (c *Compiler) exported(p netip.Prefix) bool {
	pool, found := c.pools.LookupPrefix(p)
	return found && !pool.DisableBGPExport
}

// followBlocks follows this node's blocks, and reports whether there are others than before.
func (c *Compiler) followBlocks(v *store.View, d store.Dirty, basis bool) (others bool) {
	for name := range d.Objects[model.BlockAffinityKind] {
		if _, had := c.blocks[name.Name]; had {
			delete(c.blocks, name.Name)
			others = true
		}
		if b := v.BlockAffinity(name.Name); b != nil && b.Node == c.cfg.Node {
			c.blocks[name.Name], others = b.CIDR, true
		}
	}
	return others
}

// podRoutes are those to this node's pods: its pod CIDRs, and the blocks that are not in them.
func (c *Compiler) podRoutes() map[prefixReason]speaker.Announcement {
	own := c.self()
	if own == nil {
		return nil
	}
	list := map[prefixReason]speaker.Announcement{}
	add := func(p netip.Prefix) {
		if p = p.Masked(); c.exported(p) {
			list[prefixReason{p, reason{fromPods, own.Ref()}}] = speaker.Announcement{Communities: c.communities(p)}
		}
	}
	for _, p := range own.PodCIDRs {
		add(p)
	}
	cidrs := table(own.PodCIDRs)
	for _, block := range c.blocks {
		if !cidrs.LookupPrefix(block) {
			add(block)
		}
	}
	return list
}

// setCommunitiesOf reads the communities that BGPConfigurations have for routes: that of this
// node, or else of all.
func (c *Compiler) setCommunitiesOf() {
	c.communitiesOf = new(bart.Table[[]string])
	said := c.mine.Advertisements
	if len(said) == 0 {
		said = c.config.Advertisements
	}
	for _, ad := range said {
		list, _ := c.communitiesOf.Get(ad.CIDR)
		for _, text := range ad.Communities {
			if value := c.community(text); value != "" {
				list = append(list, value)
			}
		}
		c.communitiesOf.Insert(ad.CIDR, list)
	}
}

// communities are those of a route.
func (c *Compiler) communities(p netip.Prefix) (list []string) {
	for _, more := range c.communitiesOf.Supernets(p) {
		list = append(list, more...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// community is what a name stands for, or a community itself; "": there is none of the name.
func (c *Compiler) community(text string) string {
	if strings.Contains(text, ":") {
		return text
	}
	return cmp.Or(c.mine.Communities[text], c.config.Communities[text])
}

// passOn are the ranges of which learned routes are passed on: those of services, and of pods but
// for pools that are not to be announced. Of pools within each other the smallest counts.
func (c *Compiler) passOn() []netip.Prefix {
	list := slices.Clone(c.served)
	var around []*model.IPPool // where the sweep is: one that is announced, or one that is not within such
	var at netip.Addr          // list has what comes before it
	add := func(last netip.Addr) {
		list = slices.AppendSeq(list, model.AddressRange{First: at, Last: last}.Prefixes())
	}
	leave := func(p *model.IPPool) {
		if !p.DisableBGPExport {
			add(model.Last(p.CIDR))
		}
		at, around = model.Last(p.CIDR).Next(), around[:len(around)-1]
	}
	for cidr, p := range c.pools.AllSorted() { // a larger one before those within
		for len(around) > 0 && !around[len(around)-1].CIDR.Overlaps(cidr) {
			leave(around[len(around)-1])
		}
		within := len(around) > 0 && !around[len(around)-1].DisableBGPExport
		if within != p.DisableBGPExport {
			continue // it is as what is around it
		}
		if within {
			add(cidr.Addr().Prev())
		}
		around, at = append(around, p), cidr.Addr()
	}
	for len(around) > 0 {
		leave(around[len(around)-1])
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}
