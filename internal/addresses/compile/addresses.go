// Package compile gives Services of type LoadBalancer addresses from pools, and says which node
// announces each address, as MetalLB's objects ask for it.
//
// It is pure and incremental. A Service keeps the addresses in its status as long as the objects
// allow it; beyond that the addresses are a function of the current objects and of those given out
// before. A change of a Service costs what it has itself; one of pools, advertisements or nodes
// goes through all.
package compile

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Config is what the user sets. It does not change while a Compiler lives.
type Config struct {
	Node string // the name of the node's object
	// Class is the loadBalancerClass of the Services that get addresses; "": those without one.
	Class string
	// BGP says that BGPAdvertisements are carried out, by package bgp/compile.
	BGP bool
	// InForce reports whether a BGPAdvertisement announces, as bgp/compile has it; nil: all do.
	InForce func(model.Name) bool
	// ClusterCIDRs and ServiceCIDRs are where pods and cluster IPs are: no Service is given an
	// address there, nor one of nodes' pod CIDRs.
	ClusterCIDRs, ServiceCIDRs []netip.Prefix
	// AllowNodeAddresses are those that a Service may have, if it asks for them, even if they are
	// nodes'.
	AllowNodeAddresses []netip.Prefix
	// Now is the time; nil: time.Now.
	Now func() time.Time
}

// Wanted is what the status of a Service should say. It is immutable.
type Wanted struct {
	Of  model.Birth  // the Service: another one may have its name
	IPs []netip.Addr // none: no address
}

// Announcement says where this node answers for an address. It is immutable.
type Announcement struct {
	Interfaces []string // sorted; none: wherever the node has a subnet
	// Returns differs from before if neighbours are to be told again: a node that may have
	// announced the address, too, is back, or hears this one again.
	Returns  int
	Services []model.Name // that have the address
}

// Alike reports whether the same is to be done for both; Services may differ.
func (a *Announcement) Alike(b *Announcement) bool {
	return a.Returns == b.Returns && slices.Equal(a.Interfaces, b.Interfaces)
}

// Delta is what differs from the last one.
type Delta struct {
	// Wanted are the Services whose status is to be written, nil: it says what it should.
	Wanted map[model.Name]*Wanted
	// Announced are the addresses that this node answers for, nil: no longer.
	Announced map[netip.Addr]*Announcement
	// Peers are the nodes that may announce something, with their addresses, if this one is among
	// them; nil: as before.
	Peers map[string][]netip.Addr
}

// Compiler holds the addresses and keeps them in step with a store. It is not safe for concurrent
// use.
type Compiler struct {
	cfg     Config
	started bool
	lacking bool            // see SetLacking
	silent  map[string]bool // see SetSilent
	regive  bool            // lacking has changed
	gone    map[string]bool // nodes that have fallen silent since the last Update
	returns int             // how often a node was in order again: heard, and hearing this one
	reelect bool            // one was, or was heard again, since the last Update

	issues []model.Issue // of the last call of Issues
	listed bool          // they are what there is to say

	pools      []*pool // in the order in which they are tried
	lookup     model.Pools
	named      map[model.Name]*pool
	spans      []span // what pools give out, sorted
	poolIssues []model.Issue
	reserved   map[netip.Addr]model.AddressOwner // addresses in pools that are a node's
	inner      []inner                           // see innerRanges
	services   map[model.Name]*service           // those that have, want or claim something
	held       map[netip.Addr]*holders
	shared     map[sharing]map[netip.Addr]struct{}
	external   map[netip.Addr]map[*service]struct{} // who has it as an external IP
	waiting    map[model.Name]*service              // those that lack an address
	contested  map[model.Name]time.Time             // those whose status another controller writes, and since when
	freed      map[netip.Addr]bool                  // what one of them may get

	nodes      []*candidate      // sorted by name
	population *model.Population // their labels
	never, may model.Places      // those that announce nothing, and those that some advert has announce
	adverts    []*advert         // the oldest first
	addresses  map[netip.Addr]*address
	// unannounced are the addresses that nobody announces though an object asks for it, and why.
	unannounced map[netip.Addr]model.Issue

	wanted    diff.Map[model.Name, Wanted]
	announced diff.Map[netip.Addr, Announcement]
	bgp       []*bgpAdvert
	bgpPeers  map[model.Name]*bgpPeer
	ranges    *bart.Lite              // which BGPConfigurations have announced
	moved     map[netip.Addr]bool     // see Moved
	peers     map[string][]netip.Addr // nil: as the last Delta had them
}

