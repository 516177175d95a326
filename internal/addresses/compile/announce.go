package compile

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// excludeLabel is on nodes that announce nothing.
const excludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"

// advert is an L2Advertisement as it was compiled.
type advert struct {
	*model.L2Advertisement
	nodes   model.Places // that announce by it
	weights []int32      // how much it prefers each node; nil: see weigh
}

// candidate is a Node as it was compiled. Its place in Compiler.nodes is that in the population.
type candidate struct{ *model.Node }

// address is an address of a pool that Services have, or keep without one, and who announces it.
type address struct {
	services []*service
	node     string    // that announces it by ARP or NDP; "": none
	own      []*advert // by which this node announces it so
	since    time.Time // of node
	byBGP    bool      // a node announces it by BGP
	notByBGP string    // why none does; "": nothing asks for it
}

// setAdverts takes over advertisements. Those that are new are compared with the nodes.
func (c *Compiler) setAdverts(v *store.View, d store.Dirty) {
	c.adverts = store.Follow(v, d, model.L2AdvertisementKind, c.adverts, func(o *model.L2Advertisement) *advert {
		a := &advert{L2Advertisement: o}
		a.compare(c)
		return a
	}, model.ByBirth)
	for _, p := range c.pools {
		p.adverts, p.excess = nil, ""
	}
	model.Share(c.lookup, c.adverts, func(o *model.IPAddressPool, a *advert) {
		p := c.named[o.Name]
		p.adverts = append(p.adverts, a)
	}, func(o *model.IPAddressPool, a *advert) { c.named[o.Name].excess = a.Name.Name })
	c.setBGP(v, d)
}

// setNodes takes over nodes that changed. It reports whether the places or the labels of nodes have
// changed.
func (c *Compiler) setNodes(v *store.View, d store.Dirty) (placed bool) {
	others := c.population == nil // there are
	for name := range d.Objects[model.NodeKind] {
		o := v.Node(name.Name)
		i, known := c.placeOf(name.Name)
		if others = others || known != (o != nil); !known || o == nil {
			continue
		}
		was, now := c.nodes[i], &candidate{o}
		c.nodes[i], placed = now, placed || was.never() != now.never() || !maps.Equal(was.Labels, now.Labels)
	}
	if others {
		c.nodes = nil
		for _, o := range v.Nodes() {
			c.nodes = append(c.nodes, &candidate{o})
		}
		slices.SortFunc(c.nodes, func(a, b *candidate) int { return cmp.Compare(a.Name, b.Name) })
	}
	if !placed && !others {
		return false
	}
	labels := make([]model.LabelMap, len(c.nodes))
	for i, n := range c.nodes {
		labels[i] = n.Labels
	}
	c.population, c.never = model.NewPopulation(labels), nil
	for i, n := range c.nodes {
		if !n.never() {
			continue
		}
		if c.never == nil {
			c.never = c.population.None()
		}
		c.never.Add(i)
	}
	return true
}

// placeOf is the place of a node; false: there is none of the name.
func (c *Compiler) placeOf(node string) (int, bool) {
	return slices.BinarySearchFunc(c.nodes, node, func(n *candidate, name string) int { return cmp.Compare(n.Name, name) })
}

// never reports whether the node announces nothing, whatever advertisements say.
func (n *candidate) never() bool {
	_, excluded := n.Labels[excludeLabel]
	return excluded || n.Leaving
}

// compare looks for the nodes that announce by an advertisement.
func (a *advert) compare(c *Compiler) {
	a.nodes, a.weights = c.population.Selected(a.Nodes).Without(c.never), nil
}

// weigh computes how much an advertisement prefers each node, when an address first needs it: the
// sum of the weights of the preferences that select the node.
func (a *advert) weigh(c *Compiler) {
	if a.weights != nil || len(a.Preferred) == 0 {
		return
	}
	a.weights = make([]int32, len(c.nodes))
	for _, p := range a.Preferred {
		for i := range a.nodes.Common(c.population.Selected(p.Nodes)) {
			a.weights[i] += int32(p.Weight)
		}
	}
}

