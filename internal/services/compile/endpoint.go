package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// maxBackends is how many backends one frontend can have: drivers count slots in 16 bits.
const maxBackends = 1 << 16

// endpoint is one address and port that a service port may be balanced to.
type endpoint struct {
	at                                 netip.AddrPort
	ready, serving, terminating, local bool
	seq                                int32           // order of appearance
	from                               *model.Endpoint // of a slice; nil: it comes from a pod
	pod                                *model.Pod      // that it comes from, and that no slice can name; or nil
}

// draining endpoints finish what they have and take new connections only where there is nothing
// better.
func (e *endpoint) draining() bool { return e.serving && e.terminating }

// rank orders what several slices say of one endpoint: the best of it holds.
func (e *endpoint) rank() int {
	r := 0
	for _, b := range []bool{e.ready, e.draining(), e.serving, e.terminating, e.local} {
		r <<= 1
		if b {
			r |= 1
		}
	}
	return r
}

func compareEndpoints(a, b endpoint) int {
	if c := a.at.Compare(b.at); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(b.rank(), a.rank()), cmp.Compare(a.seq, b.seq))
}

// gather returns the endpoints of a service port in any condition, sorted, unique by address and
// port; IPv4 first. They are valid until the next call.
//
// They come from the service's slices. Pods give endpoints of a family that has no slice, as long
// as the slices of a new service are still being written one by one; else they are only there as
// something that exists.
func (b *builder) gather(i int) []endpoint {
	from, port := b.from, &b.svc.Ports[i]
	eps := slices.Grow(b.scratch[:0], from.size())
	for _, p := range from.ports[i].slices {
		eps = b.fromSlice(eps, p.slice, p.number)
	}
	for _, pod := range from.pods {
		eps = b.fromPod(eps, port, pod)
	}
	for i := range eps {
		eps[i].seq = int32(i)
	}
	if !slices.IsSortedFunc(eps, compareEndpoints) {
		slices.SortFunc(eps, compareEndpoints)
	}
	b.scratch = eps
	return slices.CompactFunc(eps, func(a, b endpoint) bool { return a.at == b.at })
}

func (b *builder) fromSlice(eps []endpoint, slice *model.EndpointSlice, port uint16) []endpoint {
	if port == 0 {
		b.slice(slice, "port 0 is out of range, the port is left out")
		return eps
	}
	faulty, is4 := slices.Contains(b.faulty, slice), isIPv4(slice)
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		addr := e.Addr.Unmap()
		if faulty && b.fault(addr, is4) != "" {
			continue
		}
		eps = append(eps, endpoint{
			at:    netip.AddrPortFrom(addr, port),
			ready: e.Ready, serving: e.Serving, terminating: e.Terminating,
			local: e.Node != "" && e.Node == b.cfg.Node,
			from:  e,
		})
	}
	return eps
}

// fromPod follows the EndpointSlice controller: an endpoint is serving as long as its pod is ready,
// and ready if the pod is not terminating either, or if the service publishes what is not ready.
// Where the family has slices, it merely exists.
func (b *builder) fromPod(eps []endpoint, port *model.ServicePort, pod *model.Pod) []endpoint {
	number := port.On(pod)
	if pod.Finished || number == 0 {
		return eps
	}
	for _, addr := range pod.IPs {
		addr = addr.Unmap()
		if !b.families.has(addr) {
			continue
		}
		if why := model.Unusable(addr); why != "" {
			b.add(model.Ref{Kind: model.PodKind, Name: pod.Name}.Issue("address " + addr.String() + " is " + why + ", it is left out"))
			continue
		}
		ep := endpoint{at: netip.AddrPortFrom(addr, number), local: pod.Node != "" && pod.Node == b.cfg.Node}
		if !b.from.sliced[one(!addr.Is4())] {
			ep.pod = pod
			ep.ready = b.svc.Offers(pod)
			ep.serving = pod.Ready
			ep.terminating = pod.Terminating
		}
		eps = append(eps, ep)
	}
	return eps
}

// choice is what a service port of one family is balanced over.
type choice struct {
	cluster, local []netip.AddrPort // for a Cluster and for a Local policy
	alive          []netip.AddrPort // all endpoints
	serving        []netip.AddrPort // those that can answer
	any            bool             // somewhere in the cluster there is one to use
}

