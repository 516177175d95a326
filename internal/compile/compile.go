// Package compile turns the objects in the store into the desired state of one node: what
// kube-proxy would do with them, as flat values for a driver.
//
// It is pure and incremental. The state is a function of the current objects alone, whatever the
// order in which they came, but for the own Node: once it is deleted, what it said last counts. The
// work of an update is that of the services named dirty and their endpoints.
package compile

import (
	"net/netip"
	"slices"

	address "sluice.dev/sluice/internal/addresses/compile"
	farm "sluice.dev/sluice/internal/balancer/compile"
	speaker "sluice.dev/sluice/internal/bgp"
	bgp "sluice.dev/sluice/internal/bgp/compile"
	fabric "sluice.dev/sluice/internal/fabric/compile"
	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	policy "sluice.dev/sluice/internal/policy/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Config is what the user sets for a node; but for HostAddresses and APIServers it does not change
// while a Compiler lives.
type Config struct {
	Node string // the name of the node's object, and of it in endpoints and hints

	// ClusterCIDRs are the pods' addresses in the whole cluster; empty: the own node's podCIDRs,
	// once known, unless ClusterUnknown is set.
	ClusterCIDRs []netip.Prefix
	// ClusterUnknown says that without ClusterCIDRs nothing tells pods' addresses from others:
	// nothing is masqueraded for where it comes from, as kube-proxy has it.
	ClusterUnknown bool
	// ServiceCIDRs are where the cluster's service addresses come from.
	ServiceCIDRs []netip.Prefix
	// NodePortAddresses choose the node addresses that serve node ports; empty: the first of each
	// family, as in kube-proxy's nftables mode.
	NodePortAddresses []netip.Prefix
	// HostAddresses are the addresses of the host's interfaces, each with the length of its
	// subnet's prefix. NodePortAddresses may choose them, beside those of the Node object; services
	// may not have them.
	HostAddresses []netip.Prefix
	// NodePortPrimary has the first of each family serve node ports beside those that
	// NodePortAddresses choose.
	NodePortPrimary bool
	// PrimaryAddr, if valid, counts as the first of its family.
	PrimaryAddr netip.Addr

	MasqueradeAll bool

	// APIServers are where this agent reaches its API: no service gets these.
	APIServers []netip.AddrPort
	// AllowNodeAddresses are those of the addresses of nodes and API servers that services may have
	// as external IPs and load balancers' addresses, but for ReservedPorts and the ports of the
	// API.
	AllowNodeAddresses []netip.Prefix
	// ReservedPorts are ports of nodes that no service may have, neither as node ports nor at
	// nodes' addresses.
	ReservedPorts []state.PortRange
	// ExternalIPCIDRs and LoadBalancerCIDRs are where services may have external IPs and load
	// balancers' addresses. Nil: anywhere; empty: nowhere.
	ExternalIPCIDRs, LoadBalancerCIDRs []netip.Prefix

	// Policy compiles network policy too; without it the state has none, and the fields below mean
	// nothing.
	Policy bool
	// DenyLists name address lists whose packets are dropped where they arrive on one of
	// DenyDevices, which name interfaces.
	DenyLists, DenyDevices []string
	// FailsafeInbound and FailsafeOutbound are ports of the node, and of others that it connects
	// to, that no host endpoint closes.
	FailsafeInbound, FailsafeOutbound []state.PortRange
	// PodTunnels lets pods send VXLAN and other tunnels.
	PodTunnels bool

	// Addresses has Services of type LoadBalancer get addresses from pools, and says which this
	// node announces. LoadBalancerClass is the class of those Services; "": those without one.
	Addresses         bool
	LoadBalancerClass string

	// Farms compiles the farms of a balancer; without it the state has none. IPIP says why the
	// kernel cannot send packets in IPIP; nil, or no error: it can.
	Farms bool
	IPIP  func() error

	// Fabric compiles the ways to the pods of other nodes; without it the state has none.
	Fabric bool
	// Pools are those of the fabric that no API has, as in fabric.Config.
	Pools []*model.IPPool
	// NATOutgoing has ClusterCIDRs count as IPPools with natOutgoing, beside those that there are.
	NATOutgoing bool
	// WireGuard is this node's key for it, as in fabric.Config; zero: nothing is encrypted.
	WireGuard model.PublicKey

	// BGP says what a BGP speaker is to do, and with Fabric, has the routes that it learns be ways
	// to the pods of other nodes. MetalLB's objects count with Addresses alone.
	BGP bool
	// BGPPort is what this node and the others listen on where no BGPConfiguration says; 0: 179.
	BGPPort uint16
	// BGPMaxRoutes is how many routes of a family a BGP peer may announce that its filters accept;
	// 0: any number.
	BGPMaxRoutes uint32
	// Secret looks up a password of BGP sessions; false: it is not there. Nil: none is. See
	// BGPSecretsChanged.
	Secret func(model.SecretRef) (string, bool)
	// Resolve looks up how the kernel reaches the next hop of a learned route that is on no subnet
	// of this node, as in fabric.Config.
	Resolve func(nextHop netip.Addr) (via netip.Addr, device string)
}

// Compiler holds one node's desired state and keeps it in step with a store. It is not safe for
// concurrent use.
type Compiler struct {
	env           *environment
	store         *store.Store // of the last Update; nil: there was none
	unread        bool         // see SetPodsUnread
	state         *state.State
	checks        map[model.Name]*HealthCheck
	services      *services
	policy        *policy.Compiler  // nil: policy is not compiled
	farms         *farm.Compiler    // nil: farms are not
	fabric        *fabric.Compiler  // nil: the fabric is not
	peers         *peers            // beside it
	addresses     *address.Compiler // nil: addresses are not
	bgp           *bgp.Compiler     // nil: the node speaks no BGP
	sliceElements int
}

// New returns a Compiler for one node whose state is empty.
func New(cfg Config) *Compiler {
	s, checks, env, all := state.New(), map[model.Name]*HealthCheck{}, &environment{cfg: cfg}, map[model.Name]*service{}
	c := &Compiler{
		env: env, state: s, checks: checks, sliceElements: sliceElements,
		services: &services{
			env: env, all: all, faults: map[model.Name][]model.Issue{}, waiting: map[model.Name]wait{},
			limits: limits{together: maxTogether, denied: map[model.Name]bool{}},
			claims: claims{
				services: all, contested: map[state.FrontendKey]*contest[state.Frontend]{},
				healthPorts: map[uint16]*contest[HealthCheck]{}, now: s.Services,
				frontends:    diff.NewMap(s.Services.Frontends, (*state.Frontend).Equal),
				healthChecks: diff.NewMap(checks, diff.Values[HealthCheck]),
				clusterIPs:   diff.NewSet(s.Services.ClusterIPs),
				otherIPs:     diff.NewSet(s.Services.OtherIPs),
				hairpins:     diff.NewSet(s.Services.Hairpins),
			},
		},
	}
	if cfg.Policy {
		c.policy = policy.New(policy.Config{
			Node: cfg.Node, DenyLists: cfg.DenyLists, DenyDevices: cfg.DenyDevices,
			FailsafeInbound: cfg.FailsafeInbound, FailsafeOutbound: cfg.FailsafeOutbound, PodTunnels: cfg.PodTunnels,
		})
		s.Policy = c.policy.Policy()
	}
	if cfg.Farms {
		c.farms = farm.New(cfg.IPIP)
		s.Farms = c.farms.Farms()
	}
	if cfg.Fabric {
		c.fabric = fabric.New(fabric.Config{Node: cfg.Node, Pools: cfg.Pools, ClusterCIDRs: cfg.ClusterCIDRs, ServiceCIDRs: cfg.ServiceCIDRs, Key: cfg.WireGuard, BGP: cfg.BGP, Resolve: cfg.Resolve})
		c.fabric.SetAPIServers(addressesOf(cfg.APIServers))
		s.Fabric, c.peers = c.fabric.Fabric(), newPeers(cfg.Node, s.Services.Peers)
	}
	if cfg.Addresses {
		of := address.Config{Node: cfg.Node, Class: cfg.LoadBalancerClass, BGP: cfg.BGP, ClusterCIDRs: cfg.ClusterCIDRs, ServiceCIDRs: cfg.ServiceCIDRs,
			AllowNodeAddresses: cfg.AllowNodeAddresses}
		if cfg.BGP {
			of.InForce = func(name model.Name) bool { return c.bgp.InForce(name) }
		}
		c.addresses = address.New(of)
	}
	if cfg.BGP {
		of := bgp.Config{Node: cfg.Node, Port: cfg.BGPPort, Pools: cfg.Pools, Secret: cfg.Secret, MaxRoutes: cfg.BGPMaxRoutes}
		if c.addresses != nil {
			of.Services = c.addresses
		}
		c.bgp = bgp.New(of)
	}
	return c
}

// State is the whole desired state after the last Update. The Compiler owns it and changes it in
// the next Update; callers only read.
func (c *Compiler) State() *state.State { return c.state }

// HealthCheck is what a healthCheckNodePort answers for one service. The agent serves it; no kernel
// has a part in it.
type HealthCheck struct {
	Service        model.Name
	Port           uint16
	LocalEndpoints int // ready endpoints of the service on this node
}

// HealthChecks returns what changed in the health checks of services since the last call: new
// values, and nil for those that are gone.
func (c *Compiler) HealthChecks() map[model.Name]*HealthCheck {
	return c.services.claims.healthChecks.Flush()
}

// HostAddresses are the host's, as they were set last. The caller only reads them.
func (c *Compiler) HostAddresses() []netip.Prefix { return c.env.cfg.HostAddresses }

// SetHostAddresses replaces Config.HostAddresses; the next Update follows.
func (c *Compiler) SetHostAddresses(addrs []netip.Prefix) {
	c.env.cfg.HostAddresses, c.env.moved = addrs, true
}

// SetAPIServers replaces Config.APIServers; the next Update follows. It reports whether that is a
// change.
func (c *Compiler) SetAPIServers(servers []netip.AddrPort) bool {
	if slices.Equal(c.env.cfg.APIServers, servers) {
		return false
	}
	c.env.cfg.APIServers, c.env.moved = servers, true
	if c.fabric != nil {
		c.fabric.SetAPIServers(addressesOf(servers))
	}
	return true
}

// addressesOf are the addresses without ports, in their order and each once.
func addressesOf(list []netip.AddrPort) (addrs []netip.Addr) {
	for _, a := range list {
		if a := a.Addr().Unmap(); !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// SetLinks says what interfaces and routes the node has; the next Update follows. Until it is
// called, no interface leads to any pod.
func (c *Compiler) SetLinks(l model.Links) {
	if c.policy != nil {
		c.policy.SetLinks(l)
	}
	if c.farms != nil {
		c.farms.SetLinks(l)
	}
	if c.fabric != nil {
		c.fabric.SetLinks(l)
	}
}

// FarmRefused says why farms that forward to Ethernet addresses send nothing to a backend that no
// interface leads to.
func (c *Compiler) FarmRefused(backend netip.Addr) string { return c.farms.Refused(backend) }

// SetUnderlay says what addresses the host's interfaces have that other nodes are reached from; the
// next Update follows. Until it is called, none is reached.
func (c *Compiler) SetUnderlay(addrs []model.HostAddress) {
	if c.fabric != nil {
		c.fabric.SetUnderlay(addrs)
		c.env.underlay, c.env.snat = addrs, nil
	}
}

// FabricView returns the ways to the pods of other nodes for people; nil if the state has none.
func (c *Compiler) FabricView() *fabric.View {
	if c.fabric == nil {
		return nil
	}
	v := c.fabric.View()
	return &v
}

// FabricIssues returns what is wrong with the ways to the pods of other nodes.
func (c *Compiler) FabricIssues() []model.Issue {
	if c.fabric == nil {
		return nil
	}
	return c.fabric.Issues()
}

// Paths returns the ways to the nodes whose pods are reached, in no order.
func (c *Compiler) Paths() []model.Path {
	if c.fabric == nil {
		return nil
	}
	return c.fabric.Paths()
}

// FarEnds returns where the ways to other nodes' pods end, in no order.
func (c *Compiler) FarEnds() []model.FarEnd {
	if c.fabric == nil {
		return nil
	}
	return c.fabric.FarEnds()
}

// SetLacking says whether the sources could not read everything, and SetSilent which nodes are not
// heard from; the next Update follows. See address.Compiler.
func (c *Compiler) SetLacking(lacking bool) {
	if c.addresses != nil {
		c.addresses.SetLacking(lacking)
	}
}

// SetSilent is described with SetLacking.
func (c *Compiler) SetSilent(nodes map[string]bool) {
	if c.addresses != nil {
		c.addresses.SetSilent(nodes)
	}
}

// AddressChanges returns what differs in the addresses of Services since the last call.
func (c *Compiler) AddressChanges() address.Delta {
	if c.addresses == nil {
		return address.Delta{}
	}
	return c.addresses.Changes()
}

// Unanswered is described with address.Compiler.
func (c *Compiler) Unanswered(addrs []netip.Addr) []model.Issue {
	if c.addresses == nil {
		return nil
	}
	return c.addresses.Unanswered(addrs)
}

// Addresses returns the addresses of pools that Services have, or keep without one, sorted.
func (c *Compiler) Addresses() []address.Address {
	if c.addresses == nil {
		return nil
	}
	list := c.addresses.List()
	for i := range list {
		if c.bgp != nil {
			list[i].BGP, _ = c.bgp.By(list[i].Address)
		}
	}
	return list
}

// BGPChanges returns what the BGP speaker is to do otherwise than at the last call. It is empty as
// long as the node cannot speak; the first one that is not has all.
func (c *Compiler) BGPChanges() speaker.Order {
	if c.bgp == nil {
		return speaker.Order{}
	}
	return c.bgp.Changes()
}

// BGPView returns what the BGP speaker is to do for people, and what is wrong with it; nil if there
// is none.
func (c *Compiler) BGPView() (*bgp.View, []model.Issue) {
	if c.bgp == nil {
		return nil, nil
	}
	v, issues := c.bgp.View(), slices.Clone(c.bgp.Issues())
	if c.fabric != nil {
		issues = append(issues, c.fabric.LearnedIssues()...)
	}
	if c.store != nil {
		issues = append(issues, slices.DeleteFunc(c.store.Missing(), func(i model.Issue) bool {
			return i.Object.Kind != model.BGPPeerKind && i.Object.Kind != model.BGPFilterKind
		})...)
	}
	slices.SortFunc(issues, model.Issue.Compare)
	return &v, issues
}

// BGPCounts returns the names of this node's BGP peers, in no order, and how many routes it
// announces.
func (c *Compiler) BGPCounts() (peers []string, routes int) {
	if c.bgp == nil {
		return nil, 0
	}
	return c.bgp.Counts()
}

// NotFollowed says why a route that was learned does not lead packets; "": it does.
func (c *Compiler) NotFollowed(p netip.Prefix) string {
	if c.fabric == nil {
		return ""
	}
	return c.fabric.NotFollowed(p)
}

// BGPSecretsChanged asks Config.Secret again for all that it was asked for, and reports whether an
// answer differs; the next Update follows.
func (c *Compiler) BGPSecretsChanged() bool { return c.bgp != nil && c.bgp.SecretsChanged() }

// SetLearned says what has changed in the routes that this node's speaker has learned, nil: no
// longer; the next Update follows.
func (c *Compiler) SetLearned(routes map[netip.Prefix]*speaker.Learned) {
	if c.fabric != nil {
		c.fabric.SetLearned(routes)
	}
}

// RoutesMoved says that the kernel's routes have changed, so that Config.Resolve may answer
// otherwise than before; the next Update follows.
func (c *Compiler) RoutesMoved() {
	if c.fabric != nil {
		c.fabric.RoutesMoved()
	}
}

// SetPodsUnread says whether no Pod object could ever be read; the next Update follows. What no
// known pod sends or gets passes then: nothing tells which pods the node has, and all of them would
// be cut off.
func (c *Compiler) SetPodsUnread(unread bool) { c.unread = unread }

// Update brings the state up to date with what is dirty in the store, and returns what changed in
// it: nothing else is named. Everything is dirty to a Compiler that has compiled nothing yet, and
// when its own node changes in a way that matters. The store stands still meanwhile.
func (c *Compiler) Update(s *store.Store, d store.Dirty) (delta state.Delta) {
	c.store = s
	s.Read(func(v *store.View) { delta = c.update(v, d, false) })
	return delta
}

// Step is Update in slices: of services and policies that come to many elements it brings up to
// date as much as a kernel takes within a tenth of a second or two; where both wait, each gets
// half. See policy.Compiler.Step for policies. Of services, the small ones come first, so that no
// change of one waits for those of many; then the one that has waited longest, cut at its frontends
// where it does not fit. What is left waits for the next Step or Update, and stays as it was
// meanwhile: see Waiting. A service that changes while it is cut is brought to what it was compiled
// to first.
func (c *Compiler) Step(s *store.Store, d store.Dirty) (delta state.Delta) {
	c.store = s
	s.Read(func(v *store.View) { delta = c.update(v, d, true) })
	return delta
}

// update is Update, or Step.
func (c *Compiler) update(v *store.View, d store.Dirty, step bool) state.Delta {
	if !c.env.started {
		d, step = v.All(), false
	}
	// What services depend on comes first: others than those that are dirty may depend on it.
	everything, addrs := c.env.follow(v, d)
	dirty := c.services.affected(v, d.Services, everything, addrs)
	c.services.claims.frontends.Expect(len(dirty))

	room := all
	if step = step && !everything; step {
		room = c.sliceElements
		if waiting := c.Waiting(); waiting.Policies > 0 && waiting.Services+len(dirty) > 0 {
			room /= 2
		}
		c.services.step(v, dirty, d.Since, room)
	} else {
		c.services.update(v, dirty)
	}
	delta := state.Delta{Services: c.services.flush()}
	if c.bgp != nil {
		c.bgp.FollowAdverts(v, d)
	}
	if c.addresses != nil { // which asks which advertisements are in force
		c.addresses.Update(v, d)
	}
	if c.bgp != nil { // which asks for the addresses
		c.bgp.Update(v, d)
	}
	if c.policy != nil {
		c.policy.SetOpen(len(c.env.others) > 0 || c.unread)
		delta.Policy = c.policy.Step(v, d, c.env.node.podCIDRs, room)
	}
	if c.farms != nil {
		delta.Farms = c.farms.Update(v, d)
	}
	if c.fabric != nil { // which asks for what BGP serves
		c.updateFabric(v, d, &delta)
	}
	// The settings ask for tunnels and host endpoints.
	if now := c.env.settings(); !now.Equal(c.state.Services.Settings) {
		c.state.Services.Settings, delta.Services.Settings = now, &now
	}
	return delta
}

// updateFabric is update for the ways to other nodes' pods, and what services have of them.
func (c *Compiler) updateFabric(v *store.View, d store.Dirty, delta *state.Delta) {
	if c.bgp != nil {
		if served, changed := c.bgp.Served(); changed {
			c.fabric.SetServed(slices.Concat(served, masked(c.env.cfg.ServiceCIDRs)))
		}
	}
	delta.Fabric = c.fabric.Update(v, d)
	delta.Services.Peers = c.peers.update(v, d)
	if c.env.snat == nil || len(delta.Fabric.Tunnels) > 0 {
		c.env.snat, c.env.tunnels = snat(c.env.underlay, c.state.Fabric.Tunnels), tunnelEnds(c.state.Fabric.Tunnels)
	}
	// Host endpoints' policies towards the node and from it are for what is tracked.
	c.env.untracked = len(c.env.tunnels) > 0 && (c.policy == nil || len(c.state.Policy.Hosts) == 0)
}

// Waiting returns what Step has left for later.
func (c *Compiler) Waiting() Backlog {
	b := Backlog{Services: len(c.services.waiting)}
	if c.policy != nil {
		b.Policies, b.Since = c.policy.Waiting()
	}
	first := b.Policies == 0
	for _, w := range c.services.waiting {
		if first || w.since.Before(b.Since) {
			first, b.Since = false, w.since
		}
	}
	return b
}

// Waits reports whether Step has left the service for later.
func (c *Compiler) Waits(service model.Name) bool {
	_, waits := c.services.waiting[service]
	return waits
}
