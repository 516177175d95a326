package address

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// excludeLabel is on nodes that announce nothing.
const excludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"

// advert is an L2Advertisement as it was compiled.
type advert struct {
	*model.L2Advertisement
	at int // its place in Compiler.adverts, and in scores
}

// candidate is a Node as it was compiled.
type candidate struct {
	*model.Node
	hash   uint64  // of its name
	scores []int32 // what each advert says of it, see compare
	may    bool    // announce by one of them
	bgp    []part  // what it has of BGPAdvertisements; nil: it was not asked
}

// address is an address of a pool that Services have, or keep without one, and who announces it.
type address struct {
	services []*service
	node     string    // that announces it by ARP or NDP; "": none
	own      []*advert // by which this node announces it so
	since    time.Time // of node
	byBGP    bool      // a node announces it by BGP
	notByBGP string    // why none does; "": nothing asks for it
}

// setAdverts takes over advertisements. Each node is compared with those that are new.
func (c *Compiler) setAdverts(v *store.View) {
	places := map[*model.L2Advertisement]int{}
	for i, a := range c.adverts {
		places[a.L2Advertisement] = i
	}
	c.adverts = nil
	for _, o := range v.L2Advertisements() {
		c.adverts = append(c.adverts, &advert{L2Advertisement: o})
	}
	slices.SortFunc(c.adverts, model.ByBirth)
	was := make([]int, len(c.adverts))
	for i, a := range c.adverts {
		place, known := places[a.L2Advertisement]
		if a.at, was[i] = i, place; !known {
			was[i] = -1
		}
	}
	for _, n := range c.nodes {
		n.compare(c.adverts, was)
	}
	pools := map[model.Name]*model.IPAddressPool{}
	for _, p := range c.pools {
		p.adverts, p.excess, pools[p.Name] = nil, "", p.IPAddressPool
	}
	for _, a := range c.adverts {
		for o := range a.Of(a.Name.Namespace, pools) {
			p := c.named[o.Name]
			adverts, fits := model.AddAdvert(p.adverts, a)
			if p.adverts = adverts; !fits && p.excess == "" {
				p.excess = a.Name.Name
			}
		}
	}
	c.setBGP(v, pools)
}

// setNodes takes over nodes. Those that are new are compared with each advertisement.
func (c *Compiler) setNodes(v *store.View) {
	was := map[string]*candidate{}
	for _, n := range c.nodes {
		was[n.Name] = n
	}
	c.nodes = nil
	for _, o := range v.Nodes() {
		n := was[o.Name]
		if n == nil || n.Node != o {
			n = &candidate{Node: o, hash: xxhash.Sum64String(o.Name)}
			n.compare(c.adverts, nil)
		}
		c.nodes = append(c.nodes, n)
	}
	slices.SortFunc(c.nodes, func(a, b *candidate) int { return cmp.Compare(a.Name, b.Name) })
	c.setSpeakers()
	c.setPeers()
}

// compare notes how much advertisements prefer the node: the sum of the weights by which they do;
// -1: it does not announce by them. Of those that it was compared with before, was has the places
// then; -1, and nil for all: it was not.
func (n *candidate) compare(adverts []*advert, was []int) {
	labels, never, scores := model.LabelMap(n.Labels), n.never(), make([]int32, len(adverts))
	n.may = false
	for i, a := range adverts {
		if was != nil && was[i] >= 0 {
			scores[i] = n.scores[was[i]]
		} else if scores[i] = -1; !never && a.Nodes.Matches(labels) {
			scores[i] = a.preference(labels)
		}
		n.may = n.may || scores[i] >= 0
	}
	n.scores = scores
}

// never reports whether the node announces nothing, whatever advertisements say.
func (n *candidate) never() bool {
	_, excluded := n.Labels[excludeLabel]
	return excluded || n.Leaving
}

// preference is the sum of the weights by which an advertisement prefers a node with the labels.
func (a *advert) preference(labels model.LabelMap) (sum int32) {
	for _, p := range a.Preferred {
		if p.Nodes.Matches(labels) {
			sum += int32(p.Weight)
		}
	}
	return sum
}

// setPeers notes the nodes that may announce anything, if this one may.
func (c *Compiler) setPeers() {
	peers := map[string][]netip.Addr{}
	own := false
	for _, n := range c.nodes {
		if n.may {
			peers[n.Name] = n.IPs
			own = own || n.Name == c.cfg.Node
		}
	}
	if !own {
		clear(peers)
	}
	c.peers = peers
}

// elect chooses who announces an address: of the nodes that may, are ready and heard from, one that
// is preferred, and of several the one that a hash of node and address gives. So all nodes that
// know the same choose the same, a node that goes costs its own addresses alone, and they spread.
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
	for _, ad := range p.adverts {
		if slices.ContainsFunc(owners, func(s *service) bool { return ad.Services.Matches(labelsOf(s)) }) {
			adverts = append(adverts, ad)
		}
	}
	where := endpoints(v, owners)
	var best rank
	selected, silent := false, []string(nil) // whether a node is, and those that would do but for that
	b := a.As16()
	of := xxhash.Sum64(b[:])
	for _, n := range c.nodes {
		score := int32(-1)
		for _, ad := range adverts {
			score = max(score, n.scores[ad.at])
		}
		if score < 0 {
			continue
		}
		selected = true
		if where != nil && !where[n.Name] {
			continue
		}
		if c.silent[n.Name] {
			silent = append(silent, n.Name)
			continue
		}
		if r := (rank{n.Name, !n.NotReady, score, hash(n.hash, of)}); best.less(r) {
			best = r
		}
	}
	if now.node = best.node; now.node == c.cfg.Node && now.node != "" {
		i := slices.IndexFunc(c.nodes, func(n *candidate) bool { return n.Name == c.cfg.Node })
		now.own = slices.DeleteFunc(adverts, func(ad *advert) bool { return c.nodes[i].scores[ad.at] < 0 })
		c.announced.Set(a, &Announcement{interfaces(now.own), c.returns})
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

// nobody notes why nobody announces an address, and whether all nodes find it so.
func (c *Compiler) nobody(a netip.Addr, everywhere bool, format string, args ...any) {
	issue := c.addresses[a].unheard(a, format, args...)
	issue.Everywhere = everywhere
	c.unannounced[a] = issue
}

// unheard says of the Service that has an address why nobody announces it: by ARP and NDP as it is
// called with, "": nothing asks for that; and by BGP.
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

// rank is how much speaks for a node.
type rank struct {
	node  string
	ready bool
	score int32
	hash  uint64
}

func (r rank) less(o rank) bool {
	if r.ready != o.ready && r.node != "" {
		return o.ready
	}
	return cmp.Or(cmp.Compare(r.score, o.score), cmp.Compare(r.hash, o.hash), cmp.Compare(r.node, o.node)) < 0
}

// hash mixes the hashes of a node's name and an address.
func hash(node, address uint64) uint64 {
	h := (node ^ address) * 0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>32
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

// endpoints are the nodes that have a ready endpoint of one of the Services, or one that serves
// still if none is ready, where all of them have traffic policy Local; nil: any node will do.
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
