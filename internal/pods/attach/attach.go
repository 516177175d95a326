// Package attach gives a pod its network: a veth pair between the pod's namespace and its node's,
// routed and never bridged.
//
// The pod has its addresses as /32 and /128 on eth0 and a default route for each family through a
// link-local gateway that is the same on every node. The node has one host route for each pod
// address. Neighbour entries are permanent on both ends, so that there is no ARP or neighbour
// discovery and no pod can answer for another.
package attach

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/netns"
)

// Interface is the usual name of the interface in a pod.
const Interface = "eth0"

// These are the pod's gateways. The node does not have these addresses: the pod has a permanent
// neighbour entry for each that points at the node's end of the pair.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// Gateway is the pod's gateway for a family.
func Gateway(is4 bool) netip.Addr {
	if is4 {
		return gateway4
	}
	return gateway6
}

// HostInterface is the name of the node's end of a container's pair: the same for the same
// container and interface, and within the kernel's 15 characters. It is not of the pod: a runtime
// may take away a container of a pod late, when the pod has another one.
func HostInterface(container, inside string) string {
	sum := sha256.Sum256([]byte(container + "/" + inside))
	return "veth" + hex.EncodeToString(sum[:5])
}

// Pair is a veth pair that is to join a pod to its node.
type Pair struct {
	Host, Inside string // the names of the node's end and of the pod's
	Addresses    []netip.Addr

	Alias  string           // what people are told of the node's end
	Group  uint32           // that the node's end is in, as `ip link show group` lists it
	Limits                  // of both ends; 0: the kernel's default
	MAC    net.HardwareAddr // of the pod's end; nil: any
	// Routes are the pod's beside its default routes. Join has all of them lead to the node.
	Routes []*Route

	// Admit, if set, is called when the node's end is up with its routes, and before the pod's end
	// is: until it returns, no packet passes. Its error undoes everything.
	Admit func(device int) error
}

// Route is a route of a pod, and Scope how far it leads.
type (
	Route = netlink.Route
	Scope = netlink.Scope
)

// End is one end of a pair.
type End struct {
	Name string
	MAC  string
	MTU  int
}

func endOf(l *netlink.LinkAttrs) End { return End{l.Name, l.HardwareAddr.String(), l.MTU} }

// Join joins a pod's namespace to its node's, and returns the node's end and the pod's. From then
// on the addresses belong to the pod. If it fails, nothing remains. It fails where an address is
// another pod's: it never takes a route over.
func Join(node, pod *netns.NS, p Pair) (host, inside End, err error) {
	outer, inner, err := p.make(node, pod)
	if err != nil {
		return End{}, End{}, err
	}
	if err := p.configure(node, outer, pod, inner); err != nil {
		_ = Detach(node, p.Host) // the first error says why
		return End{}, End{}, fmt.Errorf("attach %s to %s: %w", pod.Name, node.Name, err)
	}
	return endOf(outer), endOf(inner), nil
}

// make makes the pair, with the pod's end in the pod's namespace from the beginning.
func (p *Pair) make(node, pod *netns.NS) (outer, inner *netlink.LinkAttrs, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Group, attrs.MTU, attrs.HardwareAddr = p.Host, p.Group, p.MTU, randomMAC()
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: p.Inside, PeerNamespace: netlink.NsFd(pod.Fd()), PeerHardwareAddr: p.MAC}
	if p.MAC == nil {
		pair.PeerHardwareAddr = randomMAC()
	}
	if err := node.LinkAdd(pair); err != nil {
		return nil, nil, fmt.Errorf("create veth %s/%s - %s/%s: %w", node.Name, p.Host, pod.Name, p.Inside, err)
	}
	host, err := node.LinkByIndex(pair.Index)
	if err == nil && p.Alias != "" {
		err = node.LinkSetAlias(host, p.Alias)
	}
	var inside netlink.Link
	if err == nil {
		inside, err = pod.LinkByName(p.Inside)
	}
	if err != nil {
		_ = Detach(node, p.Host) // the first error says why
		return nil, nil, fmt.Errorf("find the ends of %s: %w", p.Host, err)
	}
	if p.TCP4 > usualTCP4 { // without it, bulk costs more
		_ = errors.Join(node.LinkSetGSOIPv4MaxSize(host, p.TCP4), pod.LinkSetGSOIPv4MaxSize(inside, p.TCP4))
	}
	return host.Attrs(), inside.Attrs(), nil
}

