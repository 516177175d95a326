package drivertest

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/netns"
)

// AddBridge adds a bridge to the node, with the first address of each subnet, and behind it a pod
// with one address in each. Both are removed with the mesh.
func (m *Mesh) AddBridge(t testing.TB, bridge, pod string, subnets [2]netip.Prefix, addrs [2]netip.Addr) {
	t.Helper()
	h, err := m.topology.host(t, pod, "node", false)
	if err == nil {
		err = m.addBridge(bridge, h, subnets, addrs)
	}
	if err != nil {
		t.Fatalf("add a bridge: %v", err)
	}
}

func (m *Mesh) addBridge(bridge string, h *host, subnets [2]netip.Prefix, addrs [2]netip.Addr) error {
	if err := m.Node.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}); err != nil {
		return fmt.Errorf("add %s: %w", bridge, err)
	}
	br, err := m.Node.LinkByName(bridge)
	if err != nil {
		return err
	}
	if err := netns.Veth(m.Node, "port-"+h.name, h.ns, "eth0"); err != nil {
		return err
	}
	port, err := m.Node.LinkByName("port-" + h.name)
	if err != nil {
		return err
	}
	lower, err := h.ns.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := errors.Join(m.Node.LinkSetMaster(port, br), m.Node.LinkSetUp(br)); err != nil {
		return fmt.Errorf("join %s: %w", bridge, err)
	}
	if br, err = m.Node.LinkByName(bridge); err != nil { // it has its port's hardware address now
		return err
	}
	for i, s := range subnets {
		gateway := s.Addr().Next()
		own := func(a netip.Addr, bits int) *netlink.Addr {
			return &netlink.Addr{IPNet: ipnet(netip.PrefixFrom(a, bits)), Flags: unix.IFA_F_NODAD}
		}
		if err := errors.Join(m.Node.AddrAdd(br, own(gateway, s.Bits())), h.ns.AddrAdd(lower, own(addrs[i], s.Addr().BitLen()))); err != nil {
			return fmt.Errorf("add addresses of %v: %w", s, err)
		}
		if err := errors.Join(fixNeighbour(m.Node, br, lower, addrs[i]), defaultRoute(h.ns, lower, br, gateway, addrs[i])); err != nil {
			return err
		}
	}
	m.topology.name(h, []dual{addrs})
	for _, a := range addrs {
		err := h.ns.Do(func() (err error) {
			m.probes[a], err = openProbe(a)
			return err
		})
		if err != nil {
			return fmt.Errorf("open the probe of %s: %w", h.name, err)
		}
	}
	return nil
}
