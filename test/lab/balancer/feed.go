package balancer

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// feed is the store that a reflector fills. It passes what it receives to the balancer, with mu
// held.
type feed[T metav1.Object] struct {
	b      *balancer
	see    func(T)
	forget func(types.NamespacedName)
	known  map[types.NamespacedName]bool // nil until something has been read
}

func (f *feed[T]) Add(obj any) error { return f.Update(obj) }

func (f *feed[T]) Update(obj any) error {
	o, ok := obj.(T)
	if !ok {
		return fmt.Errorf("follow the API: got a %T", obj)
	}
	f.b.mu.Lock()
	defer f.b.wake.Set()
	defer f.b.mu.Unlock()
	f.known[nameOf(o)] = true
	f.see(o)
	return nil
}

func (f *feed[T]) Delete(obj any) error {
	o, ok := obj.(T)
	if !ok {
		return fmt.Errorf("follow the API: got a %T", obj)
	}
	f.b.mu.Lock()
	defer f.b.wake.Set()
	defer f.b.mu.Unlock()
	delete(f.known, nameOf(o))
	f.forget(nameOf(o))
	return nil
}

func (f *feed[T]) Replace(list []any, _ string) error {
	f.b.mu.Lock()
	defer f.b.wake.Set()
	defer f.b.mu.Unlock()
	before := f.known
	f.known = map[types.NamespacedName]bool{}
	for _, obj := range list {
		o, ok := obj.(T)
		if !ok {
			return fmt.Errorf("follow the API: got a %T", obj)
		}
		f.known[nameOf(o)] = true
		f.see(o)
	}
	for name := range before {
		if !f.known[name] {
			f.forget(name)
		}
	}
	if before == nil {
		f.b.synced++
	}
	return nil
}

func (f *feed[T]) Resync() error { return nil }

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func (b *balancer) updateService(svc *corev1.Service) {
	name := nameOf(svc)
	if !isOurs(svc) && len(external(svc)) == 0 && b.services[name] == nil && !b.assigned(svc) {
		return // most do not concern us
	}
	if b.synced < kinds { // from an earlier run, before any of it is assigned again
		for _, in := range svc.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(in.IP); err == nil && isOurs(svc) {
				for _, p := range b.pools {
					p.Claim(name, a)
				}
			}
		}
	}
	b.services[name] = svc
	b.dirty[name] = true
}

func (b *balancer) forgetService(name types.NamespacedName) {
	if b.services[name] != nil {
		delete(b.services, name)
		b.dirty[name] = true
	}
}

func (b *balancer) updateSlice(s *discoveryv1.EndpointSlice) {
	now := slice{service: types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}}
	for _, e := range s.Endpoints {
		if e.NodeName != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
			now.nodes = append(now.nodes, *e.NodeName)
		}
	}
	slices.Sort(now.nodes)
	now.nodes = slices.Compact(now.nodes)
	before := b.slices[nameOf(s)]
	b.slices[nameOf(s)] = now
	if before.service != now.service || !slices.Equal(before.nodes, now.nodes) {
		b.mark(before.service)
		b.mark(now.service)
	}
}

func (b *balancer) forgetSlice(name types.NamespacedName) {
	b.mark(b.slices[name].service)
	delete(b.slices, name)
}

// mark makes a Service dirty, if it is ours.
func (b *balancer) mark(name types.NamespacedName) {
	if b.services[name] != nil {
		b.dirty[name] = true
	}
}

func (b *balancer) updateNode(n *corev1.Node) {
	_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
	takes := !excluded && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	var ips []netip.Addr
	for _, known := range n.Status.Addresses {
		if a, err := netip.ParseAddr(known.Address); err == nil { // the others are host names
			ips = append(ips, a)
		}
	}
	if takes == b.nodes[n.Name] && slices.Equal(ips, b.nodeIPs[n.Name]) {
		return
	}
	b.nodeIPs[n.Name] = ips
	if b.nodes[n.Name] = takes; !takes {
		delete(b.nodes, n.Name)
	}
	b.markAll()
}

func (b *balancer) forgetNode(name types.NamespacedName) {
	delete(b.nodes, name.Name)
	delete(b.nodeIPs, name.Name)
	b.markAll()
}

func (b *balancer) markAll() {
	for name := range b.services {
		b.dirty[name] = true
	}
}
