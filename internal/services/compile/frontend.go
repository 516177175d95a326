package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// usage says which lists of endpoints a service needs.
type usage struct{ cluster, local bool }

// builder compiles one service.
type builder struct {
	*environment
	report
	next, old *service
	from      *objects   // what its endpoints come from
	scratch   []endpoint // see gather
}

// compile makes of one service what it wants on this node. Where that is the same as what old has,
// the frontends of old are kept.
func (c *Compiler) compile(v *store.View, svc *model.Service, old *service) *service {
	next := &service{svc: svc, why: svc.Unproxied}
	b := &c.builder
	*b = builder{environment: c.env, report: report{svc: svc, families: familiesOf(svc)}, next: next, old: old, scratch: b.scratch}
	switch {
	case next.why != "":
	case len(svc.ClusterIPs) == 0:
		next.why = "no clusterIP"
		b.service("has no clusterIP, so nothing is programmed for it: set spec.clusterIP, as a cluster's API server does")
	default:
		next.addrs = [...][]netip.Addr{
			state.ClusterIP:    b.permitted(state.ClusterIP, "clusterIP", svc.ClusterIPs),
			state.ExternalIP:   b.permitted(state.ExternalIP, "externalIP", svc.ExternalIPs),
			state.LoadBalancer: b.permitted(state.LoadBalancer, "load balancer address", svc.LoadBalancerIPs),
		}
		b.from = newObjects(svc, v.Slices(svc.Name), v.Selected(svc))
		n, cost := b.elements()
		if n > maxElements {
			next.why = "too large"
			b.tooLarge(n)
			break
		}
		if !c.limits.fits(next, old, cost) {
			next.why = "too much"
			b.service(fmt.Sprintf("it counts for %d elements in the kernel; all Services may have %d, and those of its namespace are among those "+
				"that ask for most, so nothing is programmed for it: ask for less", cost, c.limits.together.Most))
			break
		}
		next.elements = n
		b.build()
	}
	if issues := b.all(); len(issues) > 0 {
		c.faults[svc.Name] = issues
	} else {
		delete(c.faults, svc.Name)
	}
	return next
}

// build fills in what the service wants.
func (b *builder) build() {
	svc, next := b.svc, b.next
	b.checkSlices(b.from.slices)
	had := b.old.byPort()
	var ready []netip.Addr
	for i := range svc.Ports {
		if !b.checkPort(&svc.Ports[i]) {
			continue
		}
		eps := b.gather(i)
		four, six := byFamily(eps)
		b.port(i, true, four, had[int32(i)])
		b.port(i, false, six, had[int32(i)])
		// kube-proxy leaves out of the health check those that terminate.
		ready = appendLocal(ready, eps, func(e *endpoint) bool { return e.ready })
	}
	b.dropDoubles()
	next.keep(b.old)
	next.hairpins = unique(next.hairpins)
	switch {
	case !svc.ExternalLocal || svc.HealthCheckNodePort == 0:
	case b.reserved(model.TCP, svc.HealthCheckNodePort):
		b.refused(fmt.Sprint("healthCheckNodePort ", svc.HealthCheckNodePort), "is a port that nodes need for themselves (--reserved-ports)")
	default:
		next.health = &HealthCheck{Service: svc.Name, Port: svc.HealthCheckNodePort, LocalEndpoints: perFamily(unique(ready))}
	}
}

// byFamily parts endpoints that gather returned.
func byFamily(eps []endpoint) (four, six []endpoint) {
	at := slices.IndexFunc(eps, func(e endpoint) bool { return e.at.Addr().Is6() })
	if at < 0 {
		return eps, nil
	}
	return eps[:at], eps[at:]
}

// port adds what one service port wants in one family.
func (b *builder) port(i int, is4 bool, eps []endpoint, had []lists) {
	svc, port, next := b.svc, &b.svc.Ports[i], b.next
	if !b.families.serves(is4) {
		return
	}
	addrs := b.addresses(port, is4)
	use := usage{
		cluster: !svc.InternalLocal || addrs.external(),
		local:   svc.InternalLocal || svc.ExternalLocal && addrs.external(),
	}
	ch := b.choose(eps, use)
	ch.cluster, ch.local = b.limit(port, ch.cluster), b.limit(port, ch.local)
	next.counts.widen(eps)
	next.hairpins = appendLocal(next.hairpins, eps, func(e *endpoint) bool { return state.Has(ch.cluster, e.at) || state.Has(ch.local, e.at) })
	ch.share(had)

	internal := &state.Frontend{
		Service: svc.Name, Port: port.Name, Kind: state.ClusterIP,
		Backends: ch.cluster, Reject: !ch.any, Alive: ch.alive, Serving: ch.serving, Affinity: svc.Affinity,
		IPVSScheduler: svc.IPVSScheduler,
	}
	external := *internal
	if svc.ExternalLocal {
		external.LocalOnly, external.Local = true, ch.local
	}
	if svc.InternalLocal {
		internal.Backends = ch.local
	}
	b.want(i, port.Port, addrs[state.ClusterIP], internal)
	for kind := state.ExternalIP; kind <= state.NodePort; kind++ {
		if len(addrs[kind]) == 0 {
			continue
		}
		f, number := external, port.Port
		f.Kind = kind
		switch kind {
		case state.LoadBalancer:
			b.loadBalancer(i, addrs[kind], f)
			continue
		case state.NodePort:
			number = port.NodePort
		}
		b.want(i, number, addrs[kind], &f)
	}
}

