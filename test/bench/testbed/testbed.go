// Package testbed builds the path that the bench measures: a client, a node and a host for all
// backends, each a network namespace, in a row.
//
//	client eth0 ── in0 node out0 ── eth0 backend
//
// Every testbed uses the same addresses. Several exist side by side, one for each data plane or
// size under comparison, and are measured in turns.
package testbed

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/netns"
)

// The node's devices.
const (
	NodeIn  = "in0"
	NodeOut = "out0"
	Uplink  = "eth0" // of client and backend
)

// The addresses, the same in each testbed; the node's towards the client is cluster.NodeAddr.
var (
	clientNet   = netip.MustParsePrefix("172.16.0.2/24")
	nodeOutNet  = netip.MustParsePrefix("172.16.1.1/24")
	backendNet  = netip.MustParsePrefix("172.16.1.2/24")
	clientExtra = 14 // more addresses of the client, for more source ports
)

// ClientAddrs are the addresses that a client can connect from.
func ClientAddrs() []netip.Addr {
	a := clientNet.Addr()
	addrs := []netip.Addr{a}
	for range clientExtra {
		a = a.Next()
		addrs = append(addrs, a)
	}
	return addrs
}

// Testbed is client, node and backend, connected. Close it.
type Testbed struct {
	Client, Node, Backend *netns.NS

	rest *netns.NS // of the pods without traffic; nil: there are none
}

// New builds a testbed. Its namespaces are called PREFIX-client, -node and -backend; leftovers of
// these names are removed first.
func New(prefix string) (*Testbed, error) {
	l, err := newTestbed(prefix, "")
	if err != nil {
		return nil, err
	}
	if err := l.wire(); err != nil {
		return nil, errors.Join(fmt.Errorf("build testbed %s: %w", prefix, err), l.Close())
	}
	return l, nil
}

// newTestbed makes the namespaces; rest names one more unless it is empty.
func newTestbed(prefix, rest string) (*Testbed, error) {
	l := &Testbed{}
	for _, end := range []struct {
		ns   **netns.NS
		name string
	}{{&l.Client, "client"}, {&l.Node, "node"}, {&l.Backend, "backend"}, {&l.rest, rest}} {
		if end.name == "" {
			continue
		}
		name := prefix + "-" + end.name
		if err := netns.Delete(name); err != nil {
			return nil, errors.Join(err, l.Close())
		}
		ns, err := netns.New(name)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		*end.ns = ns
	}
	return l, nil
}

// Close removes the testbed's namespaces.
func (l *Testbed) Close() error {
	var errs []error
	for _, ns := range []*netns.NS{l.Client, l.Node, l.Backend, l.rest} {
		if ns != nil {
			errs = append(errs, ns.Delete())
		}
	}
	return errors.Join(errs...)
}

func (l *Testbed) wire() error {
	if err := netns.Veth(l.Client, Uplink, l.Node, NodeIn); err != nil {
		return err
	}
	if err := netns.Veth(l.Node, NodeOut, l.Backend, Uplink); err != nil {
		return err
	}
	addrs := []error{
		addAddr(l.Node, NodeIn, netip.PrefixFrom(cluster.NodeAddr, clientNet.Bits())),
		addAddr(l.Node, NodeOut, nodeOutNet),
		addAddr(l.Backend, Uplink, backendNet),
	}
	for _, a := range ClientAddrs() {
		addrs = append(addrs, addAddr(l.Client, Uplink, netip.PrefixFrom(a, clientNet.Bits())))
	}
	if err := errors.Join(addrs...); err != nil {
		return err
	}
	if err := l.neighbours(); err != nil {
		return err
	}
	everything := netip.MustParsePrefix("0.0.0.0/0")
	return errors.Join(
		addRoute(l.Client, Uplink, everything, cluster.NodeAddr),
		addRoute(l.Node, NodeIn, inject.Sources, clientNet.Addr()),
		addRoute(l.Node, NodeOut, everything, backendNet.Addr()),
		addRoute(l.Backend, Uplink, everything, nodeOutNet.Addr()),
		anyIP(l.Backend, cluster.Endpoints),
		l.sysctls(),
	)
}

// Direct puts backends on a network that the node is on, and lets their namespace answer clients in
// the services' name, as servers do whose answers don't pass the node's translation.
func (l *Testbed) Direct(backends ...netip.Addr) error {
	own := netip.MustParseAddr("10.255.255.254") // of cluster.Endpoints, which the backends' namespace answers for otherwise
	dev, err := l.Node.LinkByName(NodeOut)
	if err != nil {
		return err
	}
	peer, err := l.Backend.LinkByName(Uplink)
	if err != nil {
		return err
	}
	errs := []error{addAddr(l.Node, NodeOut, netip.PrefixFrom(own, cluster.Endpoints.Bits())), anyIP(l.Backend, cluster.Services)}
	dst, err := netlink.ParseIPNet(own.String() + "/32")
	if err != nil {
		return err
	}
	errs = append(errs, l.Backend.RouteAdd(&netlink.Route{
		LinkIndex: peer.Attrs().Index, Dst: dst, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_LINK,
	}))
	for _, b := range backends {
		errs = append(errs, setNeighbour(l.Node, dev, b, peer))
	}
	return errors.Join(errs...)
}

