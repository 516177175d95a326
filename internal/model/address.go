package model

import (
	"fmt"
	"iter"
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
	host := a.Unmap().WithZone("")
	switch _, kind := Special(netip.PrefixFrom(host, host.BitLen())); {
	case !a.IsValid():
		return "no address"
	case host.IsUnspecified():
		return "the unspecified address"
	case kind != "":
		return "a " + kind + " address"
	case a.Zone() != "":
		return "bound to one interface"
	}
	return ""
}

// special are the ranges that no router forwards to (RFC 6890), as they are of a single host or
// link, or of no host, and multicast.
var special = []struct {
	prefix netip.Prefix
	kind   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "reserved"}, {netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"}, {netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"}, {netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"}, {netip.MustParsePrefix("ff00::/8"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"}, {netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped"},
}

// Special returns a range of Unusable addresses that a prefix overlaps, and of what kind they are:
// "loopback"; "": there is none.
func Special(p netip.Prefix) (within netip.Prefix, kind string) {
	for _, s := range special {
		if s.prefix.Overlaps(p) {
			return s.prefix, s.kind
		}
	}
	return netip.Prefix{}, ""
}

// ParsePodCIDR reads a CIDR as ParsePrefix does. It is an error if pods cannot have its addresses.
func ParsePodCIDR(text string) (netip.Prefix, error) {
	p, err := ParsePrefix(text)
	if err == nil {
		err = CheckPodCIDR(p)
	}
	return p, err
}

// CheckPodCIDR is an error if addresses of a prefix are Unusable.
func CheckPodCIDR(p netip.Prefix) error {
	within, kind := Special(p)
	if kind == "" {
		return nil
	}
	a := within.Addr()
	if p.Bits() > within.Bits() {
		a = p.Addr()
	}
	return fmt.Errorf("%s has %s, %s, which no pod can have", p, a, Unusable(a))
}

// Last is the last address of a prefix.
func Last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// AddressRange is the addresses of one family from First to Last, both included.
type AddressRange struct{ First, Last netip.Addr }

// Contains reports whether the address is in the range.
func (r AddressRange) Contains(a netip.Addr) bool {
	return r.First.BitLen() == a.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// String returns "192.0.2.1-192.0.2.9".
func (r AddressRange) String() string { return r.First.String() + "-" + r.Last.String() }

// DiffRanges are the ranges that only one of two sorted lists has.
func DiffRanges(old, now []AddressRange) (gone, come []AddressRange) {
	for len(old) > 0 || len(now) > 0 {
		switch {
		case len(old) > 0 && len(now) > 0 && old[0] == now[0]:
			old, now = old[1:], now[1:]
		case len(now) == 0 || len(old) > 0 && old[0].First.Compare(now[0].First) <= 0:
			gone, old = append(gone, old[0]), old[1:]
		default:
			come, now = append(come, now[0]), now[1:]
		}
	}
	return gone, come
}

// Prefixes yields the fewest prefixes that hold just the addresses of the range: each is the
// largest that begins where the one before it ended.
func (r AddressRange) Prefixes() iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for at := r.First; at.IsValid() && !r.Last.Less(at); {
			bits := at.BitLen()
			for bits > 0 {
				wider := netip.PrefixFrom(at, bits-1)
				if wider.Masked().Addr() != at || r.Last.Less(Last(wider)) {
					break
				}
				bits--
			}
			prefix := netip.PrefixFrom(at, bits)
			if !yield(prefix) {
				return
			}
			at = Last(prefix).Next()
		}
	}
}
