// Package balancer is the lab's substitute for a cloud's load balancer: it assigns addresses to
// Services of type LoadBalancer, writes them into the Services' status, and says to which nodes
// their traffic has to be routed.
package balancer

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/test/lab/kubeapi"
	"sluice.dev/sluice/test/lab/pool"
)

// Route routes traffic for an address to one of the nodes, which are sorted by name, or spreads its
// connections over all of them; to none if there are none. It is called from one goroutine, and
// again later if it fails.
type Route func(addr netip.Addr, nodes []string, spread bool) error

// way is where the traffic for an address goes: see Route.
type way struct {
	nodes  []string
	spread bool
}

// balancer holds what it needs to know of the cluster.
type balancer struct {
	api   *kubeapi.Client
	pools []*pool.Pool[types.NamespacedName]
	route Route
	log   *slog.Logger

	wake     wake.Signal
	mu       sync.Mutex // guards what the feeds write
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName]slice
	nodes    map[string]bool         // those that take part
	nodeIPs  map[string][]netip.Addr // of all
	synced   int                     // number of kinds that have been read
	dirty    map[types.NamespacedName]bool

	routes map[netip.Addr]way                          // as set last
	owned  map[types.NamespacedName][]netip.Addr       // that a Service has, or has still to give up
	owners map[netip.Addr]map[types.NamespacedName]way // of an address, with the way to each
	logged map[types.NamespacedName]string             // faults, as logged
}

// slice holds what matters of an EndpointSlice.
type slice struct {
	service types.NamespacedName
	nodes   []string // that have a ready endpoint of it
}

// Run assigns addresses of the prefixes (one of each family) to all Services of type LoadBalancer
// without a loadBalancerClass, until ctx ends. Addresses from an earlier run stay. A Service gets
// its spec.loadBalancerIP if that is in a prefix and free. A Service for which there is no address
// waits for one.
//
// Traffic for these addresses and for spec.externalIPs goes to all ready nodes; with
// externalTrafficPolicy Local, to those with a ready endpoint of the Service, as Kubernetes'
// documentation of source IPs says, over which its connections are spread, unless it has session
// affinity. An address of several Services leads to nodes where all of them
// are served. A node's own address needs no route.
func Run(ctx context.Context, config *rest.Config, prefixes []netip.Prefix, route Route, log *slog.Logger) error {
	api, err := kubeapi.New(config)
	if err != nil {
		return err
	}
	b := newBalancer(api, prefixes, route, log)
	var feeds sync.WaitGroup
	feeds.Go(func() {
		api.Services("").Follow(ctx, "", &feed[*corev1.Service]{b: b, see: b.updateService, forget: b.forgetService})
	})
	feeds.Go(func() {
		api.EndpointSlices("").Follow(ctx, "", &feed[*discoveryv1.EndpointSlice]{b: b, see: b.updateSlice, forget: b.forgetSlice})
	})
	feeds.Go(func() {
		api.Nodes().Follow(ctx, "", &feed[*corev1.Node]{b: b, see: b.updateNode, forget: b.forgetNode})
	})
	b.work(ctx)
	feeds.Wait()
	return nil
}

func newBalancer(api *kubeapi.Client, prefixes []netip.Prefix, route Route, log *slog.Logger) *balancer {
	b := &balancer{
		api: api, route: route, log: log, wake: wake.New(),
		services: map[types.NamespacedName]*corev1.Service{}, slices: map[types.NamespacedName]slice{}, nodes: map[string]bool{},
		nodeIPs: map[string][]netip.Addr{},
		dirty:   map[types.NamespacedName]bool{}, routes: map[netip.Addr]way{}, owned: map[types.NamespacedName][]netip.Addr{},
		owners: map[netip.Addr]map[types.NamespacedName]way{}, logged: map[types.NamespacedName]string{},
	}
	for _, p := range prefixes {
		b.pools = append(b.pools, pool.New[types.NamespacedName](p))
	}
	return b
}

// kinds is how many kinds of objects are followed.
const kinds = 3

