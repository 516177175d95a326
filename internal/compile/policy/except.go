package policy

import "net/netip"

// without returns the networks less the exceptions, as networks. An exception leaves of the network
// around it one for each bit by which it is longer, at the most.
func without(nets, except []netip.Prefix) (left []netip.Prefix) {
	if len(except) == 0 {
		return nets
	}
	except = sorted(except)
	for _, n := range sorted(nets) {
		left = cutOut(left, n, except)
	}
	return left
}

// cutOut appends what is left of n.
func cutOut(left []netip.Prefix, n netip.Prefix, except []netip.Prefix) []netip.Prefix {
	var inside []netip.Prefix
	for _, e := range except {
		if !e.Overlaps(n) {
			continue
		}
		if e.Bits() <= n.Bits() {
			return left
		}
		inside = append(inside, e)
	}
	if len(inside) == 0 {
		return append(left, n)
	}
	lower := netip.PrefixFrom(n.Addr(), n.Bits()+1)
	return cutOut(cutOut(left, lower, inside), upperHalf(n), inside)
}

// upperHalf is the second of the two networks that a network is made of.
func upperHalf(n netip.Prefix) netip.Prefix {
	b := n.Addr().AsSlice()
	b[n.Bits()/8] |= 0x80 >> (n.Bits() % 8)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, n.Bits()+1)
}
