package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// uplink is a host's interface on the underlay.
const uplink = "eth0"

// NodeNS is the name of a node's (or the outside host's) network namespace.
func (l *Lab) NodeNS(node string) string { return prefix(l.Name) + node }

// PodNS returns the name of a pod's network namespace: its own, or its node's with hostNetwork.
func (l *Lab) PodNS(p *corev1.Pod) string {
	if p.Spec.HostNetwork {
		return l.NodeNS(p.Spec.NodeName)
	}
	return prefix(l.Name) + p.Name + "." + p.Namespace // no node's name has a dot
}

// prefix is the prefix of the names of all namespaces of a lab, and of no other lab's, as lab names
// have no dash.
func prefix(lab string) string { return "sluice-lab-" + lab + "-" }

// buildNetwork makes the underlay, the outside host and the nodes, with all routes between them.
func (l *Lab) buildNetwork(ctx context.Context) error {
	u, err := l.newUnderlay()
	if err != nil {
		return err
	}
	defer u.Close()
	subnets := l.Cluster.Fabric.Subnets()
	for i := range subnets {
		if err := u.addSubnet(i); err != nil {
			return err
		}
	}
	outside, err := u.host(plan.Outside, 0, l.Cluster.OutsideIPs)
	if err != nil {
		return err
	}
	defer outside.Close()
	for _, family := range []string{"ipv4", "ipv6"} { // connections are spread by their ports, too
		if err := outside.Sysctl("net/"+family+"/fib_multipath_hash_policy", "1"); err != nil {
			return fmt.Errorf("have %s spread connections: %w", plan.Outside, err)
		}
	}
	clients := []*netns.NS{outside} // they have routes to the pods
	if l.Kubernetes != nil {
		control, err := u.host(plan.Control, 0, plan.ControlIPs)
		if err != nil {
			return err
		}
		defer control.Close()
		clients = append(clients, control)
	}
	var router *netns.NS
	if subnets > 1 {
		if router, err = u.router(subnets, l.Cluster.OutsideIPs); err != nil {
			return err
		}
		defer router.Close()
		for _, h := range clients {
			if err := routeSubnets(h, subnets); err != nil {
				return err
			}
		}
	}
	if l.Cluster.Fabric == plan.BGP {
		if err := l.startBIRD(); err != nil {
			return err
		}
	}
	for i := range l.Cluster.Nodes {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := &l.Cluster.Nodes[i]
		ns, err := u.host(n.Name, n.Subnet, n.IPs)
		if err != nil {
			return err
		}
		err = l.setUpNode(ns, n, subnets)
		if n.Subnet > 0 && err == nil && l.Cluster.Fabric != plan.BGP {
			err = routePods(router, n, n.IPs)
		}
		for _, from := range clients {
			if err == nil {
				err = routePods(from, n, l.nextHop(n))
			}
		}
		if err := firstError(err, ns.Close()); err != nil {
			return err
		}
	}
	return nil
}

// setUpNode turns a host into a node: it forwards, and reaches everything by the outside host, or
// by the router if that is on another subnet. Without a fabric it reaches the other nodes' pods
// through these nodes.
func (l *Lab) setUpNode(ns *netns.NS, n *plan.Node, subnets int) error {
	if err := forward(ns); err != nil {
		return err
	}
	// A refusal is often an ICMP error. The kernel sends a destination one a second; a lab needs
	// all of them.
	for _, key := range []string{"net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"} {
		if err := ns.Sysctl(key, "0"); err != nil {
			return fmt.Errorf("turn off the limit of ICMP errors in %s: %w", ns.Name, err)
		}
	}
	gateways := l.Cluster.OutsideIPs
	if n.Subnet > 0 {
		gateways = plan.RouterIPs(n.Subnet)
	}
	for _, gw := range gateways {
		if err := route(ns, netip.PrefixFrom(unspecified(gw), 0), gw); err != nil {
			return err
		}
	}
	if n.Subnet == 0 {
		if err := routeSubnets(ns, subnets); err != nil {
			return err
		}
	}
	if l.Cluster.Fabric != "" {
		return nil
	}
	for i := range l.Cluster.Nodes {
		if other := &l.Cluster.Nodes[i]; other.Name != n.Name {
			if err := routePods(ns, other, other.IPs); err != nil {
				return err
			}
		}
	}
	return nil
}