// usualTCP4 is what the kernel makes of streams at most where nobody has asked for more.
const usualTCP4 = 1 << 16

// randomMAC is an address like those that the kernel chooses. An address that the kernel has chosen
// is replaced by udev a moment later (MACAddressPolicy=persistent in systemd's 99-default.link),
// and neighbour entries made in between would lead nowhere.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac)  // never fails
	mac[0] = mac[0]&^1 | 2 // of one interface, and of no maker's
	return mac
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

func (p *Pair) configure(node *netns.NS, outer *netlink.LinkAttrs, pod *netns.NS, inner *netlink.LinkAttrs) error {
	// A pod that says that it is a router does not get the node's packets.
	if err := setIPv6(node, outer.Name, "accept_ra", "0"); err != nil {
		return err
	}
	if err := p.allowIPv6(node, outer); err != nil {
		return err
	}
	if err := up(node, outer); err != nil {
		return err
	}
	for _, a := range p.Addresses {
		if err := neighbour(node, outer, a, inner); err != nil {
			return err
		}
		if err := node.RouteAdd(hostRoute(outer.Index, a)); err != nil {
			return fmt.Errorf("route %s: %w", a, err)
		}
	}
	if p.Admit != nil {
		if err := p.Admit(outer.Index); err != nil {
			return err
		}
	}
	return p.furnish(node, outer, pod, inner)
}

// furnish gives the pod's end what it needs. The routes come last, so that the first packet that
// the pod can send has an address and a way back.
func (p *Pair) furnish(node *netns.NS, outer *netlink.LinkAttrs, pod *netns.NS, inner *netlink.LinkAttrs) error {
	if err := p.allowIPv6(pod, inner); err != nil {
		return err
	}
	if err := up(pod, inner); err != nil {
		return err
	}
	for _, a := range p.Addresses {
		if err := address(pod, inner, a); err != nil {
			return err
		}
	}
	if err := running(node, outer); err != nil {
		return err
	}
	for _, gw := range []netip.Addr{gateway4, gateway6} {
		if !slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return a.Is4() == gw.Is4() }) {
			continue
		}
		if err := gateway(pod, inner, gw, outer); err != nil {
			return err
		}
	}
	for _, r := range p.Routes {
		r.LinkIndex, r.Gw, r.Flags = inner.Index, Gateway(r.Dst.IP.To4() != nil).AsSlice(), int(netlink.FLAG_ONLINK)
		if err := pod.RouteAdd(r); err != nil {
			return fmt.Errorf("route %s: %w", r.Dst, err)
		}
	}
	return nil
}

func hostRoute(device int, a netip.Addr) *netlink.Route {
	return &netlink.Route{LinkIndex: device, Dst: hostNet(a), Scope: netlink.SCOPE_LINK}
}

// Reroute puts the node's route to an address of a pod back, and reports whether it did. It changes
// no route that is there, and makes none by an interface that is down or gone.
func Reroute(node *netns.NS, device int, a netip.Addr) (bool, error) {
	switch err := node.RouteAdd(hostRoute(device, a)); {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENODEV):
		return false, nil
	case errors.Is(err, unix.EACCES):
		return false, fmt.Errorf("route %s: IPv6 is off on the interface, set its disable_ipv6 to 0 (net.ipv6.conf): %w", a, err)
	default:
		return false, fmt.Errorf("route %s: %w", a, err)
	}
}

