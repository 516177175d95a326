// Package compile turns the objects in the store into the desired state of one node: it knows the
// subjects, each of which compiles its part, and in which order they ask each other.
//
// It is pure and incremental, as its subjects are.
package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	addresses "sluice.dev/sluice/internal/addresses/compile"
	farms "sluice.dev/sluice/internal/balancer/compile"
	speaker "sluice.dev/sluice/internal/bgp"
	bgp "sluice.dev/sluice/internal/bgp/compile"
	fabric "sluice.dev/sluice/internal/fabric/compile"
	"sluice.dev/sluice/internal/model"
	policy "sluice.dev/sluice/internal/policy/compile"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Config is what the user sets for a node: of services, which are compiled always, and of the
// subjects that are on. It does not change while a Compiler lives, except for what has a method to
// change it.
type Config struct {
	services.Config // Fabric compiles the ways to the pods of other nodes; without it the state has none

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

	// Farms compiles the farms of a balancer; without it the state has none. IPIP returns why the
	// kernel cannot send packets in IPIP; a nil IPIP, or no error: it can.
	Farms bool
	IPIP  func() error

	// Pools are those of the fabric that no API has, as in fabric.Config.
	Pools []*model.IPPool
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

	elsewhere bool // it is another node: its ways to pods are not asked about, what it masquerades is
}

// Compiler holds one node's desired state and keeps it in step with a store. It is not safe for
// concurrent use.
type Compiler struct {
	Services  *services.Compiler
	Policy    *policy.Compiler    // nil: policy is not compiled
	Farms     *farms.Compiler     // nil: farms are not
	Fabric    *fabric.Compiler    // nil: the fabric is not
	Addresses *addresses.Compiler // nil: addresses are not
	BGP       *bgp.Compiler       // nil: the node speaks no BGP

	cfg      Config
	subjects []subject // in the order in which they are brought up to date
	state    *state.State
	store    *store.Store // of the last Update; nil: there was none
	started  bool
	unread   bool // see SetPodsUnread
}

// subject is what every subject that is on has to do with an update. A new one adds itself in New.
type subject struct {
	update func(t *turn)
	issues func() []model.Issue // nil: another one has them
	links  func(model.Links)    // nil: interfaces and routes do not matter
}

// turn is one update of all subjects.
type turn struct {
	view  *store.View
	dirty store.Dirty
	room  int // how many elements of each of services and policy may change, about
	delta state.Delta
}