func forward(ns *netns.NS) error {
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := ns.Sysctl(key, "1"); err != nil {
			return fmt.Errorf("let %s forward: %w", ns.Name, err)
		}
	}
	return nil
}

// nextHop is by what a host of the first subnet reaches a node's pods: the node or the router.
func (l *Lab) nextHop(n *plan.Node) []netip.Addr {
	if n.Subnet > 0 || l.Cluster.Fabric == plan.BGP {
		return plan.RouterIPs(0)
	}
	return n.IPs
}

// routePods makes ns reach a node's pods by the addresses of a host, one of each family.
func routePods(ns *netns.NS, n *plan.Node, via []netip.Addr) error {
	for i, cidr := range n.PodCIDRs {
		if err := route(ns, cidr, via[i]); err != nil {
			return err
		}
	}
	return nil
}

// routeSubnets makes a host of the first subnet reach the others by the router.
func routeSubnets(ns *netns.NS, subnets int) error {
	for other := 1; other < subnets; other++ {
		for i, to := range plan.Subnet(other) {
			if err := route(ns, to, plan.RouterIPs(0)[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// underlay is what joins the hosts: a bridge for each subnet.
type underlay struct {
	*netns.NS
	lab     *Lab
	bridges []netlink.Link
}

func (l *Lab) newUnderlay() (*underlay, error) {
	ns, err := newNS(prefix(l.Name) + "underlay")
	return &underlay{NS: ns, lab: l}, err
}

func (u *underlay) addSubnet(i int) error {
	la := netlink.NewLinkAttrs()
	la.Name = fmt.Sprintf("br%d", i)
	br := &netlink.Bridge{LinkAttrs: la}
	if err := u.LinkAdd(br); err != nil {
		return fmt.Errorf("create bridge: %w", err)
	}
	if err := u.LinkSetUp(br); err != nil {
		return fmt.Errorf("bring up bridge: %w", err)
	}
	u.bridges = append(u.bridges, br)
	return nil
}

// host makes a namespace with an interface on a subnet.
func (u *underlay) host(name string, subnet int, ips []netip.Addr) (*netns.NS, error) {
	ns, err := newNS(u.lab.NodeNS(name))
	if err != nil {
		return nil, err
	}
	if err := u.plug(ns, uplink, name, subnet, ips); err != nil {
		return nil, firstError(fmt.Errorf("connect %s: %w", name, err), ns.Close())
	}
	return ns, nil
}

// router makes the host that joins the subnets. Without BGP it knows the way to pods for clients
// outside, and passes nothing from pod to pod, as routers do that were told nothing of pods.
func (u *underlay) router(subnets int, outside []netip.Addr) (*netns.NS, error) {
	ns, err := u.host(plan.Router, 0, plan.RouterIPs(0))
	if err != nil {
		return nil, err
	}
	err = forward(ns)
	for i := 1; i < subnets && err == nil; i++ {
		err = u.plug(ns, fmt.Sprintf("eth%d", i), fmt.Sprintf("%s%d", plan.Router, i), i, plan.RouterIPs(i))
	}
	for i, gw := range outside {
		if err == nil {
			err = route(ns, netip.PrefixFrom(unspecified(gw), 0), gw)
		}
		if err == nil && u.lab.Cluster.Fabric != plan.BGP {
			err = separate(ns, plan.ClusterCIDRs[i])
		}
	}
	if err != nil {
		return nil, firstError(fmt.Errorf("set up the router: %w", err), ns.Close())
	}
	return ns, nil
}

// separate has a router pass nothing from one pod to another.
func separate(router *netns.NS, pods netip.Prefix) error {
	rule := netlink.NewRule()
	rule.Src, rule.Dst, rule.Type = ipNet(pods), ipNet(pods), unix.RTN_UNREACHABLE
	rule.Family, rule.Priority = unix.AF_INET, 1000
	if pods.Addr().Is6() {
		rule.Family = unix.AF_INET6
	}
	return router.RuleAdd(rule)
}

// plug gives a namespace an interface with addresses on a subnet; port is its other end.
func (u *underlay) plug(ns *netns.NS, iface, port string, subnet int, ips []netip.Addr) error {
	if err := netns.Veth(ns, iface, u.NS, port); err != nil {
		return err
	}
	far, err := u.LinkByName(port)
	if err == nil {
		err = u.LinkSetMaster(far, u.bridges[subnet])
	}
	if err != nil {
		return fmt.Errorf("join bridge: %w", err)
	}
	near, err := ns.LinkByName(iface)
	if err != nil {
		return fmt.Errorf("find %s: %w", iface, err)
	}
	for i, ip := range ips {
		addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(ip, plan.Subnet(subnet)[i].Bits()))}
		if ip.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := ns.AddrAdd(near, addr); err != nil {
			return fmt.Errorf("add address %s: %w", ip, err)
		}
	}
	return nil
}

// newNS makes a namespace whose IPv6 addresses work at once: duplicate address detection would
// delay each interface's first packets by a second or two.
func newNS(name string) (*netns.NS, error) {
	ns, err := netns.New(name)
	if err != nil {
		return nil, err
	}
	if err := ns.Sysctl("net/ipv6/conf/default/accept_dad", "0"); err != nil {
		return nil, firstError(fmt.Errorf("turn off duplicate address detection in %s (the lab needs a kernel with IPv6): %w", name, err), ns.Close())
	}
	// A namespace begins with the machine's own value, and machines with Docker forward.
	if err := ns.Sysctl("net/ipv4/ip_forward", "0"); err != nil {
		return nil, firstError(fmt.Errorf("keep %s from forwarding: %w", name, err), ns.Close())
	}
	return ns, nil
}

// route adds a route, or changes an existing one. Connections are spread over several next hops.
func route(ns *netns.NS, to netip.Prefix, via ...netip.Addr) error {
	r := &netlink.Route{Gw: via[0].AsSlice()}
	if len(via) > 1 {
		r.Gw = nil
		for _, v := range via {
			r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{Gw: v.AsSlice()})
		}
	}
	if to.Bits() > 0 {
		r.Dst = ipNet(to)
	}
	if err := ns.RouteReplace(r); err != nil {
		return fmt.Errorf("route %s by %v in %s: %w", to, via, ns.Name, err)
	}
	return nil
}

// routeOutside makes the outside host route service addresses to the nodes that the plan names.
func (l *Lab) routeOutside() error {
	for _, r := range l.Cluster.Routes {
		if err := l.RouteOutside(r.Addr, []string{r.Node}, false); err != nil {
			return err
		}
	}
	return nil
}

// RouteOutside makes the outside host route an address to the first of the nodes, or spread its
// connections over all of them, of which one may be on another subnet; nowhere if there are none.
func (l *Lab) RouteOutside(addr netip.Addr, nodes []string, spread bool) error {
	outside, err := netns.Open(l.NodeNS(plan.Outside))
	if err != nil {
		return err
	}
	defer outside.Close()
	to := netip.PrefixFrom(addr, addr.BitLen())
	var via []netip.Addr
	for _, name := range nodes {
		n := l.Cluster.Node(name)
		if n == nil || len(via) > 0 && (!spread || n.Subnet > 0) {
			continue
		}
		i := slices.IndexFunc(n.IPs, func(a netip.Addr) bool { return a.Is4() == addr.Is4() })
		if i < 0 {
			continue
		}
		if n.Subnet == 0 {
			via = append(via, n.IPs[i])
			continue
		}
		router, err := netns.Open(l.NodeNS(plan.Router))
		if err == nil {
			err = firstError(route(router, to, n.IPs[i]), router.Close())
		}
		if err != nil {
			return err
		}
		via = append(via, plan.RouterIPs(0)[i])
	}
	if len(via) > 0 {
		return route(outside, to, via...)
	}
	err = outside.RouteDel(&netlink.Route{Dst: ipNet(to)})
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove route to %s from %s: %w", to, plan.Outside, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// firstError returns the first error of several: a clean-up may fail after the error that says
// more.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
