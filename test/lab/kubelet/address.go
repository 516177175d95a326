package kubelet

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// addresses lists a pod's addresses in the API.
func addresses(pod *corev1.Pod) []netip.Addr {
	var addrs []netip.Addr
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
