package drivertest

import (
	"net/netip"
	"reflect"
	"slices"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// A cluster turns the objects that rows declare into the node's desired state, through the real
// store and compiler.
type cluster struct {
	store    *store.Store
	compiler *compile.Compiler
	objects  objects
}

func newCluster(w *topology, c config) *cluster {
	cfg := compile.Config{Config: services.Config{Node: "node", HostAddresses: []netip.Prefix{netip.PrefixFrom(w.addrs["node2"][ipv4], 24), netip.PrefixFrom(w.addrs["node2"][ipv6], 64)}, MasqueradeAll: c.masqueradeAll, Fabric: c.outgoing, NATOutgoing: c.outgoing}}
	if c.nodeAddresses {
		cfg.AllowNodeAddresses = cfg.HostAddresses
	}
	if !c.noPrefixes {
		cfg.ClusterCIDRs, cfg.ServiceCIDRs = clusterCIDRs, serviceCIDRs
	}
	for _, f := range []family{ipv4, ipv6} {
		for _, a := range w.all(c.nodePortsOn, f) {
			cfg.NodePortAddresses = append(cfg.NodePortAddresses, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	slices.SortFunc(cfg.NodePortAddresses, netip.Prefix.Compare)
	return &cluster{store: store.New(), compiler: compile.New(cfg)}
}

// declare makes these the only objects of the cluster, and returns the change of the node's state.
func (c *cluster) declare(now objects) state.Delta {
	var events []store.Event
	for k, o := range now {
		if !reflect.DeepEqual(o, c.objects[k]) {
			events = append(events, store.Event{Kind: k.kind, Name: k.name, Object: o})
		}
	}
	for k := range c.objects {
		if now[k] == nil {
			events = append(events, store.Event{Kind: k.kind, Name: k.name})
		}
	}
	c.objects = now
	c.store.Apply(events)
	c.store.SetSynced()
	return c.compiler.Update(c.store, c.store.Take())
}

// serves reports whether the node's state has the address and port.
func (c *cluster) serves(proto model.Protocol, at netip.AddrPort) bool {
	return c.state().Services.Frontends[state.FrontendKey{Addr: at.Addr(), Protocol: proto, Port: at.Port()}] != nil
}

func (c *cluster) state() *state.State { return c.compiler.State() }
