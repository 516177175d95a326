package drivertest

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/upkeep"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// family picks one of the two addresses that every name of the table has.
type family int

// These are the families, in the order in which the table writes a name's addresses.
const (
	ipv4 family = iota
	ipv6
)

// String returns "IPv4" or "IPv6".
func (f family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

// dual is an address in both families.
type dual [2]netip.Addr

func both(v4, v6 string) dual { return dual{netip.MustParseAddr(v4), netip.MustParseAddr(v6)} }

// These are the prefixes of the cluster: of its pods, of the pods on the node under test and on the
// other node, of its services, and of the addresses that the world outside routes to the node under
// test.
var (
	clusterCIDRs  = prefixes("10.244.0.0/16", "fd00:10:244::/48")
	nodePodCIDRs  = prefixes("10.244.1.0/24", "fd00:10:244:1::/64")
	otherPodCIDRs = prefixes("10.244.2.0/24", "fd00:10:244:2::/64")
	serviceCIDRs  = prefixes("10.96.0.0/16", "fd00:10:96::/112")
	externalCIDRs = prefixes("203.0.113.0/24", "2001:db8:113::/64")
)

func prefixes(s ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(s))
	for i := range s {
		out[i] = netip.MustParsePrefix(s[i])
	}
	return out
}

// gateway is the address of every host's next hop: all links are point to point, with host routes,
// so that no neighbour has to be resolved.
var gateway = both("169.254.1.1", "fe80::1")

// metric is the metric of the topology's routes; overriding routes have a lower one.
const metric = 2048

// mostClients is how many addresses the pod m has.
const mostClients = 24

// A host is one network namespace with its listeners.
type host struct {
	name string
	ns   *netns.NS
	node string // its cluster node, or the node that it is; "" outside the cluster

	arrivals *arrivals // of the whole topology
	mu       sync.Mutex
	servers  map[string]*server
}

// topology is the small network in which the packets travel:
//
//	a b c m1…m24 ── node ── wire ── remote ── x y
//	                          └── outside
//
// node is the node under test, where the driver is opened; a, b, c and m (which has 24 addresses)
// are its pods, x and y those of another node, outside is a client beyond the cluster with two
// addresses. Every host, address and service address has a name, and an address in each family.
type topology struct {
	node, wire *netns.NS

	hosts map[string]*host
	addrs map[string]dual
	owner map[netip.Addr]*host

	arrivals arrivals
	foreign  *foreign
	left     *upkeep.Driver // by a row, for the next one that shares it
	shared   *cluster       // which the driver that is left serves
	joined   int            // rows that took over a driver
}

// topologies are lent to subtests, one to each of those that run side by side. They are built when
// there is none that nobody has, and removed when the parent ends.
type topologies struct {
	parent testing.TB
	mu     sync.Mutex
	free   []*topology
}

// lend returns a topology that the test alone has until it ends.
func (l *topologies) lend(t testing.TB) *topology {
	t.Helper()
	w := l.take()
	if w == nil {
		w = newTopology(l.parent)
		l.parent.Cleanup(func() { w.end(l.parent) })
	}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.free = append(l.free, w)
	})
	return w
}

func (l *topologies) take() (w *topology) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.free) - 1; last >= 0 {
		w, l.free = l.free[last], l.free[:last]
	}
	return w
}

// newTopology builds the network, and removes it when the test ends.
func newTopology(t testing.TB) *topology {
	t.Helper()
	w := &topology{hosts: map[string]*host{}, addrs: serviceAddrs(), owner: map[netip.Addr]*host{}}
	if err := w.build(t); err != nil {
		t.Fatalf("build the topology: %v", err)
	}
	w.foreign = setForeign(t, w)
	return w
}

// serviceAddrs are the names of addresses that no host has.
func serviceAddrs() map[string]dual {
	return map[string]dual{
		"vip":         both("10.96.0.10", "fd00:10:96::10"),
		"vip2":        both("10.96.0.11", "fd00:10:96::11"),
		"vip3":        both("10.96.0.12", "fd00:10:96::12"),
		"unallocated": both("10.96.200.1", "fd00:10:96::c801"),
		"lb":          both("203.0.113.10", "2001:db8:113::10"),
		"ext":         both("203.0.113.20", "2001:db8:113::20"),
	}
}