// From has the client be another address, one of inject.Sources.
func (l *Testbed) From(a netip.Addr) error {
	if err := addAddr(l.Client, Uplink, netip.PrefixFrom(a, a.BitLen())); err != nil {
		return err
	}
	dev, err := l.Client.LinkByName(Uplink)
	if err != nil {
		return err
	}
	everything, err := netlink.ParseIPNet("0.0.0.0/0")
	if err != nil {
		return err
	}
	return l.Client.RouteReplace(&netlink.Route{LinkIndex: dev.Attrs().Index, Dst: everything, Gw: cluster.NodeAddr.AsSlice(), Src: a.AsSlice()})
}

// neighbours makes neighbour entries permanent, so that no measurement waits for ARP.
func (l *Testbed) neighbours() error {
	for _, n := range []struct {
		ns   *netns.NS
		dev  string
		peer *netns.NS
		pdev string
		addr netip.Addr
	}{
		{l.Client, Uplink, l.Node, NodeIn, cluster.NodeAddr},
		{l.Node, NodeIn, l.Client, Uplink, clientNet.Addr()},
		{l.Node, NodeOut, l.Backend, Uplink, backendNet.Addr()},
		{l.Backend, Uplink, l.Node, NodeOut, nodeOutNet.Addr()},
	} {
		dev, err := n.ns.LinkByName(n.dev)
		if err != nil {
			return err
		}
		peer, err := n.peer.LinkByName(n.pdev)
		if err != nil {
			return err
		}
		if err := setNeighbour(n.ns, dev, n.addr, peer); err != nil {
			return err
		}
	}
	return nil
}

// sysctls makes the node a router and allows many connections: more local ports, and short
// conntrack time-outs of closed connections. All of these parameters are namespaced.
func (l *Testbed) sysctls() error {
	var errs []error
	for _, s := range []struct {
		ns         *netns.NS
		key, value string
	}{
		{l.Node, "net/ipv4/ip_forward", "1"},
		{l.Node, "net/ipv4/conf/all/rp_filter", "0"},
		{l.Node, "net/ipv4/conf/" + NodeIn + "/rp_filter", "0"},
		{l.Node, "net/ipv4/conf/" + NodeOut + "/rp_filter", "0"},
		{l.Client, "net/ipv4/ip_local_port_range", "1024 65535"},
		{l.Node, "net/netfilter/nf_conntrack_tcp_timeout_time_wait", "1"},
		{l.Node, "net/netfilter/nf_conntrack_tcp_timeout_close", "1"},
		{l.Backend, "net/core/somaxconn", "4096"},
	} {
		if err := s.ns.Sysctl(s.key, s.value); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("set %s in %s: %w", s.key, s.ns.Name, err))
		}
	}
	return errors.Join(errs...)
}

// FlushConntrack empties the node's connection table. The whole machine shares one limit, so this
// is done between any two measurements.
func (l *Testbed) FlushConntrack() error {
	if err := l.Node.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("flush connection tracking in %s: %w", l.Node.Name, err)
	}
	return nil
}

func addAddr(ns *netns.NS, dev string, p netip.Prefix) error {
	l, err := ns.LinkByName(dev)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(p.String())
	if err == nil {
		err = ns.AddrAdd(l, a)
	}
	if err != nil {
		return fmt.Errorf("add %s to %s in %s: %w", p, dev, ns.Name, err)
	}
	return nil
}

func addRoute(ns *netns.NS, dev string, to netip.Prefix, via netip.Addr) error {
	l, err := ns.LinkByName(dev)
	if err != nil {
		return err
	}
	dst, err := netlink.ParseIPNet(to.String())
	if err != nil {
		return err
	}
	if err := ns.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("add route to %s in %s: %w", to, ns.Name, err)
	}
	return nil
}

// anyIP makes every address of a prefix local to a namespace.
func anyIP(ns *netns.NS, p netip.Prefix) error {
	lo, err := ns.LinkByName("lo")
	if err != nil {
		return err
	}
	dst, err := netlink.ParseIPNet(p.String())
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
	if err := ns.RouteAdd(r); err != nil {
		return fmt.Errorf("answer for %s in %s: %w", p, ns.Name, err)
	}
	return nil
}

// Track turns connection tracking of forwarded packets on or off. Without a call it depends on what
// is loaded on the node.
func (l *Testbed) Track(on bool) error {
	rule := "add rule ip track prerouting notrack"
	if on {
		rule = "add rule ip track forward ct state invalid drop"
	}
	_, err := l.Node.Run("nft", "add table ip track; delete table ip track; add table ip track; "+
		"add chain ip track prerouting { type filter hook prerouting priority raw; }; "+
		"add chain ip track forward { type filter hook forward priority filter; }; "+rule)
	return err
}
