package drivertest

import (
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/netns"
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

// leadByNode makes the wire send by the node what comes from outside for the named addresses, until
// the row ends. Their answers go straight back.
func (r *run) leadByNode(t *testing.T, names string) {
	t.Helper()
	dev, err := r.wire.LinkByName("to-node")
	if err != nil {
		t.Fatalf("find the way to the node: %v", err)
	}
	const table = 77
	for name := range strings.FieldsSeq(names) {
		dst := ipnet(netip.PrefixFrom(r.addr(name, r.family), r.addr(name, r.family).BitLen()))
		rule := netlink.NewRule()
		rule.IifName, rule.Dst, rule.Table, rule.Priority = "to-outside", dst, table, 100
		rule.Family = socketFamily(r.addr(name, r.family))
		err := r.wire.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Dst: dst, Gw: r.addr("node", r.family).AsSlice(), Flags: unix.RTNH_F_ONLINK, Table: table})
		if err == nil {
			err = r.wire.RuleAdd(rule)
		}
		if err != nil {
			t.Fatalf("lead the way to %s by the node: %v", name, err)
		}
		t.Cleanup(func() {
			if err := errors.Join(r.wire.RuleDel(rule), r.wire.RouteDel(&netlink.Route{Dst: dst, Table: table})); err != nil {
				t.Errorf("restore the way to %s: %v", name, err)
			}
		})
	}
}

// swallow makes the node pass on what is for the named addresses to a pod that drops it without a
// word, until the row ends.
func (r *run) swallow(t *testing.T, names string) {
	t.Helper()
	const pod = "c"
	dev, err := r.node.LinkByName("to-" + pod)
	if err != nil {
		t.Fatalf("find the way to pod %s: %v", pod, err)
	}
	for name := range strings.FieldsSeq(names) {
		a := r.addr(name, r.family)
		route := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: ipnet(netip.PrefixFrom(a, a.BitLen())), Gw: r.addr(pod, r.family).AsSlice(), Flags: unix.RTNH_F_ONLINK, Priority: metric / 2}
		if err := r.node.RouteAdd(route); err != nil {
			t.Fatalf("lead the way to %s to pod %s: %v", name, pod, err)
		}
		t.Cleanup(func() {
			if err := r.node.RouteDel(route); err != nil {
				t.Errorf("restore the way to %s: %v", name, err)
			}
		})
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
