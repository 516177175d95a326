package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/test/netns"
)

// Env is what a case's steps work on: the cluster, and the case's own Kubernetes namespace.
type Env struct {
	cluster   *world
	dataplane Dataplane
	namespace string
	number    int                         // of the case: it makes addresses unique
	found     map[string][]netip.AddrPort // addresses of targets when last asked
	speakers  map[netip.Addr]string       // the pods that speak SCTP, by address
	undo      []func() error              // clean-up at the end of the case, last first

	mu     sync.Mutex
	places map[types.UID]*place
	flows  map[string]*flow
	load   Load
	fence  int // how often it was created
}

// place is a source of requests.
type place struct {
	*netns.NS
	addrs []netip.Addr // all its addresses
}

func openPlace(name string) (*place, error) {
	ns, err := netns.Open(name)
	if err != nil {
		return nil, err
	}
	list, err := ns.AddrList(nil, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("list addresses of %s: %w", name, err), ns.Close())
	}
	p := &place{NS: ns}
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			p.addrs = append(p.addrs, addr.Unmap())
		}
	}
	return p, nil
}

// isClient reports whether a name is that of a pod shared by all cases.
func isClient(name string) bool { return strings.HasPrefix(name, "client") }

// pod reads a running pod: one of the case, or one of the clients.
func (e *Env) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	p.Name, p.Namespace = name, e.namespace
	if isClient(name) {
		p.Namespace = clientNamespace
	}
	if err := e.cluster.get(ctx, p); err != nil {
		return nil, err
	}
	if len(p.Status.PodIPs) == 0 {
		return nil, fmt.Errorf("pod %s has no address", name)
	}
	return p, nil
}

func (e *Env) service(ctx context.Context, name string) (*corev1.Service, error) {
	s := &corev1.Service{}
	s.Name, s.Namespace = name, e.namespace
	return s, e.cluster.get(ctx, s)
}

func (e *Env) nodePort(ctx context.Context, service string, port int32, protocol corev1.Protocol) (int32, error) {
	s, err := e.service(ctx, service)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Port == port && p.Protocol == protocol && p.NodePort != 0
	})
	if i < 0 {
		return 0, fmt.Errorf("service %s has no node port for %d/%s", service, port, protocol)
	}
	return s.Spec.Ports[i].NodePort, nil
}

// place finds the source of a question.
func (e *Env) place(ctx context.Context, from string) (*place, error) {
	if host := e.cluster.hosts[from]; host != nil {
		return host, nil
	}
	p, err := e.pod(ctx, from)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.places[p.UID] == nil {
		at, err := openPlace(e.cluster.PodNS(p))
		if err != nil {
			return nil, err
		}
		e.places[p.UID] = at
	}
	return e.places[p.UID], nil
}

// close closes what the case holds open.
func (e *Env) close() error {
	var errs []error
	for _, undo := range slices.Backward(e.undo) {
		errs = append(errs, undo())
	}
	for _, f := range e.flows {
		errs = append(errs, f.close())
	}
	for _, p := range e.places {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