// service is a Service as it was compiled.
type service struct {
	*model.Service
	namespace *model.Namespace // nil: it is not known
	ips       []netip.Addr     // given, sorted by the family of the cluster IPs
	written   bool             // its status has them
	before    []netip.Addr     // what it had before the present Update
	extra     []netip.Addr     // its external IPs
	fault     string           // why it has no address, or not all
	key       sharing
}

// New returns a Compiler that has nothing yet.
func New(cfg Config) *Compiler {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Compiler{
		cfg: cfg, services: map[model.Name]*service{}, held: map[netip.Addr]*holders{}, freed: map[netip.Addr]bool{}, shared: map[sharing]map[netip.Addr]struct{}{},
		gone: map[string]bool{}, moved: map[netip.Addr]bool{}, external: map[netip.Addr]map[*service]struct{}{}, waiting: map[model.Name]*service{},
		contested: map[model.Name]time.Time{}, bgpPeers: map[model.Name]*bgpPeer{}, addresses: map[netip.Addr]*address{}, unannounced: map[netip.Addr]model.Issue{},
		wanted: diff.NewMap(map[model.Name]*Wanted{}, func(a, b *Wanted) bool { return a.Of.Compare(b.Of) == 0 && slices.Equal(a.IPs, b.IPs) }),
		announced: diff.NewMap(map[netip.Addr]*Announcement{}, func(a, b *Announcement) bool {
			return a.Alike(b) && slices.Equal(a.Services, b.Services)
		}),
	}
}

// SetLacking says whether the sources could not read everything; the next Update follows. Meanwhile
// a Service keeps an address that no pool has.
func (c *Compiler) SetLacking(lacking bool) {
	c.regive = c.regive || c.lacking != lacking
	c.lacking = lacking
}

// SetSilent says which nodes are not heard from; the next Update follows. They announce nothing.
// The own node is among them if nobody hears it. A node with false is heard, but does not hear this
// one.
func (c *Compiler) SetSilent(nodes map[string]bool) {
	for name, is := range nodes {
		if is && !c.silent[name] {
			c.gone[name] = true
		}
	}
	for name, was := range c.silent {
		is, still := nodes[name]
		if !still {
			c.returns++
		}
		c.reelect = c.reelect || was && !is || !still
	}
	c.silent = nodes
}

// Update brings all in step with a version of the store in which d changed.
func (c *Compiler) Update(v *store.View, d store.Dirty) {
	if !c.started {
		d = v.All()
	}
	touched := map[netip.Addr]bool{}
	everything := c.followNamespaces(v, d) || !c.started || c.regive || changed(d, model.IPAddressPoolKind) || c.nodesMoved(v, d)
	if everything {
		c.releaseAll(touched)
		c.setPools(v)
		c.reserved, c.inner = c.nodeAddresses(v), c.innerRanges(v)
	}
	adverts := everything || changed(d, model.L2AdvertisementKind, model.BGPAdvertisementKind, model.CommunityKind, model.MetalLBPeerKind, model.BGPConfigurationKind)
	everyone := adverts || changed(d, model.NodeKind)
	if everyone {
		c.setAnnouncers(v, d, adverts)
	}
	again := make([]*service, 0, len(d.Services))
	for name := range d.Services {
		if s := c.take(name, v.Service(name), touched); s != nil {
			s.namespace = v.Namespace(name.Namespace)
			again = append(again, s)
		}
	}
	if everything {
		again = slices.Collect(maps.Values(c.services))
	}
	c.give(again, touched)
	for _, s := range again {
		c.settle(s)
	}
	if everyone || c.reelect || len(c.gone) > 0 {
		for a, is := range c.addresses {
			if everyone || c.reelect || c.gone[is.node] {
				touched[a] = true
			}
		}
	}
	if everyone { // pools or advertisements may have them that had not
		for a := range c.held {
			touched[a] = true
		}
		for a := range c.external {
			touched[a] = true
		}
	}
	for _, s := range again { // its endpoints, its labels or its policy may have changed
		for _, a := range slices.Concat(s.ips, s.extra) {
			touched[a] = true
		}
	}
	for a := range touched {
		c.elect(v, a)
		if c.cfg.BGP {
			c.moved[a] = true
		}
	}
	c.listed = c.listed && !everyone && len(again)+len(touched)+len(c.gone) == 0 && !c.reelect
	clear(c.gone)
	c.started, c.regive, c.reelect = true, false, false
}

