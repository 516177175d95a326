package netns

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Address gives a device addresses, each with the length of its network. They can be used at once:
// there is no detection of duplicates.
func (ns *NS) Address(device string, addrs ...netip.Prefix) error {
	link, err := ns.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", device, ns.Name, err)
	}
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: netOf(a)}
		if a.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		err := ns.AddrAdd(link, addr)
		if err == nil && a.Addr().Is6() && link.Attrs().Flags&net.FlagUp != 0 {
			err = ns.Own(a.Addr())
		}
		if err != nil {
			return fmt.Errorf("add address %s to %s in %s: %w", a, device, ns.Name, err)
		}
	}
	return nil
}

// Own waits until an address is the namespace's own: the kernel makes the local route to one of
// IPv6 a moment later, in the background.
func (ns *NS) Own(addr netip.Addr) error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		routes, err := ns.RouteGet(addr.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("it does not become the namespace's own: %v, %w", routes, cmp.Or(err, error(unix.ENETUNREACH)))
		}
	}
}

// Route has a prefix go to an address (the zero one: to the prefix's own addresses) by a device,
// whether or not the address is on a network of it. Without a device, the address says which one.
func (ns *NS) Route(to netip.Prefix, via netip.Addr, device string) error {
	r := &netlink.Route{Dst: netOf(to.Masked())}
	if via.IsValid() {
		r.Gw = via.AsSlice()
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	var err error
	if device != "" {
		var link netlink.Link
		if link, err = ns.LinkByName(device); err == nil {
			r.LinkIndex = link.Attrs().Index
		}
		if via.IsValid() {
			r.Flags = int(netlink.FLAG_ONLINK)
		}
	}
	if err == nil {
		err = ns.RouteAdd(r)
	}
	if err != nil {
		return fmt.Errorf("route %s via %s %s in %s: %w", to, via, device, ns.Name, err)
	}
	return nil
}

// Neighbour says once and for all that an address is behind a device, at a hardware address, so
// that no first packet waits until it is found.
func (ns *NS) Neighbour(device string, addr netip.Addr, at net.HardwareAddr) error {
	link, err := ns.LinkByName(device)
	if err == nil {
		family := unix.AF_INET
		if addr.Is6() {
			family = unix.AF_INET6
		}
		err = ns.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: at,
		})
	}
	if err != nil {
		return fmt.Errorf("set neighbour %s at %s in %s: %w", addr, device, ns.Name, err)
	}
	return nil
}

// Hardware is the hardware address of a device.
func (ns *NS) Hardware(device string) (net.HardwareAddr, error) {
	link, err := ns.LinkByName(device)
	if err != nil {
		return nil, fmt.Errorf("find %s in %s: %w", device, ns.Name, err)
	}
	return link.Attrs().HardwareAddr, nil
}

func netOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
