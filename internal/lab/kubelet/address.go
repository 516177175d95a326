package kubelet

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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

// take gives a pod an address of each pool, or its present ones.
func (k *kubelet) take(pod types.UID) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, p := range k.pools {
		a, err := p.Take(pod)
		if err != nil {
			k.release(pod)
			return nil, err
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// claim gives a pod exactly these addresses, which it had before. It returns false, and assigns
// none, if they are not one of each pool, or belong to another pod.
func (k *kubelet) claim(pod types.UID, addrs []netip.Addr) bool {
	if len(addrs) != len(k.pools) {
		return false
	}
	for _, p := range k.pools {
		i := slices.IndexFunc(addrs, p.Prefix().Contains)
		if i < 0 || !p.Claim(pod, addrs[i]) {
			k.release(pod)
			return false
		}
	}
	return true
}

// release takes back a pod's addresses.
func (k *kubelet) release(pod types.UID) {
	for _, p := range k.pools {
		p.Release(pod)
	}
}
