package balancer

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// external lists the addresses that the outside routes to the cluster for a Service. Services of
// another balancer class are left alone.
func external(svc *corev1.Service) (addrs []netip.Addr) {
	if svc == nil || svc.DeletionTimestamp != nil || svc.Spec.LoadBalancerClass != nil {
		return nil
	}
	for _, ip := range svc.Spec.ExternalIPs {
		if a, err := netip.ParseAddr(ip); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// notNodes leaves out the addresses of nodes: their traffic arrives anyway. mu is held.
func (b *balancer) notNodes(addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool {
		for _, ips := range b.nodeIPs {
			if slices.Contains(ips, a) {
				return true
			}
		}
		return false
	})
}

// nodesOf lists the nodes that receive a Service's traffic. mu is held.
func (b *balancer) nodesOf(name types.NamespacedName, svc *corev1.Service) []string {
	var nodes []string
	if svc == nil {
		return nil
	}
	if svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		for n := range b.nodes {
			nodes = append(nodes, n)
		}
	} else {
		for _, s := range b.slices {
			if s.service == name {
				nodes = append(nodes, s.nodes...)
			}
		}
		nodes = slices.DeleteFunc(nodes, func(n string) bool { return !b.nodes[n] })
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// spreads reports whether connections to a Service are spread over its nodes. Nodes do that
// themselves, but each for its own pods alone with externalTrafficPolicy Local.
func spreads(svc *corev1.Service) bool {
	return svc != nil && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP
}

// setOwner sets the addresses of a Service, and the way to it. After an error it has to be called
// again.
func (b *balancer) setOwner(name types.NamespacedName, addrs []netip.Addr, to way) error {
	for _, a := range b.owned[name] {
		if slices.Contains(addrs, a) {
			continue
		}
		delete(b.owners[a], name)
		if err := b.setRoute(a); err != nil {
			return err
		}
	}
	if b.owned[name] = addrs; len(addrs) == 0 {
		delete(b.owned, name)
	}
	for _, a := range addrs {
		if b.owners[a] == nil {
			b.owners[a] = map[types.NamespacedName]way{}
		}
		b.owners[a][name] = to
		if err := b.setRoute(a); err != nil {
			return err
		}
	}
	return nil
}

// setRoute routes an address to where its owners are served, unless it is routed so already.
func (b *balancer) setRoute(a netip.Addr) error {
	to := common(b.owners[a])
	if len(b.owners[a]) == 0 {
		delete(b.owners, a)
	}
	if slices.Equal(b.routes[a].nodes, to.nodes) && b.routes[a].spread == to.spread {
		return nil
	}
	if err := b.route(a, to.nodes, to.spread); err != nil {
		return fmt.Errorf("route %s: %w", a, err)
	}
	if b.routes[a] = to; len(to.nodes) == 0 {
		delete(b.routes, a)
	}
	return nil
}

// common is the way to the nodes that serve all owners of an address. An owner that no node serves
// does not count. If owners have no node in common, the later by name does not count.
func common(owners map[types.NamespacedName]way) (to way) {
	names := slices.SortedFunc(maps.Keys(owners), func(a, b types.NamespacedName) int {
		return strings.Compare(a.String(), b.String())
	})
	for _, name := range names {
		serve := owners[name]
		if len(to.nodes) > 0 {
			serve.nodes = slices.DeleteFunc(slices.Clone(to.nodes), func(n string) bool { return !slices.Contains(owners[name].nodes, n) })
			serve.spread = to.spread && serve.spread
		}
		if len(serve.nodes) > 0 {
			to = serve
		}
	}
	return to
}
