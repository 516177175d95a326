package attach

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/netns"
)

// Check looks whether everything is there that Join made for a pod's packets, and says what is
// missing; mac is the address that the pod's end had then, "" if it is not known.
func Check(node, pod *netns.NS, p Pair, mac string) error {
	outer, err := node.LinkByName(p.Host)
	if err != nil {
		return fmt.Errorf("the node's end %s: %w", p.Host, err)
	}
	inner, err := pod.LinkByName(p.Inside)
	if err != nil {
		return fmt.Errorf("%s in the pod: %w", p.Inside, err)
	}
	if now := inner.Attrs().HardwareAddr.String(); mac != "" && mac != now {
		return fmt.Errorf("%s has the hardware address %s, not %s", p.Inside, now, mac)
	}
	for _, l := range []netlink.Link{outer, inner} {
		if l.Attrs().OperState != netlink.OperUp {
			return fmt.Errorf("%s is %s", l.Attrs().Name, l.Attrs().OperState)
		}
	}
	has, err := pod.AddrList(inner, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the pod's addresses: %w", err)
	}
	for _, a := range p.Addresses {
		if !slices.ContainsFunc(has, func(h netlink.Addr) bool { return h.IP.Equal(a.AsSlice()) }) {
			return fmt.Errorf("%s does not have the address %s", p.Inside, a)
		}
		routes, err := node.RouteListFiltered(familyOf(a), &netlink.Route{Dst: hostNet(a), LinkIndex: outer.Attrs().Index}, netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF)
		if err != nil || len(routes) == 0 {
			return errors.Join(fmt.Errorf("the node has no route to %s by %s", a, p.Host), err)
		}
		if err := checkNeighbour(node, outer.Attrs(), a, inner.Attrs().HardwareAddr); err != nil {
			return err
		}
		if err := checkNeighbour(pod, inner.Attrs(), Gateway(a.Is4()), outer.Attrs().HardwareAddr); err != nil {
			return err
		}
		if way, err := pod.RouteGet(somewhere[a.Is4()]); err != nil || len(way) == 0 {
			return errors.Join(fmt.Errorf("the pod has no default route for %s", a), err)
		}
	}
	return nil
}

// checkNeighbour reports whether ns knows an address behind an interface by a hardware address, and
// for good.
func checkNeighbour(ns *netns.NS, link *netlink.LinkAttrs, a netip.Addr, mac net.HardwareAddr) error {
	known, err := ns.NeighList(link.Index, familyOf(a))
	if err != nil {
		return fmt.Errorf("list the neighbours of %s: %w", link.Name, err)
	}
	for _, n := range known {
		if n.IP.Equal(a.AsSlice()) && n.State == netlink.NUD_PERMANENT && bytes.Equal(n.HardwareAddr, mac) {
			return nil
		}
	}
	return fmt.Errorf("%s has no permanent neighbour %s at %s", link.Name, a, mac)
}

// Taken says who has an address on the node already: the node itself, or an interface that a route
// to the address alone leads to; "" if nobody has.
func Taken(node *netns.NS, a netip.Addr) string {
	found, err := node.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(found) == 0 {
		return "" // no route leads there
	}
	route := found[0]
	switch {
	case route.Type == unix.RTN_LOCAL || route.Type == unix.RTN_BROADCAST || route.Type == unix.RTN_ANYCAST:
		return "the node itself"
	case route.Dst == nil || route.Dst.String() != hostNet(a).String():
		return ""
	}
	link, err := node.LinkByIndex(route.LinkIndex)
	if err != nil {
		return "another route"
	}
	if alias := link.Attrs().Alias; alias != "" {
		return link.Attrs().Name + " (" + alias + ")"
	}
	return link.Attrs().Name
}

// somewhere are addresses that only default routes lead to, by whether they are IPv4.
var somewhere = map[bool]net.IP{true: net.IPv4(192, 0, 2, 1), false: net.ParseIP("2001:db8::1")}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// InGroup lists the node's ends of pairs that are in a group.
func InGroup(node *netns.NS, group uint32) (names []string, err error) {
	links, err := node.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the node's interfaces: %w", err)
	}
	for _, l := range links {
		if l.Type() == "veth" && l.Attrs().Group == group {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

// Limits are how large packets may be, in bytes; 0: not known.
type Limits struct {
	MTU int
	// TCP4 is how much of a stream of TCP over IPv4 is one packet in the kernel, until it leaves
	// the machine. More than 64 kB (BIG TCP) takes Linux 6.3.
	TCP4 int
}

// Underlay returns the smallest limits of the devices of the default routes and of those with these
// names.
func Underlay(node *netns.NS, devices ...string) (limits Limits, err error) {
	lower := func(limit *int, to int) {
		if *limit == 0 || to < *limit {
			*limit = to
		}
	}
	least := func(l netlink.Link, err error) error {
		if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
			return nil
		}
		if err == nil && l.Attrs().Flags&net.FlagLoopback == 0 {
			lower(&limits.MTU, l.Attrs().MTU)
			lower(&limits.TCP4, int(l.Attrs().GSOIPv4MaxSize))
		}
		return err
	}
	var errs []error
	for _, to := range somewhere {
		if routes, err := node.RouteGet(to); err == nil && len(routes) > 0 && routes[0].LinkIndex > 0 {
			errs = append(errs, least(node.LinkByIndex(routes[0].LinkIndex)))
		}
	}
	for _, device := range devices {
		errs = append(errs, least(node.LinkByName(device)))
	}
	return limits, errors.Join(errs...)
}
