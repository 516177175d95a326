package store

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/sorted"
	"sluice.dev/sluice/internal/model"
)

// addrIndex finds the pods that claim an address, nearly always one, in order of precedence.
type addrIndex map[netip.Addr][]*model.Pod

func (x addrIndex) add(pod *model.Pod) {
	for _, a := range ownAddrs(pod) {
		x[a] = sorted.Set(x[a], pod, true, comparePrecedence)
	}
}

func (x addrIndex) remove(pod *model.Pod) {
	for _, a := range ownAddrs(pod) {
		if x[a] = sorted.Set(x[a], pod, false, comparePrecedence); len(x[a]) == 0 {
			delete(x, a)
		}
	}
}

// ownAddrs are the addresses that are the pod's alone.
func ownAddrs(pod *model.Pod) []netip.Addr {
	if pod.HostNetwork || pod.Finished {
		return nil
	}
	addrs := pod.IPs
	for i, a := range addrs {
		if a.Is4In6() {
			addrs = slices.Clone(addrs)
			addrs[i] = a.Unmap()
		}
	}
	return addrs
}

func comparePrecedence(a, b *model.Pod) int {
	if a.Terminating != b.Terminating {
		if a.Terminating {
			return 1
		}
		return -1
	}
	return comparePods(a, b)
}
