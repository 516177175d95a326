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
	at    int  // its place in Compiler.bgp, and in candidate.bgp
	anyOf part // the most that a node has of it
}

// part is what a node has of a BGPAdvertisement.
type part uint8

const (
	none     part = iota
	selected      // it is to announce
	speaks        // and has a peer which that is for
)

// setBGP takes over what asks for addresses to be announced by BGP.
func (c *Compiler) setBGP(v *store.View, pools map[model.Name]*model.IPAddressPool) {
	c.bgp, c.bgpPeers, c.ranges = nil, v.MetalLBPeers(), new(bart.Lite)
	for _, o := range v.BGPAdvertisements() {
		c.bgp = append(c.bgp, &bgpAdvert{BGPAdvertisement: o, at: len(c.bgp)})
	}
	for _, n := range c.nodes {
		n.bgp = nil
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
// itself. Where there is no BGPPeer of MetalLB's, all nodes have peers. Nodes that have been asked
// are not asked again.
func (c *Compiler) setSpeakers() {
	if !c.cfg.BGP {
		return
	}
	peers := map[model.Name]*model.MetalLBPeer{}
	for _, p := range c.bgpPeers {
		peers[p.Name] = p
	}
	for _, ad := range c.bgp {
		ad.anyOf = none
	}
	for _, n := range c.nodes {
		if n.bgp == nil {
			c.setParts(n, peers)
		}
		for i, ad := range c.bgp {
			ad.anyOf = max(ad.anyOf, n.bgp[i])
		}
	}
}

// setParts notes what the node has of BGPAdvertisements. Peers are bgpPeers by their names.
func (c *Compiler) setParts(n *candidate, peers map[model.Name]*model.MetalLBPeer) {
	labels, never := model.LabelMap(n.Labels), n.never()
	has := func(p *model.MetalLBPeer) bool {
		return p != nil && p.Address.IsValid() && p.Dynamic != "external" && p.Nodes.Matches(labels)
	}
	toAny := len(peers) == 0 || slices.ContainsFunc(c.bgpPeers, has)
	n.bgp = make([]part, len(c.bgp))
	for i, ad := range c.bgp {
		switch {
		case never, !ad.Nodes.Matches(labels):
		case len(ad.Peers) == 0 && toAny, slices.ContainsFunc(ad.Peers, func(name string) bool {
			return has(peers[model.Name{Namespace: ad.Name.Namespace, Name: name}])
		}):
			n.bgp[i] = speaks
		default:
			n.bgp[i] = selected
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
	asked, most := false, none
	on := map[string]bool{} // where ready endpoints are of those with policy Local
	byName := func(n *candidate, name string) int { return cmp.Compare(n.Name, name) }
	for _, s := range owners {
		ready := readyOn(v, s, a.Is4())
		for _, ad := range p.bgp {
			if !ad.Services.Matches(labelsOf(s)) {
				continue
			}
			asked, most = true, max(most, ad.anyOf)
			if !s.ExternalLocal && ad.anyOf == speaks {
				return true, ""
			}
			for n := range ready {
				on[n] = true
				if i, is := slices.BinarySearchFunc(c.nodes, n, byName); is && c.nodes[i].bgp[ad.at] == speaks {
					return true, ""
				}
			}
		}
	}
	switch {
	case !asked:
		why = fmt.Sprintf("no BGPAdvertisement of %s selects the Service (spec.serviceSelectors)", p.Name)
	case most == none:
		why = fmt.Sprintf("no node is there that the BGPAdvertisements of %s select", p.Name)
	case most == selected:
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
