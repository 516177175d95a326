package testbed

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/netns"
)

// gateway is the pods' default gateway. No device has it; the node's end of the pair answers for
// it.
var gateway = netip.MustParseAddr("169.254.1.1")

// NewPods builds a node with so many pods (two at least), as a CNI that routes them does: a veth
// pair and a host route for each. Client is the first and Backend the second, behind NodeIn and
// NodeOut; the other pods are devices that nothing answers behind.
func NewPods(prefix string, pods int) (*Testbed, error) {
	l, err := newTestbed(prefix, "pods")
	if err != nil {
		return nil, err
	}
	if err := l.wirePods(pods); err != nil {
		return nil, errors.Join(fmt.Errorf("build node with pods %s: %w", prefix, err), l.Close())
	}
	return l, nil
}

// Outside has the client of a node with pods be no pod, but the host with this address, behind an
// interface of the node's own.
func (l *Testbed) Outside(a netip.Addr) error {
	if err := errors.Join(addAddr(l.Node, NodeIn, netip.MustParsePrefix("172.16.0.1/24")), link(l.Node, NodeIn, a, l.Client, Uplink)); err != nil {
		return err
	}
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
	return l.Client.RouteReplace(&netlink.Route{LinkIndex: dev.Attrs().Index, Dst: everything, Gw: gateway.AsSlice(), Src: a.AsSlice()})
}

func (l *Testbed) wirePods(pods int) error {
	for i := range pods {
		ns, far, near := l.rest, fmt.Sprintf("pod%d", i), fmt.Sprintf("pod%d", i)
		switch i {
		case 0:
			ns, far, near = l.Client, Uplink, NodeIn
		case 1:
			ns, far, near = l.Backend, Uplink, NodeOut
		}
		if err := netns.Veth(ns, far, l.Node, near); err != nil {
			return err
		}
		addr := cluster.PodAddr(i, pods)
		if err := link(l.Node, near, addr, ns, far); err != nil {
			return err
		}
		if ns == l.rest {
			continue
		}
		err := errors.Join(
			addAddr(ns, far, netip.PrefixFrom(addr, addr.BitLen())),
			link(ns, far, gateway, l.Node, near),
			addRoute(ns, far, netip.MustParsePrefix("0.0.0.0/0"), gateway))
		if err != nil {
			return err
		}
	}
	lo, err := l.Node.LinkByName("lo")
	if err == nil {
		err = l.Node.LinkSetUp(lo)
	}
	return errors.Join(err, addAddr(l.Node, "lo", netip.PrefixFrom(cluster.NodeAddr, 32)), l.sysctls())
}

// link adds a route and a permanent neighbour entry for an address at the other end of a veth pair.
func link(ns *netns.NS, dev string, addr netip.Addr, other *netns.NS, otherDev string) error {
	near, err := ns.LinkByName(dev)
	if err != nil {
		return err
	}
	far, err := other.LinkByName(otherDev)
	if err != nil {
		return err
	}
	dst, err := netlink.ParseIPNet(netip.PrefixFrom(addr, addr.BitLen()).String())
	if err != nil {
		return err
	}
	if err := ns.RouteAdd(&netlink.Route{LinkIndex: near.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("add route to %s in %s: %w", addr, ns.Name, err)
	}
	return setNeighbour(ns, near, addr, far)
}

func setNeighbour(ns *netns.NS, dev netlink.Link, addr netip.Addr, far netlink.Link) error {
	err := ns.NeighSet(&netlink.Neigh{
		LinkIndex: dev.Attrs().Index, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: far.Attrs().HardwareAddr,
	})
	if err != nil {
		return fmt.Errorf("set neighbour %s in %s: %w", addr, ns.Name, err)
	}
	return nil
}
