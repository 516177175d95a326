package link

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// This file says which address the kernel masquerades with, as its inet_select_addr and
// ipv6_dev_get_saddr do.

// leaving is an interface, and the family of what leaves by it.
type leaving struct {
	link int
	is4  bool
}

// sourcesOf returns, of the addresses in the kernel's order, the one that each interface
// masquerades with; an interface where that depends on the next hop or the destination has none.
func sourcesOf(addrs []netlink.Addr) map[leaving]netip.Prefix {
	first, sources := map[leaving]netlink.Addr{}, map[leaving]netip.Prefix{}
	for _, a := range addrs {
		p := subnet(a)
		by := leaving{a.LinkIndex, p.Addr().Is4()}
		if !candidate(a, by.is4) {
			continue
		}
		before, others := first[by]
		switch {
		case !others:
			first[by], sources[by] = a, p
		case by.is4 && !always4(before, a), !by.is4 && !always6(before, a):
			delete(sources, by)
		}
	}
	return sources
}

// candidate reports whether the kernel may choose the address for what leaves the network. IPv6: a
// deprecated one, or one that may be another host's still, only if no interface has another.
func candidate(a netlink.Addr, is4 bool) bool {
	never := unix.IFA_F_SECONDARY
	if !is4 { // where IPv4's bit for secondary addresses says that one is temporary
		never = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_OPTIMISTIC
	}
	return a.Scope == unix.RT_SCOPE_UNIVERSE && a.Flags&never == 0
}

// always4 reports whether the first address is chosen before another one whatever the next hop is:
// the kernel looks for a subnet that has it, and takes the first address if there is none.
func always4(first, other netlink.Addr) bool {
	if !wide(other) {
		return true
	}
	in, p := subnet(first), subnet(other)
	return other.Peer == nil && in.Bits() <= p.Bits() && in.Contains(p.Addr())
}

// always6 reports whether the first address is chosen before another one whatever the destination
// is: where they are of one subnet, no destination is nearer to one of them (RFC 6724, rule 8). Of
// temporary ones, net.ipv6.conf.*.use_tempaddr decides.
func always6(first, other netlink.Addr) bool {
	return subnet(other).Masked() == subnet(first).Masked() && (first.Flags|other.Flags)&unix.IFA_F_TEMPORARY == 0
}

// subnet is an address with the length of its subnet's prefix.
func subnet(a netlink.Addr) netip.Prefix {
	addr, _ := netip.AddrFromSlice(a.IP)
	ones, _ := a.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}
