package compile

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// advert is a BGPAdvertisement of which all communities are known.
type advert struct {
	*model.BGPAdvertisement
	speaker.Announcement
}

// followMetalLB follows what MetalLB's BGPPeers say, as far as this node is concerned, and
// reports whether what may be announced to them is something else than before.
func (c *Compiler) followMetalLB(v *store.View, d store.Dirty, basis bool) (repooled bool) {
	own := c.self()
	if c.cfg.Services != nil && (!c.started || changed(d, model.IPAddressPoolKind)) {
		c.lookup = model.NewPools(v.IPAddressPools())
	}
	if c.cfg.Services != nil && (basis || changed(d, model.IPAddressPoolKind, model.BGPAdvertisementKind, model.CommunityKind)) {
		repooled = c.setPooled()
	}
	if basis || repooled {
		c.setServed()
	}
	if c.cfg.Services == nil || !basis && !changed(d, model.MetalLBPeerKind) {
		return repooled
	}
	c.metalLB = nil
	for _, p := range v.MetalLBPeers() {
		if own != nil && p.Address.IsValid() && p.Nodes.Matches(model.LabelMap(own.Labels)) {
			c.metalLB = append(c.metalLB, p)
		}
	}
	slices.SortFunc(c.metalLB, func(a, b *model.MetalLBPeer) int { return a.Name.Compare(b.Name) })
	return repooled
}

// metalLBPeer is the peer of a BGPPeer of MetalLB's; none: there can be none.
func (c *Compiler) metalLBPeer(p *model.MetalLBPeer) []*candidate {
	is4, own := p.Address.Is4(), c.self()
	peer := &candidate{name: metalLBName(p.Name), of: p.Ref(), created: p.Created, Peer: speaker.Peer{
		Address: p.Address, Port: p.Port, AS: p.PeerASN, Source: p.Source, Password: p.Password, Hold: p.HoldTime, Keepalive: p.KeepaliveTime, Retry: p.ConnectTime,
		IPv4: is4 || p.DualStack, IPv6: !is4 || p.DualStack, Restart: p.GracefulRestart,
		Import: []speaker.Rule{{}}, // MetalLB learns nothing
		Export: c.exports,
	}}
	switch p.Dynamic {
	case "internal":
		peer.AS = p.MyASN
	case "external":
		return nil
	}
	if p.MyASN != own.as {
		peer.LocalAS = p.MyASN
	}
	if p.MultiHop {
		peer.Hops = maxHops
	}
	if !c.secure(peer, p.PasswordSecret) {
		return nil
	}
	return []*candidate{peer}
}

func metalLBName(name model.Name) string { return "BGPPeer " + name.String() }

// setPooled finds the prefixes that BGPAdvertisements may announce: those that hold addresses of
// their pools, with the greatest length that each may have. They do not depend on Services, of
// which more come and go. Peers of MetalLB's get these alone, and no routes to pods. It reports
// whether they are others than before.
func (c *Compiler) setPooled() bool {
	before := c.pooled
	c.pooled = map[netip.Prefix]int{}
	type of struct {
		pool *model.IPAddressPool
		is4  bool
	}
	type length struct {
		is4  bool
		bits int
	}
	lengths, searches := map[of]map[int]struct{}{}, map[length]*model.PoolSearch{}
	for _, ad := range c.inForce {
		for _, l := range []length{{true, ad.Length4}, {false, ad.Length6}} {
			if searches[l] == nil {
				searches[l] = c.lookup.Search()
			}
			searches[l].Find(ad.Name.Namespace, &ad.Advertised, func(pool *model.IPAddressPool) bool {
				multimap.Add(lengths, of{pool, l.is4}, l.bits)
				return true
			})
		}
	}
	for of, all := range lengths {
		for _, r := range of.pool.Ranges {
			if r.First.Is4() != of.is4 {
				continue
			}
			for bits := range all {
				whole := model.AddressRange{First: netip.PrefixFrom(r.First, bits).Masked().Addr(), Last: model.Last(netip.PrefixFrom(r.Last, bits))}
				for p := range whole.Prefixes() {
					c.pooled[p] = max(c.pooled[p], bits)
				}
			}
		}
	}
	if before != nil && maps.Equal(before, c.pooled) {
		return false
	}
	c.exports = nil
	for _, p := range slices.SortedFunc(maps.Keys(c.pooled), netip.Prefix.Compare) {
		c.exports = append(c.exports, speaker.Rule{Accept: true, Prefix: p, Max: c.pooled[p]})
	}
	c.exports = append(c.exports, speaker.Rule{})
	return true
}

// length is that of the prefixes by which an address is announced.
func length(ad *model.BGPAdvertisement, a netip.Addr) int {
	if a.Is4() {
		return ad.Length4
	}
	return ad.Length6
}

// followAdverts follows what BGPAdvertisements have announced: the addresses that moved, or all.
func (c *Compiler) followAdverts(v *store.View, d store.Dirty, basis bool) {
	if c.cfg.Services == nil {
		return
	}
	moved := c.cfg.Services.Moved()
	if basis || c.renewed || changed(d, model.BGPAdvertisementKind, model.MetalLBPeerKind, model.CommunityKind, model.IPAddressPoolKind) {
		c.setAdverts(v)
		for from := range c.given {
			if from.addr.IsValid() {
				moved = append(moved, from.addr)
			}
		}
		moved = append(moved, c.cfg.Services.Given()...)
	}
	for _, a := range moved {
		c.announce(source{addr: a}, c.advertised(v, a))
	}
}

