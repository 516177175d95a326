// Package attach gives a pod its network: a veth pair between the pod's namespace and its node's,
// routed and never bridged.
//
// The pod has its addresses as /32 and /128 on eth0 and a default route for each family through a
// link-local gateway that is the same on every node. The node has one host route for each pod
// address. Neighbour entries are permanent on both ends, so that there is no ARP or neighbour
// discovery and no pod can answer for another.
package attach

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/netns"
)

// Interface is the usual name of the interface inside a pod.
const Interface = "eth0"

// These are the pod's gateways. The node does not have these addresses: the pod has a permanent
// neighbour entry for each that points at the node's end of the pair.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// HostInterface is the name of a pod's interface on its node: the same for the same pod, and within
// the kernel's 15 characters.
func HostInterface(namespace, pod string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + pod))
	return "veth" + hex.EncodeToString(sum[:5])
}

// Pod joins a pod's namespace to its node's; host names the node's end of the pair, inside the
// pod's. From then on the addresses belong to the pod. If it fails, nothing remains.
func Pod(node *netns.NS, host string, pod *netns.NS, inside string, addrs []netip.Addr) error {
	if err := netns.Veth(node, host, pod, inside); err != nil {
		return err
	}
	if err := configure(node, host, pod, inside, addrs); err != nil {
		_ = Detach(node, host) // the first error says why
		return fmt.Errorf("attach %s to %s: %w", pod.Name, node.Name, err)
	}
	return nil
}

// Detach removes a pod's interface, at both ends, with its routes. Detaching what is not attached
// succeeds.
func Detach(node *netns.NS, host string) error {
	link, err := node.LinkByName(host)
	if _, gone := err.(netlink.LinkNotFoundError); gone {
		return nil
	}
	if err == nil {
		err = node.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("detach %s from %s: %w", host, node.Name, err)
	}
	return nil
}

func configure(node *netns.NS, host string, pod *netns.NS, inside string, addrs []netip.Addr) error {
	outer, err := node.LinkByName(host)
	if err != nil {
		return fmt.Errorf("find %s: %w", host, err)
	}
	inner, err := pod.LinkByName(inside)
	if err != nil {
		return fmt.Errorf("find %s: %w", inside, err)
	}
	var has4, has6 bool
	for _, a := range addrs {
		has4, has6 = has4 || a.Is4(), has6 || a.Is6()
		if err := address(pod, inner, a); err != nil {
			return err
		}
		if err := neighbour(node, outer, a, inner); err != nil {
			return err
		}
		r := &netlink.Route{LinkIndex: outer.Attrs().Index, Dst: hostNet(a), Scope: netlink.SCOPE_LINK}
		if err := node.RouteReplace(r); err != nil {
			return fmt.Errorf("route %s: %w", a, err)
		}
	}
	if has4 {
		if err := gateway(pod, inner, gateway4, outer); err != nil {
			return err
		}
	}
	if has6 {
		return gateway(pod, inner, gateway6, outer)
	}
	return nil
}

// address assigns an address to a pod. There is no duplicate address detection: one authority
// assigned the address, and a pod should not wait a second before its first packet.
func address(pod *netns.NS, link netlink.Link, a netip.Addr) error {
	addr := &netlink.Addr{IPNet: hostNet(a)}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := pod.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("add address %s: %w", a, err)
	}
	return nil
}

// gateway makes gw, which is the far end of the pair, the pod's default route.
func gateway(pod *netns.NS, link netlink.Link, gw netip.Addr, far netlink.Link) error {
	if err := neighbour(pod, link, gw, far); err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
	if err := pod.RouteReplace(r); err != nil {
		return fmt.Errorf("add default route by %s: %w", gw, err)
	}
	return nil
}

// neighbour sets a permanent neighbour entry in ns: a is at far's hardware address behind link.
func neighbour(ns *netns.NS, link netlink.Link, a netip.Addr, far netlink.Link) error {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	err := ns.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT,
		IP: a.AsSlice(), HardwareAddr: far.Attrs().HardwareAddr,
	})
	if err != nil {
		return fmt.Errorf("add neighbour %s: %w", a, err)
	}
	return nil
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
