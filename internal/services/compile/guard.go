package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// guard holds the addresses that belong to nodes and to API servers. A Service that had one of them
// as its own would take connections that are not meant for it: the kubelet's, SSH, and this agent's
// to its API. See docs/decisions/0018-addresses-that-no-service-may-have.md.
type guard struct {
	nodes   map[netip.Addr]model.AddressOwner // addresses of nodes; this host's are its own always, as it would be cut off without them
	servers map[netip.Addr]bool               // where API servers are reached
	ports   map[uint16]bool                   // their ports of TCP
}

// apiService is the Service by which pods reach the API server; its endpoints are the API servers.
var apiService = model.Name{Namespace: "default", Name: "kubernetes"}

// newGuard reads who has which address. Of the host's own addresses those count that come with
// their subnet: one of a single address (/32, /128) may be a service's, put there by keepalived,
// kube-vip, a local DNS cache, or kube-proxy in mode ipvs. If it is the node's, the Node object
// says so.
func newGuard(cfg Config, own *model.Node, v *store.View) guard {
	g := guard{nodes: map[netip.Addr]model.AddressOwner{}, servers: map[netip.Addr]bool{}, ports: map[uint16]bool{}}
	if own != nil {
		g.addNode(own)
	}
	for _, name := range v.NodeNames() {
		g.addNode(v.Node(name))
	}
	here := []netip.Addr{}
	if own != nil {
		here = append(here, own.IPs...)
	}
	for _, p := range cfg.HostAddresses {
		if !p.IsSingleIP() || own != nil && slices.Contains(own.OtherIPs, p.Addr()) {
			here = append(here, p.Addr())
		}
	}
	for _, a := range here {
		g.nodes[a.Unmap()] = model.AddressOwner{Birth: model.Birth{Name: model.Name{Name: cfg.Node}}, Always: true}
	}
	for _, s := range cfg.APIServers {
		g.servers[s.Addr().Unmap()], g.ports[s.Port()] = true, true
	}
	if svc := v.Service(apiService); svc != nil {
		g.addServers(svc, v.Slices(apiService))
	}
	return g
}

func (g *guard) addNode(n *model.Node) {
	n.EachAddress(func(a netip.Addr, o model.AddressOwner) {
		if has, others := g.nodes[a.Unmap()]; others {
			o = o.With(has)
		}
		g.nodes[a.Unmap()] = o
	})
}

func (g *guard) addServers(svc *model.Service, list []*model.EndpointSlice) {
	for _, a := range svc.ClusterIPs {
		g.servers[a.Unmap()] = true
	}
	for _, p := range svc.Ports {
		g.ports[p.Port] = true
	}
	for _, slice := range list {
		for i := range slice.Endpoints {
			g.servers[slice.Endpoints[i].Addr.Unmap()] = true
		}
		for _, p := range slice.Ports {
			g.ports[p.Port] = true
		}
	}
}

// differs returns the addresses that two guards do not say the same of.
func (g *guard) differs(o *guard) map[netip.Addr]bool {
	changed := map[netip.Addr]bool{}
	for _, pair := range [...][2]*guard{{g, o}, {o, g}} {
		for a, node := range pair[0].nodes {
			if pair[1].nodes[a] != node {
				changed[a] = true
			}
		}
		for a := range pair[0].servers {
			if !pair[1].servers[a] {
				changed[a] = true
			}
		}
	}
	if !maps.Equal(g.ports, o.ports) {
		maps.Copy(changed, g.servers)
	}
	return changed
}

// wants reports whether the service may want one of some addresses.
func (e *environment) wants(svc *model.Service, addrs map[netip.Addr]bool) bool {
	has := func(a netip.Addr) bool { return addrs[a.Unmap()] }
	return slices.ContainsFunc(svc.ClusterIPs, has) || slices.ContainsFunc(svc.ExternalIPs, has) || slices.ContainsFunc(svc.LoadBalancerIPs, has) ||
		slices.ContainsFunc(e.node.nodePort, has) && slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool { return p.NodePort != 0 })
}

// refuses says why a service may not have an address as one of its own; empty: it may.
func (e *environment) refuses(svc *model.Service, kind state.Kind, a netip.Addr) string {
	if why := model.Unusable(a); why != "" {
		return "is " + why
	}
	o, ofNode := e.guard.nodes[a]
	ofNode = ofNode && o.Before(svc.Birth())
	node := o.Name.Name
	allowed := model.Within(a, e.cfg.AllowNodeAddresses)
	switch {
	case kind == state.ClusterIP && ofNode && node == e.cfg.Node: // of others not: whoever writes a Node could take a service away everywhere
		return "is an address of node " + node + ", whose other ports would be refused to everybody"
	case kind == state.ClusterIP:
	case ofNode && !allowed:
		return "is an address of node " + node + " (--allow-node-addresses lets services have some)"
	case e.guard.servers[a] && !allowed:
		return "is an address of the API server (--allow-node-addresses lets services have some)"
	case kind == state.ExternalIP && e.cfg.ExternalIPCIDRs != nil && !model.Within(a, e.cfg.ExternalIPCIDRs):
		return "is not in --external-ip-cidrs"
	case kind == state.LoadBalancer && e.cfg.LoadBalancerCIDRs != nil && !model.Within(a, e.cfg.LoadBalancerCIDRs):
		return "is not in --load-balancer-cidrs"
	}
	return ""
}

// refusesPort says why no service may have a port at an address outside its cluster IPs; empty: one
// may.
func (e *environment) refusesPort(kind state.Kind, k state.FrontendKey) string {
	_, ofNode := e.guard.nodes[k.Addr]
	switch {
	case kind == state.ClusterIP:
	case k.Protocol == model.TCP && e.guard.servers[k.Addr] && e.guard.ports[k.Port]:
		return "is where the API server is reached"
	case (ofNode || kind == state.NodePort) && e.reserved(k.Protocol, k.Port):
		return "is a port that nodes need for themselves (--reserved-ports)"
	}
	return ""
}

// reserved reports whether nodes need a port for themselves.
func (e *environment) reserved(protocol model.Protocol, port uint16) bool {
	return slices.ContainsFunc(e.cfg.ReservedPorts, func(r state.PortRange) bool { return r.Holds(protocol, port) })
}

// permitted returns those of a service's addresses that it may have, and reports the others.
func (b *builder) permitted(kind state.Kind, what string, addrs []netip.Addr) []netip.Addr {
	bad := func(a netip.Addr) bool { return a.Is4In6() || b.refuses(b.svc, kind, a) != "" }
	for _, a := range addrs {
		if o, ofNode := b.guard.nodes[a]; ofNode && !o.Before(b.svc.Birth()) && !bad(a) && !model.Within(a, b.cfg.AllowNodeAddresses) {
			issue := model.Ref{Kind: model.NodeKind, Name: o.Name}.Issue(
				fmt.Sprintf("its address %s is the %s of Service %s, %s: the Service's ports there lead to the Service; give the node another address", a, what, b.svc.Name, b.svc.Birth().Precedence(o.Birth)))
			issue.Everywhere = true
			b.add(issue)
		}
	}
	if !slices.ContainsFunc(addrs, bad) {
		return addrs
	}
	var list []netip.Addr
	for _, a := range addrs {
		if a = a.Unmap(); !bad(a) {
			list = append(list, a)
		} else {
			b.refused(what+" "+a.String(), b.refuses(b.svc, kind, a))
		}
	}
	return list
}
