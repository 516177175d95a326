package model

import (
	"fmt"
	"net/netip"
	"slices"
)

// ParseAddr reads an address without a zone. An IPv4 address written inside an IPv6 one is the IPv4
// address.
func ParseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is no IP address", text)
	}
	return a.Unmap(), nil
}

// ParsePrefix reads a CIDR, bits behind the mask forgiven.
func ParsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no address range such as 192.0.2.0/24", text)
	}
	return UnmapPrefix(p).Masked(), nil
}

// UnmapPrefix makes an IPv4 prefix of one that is written inside an IPv6 one.
func UnmapPrefix(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p
}

// Within reports whether one of the networks holds the address.
func Within(a netip.Addr, nets []netip.Prefix) bool {
	return slices.ContainsFunc(nets, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Unusable says why nothing can be translated from or to an address; empty: it can.
func Unusable(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "no address"
	case a.IsUnspecified():
		return "the unspecified address"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsMulticast():
		return "a multicast address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.Zone() != "":
		return "bound to one interface"
	}
	return ""
}
