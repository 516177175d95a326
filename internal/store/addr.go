package store

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// addrIndex finds the pods that claim an address; nearly always one.
type addrIndex map[netip.Addr]claimants

// claimants are in order of precedence.
type claimants struct {
	first *model.Pod
	more  []*model.Pod
}

func (x addrIndex) add(pod *model.Pod) {
	for _, a := range ownAddrs(pod) {
		c := x[a]
		if c.first == nil {
			x[a] = claimants{first: pod}
			continue
		}
		if pod == c.first {
			continue // its list repeats an address
		}
		next := pod
		if comparePrecedence(pod, c.first) < 0 {
			next, c.first = c.first, pod
		}
		if i, has := slices.BinarySearchFunc(c.more, next, comparePrecedence); !has {
			c.more = slices.Insert(c.more, i, next)
		}
		x[a] = c
	}
}

func (x addrIndex) remove(pod *model.Pod) {
	for _, a := range ownAddrs(pod) {
		c := x[a]
		if len(c.more) == 0 {
			if c.first == pod { // it is not where the pod's list repeats an address
				delete(x, a)
			}
			continue
		}
		if c.first == pod {
			c.first = c.more[0]
			c.more = slices.Delete(c.more, 0, 1)
		} else if i, has := slices.BinarySearchFunc(c.more, pod, comparePrecedence); has {
			c.more = slices.Delete(c.more, i, i+1)
		}
		x[a] = c
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
