package link

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/world"
)

func TestReader(t *testing.T) {
	h := world.NewHost(t, "node")
	ip(h, `link add br0 type bridge
		link add e0 type veth peer e0p
		link set e0p master br0
		link set e0 up
		link set e0p up
		addr add 192.168.0.2/24 dev e0
		addr add fd01::2/64 dev e0 nodad
		addr add 169.254.7.7/16 dev e0
		route add default via 192.168.0.1
		-6 route add default proto ra nexthop via fd01::1 dev e0
		route add unreachable default metric 9
		route add default via 192.168.0.1 table 100
		route add local 10.0.0.1/32 dev lo proto 115 table local
		-6 route add local fd00::1/128 dev lo proto 115 table local`)
	var r *Reader
	h.In(func() (err error) { r, err = Open(); return err })
	defer r.Close() // it is asked from outside the namespace
	e0, err := r.Index("e0")
	if err != nil || e0 == 0 {
		t.Fatalf("e0 has index %d: %v", e0, err)
	}
	br0, _ := r.Index("br0")
	peer, _ := r.Index("e0p")
	if none, err := r.Index("e9"); none != 0 || err != nil {
		t.Errorf("an interface that is not there: %d, %v", none, err)
	}
	if name, err := r.Name(e0); name != "e0" || err != nil {
		t.Errorf("interface %d is %q: %v", e0, name, err)
	}
	want := func(what string, got any, err error, want any) {
		t.Helper()
		if g, w := fmt.Sprint(got), fmt.Sprint(want); err != nil || g != w {
			t.Errorf("%s: %s, %v; want %s", what, g, err, w)
		}
	}
	interfaces, err := r.Interfaces()
	ports := map[Interface]bool{}
	for _, i := range interfaces {
		ports[i] = true
	}
	want("interfaces", ports[Interface{peer, "e0p", "veth", br0, true}] && ports[Interface{br0, "br0", "bridge", 0, true}] && ports[Interface{1, "lo", "device", 0, false}], err, true)
	host, err := r.HostAddresses()
	want("addresses of the host", host, err, "[127.0.0.1/8 192.168.0.2/24 ::1/128 fd01::2/64]")
	under, err := r.Underlay()
	want("what other nodes are reached from", under, err, "[{192.168.0.2/24 e0 1500 false} {fd01::2/64 e0 1500 true}]")
	all, err := r.Addresses()
	about := map[netip.Addr]Address{}
	for _, a := range all {
		about[a.Prefix.Addr()] = a
	}
	want("a link-local address", about[netip.MustParseAddr("169.254.7.7")].Link, err, e0)
	want("an address of the network", about[netip.MustParseAddr("fd01::2")].Global, err, true)
	want("an address of the loopback device", about[netip.MustParseAddr("127.0.0.1")].Global, err, false)
	routes, err := r.DefaultRoutes()
	want("default routes", routes, err, "[{e0 false} {e0 true}]")
	up, err := r.Uplinks()
	want("uplinks", up, err, "[e0]")
	local, err := r.LocalRoutes(115)
	want("local routes", local, err, "[10.0.0.1 fd00::1]")
	route := func(to string) Route {
		found, err := r.Route(netip.MustParseAddr(to))
		if err != nil {
			t.Error(err)
		}
		return found
	}
	source := netip.MustParseAddr("192.168.0.2")
	want("route by the gateway", route("198.51.100.1"), nil, Route{e0, false, netip.MustParseAddr("192.168.0.1"), source})
	want("route on the link", route("192.168.0.9"), nil, Route{e0, false, netip.Addr{}, source})
	want("route to the node itself", route("192.168.0.2").Local, nil, true)
	h.IP("link set e0 down")
	if found, err := r.Route(netip.MustParseAddr("2001:db8::1")); err == nil || found != (Route{}) {
		t.Errorf("no route: %+v, %v", found, err)
	}
}

func attrs(index int, name string, parent, master int) netlink.LinkAttrs {
	return netlink.LinkAttrs{Index: index, Name: name, ParentIndex: parent, MasterIndex: master, NetNsID: -1}
}

// What is seen at a port or below a VLAN belongs to the bridge, or to the VLAN's own interface.
func TestRouting(t *testing.T) {
	lo := attrs(1, "lo", 0, 0)
	lo.Flags = net.FlagLoopback
	got := routing([]netlink.Link{
		&netlink.Device{LinkAttrs: lo}, &netlink.Device{LinkAttrs: attrs(2, "eth0", 0, 0)}, &netlink.Device{LinkAttrs: attrs(3, "eth1", 0, 0)},
		&netlink.Vlan{LinkAttrs: attrs(4, "eth1.7", 3, 0)}, &netlink.Vxlan{LinkAttrs: attrs(5, "vxlan", 2, 0)},
		&netlink.Bridge{LinkAttrs: attrs(6, "br0", 0, 0)}, &netlink.Veth{LinkAttrs: attrs(7, "port", 8, 6)}, &netlink.Veth{LinkAttrs: attrs(9, "pod", 2, 0)},
	})
	if want := []string{"br0", "eth0", "eth1.7", "pod", "vxlan"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Of what others are made is seen, unless these are another namespace's.
func TestCards(t *testing.T) {
	elsewhere := attrs(7, "moved", 4, 0)
	elsewhere.NetNsID = 3
	for _, c := range cards([]netlink.Link{
		&netlink.Device{LinkAttrs: attrs(2, "vlans", 0, 0)}, &netlink.Vlan{LinkAttrs: attrs(3, "vlan", 2, 0)}, &netlink.Device{LinkAttrs: attrs(4, "ipvlans", 0, 0)},
		&netlink.IPVlan{LinkAttrs: attrs(5, "ipvlan", 4, 0)}, &netlink.Bond{LinkAttrs: attrs(6, "bond", 0, 0)}, &netlink.Vlan{LinkAttrs: elsewhere},
	}, map[int]uint64{2: runsPrograms | takesFrames, 4: takesFrames}) {
		if c.NoPrograms != (c.Name != "vlans") || c.Bond != (c.Name == "bond") || c.VLANs != (c.Name == "vlans") || c.IPVLANs != (c.Name == "ipvlans") {
			t.Errorf("%+v", c)
		}
	}
}

// What a VLAN of a bond receives arrives at the bond's ports.
func TestUplinks(t *testing.T) {
	got := uplinks([]netlink.Link{
		&netlink.Device{LinkAttrs: attrs(2, "eth0", 0, 5)}, &netlink.Device{LinkAttrs: attrs(3, "eth1", 0, 5)}, &netlink.Device{LinkAttrs: attrs(4, "eth2", 0, 0)},
		&netlink.Bond{LinkAttrs: attrs(5, "bond0", 0, 0)}, &netlink.Vlan{LinkAttrs: attrs(6, "bond0.7", 5, 0)}, &netlink.Bridge{LinkAttrs: attrs(7, "br0", 0, 0)},
		&netlink.Veth{LinkAttrs: attrs(8, "port", 0, 7)}, &netlink.Veth{LinkAttrs: attrs(9, "pod", 2, 0)},
	}, []DefaultRoute{{Device: "bond0.7"}, {Device: "bond0"}, {Device: "br0"}})
	if want := []string{"br0", "eth0", "eth1"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