// score is how much an advertisement prefers a node; -1: it does not announce by it.
func (a *advert) score(place int) int32 {
	switch {
	case !a.nodes.Has(place):
		return -1
	case a.weights == nil:
		return 0
	}
	return a.weights[place]
}

// setPeers notes the nodes that may announce anything, if this one may.
func (c *Compiler) setPeers() {
	peers := map[string][]netip.Addr{}
	own := false
	for i, n := range c.nodes {
		if c.may.Has(i) {
			peers[n.Name] = n.IPs
			own = own || n.Name == c.cfg.Node
		}
	}
	if !own {
		clear(peers)
	}
	c.peers = peers
}

// elect chooses the node that announces an address: among the nodes that may and are heard from,
// ready nodes come first, then the most preferred, then the lowest hash of node and address. So
// nodes that know the same objects choose the same node, addresses spread over nodes, and only the
// addresses of a node that fails move. The hash is MetalLB's, so that an address stays at its node,
// and connections through it go on, where one takes the place of the other.
func (c *Compiler) elect(v *store.View, a netip.Addr) {
	p := c.poolOf(a)
	owners := c.owners(a)
	delete(c.unannounced, a)
	if p == nil && c.held[a] != nil && len(owners) > 0 { // there is no pool, or one may be unread
		c.addresses[a] = &address{services: owners, byBGP: c.ranges.Contains(a)}
		if c.announced.Set(a, nil); !c.lacking && !c.addresses[a].byBGP {
			c.nobody(a, true, "it is in no IPAddressPool; make one that has it, or take it out of the status")
		}
		return
	}
	if p == nil || len(owners) == 0 || slices.ContainsFunc(owners, func(s *service) bool { return c.nodeOf(a, s) != "" }) {
		delete(c.addresses, a)
		c.announced.Set(a, nil)
		return
	}
	now := &address{services: owners}
	var adverts []*advert
	nodes := c.population.None()
	for _, ad := range p.adverts {
		if slices.ContainsFunc(owners, func(s *service) bool { return ad.Services.Matches(labelsOf(s)) }) {
			adverts = append(adverts, ad)
			nodes.Join(ad.nodes)
			ad.weigh(c)
		}
	}
	where := endpoints(v, owners)
	var best rank
	selected, silent := false, []string(nil) // whether a node is, and those that would do except for that
	suffix := "#" + leader(a, owners).String()
	for i := range nodes.Each() {
		n, score := c.nodes[i], int32(-1)
		for _, ad := range adverts {
			score = max(score, ad.score(i))
		}
		selected = true
		if where != nil && !where[n.Name] {
			continue
		}
		if c.silent[n.Name] {
			silent = append(silent, n.Name)
			continue
		}
		if r := (rank{n.Name, !n.NotReady, score, hash(n.Name, suffix)}); best.less(r) {
			best = r
		}
	}
	if now.node = best.node; now.node == c.cfg.Node && now.node != "" {
		i, _ := c.placeOf(now.node)
		now.own = slices.DeleteFunc(adverts, func(ad *advert) bool { return !ad.nodes.Has(i) })
		c.announced.Set(a, &Announcement{interfaces(now.own), c.returns, names(owners)})
	} else {
		c.announced.Set(a, nil)
	}
	if old := c.addresses[a]; old != nil && old.node == now.node {
		now.since = old.since
	} else {
		now.since = c.cfg.Now()
	}
	c.addresses[a] = now
	now.byBGP, now.notByBGP = c.byBGP(v, a, p, owners)
	switch {
	case now.node != "", now.byBGP, where != nil && len(where) == 0: // or there is nobody to lead to
	case len(p.adverts) == 0:
		if now.notByBGP != "" {
			c.nobody(a, true, "")
		}
	case len(adverts) == 0:
		c.nobody(a, true, "no L2Advertisement of %s selects the Service (spec.serviceSelectors)", p.Name)
	case !selected:
		c.nobody(a, true, "no node is there that the L2Advertisements of %s select", p.Name)
	case len(silent) == 0:
		on := model.FirstFew(slices.Sorted(maps.Keys(where)), maxNamed)
		c.nobody(a, true, "externalTrafficPolicy is Local, and all endpoints are on nodes that the L2Advertisements of %s do not select: %s", p.Name, on)
	default:
		c.nobody(a, false, "no node that may is heard from: %s", model.FirstFew(silent, maxNamed))
	}
}