// setAnnouncers takes over nodes, and advertisements if they may have changed. A new node is
// compared with all advertisements, and a new advertisement with all nodes.
func (c *Compiler) setAnnouncers(v *store.View, d store.Dirty, adverts bool) {
	placed := c.setNodes(v, d)
	if placed {
		for _, a := range c.adverts {
			a.compare(c)
		}
		for _, ad := range c.bgp {
			ad.compare(c)
		}
		for _, p := range c.bgpPeers {
			p.compare(c)
		}
	}
	if adverts {
		c.setAdverts(v, d)
	}
	if placed || adverts {
		c.setSpeakers()
		c.may = c.population.None()
		for _, a := range c.adverts {
			c.may.Join(a.nodes)
		}
	}
	c.setPeers()
}

// followNamespaces takes over the namespaces of Services, and reports whether that may matter to
// pools.
func (c *Compiler) followNamespaces(v *store.View, d store.Dirty) (matters bool) {
	if !changed(d, model.NamespaceKind) {
		return false
	}
	for name, s := range c.services {
		if _, dirty := d.Objects[model.NamespaceKind][model.Name{Name: name.Namespace}]; dirty {
			s.namespace, matters = v.Namespace(name.Namespace), true
		}
	}
	return matters && slices.ContainsFunc(c.pools, func(p *pool) bool { return !p.NamespaceSelector.IsZero() })
}

func changed(d store.Dirty, kinds ...model.Kind) bool {
	return slices.ContainsFunc(kinds, func(k model.Kind) bool { return len(d.Objects[k]) > 0 })
}

// Changes returns what differs since the last call.
func (c *Compiler) Changes() Delta {
	d := Delta{Wanted: c.wanted.Flush(), Announced: c.announced.Flush(), Peers: c.peers}
	c.peers = nil
	return d
}

// take takes over a version of a Service, nil if it is gone. It releases the Service's addresses,
// and returns the Service as it is compiled now; nil: it has and wants none.
func (c *Compiler) take(name model.Name, now *model.Service, touched map[netip.Addr]bool) *service {
	s := c.services[name]
	if s != nil {
		c.listed = false
		c.release(s, touched)
		for _, a := range s.extra {
			if multimap.Remove(c.external, a, s); len(c.external[a]) == 0 {
				c.reopen(a)
			}
			touched[a] = true
		}
	}
	if now == nil || now.LoadBalancer == nil && len(now.ExternalIPs) == 0 {
		delete(c.services, name)
		delete(c.waiting, name)
		delete(c.contested, name)
		c.wanted.Set(name, nil)
		return nil
	}
	if s == nil {
		s = &service{}
		c.services[name] = s
	}
	s.Service, s.extra, s.key, s.fault = now, now.ExternalIPs, sharingOf(now), ""
	for _, a := range s.extra {
		multimap.Add(c.external, a, s)
		touched[a] = true
	}
	return s
}

// settle records what the status of a Service should say, if it says something else.
func (c *Compiler) settle(s *service) {
	lb := s.LoadBalancer
	delete(c.waiting, s.Name)
	switch {
	case lb == nil, slices.Equal(lb.Ingress, s.ips), len(s.ips) == 0 && lb.Writer != "": // what another wrote stays
		c.wanted.Set(s.Name, nil)
	case c.ours(s):
		c.wanted.Set(s.Name, &Wanted{s.Birth(), s.ips})
	case c.among(lb.Ingress): // of another class, or no longer a load balancer
		c.wanted.Set(s.Name, &Wanted{Of: s.Birth()})
	default:
		c.wanted.Set(s.Name, nil)
	}
	if s.fault != "" || c.lacksFamily(s) {
		c.waiting[s.Name] = s
	}
	if _, known := c.contested[s.Name]; !c.overwritten(s) {
		delete(c.contested, s.Name)
	} else if !known {
		c.contested[s.Name] = c.cfg.Now()
	}
}

// ours reports whether a Service is to get an address from here.
func (c *Compiler) ours(s *service) bool {
	return s.LoadBalancer != nil && s.LoadBalancer.Wanted && s.LoadBalancer.Class == c.cfg.Class
}

// overwritten reports whether the status of a Service has another controller's addresses, or none,
// in place of those that it has from here.
func (c *Compiler) overwritten(s *service) bool {
	return c.ours(s) && len(s.ips) > 0 && s.LoadBalancer.Writer != "" && !slices.Equal(s.LoadBalancer.Ingress, s.ips)
}

// among reports whether all of the addresses are in pools.
func (c *Compiler) among(ips []netip.Addr) bool {
	return !slices.ContainsFunc(ips, func(a netip.Addr) bool { return c.poolOf(a) == nil })
}

// older orders Services by age.
func older(a, b *service) int { return a.Birth().Compare(b.Birth()) }
