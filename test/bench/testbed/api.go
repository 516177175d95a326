package testbed

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/netns"
)

// AddAddress adds an address for ConnectTo to a namespace's loopback.
func AddAddress(ns *netns.NS, addr netip.Addr) error {
	return addAddr(ns, "lo", netip.PrefixFrom(addr, addr.BitLen()))
}

// ConnectTo connects the testbed's node with a namespace that has the address far. Several testbeds
// may do so, each with a number of its own, 1 to 4,095. It also makes services that no data plane
// translates unreachable, with an immediate ICMP error.
func (l *Testbed) ConnectTo(ns *netns.NS, number int, far netip.Addr) error {
	const near = "api0"
	peer := fmt.Sprintf("node%d", number)
	if err := netns.Veth(l.Node, near, ns, peer); err != nil {
		return err
	}
	// A link has four addresses of 192.168.0.0/18.
	at := func(n int) netip.Addr {
		return netip.AddrFrom4([4]byte{192, 168, byte(number >> 6), byte(number<<2 + n)})
	}
	err := errors.Join(addAddr(l.Node, near, netip.PrefixFrom(at(2), 30)), addAddr(ns, peer, netip.PrefixFrom(at(1), 30)))
	if err != nil {
		return err
	}
	dst, err := netlink.ParseIPNet(cluster.Services.String())
	if err != nil {
		return err
	}
	if err := l.Node.RouteAdd(&netlink.Route{Dst: dst, Type: unix.RTN_UNREACHABLE}); err != nil {
		return fmt.Errorf("make services unreachable in %s: %w", l.Node.Name, err)
	}
	// By default the kernel sends one such error a second to an address.
	return errors.Join(addRoute(l.Node, near, netip.PrefixFrom(far, far.BitLen()), at(1)), l.Node.Sysctl("net/ipv4/icmp_ratelimit", "0"))
}

// SetUnreachable makes an address of the backend's namespace unreachable, as that of a pod that has
// ended, or reachable again.
func (l *Testbed) SetUnreachable(backend netip.Addr, gone bool) error {
	dst, err := netlink.ParseIPNet(netip.PrefixFrom(backend, backend.BitLen()).String())
	if err != nil {
		return err
	}
	// In the local table, as its route to the whole backends' network is looked up first.
	r := &netlink.Route{Dst: dst, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_UNREACHABLE}
	if gone {
		err = l.Backend.RouteReplace(r)
	} else if err = l.Backend.RouteDel(r); errors.Is(err, unix.ESRCH) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("end or begin %s in %s: %w", backend, l.Backend.Name, err)
	}
	return nil
}
