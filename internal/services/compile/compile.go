// Package compile turns Services, their EndpointSlices and Pods into the part of one node's desired
// state that says where connections go: what kube-proxy would do with them, as flat values for a
// driver.
//
// It is pure and incremental. The state is a function of the current objects alone, whatever the
// order in which they came, except for the own Node: once it is deleted, what it said last counts.
// The work of an update is that of the services named dirty and their endpoints.
package compile

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Config is what the user sets for a node; except for HostAddresses and APIServers it does not
// change while a Compiler lives.
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
	// as external IPs and load balancers' addresses, except for ReservedPorts and the ports of the
	// API.
	AllowNodeAddresses []netip.Prefix
	// ReservedPorts are ports of nodes that no service may have, neither as node ports nor at
	// nodes' addresses.
	ReservedPorts []state.PortRange
	// ExternalIPCIDRs and LoadBalancerCIDRs are where services may have external IPs and load
	// balancers' addresses. Nil: anywhere; empty: nowhere.
	ExternalIPCIDRs, LoadBalancerCIDRs []netip.Prefix

	// Fabric says that the pod network is ours: what leaves it is masqueraded, and tunnels of other
	// nodes end here.
	Fabric bool
	// NATOutgoing has ClusterCIDRs count as IPPools with natOutgoing, beside those that there are.
	NATOutgoing bool
}

// Compiler compiles all services. An update compiles those that changed, and then has the state
// follow, in slices: see slice.go. It is not safe for concurrent use.
type Compiler struct {
	env       *environment
	now       *state.Services // what is written here
	all       map[model.Name]*service
	dirty     map[model.Name]struct{}      // of the last Follow
	faults    map[model.Name][]model.Issue // found in each service that has any
	frontends claims[state.FrontendKey, state.Frontend]
	health    claims[uint16, HealthCheck] // of ports, by which no kernel is told
	// The reasons are services that refer to the address.
	clusterIPs, otherIPs, hairpins diff.Set[netip.Addr]

	limits    limits
	nodePorts [2]int              // services that have one, of IPv4 and IPv6
	waiting   map[model.Name]wait // what a step left for later
	builder   builder             // of the service that is compiled
}

// New returns a Compiler for one node whose state is empty.
func New(cfg Config) *Compiler {
	now, checks, all := state.NewServices(), map[uint16]*HealthCheck{}, map[model.Name]*service{}
	return &Compiler{
		env: &environment{cfg: cfg, nodes: map[string]*model.Node{}, peers: diff.NewSet(now.Peers)},
		now: now, all: all, faults: map[model.Name][]model.Issue{}, waiting: map[model.Name]wait{},
		limits: limits{together: maxTogether, denied: map[model.Name]bool{}},
		frontends: claims[state.FrontendKey, state.Frontend]{
			services: all, now: now.Frontends, changes: diff.NewMap(now.Frontends, (*state.Frontend).Equal), contested: map[state.FrontendKey]*contest[state.Frontend]{},
			owner: func(f *state.Frontend) model.Name { return f.Service }, own: func(f *state.Frontend) bool { return f.Kind == state.ClusterIP },
		},
		health: claims[uint16, HealthCheck]{
			services: all, now: checks, changes: diff.NewMap(checks, diff.Values[HealthCheck]), contested: map[uint16]*contest[HealthCheck]{},
			owner: func(h *HealthCheck) model.Name { return h.Service }, own: func(*HealthCheck) bool { return false },
		},
		clusterIPs: diff.NewSet(now.ClusterIPs), otherIPs: diff.NewSet(now.OtherIPs), hairpins: diff.NewSet(now.Hairpins),
	}
}

// Services is the part of the state after the last Update. The Compiler owns it and changes it in
// the next one; callers only read.
func (c *Compiler) Services() *state.Services { return c.now }

// HealthCheck is what a healthCheckNodePort answers for one service. The agent serves it; no kernel
// has a part in it.
type HealthCheck struct {
	Service        model.Name
	Port           uint16
	LocalEndpoints int // ready endpoints of the service on this node
}

// HealthChecks returns what changed in the health checks of services since the last call, by port:
// new values, and nil for those that are gone.
func (c *Compiler) HealthChecks() map[uint16]*HealthCheck { return c.health.changes.Flush() }

// Denied are the services for which there is no room beside all others.
func (c *Compiler) Denied() map[model.Name]bool { return c.limits.denied }

// Config is the configuration with what was set since. The caller only reads it.
func (c *Compiler) Config() Config { return c.env.cfg }

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
	return true
}

// SetUnderlay says what addresses the host's interfaces have that other nodes are reached from; the
// next Update follows.
func (c *Compiler) SetUnderlay(addrs []model.HostAddress) { c.env.underlay, c.env.snat = addrs, nil }

// Follow takes in what is dirty, for Update to compile. It reports whether all services are,
// because the node itself has changed.
func (c *Compiler) Follow(v *store.View, d store.Dirty) (everything bool) {
	everything, addrs := c.env.follow(v, d)
	c.dirty = c.affected(v, d.Services, everything, addrs)
	c.frontends.changes.Expect(len(c.dirty))
	return everything
}

// Pending is how many services the next Update is about.
func (c *Compiler) Pending() int { return len(c.dirty) + len(c.waiting) }

// Update brings services up to date after Follow, as far as there is room for: about so many
// elements. It returns what changed in the state.
func (c *Compiler) Update(v *store.View, d store.Dirty, room int) state.ServicesDelta {
	if room == All {
		c.update(v, c.dirty)
	} else {
		c.step(v, c.dirty, d.Since, room)
	}
	c.dirty = nil
	return c.flush()
}

// SetTunnels sets this node's tunnels; moved: they differ from before. Tracked has connection
// tracking see all that the node itself sends and receives, as policies of host endpoints need it.
func (c *Compiler) SetTunnels(tunnels map[string]*state.Tunnel, moved, tracked bool) {
	e := c.env
	if e.snat == nil || moved {
		e.snat, e.tunnels = snat(e.underlay, tunnels), tunnelEnds(tunnels)
	}
	e.untracked = len(e.tunnels) > 0 && !tracked
}

// Settle brings the settings up to date, at the end of an update.
func (c *Compiler) Settle(delta *state.ServicesDelta) {
	if now := c.env.settings(); !now.Equal(c.now.Settings) {
		c.now.Settings, delta.Settings = now, &now
	}
}

// PodCIDRs are the own node's, masked.
func (c *Compiler) PodCIDRs() []netip.Prefix { return c.env.node.podCIDRs }

// ServiceCIDRs are those of the configuration, masked, without those that lie in another.
func (c *Compiler) ServiceCIDRs() []netip.Prefix { return masked(c.env.cfg.ServiceCIDRs) }

// Misnamed reports whether there are Nodes, and none of them was ever the own one.
func (c *Compiler) Misnamed() bool { return len(c.env.others) > 0 }
