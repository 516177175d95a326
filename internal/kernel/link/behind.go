package link

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/kernel/netns"
)

// Behind returns the addresses that another network namespace has at the interfaces by which its
// default routes lead to this one, as those of a pod lead to its node; none where they lead
// elsewhere.
func Behind(here, other *netns.NS) (found []netip.Addr, err error) {
	number, err := other.GetNetNsIdByFd(here.Fd())
	if err != nil {
		return nil, fmt.Errorf("find the way from %s: %w", other.Name, err)
	}
	if number < 0 {
		return nil, nil // no interface leads here
	}
	routes, err := Dump(func() ([]netlink.Route, error) { return other.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", other.Name, err)
	}
	seen := map[int]bool{}
	for _, r := range routes {
		if _, isDefault := prefix(r.Dst); !isDefault || seen[r.LinkIndex] {
			continue
		}
		seen[r.LinkIndex] = true
		l, err := other.LinkByIndex(r.LinkIndex)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read an interface of %s: %w", other.Name, err)
		}
		if l.Attrs().NetNsID != number {
			continue
		}
		addrs, err := Dump(func() ([]netlink.Addr, error) { return other.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", other.Name, err)
		}
		for _, a := range addrs {
			addr, _ := netip.AddrFromSlice(a.IP)
			found = append(found, addr.Unmap())
		}
	}
	return found, nil
}
