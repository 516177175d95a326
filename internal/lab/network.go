package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/lab/plan"
	"sluice.dev/sluice/internal/netns"
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

// host is a machine on the underlay.
type host struct {
	*netns.NS
	ips []netip.Addr
}

// buildNetwork makes the underlay, the outside host and the nodes, with all routes between them.
func (l *Lab) buildNetwork(ctx context.Context) error {
	underlay, err := newNS(prefix(l.Name) + "underlay")
	if err != nil {
		return err
	}
	defer underlay.Close()
	br, err := bridge(underlay)
	if err != nil {
		return err
	}
	join := func(name string, ips []netip.Addr) (*host, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return l.newHost(underlay, br, name, ips)
	}
	outside, err := join(plan.Outside, l.Cluster.OutsideIPs)
	if err != nil {
		return err
	}
	defer outside.Close()
	reach := []*host{outside} // it has routes to the pods
	if l.Kubernetes != nil {
		control, err := join(plan.Control, plan.ControlIPs)
		if err != nil {
			return err
		}
		defer control.Close()
		reach = append(reach, control)
	}
	for _, n := range l.Cluster.Nodes {
		h, err := join(n.Name, n.IPs)
		if err != nil {
			return err
		}
		err = l.setUpNode(h, n)
		for _, from := range reach {
			for i, cidr := range n.PodCIDRs {
				if err == nil {
					err = route(from.NS, cidr, n.IPs[i])
				}
			}
		}
		if err := firstError(err, h.Close()); err != nil {
			return err
		}
	}
	return nil
}

// setUpNode turns a host into a node: it forwards, reaches the other nodes' pods through these
// nodes, and everything else through the outside host.
func (l *Lab) setUpNode(h *host, n plan.Node) error {
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := h.Sysctl(key, "1"); err != nil {
			return fmt.Errorf("let %s forward: %w", h.Name, err)
		}
	}
	// A refusal is often an ICMP error. The kernel sends a destination one a second; a lab needs
	// all of them.
	for _, key := range []string{"net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"} {
		if err := h.Sysctl(key, "0"); err != nil {
			return fmt.Errorf("turn off the limit of ICMP errors in %s: %w", h.Name, err)
		}
	}
	for _, gw := range l.Cluster.OutsideIPs {
		if err := route(h.NS, netip.PrefixFrom(unspecified(gw), 0), gw); err != nil {
			return err
		}
	}
	for _, other := range l.Cluster.Nodes {
		for i, cidr := range other.PodCIDRs {
			if other.Name == n.Name {
				continue
			}
			if err := route(h.NS, cidr, other.IPs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// newHost makes a namespace with an interface on the underlay.
func (l *Lab) newHost(underlay *netns.NS, br netlink.Link, name string, ips []netip.Addr) (*host, error) {
	ns, err := newNS(l.NodeNS(name))
	if err != nil {
		return nil, err
	}
	if err := plug(ns, underlay, br, name, ips); err != nil {
		return nil, firstError(fmt.Errorf("connect %s: %w", name, err), ns.Close())
	}
	return &host{ns, ips}, nil
}

func plug(ns, underlay *netns.NS, br netlink.Link, port string, ips []netip.Addr) error {
	if err := netns.Veth(ns, uplink, underlay, port); err != nil {
		return err
	}
	far, err := underlay.LinkByName(port)
	if err == nil {
		err = underlay.LinkSetMaster(far, br)
	}
	if err != nil {
		return fmt.Errorf("join bridge: %w", err)
	}
	near, err := ns.LinkByName(uplink)
	if err != nil {
		return fmt.Errorf("find %s: %w", uplink, err)
	}
	for i, ip := range ips {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(plan.Underlay[i].Bits(), ip.BitLen())}}
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
	return ns, nil
}

func bridge(ns *netns.NS) (netlink.Link, error) {
	la := netlink.NewLinkAttrs()
	la.Name = "br0"
	br := &netlink.Bridge{LinkAttrs: la}
	if err := ns.LinkAdd(br); err != nil {
		return nil, fmt.Errorf("create bridge: %w", err)
	}
	if err := ns.LinkSetUp(br); err != nil {
		return nil, fmt.Errorf("bring up bridge: %w", err)
	}
	return br, nil
}

// route adds a route, or changes an existing one.
func route(ns *netns.NS, to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{Gw: via.AsSlice()}
	if to.Bits() > 0 {
		r.Dst = &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	}
	if err := ns.RouteReplace(r); err != nil {
		return fmt.Errorf("route %s by %s in %s: %w", to, via, ns.Name, err)
	}
	return nil
}

// routeOutside makes the outside host route service addresses to the nodes that the plan names.
func (l *Lab) routeOutside() error {
	for _, r := range l.Cluster.Routes {
		if err := l.RouteOutside(r.Addr, []string{r.Node}); err != nil {
			return err
		}
	}
	return nil
}

// RouteOutside makes the outside host route an address to the first of the nodes, or nowhere if
// there are none.
func (l *Lab) RouteOutside(addr netip.Addr, nodes []string) error {
	outside, err := netns.Open(l.NodeNS(plan.Outside))
	if err != nil {
		return err
	}
	defer outside.Close()
	to := netip.PrefixFrom(addr, addr.BitLen())
	for _, name := range nodes {
		n := l.Cluster.Node(name)
		if n == nil {
			continue
		}
		for _, ip := range n.IPs {
			if ip.Is4() == addr.Is4() {
				return route(outside, to, ip)
			}
		}
	}
	err = outside.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(to.Bits(), addr.BitLen())}})
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove route to %s from %s: %w", to, plan.Outside, err)
	}
	return nil
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
