package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/netns"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/sysctl"
)

// somewhere are addresses that only default routes lead to.
var somewhere = map[bool]net.IP{true: net.IPv4(192, 0, 2, 1), false: net.ParseIP("2001:db8::1")} // by whether they are IPv4

// underlayMTU is the largest packet that reaches other nodes' pods whole: that of the devices that
// default routes lead to, and of the tunnels to other nodes; 0 where there is neither.
func underlayMTU(node *netns.NS) (mtu int, err error) {
	least := func(l netlink.Link, err error) error {
		if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
			return nil
		}
		if err == nil && l.Attrs().Flags&net.FlagLoopback == 0 && (mtu == 0 || l.Attrs().MTU < mtu) {
			mtu = l.Attrs().MTU
		}
		return err
	}
	var errs []error
	for _, to := range somewhere {
		if routes, err := node.RouteGet(to); err == nil && len(routes) > 0 && routes[0].LinkIndex > 0 {
			errs = append(errs, least(node.LinkByIndex(routes[0].LinkIndex)))
		}
	}
	for _, tunnel := range []string{state.DeviceVXLAN, state.DeviceVXLAN6, state.DeviceIPIP} {
		errs = append(errs, least(node.LinkByName(tunnel)))
	}
	if err := errors.Join(errs...); err != nil {
		return 0, fault(types.ErrInternal, "find the underlay's MTU: set mtu in the network configuration", err)
	}
	return mtu, nil
}

// forward lets the node forward packets of the addresses' families.
func forward(addrs []netip.Addr) error {
	off, err := notForwarding(slices.ContainsFunc(addrs, netip.Addr.Is4), slices.ContainsFunc(addrs, netip.Addr.Is6))
	for _, key := range off {
		err = errors.Join(err, os.WriteFile("/proc/sys/"+strings.ReplaceAll(key, ".", "/"), []byte("1"), 0))
	}
	return err
}

// notForwarding names the parameters that are to be set for the node to forward packets. An error
// says why one is missing.
func notForwarding(is4, is6 bool) (off []string, err error) {
	for key, used := range map[string]bool{sysctl.Forward4: is4, sysctl.Forward6: is6} {
		if now, readErr := sysctl.Read(key); used && (readErr != nil || now == "0") {
			off = append(off, key)
		}
	}
	if len(off) == 0 {
		return nil, nil
	}
	want, err := sysctl.Needed(is4, is6)
	return slices.DeleteFunc(off, func(key string) bool { return want[key] == "" }), err
}

// routeOf is a route of a pod that its IPAM asks for.
func routeOf(r *types.Route) netlink.Route {
	route := netlink.Route{Dst: &r.Dst, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority}
	if r.Table != nil {
		route.Table = *r.Table
	}
	if r.Scope != nil {
		route.Scope = netlink.Scope(*r.Scope)
	}
	return route
}

// linksOf lists the interfaces on the node of a network's containers.
func linksOf(node *netns.NS, network string) (names []string, err error) {
	links, err := node.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the node's interfaces: %w", err)
	}
	for _, l := range links {
		if l.Type() == "veth" && l.Attrs().Group == group(network) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}
