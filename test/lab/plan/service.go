package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// This is the range of node ports; as in a cluster, a manifest may ask for any port in it.
const firstNodePort, lastNodePort = 30000, 32767

// allocator allocates unique addresses and ports to Services.
type allocator struct {
	addrs map[netip.Addr]bool
	ports map[nodePort]bool
	next  int32
}

type nodePort struct {
	protocol corev1.Protocol
	port     int32
}

// addServices sets all Services' defaults as an API server does, and allocates what they lack. It
// first reserves what manifests ask for, so that no allocation is in the way.
func (c *Cluster) addServices(services []*corev1.Service) {
	a := &allocator{addrs: map[netip.Addr]bool{}, ports: map[nodePort]bool{}, next: firstNodePort}
	steps := []func(*corev1.Service, *allocator) error{c.defaults, c.reserve, c.allocate}
	for _, step := range steps {
		services = slices.DeleteFunc(services, func(svc *corev1.Service) bool {
			err := step(svc, a)
			if err != nil {
				c.note("Service %s/%s is left out: %v", svc.Namespace, svc.Name, err)
			}
			return err != nil
		})
	}
	c.Services = services
}

// defaults sets an API server's defaults.
func (c *Cluster) defaults(svc *corev1.Service, _ *allocator) error {
	svc.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	svc.CreationTimestamp = metav1.Time{Time: c.Created}
	svc.Status = corev1.ServiceStatus{}
	s := &svc.Spec
	if s.Type == "" {
		s.Type = corev1.ServiceTypeClusterIP
	}
	if s.SessionAffinity == "" {
		s.SessionAffinity = corev1.ServiceAffinityNone
	}
	if s.SessionAffinity == corev1.ServiceAffinityClientIP && s.SessionAffinityConfig == nil {
		timeout := corev1.DefaultClientIPServiceAffinitySeconds
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		p.Protocol = protocol(p.Protocol)
		if p.Port < 1 || p.Port > 65535 {
			return fmt.Errorf("port %d is out of range", p.Port)
		}
		if p.TargetPort == (intstr.IntOrString{}) {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
		if p.Protocol == corev1.ProtocolSCTP {
			c.note("Service %s/%s: SCTP port %d is programmed but neither served nor probed: kernels often have no SCTP", svc.Namespace, svc.Name, p.Port)
		}
	}
	if s.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if len(s.Ports) == 0 && !Headless(svc) {
		return errors.New("no ports")
	}
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	if s.InternalTrafficPolicy == nil {
		s.InternalTrafficPolicy = &cluster
	}
	if External(svc) && s.ExternalTrafficPolicy == "" {
		s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	return families(svc)
}

// Headless reports whether a Service's spec gives it no address of its own.
func Headless(svc *corev1.Service) bool { return svc.Spec.ClusterIP == corev1.ClusterIPNone }

// External reports whether a Service has node ports or ingress addresses.
func External(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// families determines a Service's address families: those it names, completed according to its
// policy.
func families(svc *corev1.Service) error {
	s := &svc.Spec
	if len(s.IPFamilies) == 0 {
		s.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		if a, err := netip.ParseAddr(s.ClusterIP); err == nil {
			s.IPFamilies[0] = familyOf(a)
		}
	}
	policy := corev1.IPFamilyPolicySingleStack
	if len(s.IPFamilies) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	if s.IPFamilyPolicy == nil {
		s.IPFamilyPolicy = &policy
	}
	both := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	for _, f := range s.IPFamilies {
		if !slices.Contains(both, f) {
			return fmt.Errorf("ipFamily %q is neither IPv4 nor IPv6", f)
		}
	}
	if *s.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack {
		s.IPFamilies = s.IPFamilies[:1]
		return nil
	}
	for _, f := range both {
		if !slices.Contains(s.IPFamilies, f) {
			s.IPFamilies = append(s.IPFamilies, f)
		}
	}
	return nil
}

// reserve reserves the addresses and ports that a Service asks for. It replaces an address of
// another cluster's range, with a note, so that objects exported from a cluster work.
func (c *Cluster) reserve(svc *corev1.Service, a *allocator) error {
	s := &svc.Spec
	if s.Type == corev1.ServiceTypeExternalName || Headless(svc) {
		return nil
	}
	asked := s.ClusterIPs
	if len(asked) == 0 && s.ClusterIP != "" {
		asked = []string{s.ClusterIP}
	}
	s.ClusterIP, s.ClusterIPs = "", make([]string, len(s.IPFamilies))
	for _, ip := range asked {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return fmt.Errorf("clusterIP: %w", err)
		}
		i := slices.Index(s.IPFamilies, familyOf(addr))
		if i < 0 || !rangeOf(ServiceCIDRs, familyOf(addr)).Contains(addr) {
			c.note("Service %s/%s: clusterIP %s is not in this lab's range: it gets another", svc.Namespace, svc.Name, addr)
			continue
		}
		if err := a.take(addr); err != nil {
			return fmt.Errorf("clusterIP: %w", err)
		}
		s.ClusterIPs[i] = addr.String()
	}
	if !External(svc) {
		return nil
	}
	for _, p := range s.Ports {
		if p.NodePort != 0 {
			if err := a.takePort(p.Protocol, p.NodePort); err != nil {
				return fmt.Errorf("nodePort: %w", err)
			}
		}
	}
	if s.HealthCheckNodePort != 0 {
		if err := a.takePort(corev1.ProtocolTCP, s.HealthCheckNodePort); err != nil {
			return fmt.Errorf("healthCheckNodePort: %w", err)
		}
	}
	if ip := s.LoadBalancerIP; ip != "" && s.Type == corev1.ServiceTypeLoadBalancer {
		addr, err := netip.ParseAddr(ip)
		if err == nil {
			err = a.take(addr)
		}
		if err != nil {
			return fmt.Errorf("loadBalancerIP: %w", err)
		}
	}
	return nil
}

// allocate allocates what a Service still lacks.
func (c *Cluster) allocate(svc *corev1.Service, a *allocator) error {
	s := &svc.Spec
	if s.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if Headless(svc) {
		s.ClusterIPs = []string{corev1.ClusterIPNone}
		return nil
	}
	for i, f := range s.IPFamilies {
		if s.ClusterIPs[i] == "" {
			addr, err := a.address(rangeOf(ServiceCIDRs, f))
			if err != nil {
				return err
			}
			s.ClusterIPs[i] = addr.String()
		}
	}
	s.ClusterIP = s.ClusterIPs[0]
	if !External(svc) {
		return nil
	}
	if s.Type == corev1.ServiceTypeNodePort || s.AllocateLoadBalancerNodePorts == nil || *s.AllocateLoadBalancerNodePorts {
		if err := a.nodePorts(s.Ports); err != nil {
			return err
		}
	}
	if s.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	if s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && s.HealthCheckNodePort == 0 {
		port, err := a.port(corev1.ProtocolTCP)
		if err != nil {
			return err
		}
		s.HealthCheckNodePort = port
	}
	return c.ingress(svc, a)
}

// ingress assigns one address of each family to a LoadBalancer.
func (c *Cluster) ingress(svc *corev1.Service, a *allocator) error {
	asked, _ := netip.ParseAddr(svc.Spec.LoadBalancerIP) // reserve has checked it
	for _, f := range svc.Spec.IPFamilies {
		addr := asked
		if !asked.IsValid() || familyOf(asked) != f {
			var err error
			if addr, err = a.address(rangeOf(BalancerCIDRs, f)); err != nil {
				return err
			}
		}
		mode := corev1.LoadBalancerIPModeVIP
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: addr.String(), IPMode: &mode})
	}
	return nil
}

