// Package compile says what the BGP speaker of one node is to do: who its peers are, and which
// routes it announces to them, as Calico's and MetalLB's objects ask for it.
//
// It is pure and incremental. The order is a function of the current objects alone, except for the
// own Node: once it is deleted, what it said last counts; and for BGPAdvertisements with a name
// that is no community's any more. Another Node costs the peers that it is, a BGPPeer the Nodes to
// which it matters, a Service its own addresses; a change of what all depends on goes through all.
package compile

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Config is what the user sets. It does not change while a Compiler lives.
type Config struct {
	Node string // the name of the node's object
	Port uint16 // to listen on, and of the other nodes, where no BGPConfiguration says; 0: 179
	// Pools are those that no API has, as in fabric.Config.
	Pools []*model.IPPool
	// Secret looks up a password; false: it is not there.
	Secret func(model.SecretRef) (string, bool)
	// MaxRoutes is that of all peers.
	MaxRoutes uint32
	// Services has the addresses of pools that Services have; nil: MetalLB's objects are not
	// followed.
	Services Services
}

// Services says which Services have addresses of pools. Package address has one.
type Services interface {
	// Moved returns the addresses of which the Services, their endpoints, or the pool may be others
	// than at the last call.
	Moved() []netip.Addr
	// At returns the pool of an address, and the Services that have it, the oldest first; nil: no
	// Service has it, or it is of no pool.
	At(netip.Addr) (*model.IPAddressPool, []*model.Service)
	// Given returns the addresses of pools that Services have, in no order.
	Given() []netip.Addr
}

// Compiler holds one node's order and keeps it in step with a store. It is not safe for concurrent
// use.
type Compiler struct {
	cfg     Config
	started bool
	renewed bool // see SecretsChanged

	own      *model.Node             // as it is, or was last; nil: there has been none
	config   *model.BGPConfiguration // "default"; never nil
	mine     *model.BGPConfiguration // that of this node; never nil
	settings *speaker.Settings       // nil: the node cannot speak
	told     *speaker.Settings       // as of the last call of Changes

	nodes     map[string]*node
	addresses map[netip.Addr][]*node // the nodes that have an address, the oldest first
	placed    []*node                // by their places in population
	// population has the nodes' labels; unplaced: they are others.
	population   *model.Population
	unplaced     bool
	associations []*association // the oldest first
	filters      map[string]*model.BGPFilter
	pooled       map[netip.Prefix]int                 // see setPooled
	exports      []speaker.Rule                       // see setPooled
	rules        map[*model.BGPPeer]map[session]rules // that were translated
	metalLB      []*model.MetalLBPeer                 // that this node has, sorted
	secrets      map[model.SecretRef]secret           // that were looked up
	lacking      bool                                 // one of them is not there
	asked        map[model.Ref][]*candidate           // by who asks for them: a Node, as the mesh and selectors have it, or a BGPPeer that names an address
	rivals       map[netip.Addr]map[*candidate]struct{}
	chosen       map[netip.Addr]*candidate
	peers        diff.Map[string, speaker.Peer]
	allPeers     map[string]*speaker.Peer

	pools       *bart.Table[*model.IPPool]
	blocks      map[string]netip.Prefix  // this node's
	lookup      model.Pools              // of Services' addresses
	inForce     map[model.Name]*advert   // see setInForce
	elder       []*advert                // the same, the oldest first
	nameless    map[model.Ref]string     // BGPAdvertisements that wait, and the names that are missing
	adverts     map[model.Name][]*advert // by their pools
	excess      map[model.Name]string    // pools that more select, with the first of these
	served      []netip.Prefix           // see Served
	servedMoved bool

	// What BGPConfigurations say of routes, and what they have announced.
	communitiesOf                            *bart.Table[[]string]
	clusterIPs, externalIPs, loadBalancerIPs *bart.Lite

	reasons   map[netip.Prefix]map[reason]speaker.Announcement
	given     map[source][]prefixReason
	touched   map[netip.Prefix]bool // reasons have changed
	routes    diff.Map[netip.Prefix, speaker.Route]
	allRoutes map[netip.Prefix]*speaker.Route

	faults map[model.Ref][]string // of adverts
	issues []model.Issue          // of the last call of Issues
	listed bool                   // they are what there is to say
}