func up(ns *netns.NS, link *netlink.LinkAttrs) error {
	if err := ns.LinkSetUp(&netlink.Device{LinkAttrs: *link}); err != nil {
		return fmt.Errorf("bring up %s in %s: %w", link.Name, ns.Name, err)
	}
	return nil
}

// running waits until the node's end sends, which it does a moment after the pod's end is up.
func running(node *netns.NS, outer *netlink.LinkAttrs) error {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		link, err := node.LinkByIndex(outer.Index)
		switch {
		case err != nil:
			return fmt.Errorf("find %s: %w", outer.Name, err)
		case link.Attrs().OperState == netlink.OperUp:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%s does not come up: it is %s", outer.Name, link.Attrs().OperState)
		}
	}
}

// allowIPv6 has an end take addresses of IPv6 if the pod has one: some runtimes make namespaces
// where new interfaces do not, and some nodes are hardened so.
func (p *Pair) allowIPv6(ns *netns.NS, link *netlink.LinkAttrs) error {
	if !slices.ContainsFunc(p.Addresses, netip.Addr.Is6) {
		return nil
	}
	return setIPv6(ns, link.Name, "disable_ipv6", "0")
}

// setIPv6 sets a parameter of an interface, if the kernel has IPv6.
func setIPv6(ns *netns.NS, link, parameter, value string) error {
	return ns.Do(func() error {
		key := "/proc/sys/net/ipv6/conf/" + link + "/" + parameter
		now, err := os.ReadFile(key)
		if errors.Is(err, os.ErrNotExist) || string(now) == value+"\n" {
			return nil // without IPv6, assigning an address says so
		}
		if err := errors.Join(err, os.WriteFile(key, []byte(value), 0)); err != nil {
			return fmt.Errorf("set %s of %s: %w", parameter, link, err)
		}
		return nil
	})
}

// address assigns an address to a pod. There is no duplicate address detection: one authority
// assigned the address, and a pod should not wait a second before its first packet.
func address(pod *netns.NS, link *netlink.LinkAttrs, a netip.Addr) error {
	addr := &netlink.Addr{IPNet: hostNet(a)}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := pod.AddrReplace(&netlink.Device{LinkAttrs: *link}, addr); err != nil {
		return fmt.Errorf("add address %s: %w", a, err)
	}
	return nil
}

// gateway makes gw, which is the far end of the pair, the pod's default route, unless another
// interface of the pod has that. It has a route of its own beside, by each interface, so that
// others can add routes by it without knowing that it is on the link: VPN side-cars, and the
// plugins sbr and route-override. (IPv6 has one for all link-local addresses.)
func gateway(pod *netns.NS, link *netlink.LinkAttrs, gw netip.Addr, far *netlink.LinkAttrs) error {
	if err := neighbour(pod, link, gw, far); err != nil {
		return err
	}
	if gw.Is4() {
		r := &netlink.Route{LinkIndex: link.Index, Dst: hostNet(gw), Scope: netlink.SCOPE_LINK, Priority: link.Index} // which is another's nowhere
		if err := pod.RouteAdd(r); err != nil {
			return fmt.Errorf("add route to %s: %w", gw, err)
		}
	}
	r := &netlink.Route{LinkIndex: link.Index, Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
	if err := pod.RouteAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add default route by %s: %w", gw, err)
	}
	return nil
}

// neighbour sets a permanent neighbour entry in ns: a is at far's hardware address behind link.
func neighbour(ns *netns.NS, link *netlink.LinkAttrs, a netip.Addr, far *netlink.LinkAttrs) error {
	err := ns.NeighSet(&netlink.Neigh{
		LinkIndex: link.Index, Family: familyOf(a), State: netlink.NUD_PERMANENT,
		IP: a.AsSlice(), HardwareAddr: far.HardwareAddr,
	})
	if err != nil {
		return fmt.Errorf("add neighbour %s: %w", a, err)
	}
	return nil
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
