package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// create creates objects, and waits until the pods among them run.
func create(objects ...object) Step {
	var names []string
	for _, o := range objects {
		names = append(names, name(o))
	}
	return action{"create " + strings.Join(names, ", "), func(ctx context.Context, e *Env) error {
		var pods []*corev1.Pod
		for _, o := range objects {
			o = o.DeepCopyObject().(object)
			if _, clusterWide := o.(*networkingv1.ServiceCIDR); !clusterWide {
				o.SetNamespace(e.namespace)
			}
			if err := e.cluster.create(ctx, o); err != nil {
				return err
			}
			if p, ok := o.(*corev1.Pod); ok {
				pods = append(pods, p)
			}
		}
		for _, p := range pods {
			if err := e.cluster.runs(ctx, p); err != nil {
				return err
			}
		}
		return nil
	}}
}

// update changes a service.
func update(service string, how string, options ...serviceOption) Step {
	return action{fmt.Sprintf("service %s %s", service, how), func(ctx context.Context, e *Env) error {
		s := &corev1.Service{}
		s.Name, s.Namespace = service, e.namespace
		return change(ctx, e.cluster.api, s, "", func(s *corev1.Service) {
			for _, o := range options {
				o(s)
			}
		})
	}}
}

// recreate deletes a service and creates it again with the same addresses and ports.
func recreate(service string) Step {
	return action{"recreate service " + service, func(ctx context.Context, e *Env) error {
		old, err := e.service(ctx, service)
		if err != nil {
			return err
		}
		if err := e.cluster.remove(ctx, old, -1); err != nil {
			return err
		}
		s := &corev1.Service{Spec: old.Spec}
		s.Name, s.Namespace = old.Name, old.Namespace
		return e.cluster.create(ctx, s)
	}}
}

// inherit creates a service with the cluster addresses and node ports of another when that was last
// asked.
func inherit(from Target, s *corev1.Service) Step {
	return action{fmt.Sprintf("create services %s on what was %s", s.Name, from), func(ctx context.Context, e *Env) error {
		s := s.DeepCopy()
		s.Namespace = e.namespace
		was, err := from.before().resolve(ctx, e, tcp)
		if err != nil {
			return err
		}
		if s.Spec.Type == corev1.ServiceTypeNodePort {
			s.Spec.Ports[0].NodePort = int32(was[0].Port())
			return e.cluster.create(ctx, s)
		}
		for _, a := range was {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, a.Addr().String())
		}
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
		return e.cluster.create(ctx, s)
	}}
}

func removeService(service string) Step {
	return action{"delete service " + service, func(ctx context.Context, e *Env) error {
		s := &corev1.Service{}
		s.Name, s.Namespace = service, e.namespace
		return e.cluster.remove(ctx, s, -1)
	}}
}

// removeCIDR deletes a ServiceCIDR, which disappears once no service has an address in it.
func removeCIDR(name string) Step {
	return action{"delete service CIDR " + name, func(ctx context.Context, e *Env) error {
		c := &networkingv1.ServiceCIDR{}
		c.Name = name
		return e.cluster.remove(ctx, c, -1)
	}}
}

// removePods deletes pods at once.
func removePods(names ...string) Step {
	return action{"delete pods " + strings.Join(names, ", "), func(ctx context.Context, e *Env) error {
		for _, n := range names {
			p := &corev1.Pod{}
			p.Name, p.Namespace = n, e.namespace
			if err := e.cluster.remove(ctx, p, 0); err != nil {
				return err
			}
		}
		return nil
	}}
}

// terminate deletes a lingering pod, and waits until the API shows it as terminating.
func terminate(pod string) Step {
	return action{"delete pod " + pod + ", which lingers", func(ctx context.Context, e *Env) error {
		p := &corev1.Pod{}
		p.Name, p.Namespace = pod, e.namespace
		if err := e.cluster.remove(ctx, p, -1); err != nil {
			return err
		}
		return e.cluster.get(ctx, p)
	}}
}

// ready opens or closes the gate of a pod, and waits until the pod is ready, or is not.
func ready(pod string, open bool) Step {
	status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[open]
	return action{fmt.Sprintf("pod %s: ready %s", pod, status), func(ctx context.Context, e *Env) error {
		p := &corev1.Pod{}
		p.Name, p.Namespace = pod, e.namespace
		err := change(ctx, e.cluster.api, p, "status", func(p *corev1.Pod) {
			for i, c := range p.Status.Conditions {
				if c.Type == gate {
					p.Status.Conditions[i].Status = status
					return
				}
			}
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: gate, Status: status})
		})
		if err != nil {
			return err
		}
		return until(ctx, func() error {
			if err := e.cluster.get(ctx, p); err != nil {
				return final{err}
			}
			if isReady(p) != open {
				return fmt.Errorf("pod %s: its readiness does not follow its gate", pod)
			}
			return nil
		})
	}}
}

// lead creates or changes an EndpointSlice of each family that leads a service's port to pods.
func lead(slice, service string, p corev1.ServicePort, labels map[string]string, endpoints ...endpoint) Step {
	return action{fmt.Sprintf("endpointslice %s leads %s:%d to %d pods %v", slice, service, p.Port, len(endpoints), labels), func(ctx context.Context, e *Env) error {
		for _, family := range []string{"IPv4", "IPv6"} {
			s, err := e.slice(ctx, slice, service, family, p, endpoints, labels)
			if err != nil {
				return err
			}
			old := &discoveryv1.EndpointSlice{ObjectMeta: s.ObjectMeta}
			if e.cluster.get(ctx, old) != nil {
				err = e.cluster.create(ctx, s)
			} else {
				err = change(ctx, e.cluster.api, old, "", func(old *discoveryv1.EndpointSlice) {
					old.Labels, old.Endpoints, old.Ports = s.Labels, s.Endpoints, s.Ports
				})
			}
			if err != nil {
				return err
			}
		}
		return nil
	}}
}