// nobody records why nobody announces an address, and whether all nodes find the same.
func (c *Compiler) nobody(a netip.Addr, everywhere bool, format string, args ...any) {
	issue := c.addresses[a].unheard(a, format, args...)
	issue.Everywhere = everywhere
	c.unannounced[a] = issue
}

// unheard is the issue of the Service that has an address, which nobody announces: format says why
// not by ARP and NDP, "" if nothing asks for that; the reason for BGP is added.
func (is *address) unheard(a netip.Addr, format string, args ...any) model.Issue {
	why := fmt.Sprintf(format, args...)
	switch {
	case why == "":
		why = is.notByBGP
	case is.notByBGP != "":
		why += "; by BGP: " + is.notByBGP
	}
	return is.services[0].Ref().Issue(fmt.Sprintf("nobody announces %s: %s", a, why))
}

// rank orders the nodes that may announce an address.
type rank struct {
	node  string
	ready bool
	score int32
	hash  [sha256.Size]byte
}

func (r rank) less(o rank) bool {
	switch {
	case r.node == "":
		return true
	case r.ready != o.ready:
		return o.ready
	}
	return cmp.Or(cmp.Compare(r.score, o.score), bytes.Compare(o.hash[:], r.hash[:])) < 0
}

// hash is that of a node for an address, "#" before it.
func hash(node, address string) [sha256.Size]byte {
	var room [64]byte
	return sha256.Sum256(append(append(room[:0], node...), address...))
}

// leader is the address by whose hash a node is chosen for another one: the first that the oldest
// of its Services has, as one node announces both families of a Service.
func leader(a netip.Addr, owners []*service) netip.Addr {
	if ips := owners[0].LoadBalancerIPs; slices.Contains(ips, a) {
		return ips[0]
	}
	return a
}

// owners are the Services whose frontends have an address, sorted by age.
func (c *Compiler) owners(a netip.Addr) (list []*service) {
	if h := c.held[a]; h != nil {
		for _, s := range h.services {
			if slices.Contains(s.LoadBalancerIPs, a) {
				list = append(list, s)
			}
		}
	}
	list = slices.AppendSeq(list, maps.Keys(c.external[a]))
	slices.SortFunc(list, older)
	return slices.Compact(list)
}

func labelsOf(s *service) model.LabelMap {
	if s.LoadBalancer == nil {
		return nil
	}
	return s.LoadBalancer.Labels
}

// endpoints returns the nodes with a ready endpoint of the Services, or with a serving one if none
// is ready, if all of the Services have traffic policy Local; nil: any node will do.
func endpoints(v *store.View, services []*service) map[string]bool {
	ready, serving := map[string]bool{}, map[string]bool{}
	for _, s := range services {
		if !s.ExternalLocal {
			return nil
		}
		for _, slice := range v.Slices(s.Name) {
			for i := range slice.Endpoints {
				if e := &slice.Endpoints[i]; e.Ready {
					ready[e.Node] = true
				} else if e.Serving {
					serving[e.Node] = true
				}
			}
		}
	}
	if len(ready) > 0 {
		return ready
	}
	return serving
}

// interfaces are those of some advertisements; none: all.
func interfaces(adverts []*advert) (names []string) {
	for _, ad := range adverts {
		if len(ad.Interfaces) == 0 {
			return nil
		}
		names = append(names, ad.Interfaces...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
