package health

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/test/world"
)

// Whoever has an address answers ARP, and a router for those behind it. An address that is gone is
// noticed, though the kernel knows where it was.
func TestARP(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	other := move(t, ns, "v2")
	var asker *link.Neighbours
	if err := ns.Do(func() (err error) { asker, err = link.OpenNeighbours(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = asker.Close() })
	b := runIn(t, Options{Ask: asker.Ask}, ns.Do)
	check := Check{Type: ARP, Interval: 400 * time.Millisecond, Timeout: 390 * time.Millisecond, Rise: 1, Fall: 1}

	there := netip.MustParseAddr("198.51.100.2")
	v2, err := other.LinkByName("v2")
	if err != nil {
		t.Fatal(err)
	}
	a := &netlink.Addr{IPNet: &net.IPNet{IP: there.AsSlice(), Mask: net.CIDRMask(24, 32)}}
	if err := other.AddrAdd(v2, a); err != nil {
		t.Fatal(err)
	}
	behind := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(203, 0, 113, 0), Mask: net.CIDRMask(24, 32)}, Gw: there.AsSlice()}
	if err := ns.RouteAdd(behind); err != nil {
		t.Fatal(err)
	}
	at := func(addr string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(addr), 0) }
	b.want(check, at("198.51.100.2"), true, "answer to ARP")
	b.want(check, at("203.0.113.9"), true, "answer to ARP by the router 198.51.100.2")
	b.want(check, at("198.51.100.1"), true, "answer to ARP") // its own
	b.want(check, at("198.51.100.3"), true, "answer to ARP")
	b.want(check, at("198.51.100.4"), false, "no answer to ARP")
	b.want(check, at("192.0.2.1"), false, "network is unreachable")

	k := Key{"f", "leaves"}
	b.Set(map[Key]*Target{k: {Check: &check, Addr: there}})
	b.up(b.next(1)[0])
	if err := other.AddrDel(v2, a); err != nil {
		t.Fatal(err)
	}
	if r := b.next(1)[0]; r.Up || r.Why != "no answer to ARP" {
		t.Errorf("got %+v", r)
	}
}

// move moves a device into a namespace of its own.
func move(t *testing.T, ns *world.Host, device string) *world.Host {
	t.Helper()
	other := world.NewHost(t, "other")
	if err := ns.LinkSetNsFd(ns.Device(device), other.Fd()); err != nil {
		t.Fatal(err)
	}
	if err := other.LinkSetUp(other.Device(device)); err != nil {
		t.Fatal(err)
	}
	return other
}
