package question

import (
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/internal/verdict"
)

// Case is all that decides on the connections of a question.
type Case struct {
	Connections []verdict.Question // for each sender, address family, and address and port of a service
	Objects     *store.Store       // the pods and services that they are about, and all policies
	Nodes       []string           // that they may pass, sorted
	Home        func(netip.Addr) string
	Object      func(netip.Addr) model.Ref
}

// Case finds out what a question is about; here is the node that is asked, and own tells its own
// addresses beside those of its Node. A connection from
// outside comes in by the node q.Via, or by that whose address it goes to. Where it goes to an
// address of a service with externalTrafficPolicy Local, it comes in by each node that has an
// endpoint, as load balancers send it there; else by the node that is asked. An error says why the
// question makes no sense.
func (q Question) Case(v *store.View, here string, own func(netip.Addr) bool) (*Case, error) {
	p := newPlaces(v, here, own)
	c := &Case{Home: p.home, Object: p.object}
	var err error
	if c.Connections, err = q.connections(v, p); err != nil {
		return nil, err
	}
	nodes := map[string]bool{here: true}
	pods, services := map[*model.Pod]bool{}, map[*model.Service]bool{}
	known := func(a netip.Addr) {
		if pod := v.PodByAddr(a); pod != nil {
			pods[pod] = true
		}
		nodes[p.home(a)] = true
	}
	for i := range c.Connections {
		con := &c.Connections[i]
		known(con.From)
		known(con.To)
		for _, svc := range v.ServicesAt(con.To, con.Port) {
			services[svc] = true
			balanced := slices.Contains(unmapped(slices.Concat(svc.LoadBalancerIPs, svc.ExternalIPs)), con.To)
			if balanced && svc.ExternalLocal && con.Via == nil && p.home(con.From) == "" {
				con.Via = nodesOf(v, svc)
			}
			for _, slice := range v.Slices(svc.Name) {
				for j := range slice.Endpoints {
					known(slice.Endpoints[j].Addr.Unmap())
				}
			}
			for _, pod := range v.Selected(svc) {
				pods[pod], nodes[pod.Node] = true, true
			}
		}
		for _, name := range con.Via {
			nodes[name] = true
		}
	}
	delete(nodes, "")
	c.Nodes = slices.Sorted(maps.Keys(nodes))
	if api := v.Service(model.Name{Namespace: "default", Name: "kubernetes"}); api != nil {
		services[api] = true // no service may have its addresses
	}
	c.Objects = v.Extract(slices.Collect(maps.Keys(pods)), slices.Collect(maps.Keys(services)))
	p.pod = c.Objects.PodByAddr
	return c, nil
}

// nodesOf are the nodes that have a ready endpoint of the service; none: any.
func nodesOf(v *store.View, svc *model.Service) []string {
	nodes := map[string]bool{}
	for _, slice := range v.Slices(svc.Name) {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.Ready && e.Node != "" {
				nodes[e.Node] = true
			}
		}
	}
	if len(v.Slices(svc.Name)) == 0 {
		for _, pod := range v.Selected(svc) {
			if pod.Ready && !pod.Terminating && pod.Node != "" {
				nodes[pod.Node] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// places say where addresses are.
type places struct {
	here   string
	nodes  map[netip.Addr]string
	ranges []podRange
	pod    func(netip.Addr) *model.Pod
	own    func(netip.Addr) bool
}

// podRange is where a node's pods have their addresses.
type podRange struct {
	prefix netip.Prefix
	node   string
}

func newPlaces(v *store.View, here string, own func(netip.Addr) bool) *places {
	p := &places{here: here, nodes: map[netip.Addr]string{}, pod: v.PodByAddr, own: own}
	for _, name := range v.NodeNames() {
		n := v.Node(name)
		for _, a := range slices.Concat(n.IPs, n.OtherIPs) {
			if a = a.Unmap(); p.nodes[a] == "" {
				p.nodes[a] = name
			}
		}
		for _, r := range n.PodCIDRs {
			p.ranges = append(p.ranges, podRange{r, name})
		}
	}
	return p
}

// home returns the node that has an address, or its pod, or its range of pods; "": none.
func (p *places) home(a netip.Addr) string {
	if pod := p.pod(a); pod != nil {
		return pod.Node
	}
	if node := p.nodes[a]; node != "" {
		return node
	}
	for _, r := range p.ranges {
		if r.prefix.Contains(a) {
			return r.node
		}
	}
	if p.own(a) {
		return p.here
	}
	return ""
}

// object returns the pod or node that has an address.
func (p *places) object(a netip.Addr) model.Ref {
	if pod := p.pod(a); pod != nil {
		return pod.Ref()
	}
	if node := p.nodes[a]; node != "" {
		return model.Ref{Kind: model.NodeKind, Name: model.Name{Name: node}}
	}
	return model.Ref{}
}