func (w *topology) build(t testing.TB) error {
	wire, err := w.host(t, "wire", "", true)
	if err != nil {
		return err
	}
	type spec struct {
		name, node string
		up         string // the host it is attached to
		addrs      []dual
		routes     []netip.Prefix // what its upper host routes to it, beside its own addresses
	}
	pod := func(name, node, up string, subnet int, ids ...int) spec {
		s := spec{name: name, node: node, up: up}
		for _, id := range ids {
			s.addrs = append(s.addrs, both(fmt.Sprintf("10.244.%d.%d", subnet, id), fmt.Sprintf("fd00:10:244:%d::%d", subnet, id)))
		}
		return s
	}
	many := make([]int, mostClients)
	for i := range many {
		many[i] = 101 + i
	}
	specs := []spec{
		{"node", "node", "wire", []dual{both("192.168.1.1", "fd00:192:168:1::1"), both("192.168.1.129", "fd00:192:168:1::129")},
			slices.Concat(nodePodCIDRs, serviceCIDRs, externalCIDRs)},
		{"remote", "remote", "wire", []dual{both("192.168.2.1", "fd00:192:168:2::1")}, otherPodCIDRs},
		{"outside", "", "wire", []dual{both("192.168.3.1", "fd00:192:168:3::1"), both("192.168.3.2", "fd00:192:168:3::2")}, nil},
		pod("a", "node", "node", 1, 11), pod("b", "node", "node", 1, 12), pod("c", "node", "node", 1, 13),
		pod("m", "node", "node", 1, many...),
		pod("x", "remote", "remote", 2, 21), pod("y", "remote", "remote", 2, 22),
	}
	for _, s := range specs {
		h, err := w.host(t, s.name, s.node, s.up == "wire")
		if err != nil {
			return err
		}
		if err := attach(w.hosts[s.up].ns, s.up == "wire", h.ns, s.name, s.addrs, s.routes); err != nil {
			return err
		}
		w.name(h, s.addrs)
	}
	w.node, w.wire = w.hosts["node"].ns, wire.ns
	return nil
}

// host creates one namespace.
func (w *topology) host(t testing.TB, name, node string, forward bool) (*host, error) {
	t.Helper()
	ns := world.NewHost(t, name).NS
	h := &host{name: name, ns: ns, node: node, arrivals: &w.arrivals, servers: map[string]*server{}}
	w.hosts[name] = h
	t.Cleanup(h.close)
	return h, tune(ns, forward)
}

// tune sets the namespace's own sysctls: no redirects, and no rate limit on ICMP errors, so that
// every refusal is seen.
func tune(ns *netns.NS, forward bool) error {
	on := "0"
	if forward {
		on = "1"
	}
	demux := "1"
	if old, err := misdirects(); err != nil {
		return err
	} else if old {
		demux = "0"
	}
	for _, kv := range [][2]string{
		{"net/ipv4/ip_early_demux", demux},
		{"net/ipv4/ip_forward", on},
		{"net/ipv6/conf/all/forwarding", on},
		{"net/ipv4/conf/all/rp_filter", "0"}, {"net/ipv4/conf/default/rp_filter", "0"},
		{"net/ipv4/conf/all/send_redirects", "0"}, {"net/ipv4/conf/default/send_redirects", "0"},
		{"net/ipv6/conf/all/accept_redirects", "0"}, {"net/ipv6/conf/default/accept_redirects", "0"},
		{"net/ipv6/conf/default/accept_ra", "0"}, {"net/ipv6/conf/default/router_solicitations", "0"},
		{"net/ipv4/icmp_ratemask", "0"}, {"net/ipv6/icmp/ratelimit", "0"},
	} {
		if err := ns.Sysctl(kv[0], kv[1]); err != nil {
			return fmt.Errorf("set %s in %s: %w", kv[0], ns.Name, err)
		}
	}
	return nil
}

// misdirects reports whether this is Linux 6.1. Over IPv6, it looks for a packet's socket before it
// translates the packet's source back, and so finds that of a connection of the node to the
// endpoint itself, if the one to the service has the same source port. Linux 6.12 does not.
func misdirects() (bool, error) {
	var u unix.Utsname
	err := unix.Uname(&u)
	return strings.HasPrefix(unix.ByteSliceToString(u.Release[:]), "6.1."), err
}

// name registers the names of the host's addresses: "node" and "node2", "m1" to "m24", "a".
func (w *topology) name(h *host, addrs []dual) {
	for i, d := range addrs {
		name := h.name
		if i > 0 || h.name == "m" {
			name = fmt.Sprint(h.name, i+1)
		}
		w.addrs[name] = d
		for _, a := range d {
			w.owner[a] = h
		}
	}
}