// setInForce finds the BGPAdvertisements that count. A version with a name that is no
// community's waits, as nobody knows what is to be kept from spreading; the version before, with
// the communities that it had, stays.
func (c *Compiler) setInForce(v *store.View) {
	named, before := aliases(v), c.inForce
	c.inForce, c.nameless = make(map[model.Name]*advert, len(before)), map[model.Ref]string{}
	var come []*advert
	for _, o := range v.BGPAdvertisements() {
		communities, unknown := communitiesOf(o, named)
		last := before[o.Name]
		switch {
		case unknown != "":
			c.nameless[o.Ref()] = unknown
		case last == nil || last.BGPAdvertisement != o || !slices.Equal(last.Announcement.Communities, communities):
			last = &advert{o, speaker.Announcement{LocalPref: o.LocalPref, Communities: communities}}
			come = append(come, last)
		}
		if last != nil {
			c.inForce[o.Name] = last
		}
	}
	c.elder = append(slices.DeleteFunc(c.elder, func(a *advert) bool { return c.inForce[a.Name] != a }), come...)
	slices.SortFunc(c.elder, model.ByBirth) // which costs little where few come
}

// setAdverts finds the BGPAdvertisements that this node carries out.
func (c *Compiler) setAdverts(v *store.View) {
	c.adverts, c.excess, c.faults = map[model.Name][]*advert{}, map[model.Name]string{}, map[model.Ref][]string{}
	own, peers := c.self(), c.metalLBNames(v)
	var adverts []*advert
	for _, of := range c.elder {
		o, ad := of.BGPAdvertisement, &advert{of.BGPAdvertisement, of.Announcement}
		var missing []string
		for _, name := range o.Peers {
			if v.Object(model.Ref{Kind: model.MetalLBPeerKind, Name: model.Name{Namespace: o.Name.Namespace, Name: name}}) == nil {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			c.fault(o.Ref(), "spec.peers: there is no BGPPeer %s in its namespace", model.FirstFew(missing, maxNamed))
		}
		if c.excluded() || own.Leaving || !o.Nodes.Matches(model.LabelMap(own.Labels)) {
			continue
		}
		if ad.Announcement.Peers = peers.of(o); ad.Announcement.Peers != nil && len(ad.Announcement.Peers) == 0 {
			continue
		}
		adverts = append(adverts, ad)
	}
	model.Share(c.lookup, adverts, func(pool *model.IPAddressPool, ad *advert) {
		c.adverts[pool.Name] = append(c.adverts[pool.Name], ad)
	}, func(pool *model.IPAddressPool, ad *advert) { c.excess[pool.Name] = ad.Name.Name })
}

// maxNamed bounds how many names a fault has.
const maxNamed = 3

// communitiesOf are the communities of an advertisement, some of which are names; unknown is the
// first name that none has.
func communitiesOf(ad *model.BGPAdvertisement, named map[model.Name]string) (list []string, unknown string) {
	for _, text := range ad.Communities {
		value := text
		if !strings.Contains(text, ":") {
			value = named[model.Name{Namespace: ad.Name.Namespace, Name: text}]
		}
		if value == "" {
			return nil, text
		}
		list = append(list, value)
	}
	slices.Sort(list)
	return list, ""
}

// aliases are the communities that have names, by these with their namespaces.
func aliases(v *store.View) map[model.Name]string {
	all := map[model.Name]string{}
	for _, o := range v.Communities() {
		for alias, value := range o.Aliases {
			name := model.Name{Namespace: o.Name.Namespace, Name: alias}
			if old, twice := all[name]; !twice || value < old {
				all[name] = value
			}
		}
	}
	return all
}

// metalLBNames are the names of MetalLB's peers that this node has, sorted; nil: there are no such
// objects.
type metalLBNames []string

func (c *Compiler) metalLBNames(v *store.View) metalLBNames {
	if len(v.MetalLBPeers()) == 0 {
		return nil
	}
	names := metalLBNames{}
	for _, p := range c.metalLB {
		if len(c.asked[p.Ref()]) > 0 {
			names = append(names, metalLBName(p.Name))
		}
	}
	slices.Sort(names)
	return names
}

// of are the peers that a BGPAdvertisement is for: those that it names, or all of MetalLB's; nil:
// all that there are, as MetalLB's objects know of none.
func (n metalLBNames) of(ad *model.BGPAdvertisement) []string {
	if len(ad.Peers) == 0 {
		return n
	}
	names := []string{}
	for _, peer := range ad.Peers {
		name := metalLBName(model.Name{Namespace: ad.Name.Namespace, Name: peer})
		if _, is := slices.BinarySearch(n, name); is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// advertised are the routes by which an address of a pool is announced.
func (c *Compiler) advertised(v *store.View, a netip.Addr) map[prefixReason]speaker.Announcement {
	pool, services := c.cfg.Services.At(a)
	if pool == nil || len(services) == 0 {
		return nil
	}
	list := map[prefixReason]speaker.Announcement{}
	for _, ad := range c.adverts[pool.Name] {
		wanted := func(s *model.Service) bool {
			var labels model.LabelMap
			if s.LoadBalancer != nil {
				labels = s.LoadBalancer.Labels
			}
			return ad.Services.Matches(labels) && (!s.ExternalLocal || c.ready(v, s, a.Is4()))
		}
		if slices.ContainsFunc(services, wanted) {
			p := netip.PrefixFrom(a, length(ad.BGPAdvertisement, a)).Masked()
			list[prefixReason{p, reason{source{addr: a}, ad.Ref()}}] = ad.Announcement
		}
	}
	return list
}