// New returns a Compiler for one node whose state is empty.
func New(cfg Config) *Compiler {
	c := &Compiler{cfg: cfg, Services: services.New(cfg.Config)}
	c.state = &state.State{Services: c.Services.Services()}
	c.add(subject{update: func(t *turn) { t.delta.Services = c.Services.Update(t.view, t.dirty, t.room) }, issues: c.Services.Issues})
	if cfg.BGP { // addresses ask which advertisements are in force
		c.add(subject{update: func(t *turn) { c.BGP.FollowAdverts(t.view, t.dirty) }})
	}
	if cfg.Addresses {
		of := addresses.Config{Node: cfg.Node, Class: cfg.LoadBalancerClass, BGP: cfg.BGP, ClusterCIDRs: cfg.ClusterCIDRs, ServiceCIDRs: cfg.ServiceCIDRs,
			AllowNodeAddresses: cfg.AllowNodeAddresses}
		if cfg.BGP {
			of.InForce = func(name model.Name) bool { return c.BGP.InForce(name) }
		}
		c.Addresses = addresses.New(of)
		c.add(subject{update: func(t *turn) { c.Addresses.Update(t.view, t.dirty) }, issues: c.Addresses.Issues})
	}
	if cfg.BGP { // which asks for the addresses
		of := bgp.Config{Node: cfg.Node, Port: cfg.BGPPort, Pools: cfg.Pools, Secret: cfg.Secret, MaxRoutes: cfg.BGPMaxRoutes}
		if cfg.Addresses {
			of.Services = c.Addresses
		}
		c.BGP = bgp.New(of)
		c.add(subject{update: func(t *turn) { c.BGP.Update(t.view, t.dirty) }, issues: c.BGP.Issues})
	}
	if cfg.Policy {
		c.Policy = policy.New(policy.Config{
			Node: cfg.Node, DenyLists: cfg.DenyLists, DenyDevices: cfg.DenyDevices,
			FailsafeInbound: cfg.FailsafeInbound, FailsafeOutbound: cfg.FailsafeOutbound, PodTunnels: cfg.PodTunnels,
		})
		c.state.Policy = c.Policy.Policy()
		c.add(subject{issues: c.Policy.Issues, links: c.Policy.SetLinks, update: func(t *turn) {
			c.Policy.SetOpen(c.Services.Misnamed() || c.unread)
			t.delta.Policy = c.Policy.Step(t.view, t.dirty, c.Services.PodCIDRs(), t.room)
		}})
	}
	if cfg.Farms {
		c.Farms = farms.New(cfg.IPIP)
		c.state.Farms = c.Farms.Farms()
		c.add(subject{update: func(t *turn) { t.delta.Farms = c.Farms.Update(t.view, t.dirty) }, issues: c.Farms.Issues, links: c.Farms.SetLinks})
	}
	if cfg.Fabric && !cfg.elsewhere {
		c.Fabric = fabric.New(fabric.Config{Node: cfg.Node, Pools: cfg.Pools, ClusterCIDRs: cfg.ClusterCIDRs, ServiceCIDRs: cfg.ServiceCIDRs, Key: cfg.WireGuard, BGP: cfg.BGP, Resolve: cfg.Resolve})
		c.Fabric.SetAPIServers(addressesOf(cfg.APIServers))
		c.state.Fabric = c.Fabric.Fabric()
		c.add(subject{update: c.updateFabric, issues: c.Fabric.Issues, links: c.Fabric.SetLinks})
	}
	return c
}

func (c *Compiler) add(s subject) { c.subjects = append(c.subjects, s) }

// updateFabric brings the ways to other nodes' pods up to date, and what services have of them.
func (c *Compiler) updateFabric(t *turn) {
	if c.BGP != nil {
		if served, changed := c.BGP.Served(); changed {
			c.Fabric.SetServed(slices.Concat(served, c.Services.ServiceCIDRs()))
		}
	}
	t.delta.Fabric = c.Fabric.Update(t.view, t.dirty)
	c.Services.SetTunnels(c.state.Fabric.Tunnels, len(t.delta.Fabric.Tunnels) > 0, c.Policy != nil && len(c.state.Policy.Hosts) > 0)
}

// State is the whole desired state after the last Update. The Compiler owns it and changes it in
// the next Update; callers only read.
func (c *Compiler) State() *state.State { return c.state }

// SetAPIServers replaces Config.APIServers; the next Update follows. It reports whether that is a
// change.
func (c *Compiler) SetAPIServers(servers []netip.AddrPort) bool {
	changed := c.Services.SetAPIServers(servers)
	if changed && c.Fabric != nil {
		c.Fabric.SetAPIServers(addressesOf(servers))
	}
	return changed
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
	for _, s := range c.subjects {
		if s.links != nil {
			s.links(l)
		}
	}
}

// SetUnderlay says what addresses the host's interfaces have that other nodes are reached from; the
// next Update follows. Until it is called, none is reached.
func (c *Compiler) SetUnderlay(addrs []model.HostAddress) {
	if c.Fabric != nil {
		c.Fabric.SetUnderlay(addrs)
		c.Services.SetUnderlay(addrs)
	}
}

// SetLearned says what has changed in the routes that this node's speaker has learned, nil: no
// longer; the next Update follows.
func (c *Compiler) SetLearned(routes map[netip.Prefix]*speaker.Learned) {
	if c.Fabric != nil {
		c.Fabric.SetLearned(routes)
	}
}

// SetPodsUnread says whether no Pod object could ever be read; the next Update follows. What no
// known pod sends or gets passes then: nothing tells which pods the node has, and all of them would
// be cut off.
func (c *Compiler) SetPodsUnread(unread bool) { c.unread = unread }