// loadBalancer adds what one service port wants at load balancers' addresses of one family, closed
// to all but the service's source ranges. A range that holds the node lets it in also where the
// load balancer's address is bound on the node itself: the node then has that very address as its
// source, as kube-proxy notes.
func (b *builder) loadBalancer(i int, addrs []netip.Addr, f state.Frontend) {
	number := b.svc.Ports[i].Port
	f.SourceRanges = sourceRanges(b.svc.SourceRanges, addrs[0].Is4())
	if !slices.ContainsFunc(b.node.addrs, func(a netip.Addr) bool { return model.Within(a, f.SourceRanges) }) {
		b.want(i, number, addrs, &f)
		return
	}
	for _, vip := range addrs {
		open := f
		open.SourceRanges = masked(append(slices.Clone(f.SourceRanges), netip.PrefixFrom(vip, vip.BitLen())))
		b.want(i, number, []netip.Addr{vip}, &open)
	}
}

// addresses are where a service port is served in one family, by kind.
type addresses [state.NodePort + 1][]netip.Addr

func (a *addresses) external() bool {
	return len(a[state.ExternalIP])+len(a[state.LoadBalancer])+len(a[state.NodePort]) > 0
}

func (b *builder) addresses(port *model.ServicePort, is4 bool) addresses {
	var a addresses
	for kind, addrs := range b.next.addrs {
		a[kind] = inFamily(addrs, is4)
	}
	if port.NodePort != 0 {
		a[state.NodePort] = inFamily(b.node.nodePort, is4)
	}
	return a
}

func inFamily(addrs []netip.Addr, is4 bool) []netip.Addr {
	var list []netip.Addr
	for _, a := range addrs {
		if a.Is4() == is4 {
			list = append(list, a)
		}
	}
	return list
}

// want adds a frontend at each address where there may be one.
func (b *builder) want(i int, number uint16, addrs []netip.Addr, f *state.Frontend) {
	for _, addr := range addrs {
		key := state.FrontendKey{Addr: addr, Protocol: b.svc.Ports[i].Protocol, Port: number}
		if why := b.refusesPort(f.Kind, key); why != "" {
			b.refused(key.String(), why)
			continue
		}
		b.next.claims = append(b.next.claims, frontendClaim{key: key, port: int32(i), frontend: f})
	}
}

// kindOrder is what holds where a service claims one key in several ways. A load balancer's comes
// before an external IP's, as it may be closed to some sources.
var kindOrder = [...]int{state.ClusterIP: 0, state.LoadBalancer: 1, state.ExternalIP: 2, state.NodePort: 3}

// dropDoubles sorts the claims and leaves one for each key.
func (b *builder) dropDoubles() {
	s := b.next
	slices.SortFunc(s.claims, func(a, b frontendClaim) int {
		return cmp.Or(a.key.Compare(b.key), kindOrder[a.frontend.Kind]-kindOrder[b.frontend.Kind], cmp.Compare(a.port, b.port))
	})
	kept := s.claims[:0]
	for _, cl := range s.claims {
		if len(kept) == 0 || kept[len(kept)-1].key != cl.key {
			kept = append(kept, cl)
			continue
		}
		if has := kept[len(kept)-1]; has.port != cl.port {
			b.service(fmt.Sprintf("%s is claimed by its %s and its %s; the first one has it", cl.key, b.portName(has.port), b.portName(cl.port)))
		}
	}
	s.claims = slices.Clip(kept)
}

// sourceRanges returns the ranges of one family; none where everybody may connect. Where all ranges
// are of the other family nobody may: the one range returned then is the unspecified address, which
// no packet comes from. (kube-proxy 1.37 looks at each family alone and opens the load balancer's
// address of a family without ranges to everybody, which is not what was asked for.)
func sourceRanges(ranges []netip.Prefix, is4 bool) []netip.Prefix {
	all := masked(ranges)
	if len(all) == 0 {
		return nil
	}
	own := ofFamily(all, is4)
	switch {
	case len(own) == 0 && is4:
		return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 32)}
	case len(own) == 0:
		return []netip.Prefix{netip.PrefixFrom(netip.IPv6Unspecified(), 128)}
	case own[0].Bits() == 0:
		return nil
	}
	return own
}

// appendLocal appends the addresses of the endpoints on this node that are wanted.
func appendLocal(addrs []netip.Addr, eps []endpoint, wanted func(*endpoint) bool) []netip.Addr {
	for i := range eps {
		if eps[i].local && wanted(&eps[i]) {
			addrs = append(addrs, eps[i].at.Addr())
		}
	}
	return addrs
}

// perFamily counts the addresses of the family that has more of them, as a dual-stack endpoint has
// one of each.
func perFamily(addrs []netip.Addr) int {
	four := 0
	for _, a := range addrs {
		if a.Is4() {
			four++
		}
	}
	return max(four, len(addrs)-four)
}

func unique(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Clip(slices.Compact(addrs))
}

// portName names a service port for people: "port web", or "port 80".
func (r *report) portName(i int32) string {
	p := &r.svc.Ports[i]
	if p.Name != "" {
		return "port " + p.Name
	}
	return "port " + strconv.Itoa(int(p.Port))
}