// work processes dirty Services until ctx ends. Failures are retried after a second.
func (b *balancer) work(ctx context.Context) {
	for {
		retry := time.After(time.Hour)
		b.mu.Lock()
		dirty := b.dirty
		if b.synced < kinds {
			dirty = nil
		} else {
			b.dirty = map[types.NamespacedName]bool{}
		}
		b.mu.Unlock()
		for name := range dirty {
			err := b.settle(ctx, name)
			b.logFault(ctx, name, err)
			if err != nil {
				b.mu.Lock()
				b.dirty[name] = true
				b.mu.Unlock()
				retry = time.After(time.Second)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		case <-retry:
		}
	}
}

// logFault logs a fault of a Service, once.
func (b *balancer) logFault(ctx context.Context, name types.NamespacedName, err error) {
	switch {
	case err == nil:
		delete(b.logged, name)
	case ctx.Err() == nil && b.logged[name] != err.Error():
		b.logged[name] = err.Error()
		b.log.Warn("balance a service: trying again", "service", name, "err", err)
	}
}

// settle gives a Service its addresses, status and routes.
func (b *balancer) settle(ctx context.Context, name types.NamespacedName) error {
	b.mu.Lock()
	svc := b.services[name]
	to := way{b.nodesOf(name, svc), spreads(svc)}
	outside := b.notNodes(external(svc))
	b.mu.Unlock()
	addrs, err := b.assign(name, svc)
	if isOurs(svc) { // it must not go unseen
		if err := b.setFinalizer(ctx, svc, true); err != nil {
			return err
		}
	}
	// This comes before anything learns of the addresses.
	if err := b.setOwner(name, slices.Concat(addrs, outside), to); err != nil {
		return err
	}
	if svc != nil {
		if err := b.writeStatus(ctx, svc, addrs); err != nil {
			return err
		}
	}
	if svc != nil && !isOurs(svc) && svc.Spec.LoadBalancerClass == nil {
		if err := b.setFinalizer(ctx, svc, false); err != nil {
			return err
		}
	}
	return err
}

// finalizer holds a Service until its load balancer is gone: Kubernetes' name for it, as service
// controllers of clouds have it.
const finalizer = "service.kubernetes.io/load-balancer-cleanup"

// setFinalizer gives a Service the finalizer, or takes it away.
func (b *balancer) setFinalizer(ctx context.Context, svc *corev1.Service, has bool) error {
	if slices.Contains(svc.Finalizers, finalizer) == has {
		return nil
	}
	want := slices.DeleteFunc(slices.Clone(svc.Finalizers), func(f string) bool { return f == finalizer })
	if has {
		want = append(want, finalizer)
	}
	err := b.patch(ctx, svc, map[string]any{"finalizers": want}, nil)
	if err != nil {
		return fmt.Errorf("set finalizer: %w", err)
	}
	return nil
}

// patch changes a Service's metadata and status, unless there is a newer version of it, which is
// about to arrive then.
func (b *balancer) patch(ctx context.Context, svc *corev1.Service, metadata, status map[string]any) error {
	object := map[string]any{"metadata": map[string]any{"uid": svc.UID, "resourceVersion": svc.ResourceVersion}}
	maps.Copy(object["metadata"].(map[string]any), metadata)
	var subresource []string
	if status != nil {
		object["status"], subresource = status, []string{"status"}
	}
	data, err := json.Marshal(object)
	if err != nil {
		return err
	}
	_, err = b.api.Services(svc.Namespace).Patch(ctx, svc.Name, types.MergePatchType, data, subresource...)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// isOurs reports whether this balancer is responsible for a Service.
func isOurs(svc *corev1.Service) bool {
	return svc != nil && svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.LoadBalancerClass == nil &&
		svc.DeletionTimestamp == nil
}

// assign returns the addresses that a Service has from now on: one of each of its families. Its
// error names those that it cannot have; the others are valid.
func (b *balancer) assign(name types.NamespacedName, svc *corev1.Service) (addrs []netip.Addr, err error) {
	if !isOurs(svc) {
		for _, p := range b.pools {
			p.Release(name)
		}
		return nil, nil
	}
	for _, p := range b.pools {
		if !slices.Contains(svc.Spec.IPFamilies, familyOf(p.Prefix())) {
			p.Release(name)
			continue
		}
		if wish, parseErr := netip.ParseAddr(svc.Spec.LoadBalancerIP); parseErr == nil && p.Prefix().Contains(wish) {
			if !p.Claim(name, wish) {
				p.Release(name)
				err = fmt.Errorf("loadBalancerIP %s is in use or no host's", wish)
				continue
			}
		}
		a, takeErr := p.Take(name)
		if takeErr != nil {
			err = takeErr
			continue
		}
		addrs = append(addrs, a)
	}
	return addrs, err
}

func familyOf(p netip.Prefix) corev1.IPFamily {
	if p.Addr().Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// writeStatus writes a Service's addresses into its status, unless it has them. A status with
// foreign addresses is left alone unless the Service is ours.
func (b *balancer) writeStatus(ctx context.Context, svc *corev1.Service, addrs []netip.Addr) error {
	var had, want []string
	for _, in := range svc.Status.LoadBalancer.Ingress {
		had = append(had, in.IP)
	}
	for _, a := range addrs {
		want = append(want, a.String())
	}
	if slices.Equal(had, want) || !isOurs(svc) && !b.assigned(svc) {
		return nil
	}
	ingress := []corev1.LoadBalancerIngress{}
	for _, a := range want {
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: a})
	}
	err := b.patch(ctx, svc, nil, map[string]any{"loadBalancer": map[string]any{"ingress": ingress}})
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// assigned reports whether a Service's status has an address of ours.
func (b *balancer) assigned(svc *corev1.Service) bool {
	for _, in := range svc.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(in.IP)
		if err == nil && slices.ContainsFunc(b.pools, func(p *pool.Pool[types.NamespacedName]) bool { return p.Prefix().Contains(a) }) {
			return svc.Spec.LoadBalancerClass == nil
		}
	}
	return false
}
