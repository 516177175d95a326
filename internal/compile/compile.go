// Package compile turns the objects in the store into the desired state of one
// node: what kube-proxy would do with them, as flat values for a driver.
//
// It is pure and incremental. The state is a function of the current objects
// alone, whatever the order in which they came, but for the own Node: once it is deleted, what it
// said last counts. The work of an update is that of the services named dirty and their endpoints.
package compile

import (
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/compile/fair"
	"sluice.dev/sluice/internal/compile/policy"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Config is what the user sets for a node; but for HostAddresses and APIServers it does not change while
// a Compiler lives.
type Config struct {
	Node string // the name of the node's object, and of it in endpoints and hints

	// ClusterCIDRs are the pods' addresses in the whole cluster; empty: the
	// own node's podCIDRs, once known, unless ClusterUnknown is set.
	ClusterCIDRs []netip.Prefix
	// ClusterUnknown says that without ClusterCIDRs nothing tells pods' addresses from others: nothing is
	// masqueraded for where it comes from, as kube-proxy has it.
	ClusterUnknown bool
	// ServiceCIDRs are where the cluster's service addresses come from.
	ServiceCIDRs []netip.Prefix
	// NodePortAddresses choose the node addresses that serve node ports;
	// empty: the first of each family, as in kube-proxy's nftables mode.
	NodePortAddresses []netip.Prefix
	// HostAddresses are the addresses of the host's interfaces, each with the length of its subnet's prefix.
	// NodePortAddresses may choose them, beside those of the Node object; services may not have them.
	HostAddresses []netip.Prefix
	// NodePortPrimary has the first of each family serve node ports beside those that NodePortAddresses choose.
	NodePortPrimary bool
	// PrimaryAddr, if valid, counts as the first of its family.
	PrimaryAddr netip.Addr

	MasqueradeAll bool

	// APIServers are where this agent reaches its API: no service gets these.
	APIServers []netip.AddrPort
	// AllowNodeAddresses are those of the addresses of nodes and API servers that services may have as
	// external IPs and load balancers' addresses, but for ReservedPorts and the ports of the API.
	AllowNodeAddresses []netip.Prefix
	// ReservedPorts are ports of nodes that no service may have, neither as node ports nor at nodes' addresses.
	ReservedPorts []state.PortRange
	// ExternalIPCIDRs and LoadBalancerCIDRs are where services may have external IPs and load balancers'
	// addresses. Nil: anywhere; empty: nowhere.
	ExternalIPCIDRs, LoadBalancerCIDRs []netip.Prefix

	// Policy compiles network policy too; without it the state has none, and the
	// fields below mean nothing.
	Policy bool
	// DenyLists name address lists whose packets are dropped where they arrive on one of DenyDevices,
	// which name interfaces.
	DenyLists, DenyDevices []string
	// FailsafeInbound and FailsafeOutbound are ports of the node, and of others that it
	// connects to, that no host endpoint closes.
	FailsafeInbound, FailsafeOutbound []state.PortRange
	// PodTunnels lets pods send VXLAN and other tunnels.
	PodTunnels bool
}

// Compiler holds one node's desired state and keeps it in step with a store.
// It is not safe for concurrent use.
type Compiler struct {
	cfg      Config
	moved    bool // the host's addresses, or those of API servers, changed since the last Update
	started  bool
	node     node
	guard    guard
	own      *model.Node // as it is, or was last; nil: there has been none
	gone     bool        // own is not there any more
	unread   bool        // see SetPodsUnread
	others   []string    // the nodes that there are, where the own one has never been among them
	state    *state.State
	checks   map[model.Name]*HealthCheck
	services map[model.Name]*service
	// contested holds, for each frontend key that several services claim, what each
	// of them wants there.
	contested map[state.FrontendKey]map[model.Name]*state.Frontend
	// healthPorts holds what claims each healthCheckNodePort.
	healthPorts map[uint16]map[model.Name]*HealthCheck
	// faults are the issues found in each service that has any.
	faults map[model.Name][]model.Issue

	maxTogether  fair.Bound          // the constant, but in tests
	asked, given int                 // elements that all services ask for, and that they have
	denied       map[model.Name]bool // those for which there is no room; true: in their turn, false: when they came
	reweigh      bool                // others may have room since the last update

	nodePorts [2]int // services that have one, of IPv4 and IPv6

	written
	policy  *policy.Compiler // nil: policy is not compiled
	scratch []endpoint

	waiting       map[model.Name]wait // what Step left for later
	sliceElements int
}

// New returns a Compiler for one node whose state is empty.
func New(cfg Config) *Compiler {
	s, checks := state.New(), map[model.Name]*HealthCheck{}
	c := &Compiler{
		cfg:         cfg,
		state:       s,
		checks:      checks,
		services:    map[model.Name]*service{},
		contested:   map[state.FrontendKey]map[model.Name]*state.Frontend{},
		healthPorts: map[uint16]map[model.Name]*HealthCheck{},
		faults:      map[model.Name][]model.Issue{},
		written:     newWritten(s.Services, checks),

		maxTogether: maxTogether, denied: map[model.Name]bool{},

		waiting:       map[model.Name]wait{},
		sliceElements: sliceElements,
	}
	if cfg.Policy {
		c.policy = policy.New(policy.Config{
			Node: cfg.Node, DenyLists: cfg.DenyLists, DenyDevices: cfg.DenyDevices,
			FailsafeInbound: cfg.FailsafeInbound, FailsafeOutbound: cfg.FailsafeOutbound, PodTunnels: cfg.PodTunnels,
		})
		s.Policy = c.policy.Policy()
	}
	return c
}

// State is the whole desired state after the last Update. The Compiler owns it
// and changes it in the next Update; callers only read.
func (c *Compiler) State() *state.State { return c.state }

// HealthCheck is what a healthCheckNodePort answers for one service. The agent serves it; no kernel has a part in it.
type HealthCheck struct {
	Service        model.Name
	Port           uint16
	LocalEndpoints int // ready endpoints of the service on this node
}

// HealthChecks returns what changed in the health checks of services since the last call: new values, and nil for those
// that are gone.
func (c *Compiler) HealthChecks() map[model.Name]*HealthCheck { return c.healthChecks.Flush() }

// SetHostAddresses replaces Config.HostAddresses; the next Update follows.
func (c *Compiler) SetHostAddresses(addrs []netip.Prefix) {
	c.cfg.HostAddresses, c.moved = addrs, true
}

// SetAPIServers replaces Config.APIServers; the next Update follows. It reports whether that is a change.
func (c *Compiler) SetAPIServers(servers []netip.AddrPort) bool {
	if slices.Equal(c.cfg.APIServers, servers) {
		return false
	}
	c.cfg.APIServers, c.moved = servers, true
	return true
}

// SetLinks says what interfaces and routes the node has; the next Update follows.
// Until it is called, no interface leads to any pod.
func (c *Compiler) SetLinks(l model.Links) {
	if c.policy != nil {
		c.policy.SetLinks(l)
	}
}

// SetPodsUnread says whether no Pod object could ever be read; the next Update follows. What no known pod sends or
// gets passes then: nothing tells which pods the node has, and all of them would be cut off.
func (c *Compiler) SetPodsUnread(unread bool) { c.unread = unread }

// Update brings the state up to date with what is dirty in the store, and
// returns what changed in it: nothing else is named. Everything is dirty to a
// Compiler that has compiled nothing yet, and when its own node changes in a
// way that matters. The store stands still meanwhile.
func (c *Compiler) Update(s *store.Store, d store.Dirty) state.Delta {
	var delta state.Delta
	s.Read(func(v *store.View) { delta = c.update(v, d, false) })
	return delta
}

// update is Update, or Step.
func (c *Compiler) update(v *store.View, d store.Dirty, step bool) state.Delta {
	settings := c.state.Services.Settings
	if !c.started || len(d.Nodes) > 0 {
		c.findNode(v)
	}
	if !c.started {
		d = v.All()
	}
	services, step := d.Services, step && c.started
	_, mine := d.Nodes[c.cfg.Node]
	guarded := c.findGuard(v, d)
	if !c.started || mine || c.moved {
		n := newNode(c.cfg, c.own)
		if c.started && !n.equal(c.node) {
			services = v.Services()
			for name := range c.services {
				services[name] = struct{}{}
			}
			step = false
		}
		c.node = n
		c.state.Services.Settings = n.settings
		c.started, c.moved = true, false
	}
	if len(guarded) > 0 {
		services = maps.Clone(services)
		for name, s := range c.services {
			if c.among(guarded, s.svc) {
				services[name] = struct{}{}
			}
		}
	}
	c.frontends.Expect(len(services))
	room := all
	if step {
		room = c.sliceElements
		if waiting := c.Waiting(); waiting.Policies > 0 && waiting.Services+len(services) > 0 {
			room /= 2
		}
		c.take(v, d, services, room)
		for _, name := range c.weigh() {
			c.wait(name, d.Since)
		}
	} else {
		for name := range services {
			c.service(v, name, all)
			delete(c.waiting, name)
		}
		for name := range c.waiting {
			c.service(v, name, all)
		}
		clear(c.waiting)
		for c.reweigh {
			for _, name := range c.weigh() {
				c.service(v, name, all)
			}
		}
	}
	c.scratch = nil // it may be large, and holds on to objects
	delta := state.Delta{Services: c.flush()}
	if c.policy != nil {
		c.policy.SetOpen(len(c.others) > 0 || c.unread)
		delta.Policy = c.policy.Step(v, d, c.node.podCIDRs, room)
	}
	if !settings.Equal(c.state.Services.Settings) {
		now := c.state.Services.Settings
		delta.Services.Settings = &now
	}
	return delta
}

// findGuard follows who has which address, and returns the addresses of which that changed.
func (c *Compiler) findGuard(v *store.View, d store.Dirty) map[netip.Addr]struct{} {
	if _, api := d.Services[apiService]; c.started && !c.moved && !api && len(d.Nodes) == 0 {
		return nil
	}
	old := c.guard
	c.guard = newGuard(c.cfg, c.own, v)
	return c.guard.differs(&old)
}

// service compiles one service anew and puts the result in place of the old, as far as there is room for: see proceed.
func (c *Compiler) service(v *store.View, name model.Name, room int) (spent, left int) {
	old, next := c.services[name], (*service)(nil)
	if svc := v.Service(name); svc != nil {
		next = c.compile(v, svc, old)
	} else if delete(c.faults, name); old != nil {
		next = &service{svc: &model.Service{Name: name}, gone: true}
	} else {
		return 0, 0
	}
	c.account(next, old)
	next.standing = old.stands()
	c.services[name] = next
	next.former = old
	c.hold(next)
	c.settleHealth(name, old.healthCheck(), lesser(old.healthCheck(), next.health))
	compiled := 1 + next.elements/compilingCost
	spent, left = c.proceed(name, max(room-compiled, 1))
	return spent + compiled, left
}

// hold counts what a service has of addresses and kinds of frontends: all of a state's frontends are of services that are held.
func (c *Compiler) hold(s *service) {
	each(s.addresses(), c.clusterIPs.Add)
	each(s.others(), c.otherIPs.Add)
	each(s.hairpinned(), c.hairpins.Add)
	for family, is4 := range [...]bool{true, false} {
		c.nodePorts[family] += one(s.hasNodePort(is4))
	}
}

func (c *Compiler) release(s *service) {
	each(s.addresses(), c.clusterIPs.Remove)
	each(s.others(), c.otherIPs.Remove)
	each(s.hairpinned(), c.hairpins.Remove)
	for family, is4 := range [...]bool{true, false} {
		c.nodePorts[family] -= one(s.hasNodePort(is4))
	}
}
