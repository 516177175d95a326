package address

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Moved returns the addresses that may be others' than at the last call, or whose Services or pool
// changed; with Config.BGP alone. It is for package compile/bgp, as those below are.
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
	selected bool   // a node is
	speaks   bool   // one of them has a peer which it is for
	nodes    []bool // which do, as Compiler.nodes has them
}

// setBGP takes over what asks for addresses to be announced by BGP.
func (c *Compiler) setBGP(v *store.View, pools map[model.Name]*model.IPAddressPool) {
	c.bgp, c.bgpPeers, c.ranges = nil, v.MetalLBPeers(), new(bart.Lite)
	for _, o := range v.BGPAdvertisements() {
		c.bgp = append(c.bgp, &bgpAdvert{BGPAdvertisement: o})
	}
	for _, p := range c.pools {
		p.bgp, p.moreBGP = nil, false
	}
	if !c.cfg.BGP {
		return
	}
	for _, ad := range c.bgp {
		for o := range ad.Of(ad.Name.Namespace, pools) {
			p, fits := c.named[o.Name], false
			p.bgp, fits = model.AddAdvert(p.bgp, ad)
			p.moreBGP = p.moreBGP || !fits
		}
	}
	if config := v.BGPConfiguration(model.BGPDefault); config != nil {
		for _, p := range slices.Concat(config.LoadBalancerIPs, config.ExternalIPs) {
			c.ranges.Insert(p)
		}
	}
}

// setSpeakers says which nodes announce by BGPAdvertisements, as compile/bgp has each find for
// itself. Where there is no BGPPeer of MetalLB's, all nodes have peers.
func (c *Compiler) setSpeakers() {
	if !c.cfg.BGP {
		return
	}
	peers := map[model.Name]*model.MetalLBPeer{}
	for _, p := range c.bgpPeers {
		peers[p.Name] = p
	}
	has := func(p *model.MetalLBPeer, n *model.Node) bool {
		return p != nil && p.Address.IsValid() && p.Dynamic != "external" && p.Nodes.Matches(model.LabelMap(n.Labels))
	}
	speaks := make([]bool, len(c.nodes)) // to any peer
	for i, n := range c.nodes {
		speaks[i] = len(peers) == 0 || slices.ContainsFunc(c.bgpPeers, func(p *model.MetalLBPeer) bool { return has(p, n) })
	}
	for _, ad := range c.bgp {
		ad.selected, ad.speaks, ad.nodes = false, false, make([]bool, len(c.nodes))
		for i, n := range c.nodes {
			if !selects(&ad.Advertised, n) {
				continue
			}
			ad.selected = true
			ad.nodes[i] = len(ad.Peers) == 0 && speaks[i] || slices.ContainsFunc(ad.Peers, func(name string) bool {
				return has(peers[model.Name{Namespace: ad.Name.Namespace, Name: name}], n)
			})
			ad.speaks = ad.speaks || ad.nodes[i]
		}
	}
}

// byBGP reports whether a node announces an address of a pool by BGP, and why none does if a
// BGPAdvertisement asks for it and a Service that has it can be reached. Where too many ask,
// compile/bgp says so.
func (c *Compiler) byBGP(v *store.View, a netip.Addr, p *pool, owners []*service) (is bool, why string) {
	if p.moreBGP || c.ranges.Contains(a) {
		return true, ""
	}
	if len(p.bgp) == 0 {
		return false, ""
	}
	var asked, selected, speak bool
	on := map[string]bool{} // where ready endpoints are of those with policy Local
	byName := func(n *model.Node, name string) int { return cmp.Compare(n.Name, name) }
	for _, s := range owners {
		ready := readyOn(v, s, a.Is4())
		for _, ad := range p.bgp {
			if !ad.Services.Matches(labelsOf(s)) {
				continue
			}
			asked, selected, speak = true, selected || ad.selected, speak || ad.speaks
			if !s.ExternalLocal && ad.speaks {
				return true, ""
			}
			for n := range ready {
				on[n] = true
				if i, is := slices.BinarySearchFunc(c.nodes, n, byName); is && ad.nodes[i] {
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