func removeSlice(name string) Step {
	return action{"delete endpointslice " + name, func(ctx context.Context, e *Env) error {
		for _, suffix := range []string{"-4", "-6"} {
			s := &discoveryv1.EndpointSlice{}
			s.Name, s.Namespace = name+suffix, e.namespace
			if err := e.cluster.remove(ctx, s, -1); err != nil {
				return err
			}
		}
		return nil
	}}
}

// announce gives a service's load balancer the case's own addresses, which the host outside routes
// through a node.
func announce(service, node string) Step {
	return announceAs(service, node, corev1.LoadBalancerIPModeVIP)
}

// announceAs also sets whether packets from the load balancer have the load balancer's address
// (VIP) or the node's (Proxy).
func announceAs(service, node string, mode corev1.LoadBalancerIPMode) Step {
	return action{fmt.Sprintf("load balancer of service %s on %s as %s", service, node, mode), func(ctx context.Context, e *Env) error {
		ips := []string{fmt.Sprintf("192.0.2.%d", e.number), fmt.Sprintf("2001:db8:192::%x", e.number)}
		s := &corev1.Service{}
		s.Name, s.Namespace = service, e.namespace
		err := change(ctx, e.cluster.api, s, "status", func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = nil
			for _, ip := range ips {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: &mode})
			}
		})
		return errors.Join(err, e.route(node, ips...))
	}}
}

// route makes the host outside route addresses through a node.
func route(node string, ips ...string) Step {
	return action{fmt.Sprintf("route %s by %s", strings.Join(ips, ", "), node), func(_ context.Context, e *Env) error {
		return e.route(node, ips...)
	}}
}

func (e *Env) route(node string, ips ...string) error {
	for _, ip := range ips {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return err
		}
		r := &netlink.Route{Dst: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}}
		for _, a := range e.cluster.addresses(node) {
			if is4(a) == addr.Is4() {
				r.Gw = net.ParseIP(a)
			}
		}
		host := e.cluster.hosts[outside]
		if err := host.RouteReplace(r); err != nil {
			return fmt.Errorf("route %s by %s: %w", ip, node, err)
		}
		e.undo = append(e.undo, func() error {
			_ = host.RouteDel(r) // it was replaced
			return nil
		})
	}
	return nil
}

// restartProxy restarts the service proxy of a node.
func restartProxy(node string) Step {
	return action{"restart the proxy of " + node, func(ctx context.Context, e *Env) error { return e.cluster.RestartProxy(ctx, node) }}
}

// quiet waits until nothing of earlier cases is left but their namespaces: as long as something in
// them is ending, proxies write rules.
func quiet() Step {
	return action{"all is quiet", func(ctx context.Context, e *Env) error {
		return until(ctx, func() error {
			var pods corev1.PodList
			var slices discoveryv1.EndpointSliceList
			err := errors.Join(e.cluster.list(ctx, &corev1.Pod{}, "", &pods), e.cluster.list(ctx, &discoveryv1.EndpointSlice{}, "", &slices))
			if err != nil {
				return final{err}
			}
			for i := range pods.Items {
				if pods.Items[i].DeletionTimestamp != nil {
					return fmt.Errorf("pod %s/%s is not gone yet", pods.Items[i].Namespace, pods.Items[i].Name)
				}
			}
			for _, s := range slices.Items {
				if s.Namespace != metav1.NamespaceDefault && s.Namespace != e.namespace {
					return fmt.Errorf("endpointslice %s/%s is not gone yet", s.Namespace, s.Name)
				}
			}
			return nil
		})
	}}
}

// flushRules removes all removable rules of a node.
func flushRules(node string) Step {
	return action{"flush the rules of " + node, func(_ context.Context, e *Env) error {
		_, err := e.cluster.hosts[node].Run("nft", "flush", "ruleset")
		return err
	}}
}

func restartAPI() Step {
	return action{"restart the API server", func(ctx context.Context, e *Env) error { return e.cluster.RestartAPI(ctx) }}
}

// fail makes a pod end without deletion, as eviction does. The pod has no kubelet.
func fail(name string) Step {
	return action{"evict pod " + name, func(ctx context.Context, e *Env) error {
		p := pod(name, 0)
		p.Namespace, p.Spec.NodeSelector, p.Spec.NodeName = e.namespace, nil, "evicted"
		if err := e.cluster.create(ctx, p); err != nil {
			return err
		}
		return change(ctx, e.cluster.api, p, "status", func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted"
			p.Status.PodIP, p.Status.PodIPs = "10.255.255.1", []corev1.PodIP{{IP: "10.255.255.1"}}
		})
	}}
}

// restrict admits only one pod to a service's load balancer, with its own address and with its
// node's.
func restrict(service, pod string) Step {
	return action{fmt.Sprintf("service %s admits %s", service, pod), func(ctx context.Context, e *Env) error {
		p, err := e.pod(ctx, pod)
		if err != nil {
			return err
		}
		var ranges []string
		for _, ip := range p.Status.PodIPs {
			ranges = append(ranges, oneAddress(ip.IP))
		}
		for _, ip := range p.Status.HostIPs {
			ranges = append(ranges, oneAddress(ip.IP))
		}
		return update(service, "is restricted", fromRanges(ranges...)).run(ctx, e)
	}}
}

func oneAddress(ip string) string {
	if is4(ip) {
		return ip + "/32"
	}
	return ip + "/128"
}
