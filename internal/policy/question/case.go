package question

import (
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/store"
)

// Case is all that decides on the connections of a question.
type Case struct {
	Connections []verdict.Question // for each sender, address family, and address and port of a service
	Objects     *store.Store       // the pods and services that they are about, and all policies
	Nodes       []string           // that they may pass, sorted
	MoreSenders int                // pods of the service that is asked from, that are not among them
	MoreEntries int                // nodes by which a client outside may also come in, that are not among these
	Home        func(netip.Addr) string
	Object      func(netip.Addr) model.Ref
}

// Case finds out what a question is about; here is the node that is asked, and own tells its own
// addresses beside those of its Node. A connection from outside comes in by the node q.Via, or by
// that whose address it goes to. Where it goes to an address of a service, it may come in by any
// node: with externalTrafficPolicy Local by each that has an endpoint, as load balancers send it
// there, else by each of maxEntries nodes. Anything else comes in by the node that is asked. An
// error says why the question makes no sense.
func (q Question) Case(v *store.View, here string, own func(netip.Addr) bool) (*Case, error) {
	h := newHomes(v, here, own)
	c := &Case{Home: h.home, Object: h.object}
	var err error
	if c.Connections, c.MoreSenders, err = q.connections(v, h); err != nil {
		return nil, err
	}
	r := &reach{v: v, homes: h, nodes: map[string]bool{here: true}, pods: map[*model.Pod]bool{}, services: map[*model.Service]bool{}}
	for i := range c.Connections {
		con := &c.Connections[i]
		r.address(con.From)
		for _, svc := range r.target(con.To, con.Port) {
			balanced := slices.Contains(unmapped(slices.Concat(svc.LoadBalancerIPs, svc.ExternalIPs)), con.To)
			switch {
			case con.Via != nil || h.home(con.From) != "" || h.home(con.To) != "":
			case balanced && svc.ExternalLocal:
				con.Via = nodesOf(v, svc)
			default:
				var more int
				con.Via, more = entries(v, svc, here)
				c.MoreEntries = max(c.MoreEntries, more)
			}
		}
		for _, name := range con.Via {
			r.nodes[name] = true
		}
	}
	delete(r.nodes, "")
	c.Nodes = slices.Sorted(maps.Keys(r.nodes))
	if api := v.Service(model.Name{Namespace: "default", Name: "kubernetes"}); api != nil {
		r.services[api] = true // no service may have its addresses
	}
	for _, p := range v.Policies() {
		for name := range p.Services {
			if svc := v.Service(name); svc != nil {
				r.services[svc] = true // its endpoints may be what the question is about
			}
		}
	}
	c.Objects = v.Extract(slices.Collect(maps.Keys(r.pods)), slices.Collect(maps.Keys(r.services)))
	h.pod = c.Objects.PodByAddr
	return c, nil
}

// reach is what connections may come to.
type reach struct {
	v        *store.View
	homes    *homes
	nodes    map[string]bool
	pods     map[*model.Pod]bool
	services map[*model.Service]bool
}

// address adds the node and pod that have an address.
func (r *reach) address(a netip.Addr) {
	if pod := r.v.PodByAddr(a); pod != nil {
		r.pods[pod] = true
	}
	r.nodes[r.homes.home(a)] = true
}

// target adds all that a connection to an address and port may come to, and returns the services
// that have it. An endpoint may be a node's port of another service.
func (r *reach) target(a netip.Addr, port uint16) []*model.Service {
	r.address(a)
	found := r.v.ServicesAt(a, port)
	for _, svc := range found {
		if r.services[svc] {
			continue
		}
		r.services[svc] = true
		for _, slice := range r.v.Slices(svc.Name) {
			for i := range slice.Endpoints {
				a := slice.Endpoints[i].Addr.Unmap()
				if r.address(a); r.homes.nodes[a] == "" {
					continue
				}
				for _, p := range slice.Ports {
					r.target(a, p.Port)
				}
			}
		}
		for _, pod := range r.v.Selected(svc) {
			r.pods[pod], r.nodes[pod.Node] = true, true
		}
	}
	return found
}

// maxEntries bounds the nodes by which a connection is taken to come in.
const maxEntries = 16

// entries are nodes by which a connection to a service may come in: this one, those that have
// endpoints, and others, as many as are looked at. More is how many are not.
func entries(v *store.View, svc *model.Service, here string) (list []string, more int) {
	seen := map[string]bool{}
	for _, name := range slices.Concat([]string{here}, nodesOf(v, svc), v.NodeNames()) {
		if seen[name] {
			continue
		}
		if seen[name] = true; len(list) < maxEntries {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list, len(seen) - len(list)
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
			if svc.Offers(pod) && pod.Node != "" {
				nodes[pod.Node] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// homes say where addresses are.
type homes struct {
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

func newHomes(v *store.View, here string, own func(netip.Addr) bool) *homes {
	h := &homes{here: here, nodes: map[netip.Addr]string{}, pod: v.PodByAddr, own: own}
	for _, name := range v.NodeNames() {
		n := v.Node(name)
		for _, a := range slices.Concat(n.IPs, n.OtherIPs) {
			if a = a.Unmap(); h.nodes[a] == "" {
				h.nodes[a] = name
			}
		}
		for _, r := range n.PodCIDRs {
			h.ranges = append(h.ranges, podRange{r, name})
		}
	}
	return h
}

// home returns the node that has an address, or its pod, or its range of pods; "": none.
func (h *homes) home(a netip.Addr) string {
	if pod := h.pod(a); pod != nil {
		return pod.Node
	}
	if node := h.nodes[a]; node != "" {
		return node
	}
	for _, r := range h.ranges {
		if r.prefix.Contains(a) {
			return r.node
		}
	}
	if h.own(a) {
		return h.here
	}
	return ""
}

// object returns the pod or node that has an address.
func (h *homes) object(a netip.Addr) model.Ref {
	if pod := h.pod(a); pod != nil {
		return pod.Ref()
	}
	if node := h.nodes[a]; node != "" {
		return model.Ref{Kind: model.NodeKind, Name: model.Name{Name: node}}
	}
	return model.Ref{}
}