// New returns a Compiler that has nothing to do yet.
func New(cfg Config) *Compiler {
	peers, routes := map[string]*speaker.Peer{}, map[netip.Prefix]*speaker.Route{}
	return &Compiler{
		cfg: cfg, nodes: map[string]*node{}, addresses: map[netip.Addr][]*node{}, filters: map[string]*model.BGPFilter{}, config: &model.BGPConfiguration{}, mine: &model.BGPConfiguration{},
		secrets: map[model.SecretRef]secret{}, asked: map[model.Ref][]*candidate{}, rivals: map[netip.Addr]map[*candidate]struct{}{}, chosen: map[netip.Addr]*candidate{},
		blocks: map[string]netip.Prefix{}, reasons: map[netip.Prefix]map[reason]speaker.Announcement{}, given: map[source][]prefixReason{}, touched: map[netip.Prefix]bool{},
		allPeers: peers, peers: diff.NewMap(peers, (*speaker.Peer).Equal),
		allRoutes: routes, routes: diff.NewMap(routes, (*speaker.Route).Equal),
	}
}

// SecretsChanged asks Config.Secret again for all that was looked up, and reports whether an answer
// differs; the next Update follows.
func (c *Compiler) SecretsChanged() bool {
	for ref, found := range c.secrets {
		c.renewed = c.renewed || c.secret(ref) != found
	}
	return c.renewed
}

// FollowAdverts brings InForce in step with a version of the store in which d changed. It comes
// before Update, as addresses ask for it.
func (c *Compiler) FollowAdverts(v *store.View, d store.Dirty) {
	if !c.started || changed(d, model.BGPAdvertisementKind, model.CommunityKind) {
		c.setInForce(v)
	}
}

// InForce reports whether a version of a BGPAdvertisement is in force: the present one, or the last
// one that did not wait for a Community.
func (c *Compiler) InForce(name model.Name) bool { return c.inForce[name] != nil }

// Update brings the order in step with a version of the store in which d changed, which
// FollowAdverts was given.
func (c *Compiler) Update(v *store.View, d store.Dirty) {
	if !c.started {
		d = v.All()
	}
	_, own := d.Objects[model.NodeKind][model.Name{Name: c.cfg.Node}]
	if n := v.Node(c.cfg.Node); own && n != nil {
		c.own = n
	}
	// Of what all depends on there is little, and it changes rarely.
	basis := own || !c.started || changed(d, model.BGPConfigurationKind)
	if basis {
		c.setConfiguration(v)
	}
	moved := c.followNodes(v, d, basis)
	c.followPeers(v, d, moved, basis)
	c.followRoutes(v, d, basis)
	if basis || c.renewed || changed(d, model.IPPoolKind, model.MetalLBPeerKind, model.IPAddressPoolKind, model.BGPAdvertisementKind, model.CommunityKind) {
		c.setSettings()
	}
	c.listed = c.listed && !basis && !c.renewed && !changed(d, model.NodeKind, model.BGPPeerKind, model.BGPFilterKind, model.IPPoolKind,
		model.MetalLBPeerKind, model.IPAddressPoolKind, model.BGPAdvertisementKind, model.CommunityKind) // Services are at no fault here
	c.started, c.renewed = true, false
}

func changed(d store.Dirty, kinds ...model.Kind) bool {
	return slices.ContainsFunc(kinds, func(k model.Kind) bool { return len(d.Objects[k]) > 0 })
}

// Changes returns what differs since the last call. The first one that has anything has Settings:
// before, the node cannot speak.
func (c *Compiler) Changes() speaker.Order {
	o := speaker.Order{Peers: c.peers.Flush(), Routes: c.routes.Flush()}
	if c.settings != nil && (c.told == nil || !c.told.Equal(c.settings)) {
		o.Settings = c.settings
	}
	c.told = c.settings
	return o
}
