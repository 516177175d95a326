package drivertest

import (
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/netns"
)

// bind assigns the named addresses to the node for the duration of the row, as failover of load
// balancer addresses between nodes does. The node never chooses them as a source by itself.
func (r *run) bind(t *testing.T, names string) {
	t.Helper()
	link, err := r.node.LinkByName("eth0")
	if err != nil {
		t.Fatalf("find eth0: %v", err)
	}
	for name := range strings.FieldsSeq(names) {
		a := r.addr(name, r.family)
		addr := &netlink.Addr{IPNet: ipnet(netip.PrefixFrom(a, a.BitLen())), Flags: unix.IFA_F_NODAD, ValidLft: math.MaxUint32}
		if err := r.node.AddrAdd(link, addr); err != nil {
			t.Fatalf("bind %s on the node: %v", name, err)
		}
		t.Cleanup(func() {
			if err := r.node.AddrDel(link, addr); err != nil {
				t.Errorf("release %s: %v", name, err)
			}
		})
	}
}

// detour makes the node reach the named addresses by another interface until the row ends.
func (r *run) detour(t *testing.T, names string) {
	t.Helper()
	if names == "" {
		return
	}
	const name = "detour"
	if err := netns.Veth(r.node, name, r.wire, name); err != nil {
		t.Fatal(err)
	}
	dev, err := r.node.LinkByName(name)
	if err != nil {
		t.Fatalf("find the detour: %v", err)
	}
	t.Cleanup(func() {
		if err := r.node.LinkDel(dev); err != nil {
			t.Errorf("remove the detour: %v", err)
		}
	})
	far, err := r.wire.LinkByName(name)
	if err != nil {
		t.Fatalf("find the detour's other end: %v", err)
	}
	gw := r.addr("remote", r.family)
	if err := fixNeighbour(r.node, dev, far, gw); err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(names) {
		a := r.addr(name, r.family)
		route := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: ipnet(netip.PrefixFrom(a, a.BitLen())), Gw: gw.AsSlice(), Flags: unix.RTNH_F_ONLINK, Priority: metric / 2}
		if err := r.node.RouteAdd(route); err != nil {
			t.Fatalf("lead the way to %s by another interface: %v", name, err)
		}
	}
}

// lose makes the node's routes to the named pods lead nowhere until the row ends.
func (r *run) lose(t *testing.T, names string, kind int) {
	t.Helper()
	for name := range strings.FieldsSeq(names) {
		a := r.addr(name, r.family)
		route := &netlink.Route{Dst: ipnet(netip.PrefixFrom(a, a.BitLen())), Type: kind, Priority: metric / 2}
		if err := r.node.RouteAdd(route); err != nil {
			t.Fatalf("lose the route to %s: %v", name, err)
		}
		t.Cleanup(func() {
			if err := r.node.RouteDel(route); err != nil {
				t.Errorf("restore the route to %s: %v", name, err)
			}
		})
	}
}