// nodePorts assigns node ports. Two protocols on one port share a node port, as in a cluster.
func (a *allocator) nodePorts(ports []corev1.ServicePort) error {
	for i := range ports {
		p := &ports[i]
		for _, q := range ports {
			want := nodePort{p.Protocol, q.NodePort}
			if p.NodePort == 0 && q.NodePort != 0 && q.Port == p.Port && q.Protocol != p.Protocol && !a.ports[want] {
				p.NodePort = q.NodePort
				a.ports[want] = true
			}
		}
		if p.NodePort != 0 {
			continue
		}
		port, err := a.port(p.Protocol)
		if err != nil {
			return err
		}
		p.NodePort = port
	}
	return nil
}

func (a *allocator) take(addr netip.Addr) error {
	if a.addrs[addr] {
		return fmt.Errorf("%s belongs to another Service already", addr)
	}
	a.addrs[addr] = true
	return nil
}

func (a *allocator) takePort(p corev1.Protocol, port int32) error {
	switch {
	case port < firstNodePort || port > lastNodePort:
		return fmt.Errorf("%d is not between %d and %d", port, firstNodePort, lastNodePort)
	case a.ports[nodePort{p, port}]:
		return fmt.Errorf("%d/%s belongs to another Service already", port, p)
	}
	a.ports[nodePort{p, port}] = true
	return nil
}

// address returns a free address of a range; the range's first address is not used.
func (a *allocator) address(p netip.Prefix) (netip.Addr, error) {
	size := 1 << min(16, p.Addr().BitLen()-p.Bits())
	for i := 1; i < size-1; i++ {
		if addr := Nth(p, i); !a.addrs[addr] {
			a.addrs[addr] = true
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("all addresses of %s are taken", p)
}

// port returns a port that no protocol uses as a node port.
func (a *allocator) port(p corev1.Protocol) (int32, error) {
	for ; a.next <= lastNodePort; a.next++ {
		taken := false
		for _, q := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
			taken = taken || a.ports[nodePort{q, a.next}]
		}
		if !taken {
			a.ports[nodePort{p, a.next}] = true
			return a.next, nil
		}
	}
	return 0, fmt.Errorf("all node ports (%d to %d) are taken", firstNodePort, lastNodePort)
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func rangeOf(ps []netip.Prefix, f corev1.IPFamily) netip.Prefix {
	return ps[slices.IndexFunc(ps, func(p netip.Prefix) bool { return familyOf(p.Addr()) == f })]
}