// choose returns which endpoints serve.
func (b *builder) choose(eps []endpoint, use usage) choice {
	cluster, local := b.judges(eps)
	ch := choice{any: slices.ContainsFunc(eps, func(e endpoint) bool { return e.ready || e.draining() })}
	ch.alive = pick(eps, nil, func(*endpoint) reason { return chosen })
	ch.serving = pick(eps, ch.alive, func(e *endpoint) reason {
		if e.ready || e.serving {
			return chosen
		}
		return notReady
	})
	if use.cluster {
		ch.cluster = pick(eps, ch.serving, cluster)
	}
	if use.local {
		ch.local = pick(eps, ch.cluster, local)
	}
	return ch
}

// reason says why an endpoint is not chosen.
type reason uint8

const (
	chosen reason = iota
	notReady
	unlisted
	terminated
	drains
	notHere
	hintedNodes
	hintedZones
	beyond
)

// String returns "" for what is chosen.
func (r reason) String() string {
	return [...]string{
		notReady:    "it is not ready",
		unlisted:    "no EndpointSlice of the service has it",
		terminated:  "it is terminating, and does not serve any more",
		drains:      "it is terminating, and others are ready",
		notHere:     "it is not on this node: the traffic policy is Local",
		hintedNodes: "its topology hints name other nodes",
		hintedZones: "its topology hints name other zones",
		beyond:      fmt.Sprintf("a frontend has no more than %d backends", maxBackends),
	}[r]
}

// judge decides on one endpoint of those that it was made for.
type judge func(*endpoint) reason

// judges decide which endpoints serve under a Cluster and under a Local policy: the ready ones, or
// those that are serving and terminating if none is ready, for each policy on its own. Hints matter
// to the Cluster policy alone, and only while something is ready.
func (b *builder) judges(eps []endpoint) (cluster, local judge) {
	cluster = takesDraining
	if slices.ContainsFunc(eps, func(e endpoint) bool { return e.ready }) {
		cluster = b.topology(eps)
	}
	here := takesDraining
	if slices.ContainsFunc(eps, func(e endpoint) bool { return e.local && e.ready }) {
		here = takesReady
	}
	return cluster, func(e *endpoint) reason {
		if !e.local && (e.ready || e.draining()) {
			return notHere
		}
		return here(e)
	}
}

func takesReady(e *endpoint) reason {
	switch {
	case e.ready:
		return chosen
	case e.draining():
		return drains
	}
	return takesDraining(e)
}

func takesDraining(e *endpoint) reason {
	switch {
	case e.draining():
		return chosen
	case e.terminating:
		return terminated
	case e.from == nil && e.pod == nil:
		return unlisted
	}
	return notReady
}

// topology returns which of the ready endpoints this node prefers: those hinted for it if all have
// node hints and one names this node; else the same with its zone; else all.
func (b *builder) topology(eps []endpoint) judge {
	byNode, byZone, forNode, forZone := true, true, false, false
	for i := range eps {
		e := &eps[i]
		if !e.ready {
			continue
		}
		if e.from == nil || len(e.from.NodeHints)+len(e.from.ZoneHints) == 0 {
			return takesReady
		}
		byNode = byNode && len(e.from.NodeHints) > 0
		byZone = byZone && len(e.from.ZoneHints) > 0
		forNode = forNode || slices.Contains(e.from.NodeHints, b.cfg.Node)
		forZone = forZone || slices.Contains(e.from.ZoneHints, b.node.zone)
	}
	switch {
	case byNode && forNode:
		return func(e *endpoint) reason {
			if e.ready && !slices.Contains(e.from.NodeHints, b.cfg.Node) {
				return hintedNodes
			}
			return takesReady(e)
		}
	case byZone && forZone:
		return func(e *endpoint) reason {
			if e.ready && !slices.Contains(e.from.ZoneHints, b.node.zone) {
				return hintedZones
			}
			return takesReady(e)
		}
	}
	return takesReady
}

// pick returns the addresses of the endpoints that are wanted; that of, where it is the same, so
// that equal lists are held once.
func pick(eps []endpoint, of []netip.AddrPort, wanted judge) []netip.AddrPort {
	n, same := 0, true
	for i := range eps {
		if wanted(&eps[i]) == chosen {
			same = same && n < len(of) && eps[i].at == of[n]
			n++
		}
	}
	switch {
	case n == 0:
		return nil
	case same && n == len(of):
		return of
	}
	list := make([]netip.AddrPort, 0, n)
	for i := range eps {
		if wanted(&eps[i]) == chosen {
			list = append(list, eps[i].at)
		}
	}
	return list
}
