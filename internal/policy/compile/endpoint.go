package compile

import (
	"cmp"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/state"
)

// endpoints are the pods and host endpoints of this node.
type endpoints struct {
	links       *links
	all         map[model.Ref]*endpoint
	claims      map[netip.Addr][]*endpoint // pods by their addresses
	hosts       hosts
	marked      map[*endpoint]struct{} // other policies may select it
	unpublished map[*endpoint]struct{} // has other rules, another address or interface
	readdressed map[netip.Addr]struct{}
	workloads   diff.Map[netip.Addr, state.Workload]
}

// endpoint is a pod or a host endpoint of this node, whatever its version.
type endpoint struct {
	item     *objects.Item // nil: it is gone
	lists    [checkpoints]*ruleList
	selected *objects.Item // the item that it was when it got them
	policies []*policy     // that they are of, if it is a pod
	linked   bool          // it is a host endpoint that has an interface
	fits     *model.Link   // an interface that it may have, if it is a host endpoint; nil: there is none
}

// follow follows a change of what may be, or have been, an endpoint of this node.
func (es *endpoints) follow(ch objects.ItemChange) {
	switch it := ch.Item(); {
	case ch.Renewed() && it.Local:
		es.readdress(it)
	case ch.Renewed():
	case it.Pod != nil:
		es.set(it.Pod.Ref(), ch.Next)
	case it.Host != nil:
		es.set(it.Host.Ref(), ch.Next)
	}
}

// set follows a pod or host endpoint that may be, or have been, of this node.
func (es *endpoints) set(ref model.Ref, next *objects.Item) {
	e := es.all[ref]
	if next != nil && !next.Local {
		next = nil
	}
	switch {
	case e == nil && next == nil:
		return
	case e == nil:
		e = &endpoint{}
		es.all[ref] = e
	case next == nil:
		delete(es.all, ref)
	}
	if old := e.item; old != nil && old.Pod != nil {
		es.readdress(old)
		for _, a := range old.Addrs {
			es.claims[a] = slices.DeleteFunc(es.claims[a], func(o *endpoint) bool { return o == e })
			if len(es.claims[a]) == 0 {
				delete(es.claims, a)
			}
		}
	}
	if next != nil && next.Pod != nil {
		es.readdress(next)
		for _, a := range next.Addrs {
			es.claims[a] = append(es.claims[a], e)
		}
	}
	e.item, es.marked[e] = next, struct{}{}
	es.hosts.stale = es.hosts.stale || ref.Kind == model.HostEndpointKind
}

func (es *endpoints) readdress(it *objects.Item) {
	for _, a := range it.Addrs {
		es.readdressed[a] = struct{}{}
	}
}

// markSelected marks the endpoints that the policies select: others may apply to them now.
func (es *endpoints) markSelected(list []*policy) {
	for _, p := range list {
		s := &p.obj.Subject
		for _, e := range es.all {
			if s.Matches(e.item.Labels) {
				es.marked[e] = struct{}{}
			}
		}
	}
}

// use makes the list the endpoint's at a checkpoint, and returns the one before.
func (es *endpoints) use(e *endpoint, at checkpoint, l *ruleList) (old *ruleList) {
	if old = e.lists[at]; old != l {
		e.lists[at] = l
		es.unpublished[e] = struct{}{}
	}
	return old
}

// markUsers marks the endpoints that use one of the lists, which have other Rules now.
func (es *endpoints) markUsers(lists map[*ruleList]struct{}) {
	if len(lists) == 0 {
		return
	}
	for _, e := range es.all {
		if slices.ContainsFunc(e.lists[:], func(l *ruleList) bool { _, changed := lists[l]; return changed }) {
			es.unpublished[e] = struct{}{}
		}
	}
}

// rules names the endpoint's rules at a checkpoint.
func (e *endpoint) rules(at checkpoint) state.RulesID {
	if e.lists[at] == nil {
		return ""
	}
	return idOf(e.lists[at].rules)
}

// publish writes what changed of pods and host endpoints.
func (es *endpoints) publish() {
	for e := range es.unpublished {
		switch {
		case e.item == nil:
		case e.item.Host != nil:
			es.hosts.stale = true
		default:
			es.readdress(e.item)
		}
	}
	for a := range es.readdressed {
		es.workloads.Set(a, es.workload(a))
	}
	es.hosts.publish()
	clear(es.unpublished)
	clear(es.readdressed)
}

// workload returns what is at an address; nil: nothing.
func (es *endpoints) workload(a netip.Addr) *state.Workload {
	if len(es.claims[a]) == 0 {
		return nil
	}
	e := es.owner(a)
	w := &state.Workload{Pod: e.item.Pod.Name, Ingress: e.rules(podIngress), Egress: e.rules(podEgress)}
	w.Device, w.Bridged = es.links.to(a)
	return w
}

// owner returns the pod that an address is of: of several that claim it, the one that is attached
// with it.
func (es *endpoints) owner(a netip.Addr) *endpoint {
	claims := es.claims[a]
	if at := es.links.attached[a]; at != nil {
		if i := slices.IndexFunc(claims, func(e *endpoint) bool { return e.item.Pod.Name == at.Pod }); i >= 0 {
			return claims[i]
		}
	}
	return slices.MinFunc(claims, compareClaims)
}

// compareClaims orders pods that claim one address: one that is about to go comes last.
func compareClaims(a, b *endpoint) int {
	return cmp.Or(
		cmp.Compare(one(a.item.Pod.Terminating), one(b.item.Pod.Terminating)),
		a.item.Pod.Name.Compare(b.item.Pod.Name))
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