// attach joins low to up with a veth pair: low's default route leads to up, and up routes low's
// addresses to it. What up itself sends there has up's own first address as its source, unless up
// is the wire, which has none.
func attach(up *netns.NS, bare bool, low *netns.NS, name string, addrs []dual, routes []netip.Prefix) error {
	if err := netns.Veth(up, "to-"+name, low, "eth0"); err != nil {
		return err
	}
	upper, err := up.LinkByName("to-" + name)
	if err != nil {
		return err
	}
	lower, err := low.LinkByName("eth0")
	if err != nil {
		return err
	}
	var own []*net.IPNet
	for _, d := range addrs {
		for _, a := range d {
			own = append(own, ipnet(netip.PrefixFrom(a, a.BitLen())))
		}
	}
	for i, a := range own {
		addr := &netlink.Addr{IPNet: a, Flags: unix.IFA_F_NODAD}
		if i >= len(dual{}) { // deprecated: valid, but never chosen as a source by the kernel
			addr.ValidLft = math.MaxUint32
		}
		if err := low.AddrAdd(lower, addr); err != nil {
			return fmt.Errorf("add address %s in %s: %w", a, low.Name, err)
		}
		if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Is6() {
			if err := low.Own(ip); err != nil {
				return fmt.Errorf("add address %s in %s: %w", a, low.Name, err)
			}
		}
	}
	for f, gw := range gateway {
		if err := up.AddrAdd(upper, &netlink.Addr{IPNet: ipnet(netip.PrefixFrom(gw, gw.BitLen())), Scope: unix.RT_SCOPE_LINK, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add gateway %s in %s: %w", gw, up.Name, err)
		}
		if err := defaultRoute(low, lower, upper, gw, addrs[0][f]); err != nil {
			return err
		}
	}
	for _, p := range routes {
		own = append(own, ipnet(p))
	}
	return routeDown(up, upper, lower, own, addrs[0], bare)
}

func defaultRoute(low *netns.NS, dev, far netlink.Link, gw, src netip.Addr) error {
	if err := fixNeighbour(low, dev, far, gw); err != nil {
		return err
	}
	all := netip.PrefixFrom(gw, 0).Masked()
	r := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: ipnet(all), Gw: gw.AsSlice(), Src: src.AsSlice(), Flags: unix.RTNH_F_ONLINK}
	if err := low.RouteAdd(r); err != nil {
		return fmt.Errorf("add default route in %s: %w", low.Name, err)
	}
	return nil
}

// fixNeighbour sets a as the neighbour at the far end of dev, so that no first packet has to wait
// for its resolution.
func fixNeighbour(ns *netns.NS, dev, far netlink.Link, a netip.Addr) error {
	n := &netlink.Neigh{LinkIndex: dev.Attrs().Index, IP: a.AsSlice(), HardwareAddr: far.Attrs().HardwareAddr, State: netlink.NUD_PERMANENT, Family: socketFamily(a)}
	if err := ns.NeighSet(n); err != nil {
		return fmt.Errorf("set neighbour %s in %s: %w", a, ns.Name, err)
	}
	return nil
}

// routeDown routes dsts to the far end of dev. The destinations are not on the link, so each route
// goes through the first address of the far end.
func routeDown(up *netns.NS, dev, far netlink.Link, dsts []*net.IPNet, via dual, bare bool) error {
	for _, a := range via {
		if err := fixNeighbour(up, dev, far, a); err != nil {
			return err
		}
	}
	var src dual
	if !bare {
		var err error
		if src, err = firstAddrs(up); err != nil {
			return err
		}
	}
	for _, d := range dsts {
		hop := via[0]
		f := ipv4
		if d.IP.To4() == nil {
			hop, f = via[1], ipv6
		}
		r := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: d, Gw: hop.AsSlice(), Flags: unix.RTNH_F_ONLINK, Priority: metric}
		if addr, _ := netip.AddrFromSlice(d.IP); addr.Unmap() == hop {
			r.Gw, r.Flags, r.Scope = nil, 0, unix.RT_SCOPE_LINK
		}
		if src[f].IsValid() {
			r.Src = src[f].AsSlice()
		}
		if err := up.RouteAdd(r); err != nil {
			return fmt.Errorf("add route %s in %s: %w", d, up.Name, err)
		}
	}
	return nil
}

// firstAddrs returns the addresses of a host's eth0 that the host's own packets have as source.
func firstAddrs(ns *netns.NS) (d dual, err error) {
	l, err := ns.LinkByName("eth0")
	if err != nil {
		return d, fmt.Errorf("find eth0 in %s: %w", ns.Name, err)
	}
	for f, nf := range []int{unix.AF_INET, unix.AF_INET6} {
		rs, err := ns.RouteList(l, nf)
		if err != nil {
			return d, fmt.Errorf("list routes in %s: %w", ns.Name, err)
		}
		for _, r := range rs {
			if a, ok := netip.AddrFromSlice(r.Src); ok && r.Gw != nil {
				d[f] = a.Unmap()
			}
		}
	}
	return d, nil
}

func ipnet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func socketFamily(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// addr returns the address of a name in family f. A suffix 4 or 6 after a slash chooses the family:
// "vip/6".
func (w *topology) addr(name string, f family) netip.Addr {
	base, chosen, ok := strings.Cut(name, "/")
	if ok {
		f = map[string]family{"4": ipv4, "6": ipv6}[chosen]
	}
	d, known := w.addrs[base]
	if !known {
		panic("drivertest: no address is named " + name)
	}
	return d[f]
}

// nameOf is the reverse of addr, for messages.
func (w *topology) nameOf(a netip.Addr) string {
	for name, d := range w.addrs {
		if d[0] == a || d[1] == a {
			return name
		}
	}
	return a.String()
}

// hostOf returns the host that has the named address.
func (w *topology) hostOf(name string) *host {
	base, _, _ := strings.Cut(name, "/")
	d, ok := w.addrs[base]
	if !ok || w.owner[d[0]] == nil {
		panic("drivertest: no host is named " + name)
	}
	return w.owner[d[0]]
}
