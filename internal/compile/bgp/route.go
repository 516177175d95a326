package bgp

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

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

// place is where a source has a reason.
type place struct {
	to  netip.Prefix
	why reason
}

// The sources that are no Services and no addresses.
var (
	fromPods   = source{of: model.Ref{Kind: model.NodeKind}}
	fromRanges = source{of: model.Ref{Kind: model.BGPConfigurationKind}}
)

// followRoutes takes over what is announced: what changed, or all.
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

// announce replaces what a source has announced.
func (c *Compiler) announce(from source, list map[place]speaker.Announcement) {
	if len(list) == 0 && c.given[from] == nil {
		return // as it is with nearly all Services
	}
	for _, p := range c.given[from] {
		c.touched[p.to] = true
		if delete(c.reasons[p.to], p.why); len(c.reasons[p.to]) == 0 {
			delete(c.reasons, p.to)
		}
	}
	delete(c.given, from)
	for p, a := range list {
		if c.reasons[p.to] == nil {
			c.reasons[p.to] = map[reason]speaker.Announcement{}
		}
		c.touched[p.to], c.reasons[p.to][p.why] = true, a
		c.given[from] = append(c.given[from], p)
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

// setPools takes over the pools, the smallest first.
func (c *Compiler) setPools(v *store.View) {
	c.pools = append(v.IPPools(), c.cfg.Pools...)
	slices.SortFunc(c.pools, func(a, b *model.IPPool) int {
		return cmp.Or(cmp.Compare(b.CIDR.Bits(), a.CIDR.Bits()), a.CIDR.Compare(b.CIDR), cmp.Compare(a.Name, b.Name))
	})
}

// exported reports whether routes to pods' addresses are announced, as the pool that they are of
// says.
func (c *Compiler) exported(p netip.Prefix) bool {
	i := slices.IndexFunc(c.pools, func(pool *model.IPPool) bool { return within(p, pool.CIDR) })
	return i >= 0 && !c.pools[i].DisableBGPExport
}

// within reports whether a prefix lies in another.
func within(p, in netip.Prefix) bool { return in.Bits() <= p.Bits() && in.Contains(p.Addr()) }

// followBlocks takes over this node's blocks, and reports whether there are others than before.
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
func (c *Compiler) podRoutes() map[place]speaker.Announcement {
	own := c.self()
	if own == nil {
		return nil
	}
	list := map[place]speaker.Announcement{}
	add := func(p netip.Prefix) {
		if p = p.Masked(); c.exported(p) {
			list[place{p, reason{fromPods, own.Ref()}}] = speaker.Announcement{Communities: c.communities(p)}
		}
	}
	for _, p := range own.PodCIDRs {
		add(p)
	}
	for _, block := range c.blocks {
		if !slices.ContainsFunc(own.PodCIDRs, func(p netip.Prefix) bool { return within(block, p) }) {
			add(block)
		}
	}
	return list
}

// communities are those that BGPConfigurations have for a route: that of this node, or else of all.
func (c *Compiler) communities(p netip.Prefix) (list []string) {
	said := c.mine.Advertisements
	if len(said) == 0 {
		said = c.config.Advertisements
	}
	for _, ad := range said {
		if !within(p, ad.CIDR) {
			continue
		}
		for _, text := range ad.Communities {
			if value := c.community(text); value != "" {
				list = append(list, value)
			}
		}
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

// passOn are the ranges of which learned routes are passed on: those of pods and of services, but
// for pools that are not to be announced.
func (c *Compiler) passOn() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range c.pools {
		if p.DisableBGPExport {
			continue
		}
		parts := []netip.Prefix{p.CIDR}
		for _, other := range c.pools {
			if other.DisableBGPExport && other.CIDR != p.CIDR && within(other.CIDR, p.CIDR) {
				parts = without(parts, other.CIDR)
			}
		}
		list = append(list, parts...)
	}
	list = append(list, c.Served()...)
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

// without returns what prefixes hold that another does not.
func without(list []netip.Prefix, hole netip.Prefix) (rest []netip.Prefix) {
	for _, p := range list {
		if within(p, hole) {
			continue
		}
		if !within(hole, p) {
			rest = append(rest, p)
			continue
		}
		for p.Bits() < hole.Bits() { // one half is free of the hole, the other one has it
			low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
			high := netip.PrefixFrom(upper(p), p.Bits()+1)
			if within(hole, low) {
				rest, p = append(rest, high), low
			} else {
				rest, p = append(rest, low), high
			}
		}
	}
	return rest
}

// upper is the first address of the upper half of a prefix.
func upper(p netip.Prefix) netip.Addr {
	a := p.Addr().AsSlice()
	a[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	high, _ := netip.AddrFromSlice(a)
	return high
}
