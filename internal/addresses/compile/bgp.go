package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Moved returns the addresses whose Services or pool may have changed since the last call; with
// Config.BGP alone. It is for package bgp/compile, as are At and Given.
func (c *Compiler) Moved() []netip.Addr {
	list := slices.Collect(maps.Keys(c.moved))
	clear(c.moved)
	return list
}

// At returns the pool of an address, and the Services that have it, the oldest first; nil: no
// Service has it, or it is of no pool.
func (c *Compiler) At(a netip.Addr) (*model.IPAddressPool, []*model.Service) {
	is, p := c.addresses[a], c.poolOf(a)
	if is == nil || p == nil {
		return nil, nil
	}
	list := make([]*model.Service, len(is.services))
	for i, s := range is.services {
		list[i] = s.Service
	}
	return p.IPAddressPool, list
}

// Given returns the addresses of pools that Services have, in no order.
func (c *Compiler) Given() []netip.Addr {
	return slices.DeleteFunc(slices.Collect(maps.Keys(c.addresses)), func(a netip.Addr) bool { return c.poolOf(a) == nil })
}

// bgpAdvert is a BGPAdvertisement as it was compiled.
type bgpAdvert struct {
	*model.BGPAdvertisement
	selected, speak model.Places // the nodes that are to announce, and those that have a peer for it
}

// bgpPeer is a BGPPeer of MetalLB's, and the nodes that have it.
type bgpPeer struct {
	*model.MetalLBPeer
	nodes model.Places
}

// setBGP takes over what asks for addresses to be announced by BGP.
func (c *Compiler) setBGP(v *store.View, d store.Dirty) {
	c.bgp = store.Follow(v, d, model.BGPAdvertisementKind, c.bgp, func(o *model.BGPAdvertisement) *bgpAdvert {
		ad := &bgpAdvert{BGPAdvertisement: o}
		ad.compare(c)
		return ad
	}, model.ByBirth)
	for name := range d.Objects[model.MetalLBPeerKind] {
		delete(c.bgpPeers, name)
		if o, is := v.Object(model.Ref{Kind: model.MetalLBPeerKind, Name: name}).(*model.MetalLBPeer); is {
			p := &bgpPeer{MetalLBPeer: o}
			p.compare(c)
			c.bgpPeers[name] = p
		}
	}
	c.ranges = new(bart.Lite)
	for _, p := range c.pools {
		p.bgp, p.moreBGP = nil, false
	}
	if !c.cfg.BGP {
		return
	}
	announce := c.bgp
	if c.cfg.InForce != nil {
		announce = slices.DeleteFunc(slices.Clone(c.bgp), func(ad *bgpAdvert) bool { return !c.cfg.InForce(ad.Name) })
	}
	model.Share(c.lookup, announce, func(o *model.IPAddressPool, ad *bgpAdvert) {
		p := c.named[o.Name]
		p.bgp = append(p.bgp, ad)
	}, func(o *model.IPAddressPool, _ *bgpAdvert) { c.named[o.Name].moreBGP = true })
	if config := v.BGPConfiguration(model.BGPDefault); config != nil {
		for _, p := range slices.Concat(config.LoadBalancerIPs, config.ExternalIPs) {
			c.ranges.Insert(p)
		}
	}
}

// compare looks for the nodes that are to announce.
func (ad *bgpAdvert) compare(c *Compiler) {
	ad.selected = c.population.Selected(ad.Nodes).Without(c.never)
}

// compare looks for the nodes that have the peer.
func (p *bgpPeer) compare(c *Compiler) {
	if p.nodes = nil; p.Address.IsValid() && p.Dynamic != "external" {
		p.nodes = c.population.Selected(p.Nodes)
	}
}

// setSpeakers computes which nodes announce by BGPAdvertisements, by the rules that bgp/compile
// applies on each node. Without any BGPPeer of MetalLB's, all nodes have peers.
func (c *Compiler) setSpeakers() {
	if !c.cfg.BGP {
		return
	}
	speak := c.population.None() // that have any peer
	for _, p := range c.bgpPeers {
		speak.Join(p.nodes)
	}
	if len(c.bgpPeers) == 0 {
		speak = c.population.All()
	}
	for _, ad := range c.bgp {
		of := speak
		if len(ad.Peers) > 0 {
			of = c.population.None()
		}
		for _, name := range ad.Peers {
			if p := c.bgpPeers[model.Name{Namespace: ad.Name.Namespace, Name: name}]; p != nil {
				of.Join(p.nodes)
			}
		}
		ad.speak = ad.selected.Within(of)
	}
}

// byBGP reports whether a node announces an address of a pool by BGP, and if none does, why,
// provided that a BGPAdvertisement asks for it. bgp/compile reports if too many ask.
func (c *Compiler) byBGP(v *store.View, a netip.Addr, p *pool, owners []*service) (is bool, why string) {
	if p.moreBGP || c.ranges.Contains(a) {
		return true, ""
	}
	if len(p.bgp) == 0 {
		return false, ""
	}
	asked, selected, speak := false, false, false
	on := map[string]bool{} // where ready endpoints are of those with policy Local
	for _, s := range owners {
		ready := readyOn(v, s, a.Is4())
		for _, ad := range p.bgp {
			if !ad.Services.Matches(labelsOf(s)) {
				continue
			}
			asked, selected, speak = true, selected || !ad.selected.Empty(), speak || !ad.speak.Empty()
			if !s.ExternalLocal && !ad.speak.Empty() {
				return true, ""
			}
			for n := range ready {
				on[n] = true
				if i, is := c.placeOf(n); is && ad.speak.Has(i) {
					return true, ""
				}
			}
		}
	}
	switch {
	case !asked:
		why = fmt.Sprintf("no BGPAdvertisement of %s selects the Service (spec.serviceSelectors)", p.Name)
	case !selected:
		why = fmt.Sprintf("no node is there that the BGPAdvertisements of %s select", p.Name)
	case !speak:
		why = fmt.Sprintf("no node that the BGPAdvertisements of %s select has a BGPPeer that they are for", p.Name)
	case len(on) > 0:
		why = fmt.Sprintf("externalTrafficPolicy is Local, and all endpoints are on nodes that the BGPAdvertisements of %s do not have announce it: %s", p.Name, model.FirstFew(slices.Sorted(maps.Keys(on)), maxNamed))
	}
	return false, why
}

// inRanges reports whether BGPConfigurations have some addresses of a range announced.
func (c *Compiler) inRanges(r model.AddressRange) bool {
	for p := range r.Prefixes() {
		if c.ranges.OverlapsPrefix(p) {
			return true
		}
	}
	return false
}

// readyOn are the nodes with a ready endpoint of a family, of a Service with policy Local.
func readyOn(v *store.View, s *service, is4 bool) map[string]bool {
	if !s.ExternalLocal {
		return nil
	}
	on := map[string]bool{}
	for _, slice := range v.Slices(s.Name) {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.Ready && e.Addr.Is4() == is4 {
				on[e.Node] = true
			}
		}
	}
	return on
}