// Update brings the state up to date with what is dirty in the store, and returns what changed in
// it: nothing else is named. Everything is dirty to a Compiler that has compiled nothing yet, and
// when its own node changes in a way that matters. The store stands still meanwhile.
func (c *Compiler) Update(s *store.Store, d store.Dirty) state.Delta {
	return c.Step(s, d, services.All)
}

// Step is Update in slices: of services and policies it changes about so many elements; where both
// wait, half of each. See policy.Compiler.Step for policies. Of services, the small ones come
// first, so that no change of one waits for those of many; then the one that has waited longest,
// cut at its frontends where it does not fit. What is left waits for the next Step or Update, and
// stays as it was meanwhile: see Waiting. A service that changes while it is cut is brought to what
// it was compiled to first.
func (c *Compiler) Step(s *store.Store, d store.Dirty, elements int) (delta state.Delta) {
	c.store = s
	s.Read(func(v *store.View) {
		if !c.started {
			c.started, d, elements = true, v.All(), services.All
		}
		// What services depend on comes first: others than those that are dirty may depend on it.
		if everything := c.Services.Follow(v, d); everything {
			elements = services.All
		}
		if elements != services.All && c.Waiting().Policies > 0 && c.Services.Pending() > 0 {
			elements /= 2
		}
		t := &turn{view: v, dirty: d, room: elements}
		for _, s := range c.subjects {
			s.update(t)
		}
		c.Services.Settle(&t.delta.Services)
		delta = t.delta
	})
	return delta
}

// Backlog is how much Step has left for later.
type Backlog struct {
	Services, Policies int
	// Since is when the first of them came: all that changed before is in the state. It is zero
	// where none waits, or where one does for what the agent itself has found out.
	Since time.Time
}

// Len is how much waits.
func (b Backlog) Len() int { return b.Services + b.Policies }

// Waiting returns what Step has left for later.
func (c *Compiler) Waiting() (b Backlog) {
	if c.Policy != nil {
		b.Policies, b.Since = c.Policy.Waiting()
	}
	n, since := c.Services.Waiting()
	if n > 0 && (b.Policies == 0 || since.Before(b.Since)) {
		b.Since = since
	}
	b.Services = n
	return b
}

// Issues returns what is wrong with the objects as of the last Update, sorted by object.
func (c *Compiler) Issues() (list []model.Issue) {
	if c.store != nil {
		list = c.store.Missing()
	}
	for _, s := range c.subjects {
		if s.issues != nil {
			list = append(list, s.issues()...)
		}
	}
	slices.SortFunc(list, model.Issue.Compare)
	return firstOfEach(slices.Compact(list))
}

// firstOfEach returns the first services.MaxIssues of each object, and how many more it has. It
// changes the list, which is sorted.
func firstOfEach(list []model.Issue) []model.Issue {
	few := list[:0]
	for i := 0; i < len(list); {
		of, end := list[i].Object, i+1
		for end < len(list) && list[end].Object == of {
			end++
		}
		if more := end - i - services.MaxIssues; more > 1 {
			few = append(append(few, list[i:i+services.MaxIssues]...), of.Issue(fmt.Sprintf("and %d more", more)))
		} else {
			few = append(few, list[i:end]...)
		}
		i = end
	}
	return few
}

// AddressList returns the addresses of pools that Services have, or keep without one, sorted. It is
// for a Compiler with Addresses.
func (c *Compiler) AddressList() []addresses.Address {
	list := c.Addresses.List()
	if c.BGP != nil {
		for i := range list {
			list[i].BGP, _ = c.BGP.By(list[i].Address)
		}
	}
	return list
}

// BGPIssues returns what is wrong with what the BGP speaker is to do, and with what it has learned.
// It is for a Compiler with BGP.
func (c *Compiler) BGPIssues() []model.Issue {
	issues := slices.Clone(c.BGP.Issues())
	if c.Fabric != nil {
		issues = append(issues, c.Fabric.LearnedIssues()...)
	}
	if c.store != nil {
		issues = append(issues, slices.DeleteFunc(c.store.Missing(), func(i model.Issue) bool {
			return i.Object.Kind != model.BGPPeerKind && i.Object.Kind != model.BGPFilterKind
		})...)
	}
	slices.SortFunc(issues, model.Issue.Compare)
	return issues
}
