package kubetest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Target is where requests go: a set of addresses, each of which is asked.
type Target struct {
	text  string
	find  func(ctx context.Context, e *Env, protocol corev1.Protocol) ([]netip.AddrPort, error)
	only  int  // 4 or 6: the addresses of that family
	stale bool // the addresses found last time
}

func (t Target) String() string {
	text := t.text
	if t.only != 0 {
		text += fmt.Sprintf(" (IPv%d)", t.only)
	}
	if t.stale {
		text += ", as it was"
	}
	return text
}

// v4 keeps only the IPv4 addresses.
func (t Target) v4() Target { t.only = 4; return t }

// v6 keeps only the IPv6 addresses.
func (t Target) v6() Target { t.only = 6; return t }

// before uses the target's addresses when it was last asked, for targets that are gone.
func (t Target) before() Target { t.stale = true; return t }

// resolve returns the target's present addresses.
func (t Target) resolve(ctx context.Context, e *Env, protocol corev1.Protocol) ([]netip.AddrPort, error) {
	key := t.text + string(protocol)
	if !t.stale {
		found, err := t.find(ctx, e, protocol)
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("%s has no address", t.text)
		}
		if err != nil {
			return nil, err
		}
		e.found[key] = found
	}
	if e.found[key] == nil {
		return nil, final{fmt.Errorf("%s was never asked: where it was is not known", t.text)}
	}
	return slices.DeleteFunc(slices.Clone(e.found[key]), func(a netip.AddrPort) bool {
		return t.only != 0 && a.Addr().Is4() != (t.only == 4)
	}), nil
}

func is4(addr string) bool {
	a, err := netip.ParseAddr(addr)
	return err == nil && a.Is4()
}

// addrs parses what the API wrote.
func addrs(list []string, port int32) ([]netip.AddrPort, error) {
	var found []netip.AddrPort
	for _, s := range list {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, err
		}
		found = append(found, netip.AddrPortFrom(a, uint16(port)))
	}
	return found, nil
}

// clusterIP is a port of a service's cluster addresses, whether or not the service has it.
func clusterIP(service string, port int32) Target {
	return Target{text: fmt.Sprintf("service %s:%d", service, port), find: func(ctx context.Context, e *Env, _ corev1.Protocol) ([]netip.AddrPort, error) {
		s, err := e.service(ctx, service)
		if err != nil {
			return nil, err
		}
		return addrs(s.Spec.ClusterIPs, port)
	}}
}

// nodePort is a service's port on the addresses of a node.
func nodePort(service string, port int32, node string) Target {
	return Target{text: fmt.Sprintf("node port of %s:%d on %s", service, port, node), find: func(ctx context.Context, e *Env, protocol corev1.Protocol) ([]netip.AddrPort, error) {
		n, err := e.nodePort(ctx, service, port, protocol)
		if err != nil {
			return nil, err
		}
		return addrs(e.cluster.addresses(node), n)
	}}
}

// localhost is a service's node port at 127.0.0.1 of the asking node.
func localhost(service string, port int32) Target {
	return Target{text: fmt.Sprintf("node port of %s:%d on 127.0.0.1", service, port), find: func(ctx context.Context, e *Env, protocol corev1.Protocol) ([]netip.AddrPort, error) {
		n, err := e.nodePort(ctx, service, port, protocol)
		if err != nil {
			return nil, err
		}
		return addrs([]string{"127.0.0.1"}, n)
	}}
}

// balanced is a port of a service's load balancer.
func balanced(service string, port int32) Target {
	return Target{text: fmt.Sprintf("load balancer of %s:%d", service, port), find: func(ctx context.Context, e *Env, _ corev1.Protocol) ([]netip.AddrPort, error) {
		s, err := e.service(ctx, service)
		if err != nil {
			return nil, err
		}
		var list []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			list = append(list, in.IP)
		}
		return addrs(list, port)
	}}
}

// external is a port of a service's external addresses.
func external(service string, port int32) Target {
	return Target{text: fmt.Sprintf("external addresses of %s:%d", service, port), find: func(ctx context.Context, e *Env, _ corev1.Protocol) ([]netip.AddrPort, error) {
		s, err := e.service(ctx, service)
		if err != nil {
			return nil, err
		}
		return addrs(s.Spec.ExternalIPs, port)
	}}
}

// healthCheck is the port of a node that reports whether a service has ready pods there.
func healthCheck(service, node string) Target {
	return Target{text: fmt.Sprintf("health check port of %s on %s", service, node), find: func(ctx context.Context, e *Env, _ corev1.Protocol) ([]netip.AddrPort, error) {
		s, err := e.service(ctx, service)
		if err != nil {
			return nil, err
		}
		if s.Spec.HealthCheckNodePort == 0 {
			return nil, fmt.Errorf("service %s has no health check port", service)
		}
		return addrs(e.cluster.addresses(node), s.Spec.HealthCheckNodePort)
	}}
}

// podItself is a port of a pod's own addresses.
func podItself(name string, port int32) Target {
	return Target{text: fmt.Sprintf("pod %s:%d", name, port), find: func(ctx context.Context, e *Env, _ corev1.Protocol) ([]netip.AddrPort, error) {
		p, err := e.pod(ctx, name)
		if err != nil {
			return nil, err
		}
		var list []string
		for _, ip := range p.Status.PodIPs {
			list = append(list, ip.IP)
		}
		return addrs(list, port)
	}}
}
