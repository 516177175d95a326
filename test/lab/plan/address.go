package plan

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// ClusterIPs lists a Service's cluster addresses; none if it is headless.
func ClusterIPs(svc *corev1.Service) []netip.Addr { return parse(svc.Spec.ClusterIPs) }

// ExternalIPs lists a Service's external addresses.
func ExternalIPs(svc *corev1.Service) []netip.Addr { return parse(svc.Spec.ExternalIPs) }

// IngressIPs lists a Service's LoadBalancer ingress addresses.
func IngressIPs(svc *corev1.Service) []netip.Addr {
	var ss []string
	for _, in := range svc.Status.LoadBalancer.Ingress {
		ss = append(ss, in.IP)
	}
	return parse(ss)
}

// parse keeps what is an address; "None" is not.
func parse(ss []string) []netip.Addr {
	var as []netip.Addr
	for _, s := range ss {
		if a, err := netip.ParseAddr(s); err == nil {
			as = append(as, a)
		}
	}
	return as
}
