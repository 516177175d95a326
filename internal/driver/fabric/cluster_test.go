package fabric_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	compile "sluice.dev/sluice/internal/compile/fabric"
	"sluice.dev/sluice/internal/driver/fabric"
	"sluice.dev/sluice/internal/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// across makes three nodes, the first two on one subnet, and the third behind a router that knows
// nothing of pods. The underlay's MTU is another one than usual.
func across(t testing.TB) (all []*node, objects []store.Event) {
	t.Helper()
	router := namespace(t, "router")
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		must(t, router.Sysctl(key, "1"))
	}
	for subnet := 1; subnet <= 2; subnet++ {
		run(t, router, fmt.Sprintf("ip link add br%d type bridge", subnet))
		run(t, router, fmt.Sprintf("ip link set br%d up", subnet))
		run(t, router, fmt.Sprintf("ip addr add 192.0.%d.254/24 dev br%d", subnet, subnet))
		run(t, router, fmt.Sprintf("ip addr add fd00:%d::254/64 dev br%d nodad", subnet, subnet))
	}
	for n := 1; n <= 3; n++ {
		subnet := 1 + n/3
		v4, v6 := fmt.Sprintf("192.0.%d.%d", subnet, n), fmt.Sprintf("fd00:%d::%d", subnet, n)
		x := newNode(t, n, router, v4+"/24", v6+"/64")
		run(t, router, fmt.Sprintf("ip link set n%d master br%d", n, subnet))
		run(t, x.ns, fmt.Sprintf("ip route add default via 192.0.%d.254", subnet))
		run(t, x.ns, fmt.Sprintf("ip -6 route add default via fd00:%d::254", subnet))
		run(t, x.ns, "ip link set eth0 mtu 1400")
		all = append(all, x)
		objects = append(objects, store.Event{Kind: model.NodeKind, Name: model.Name{Name: fmt.Sprintf("node%d", n)}, Object: &model.Node{
			Name: fmt.Sprintf("node%d", n), IPs: []netip.Addr{addr("%s", v4), addr("%s", v6)},
			PodCIDRs: []netip.Prefix{families[0].pods(n), families[1].pods(n)},
		}})
	}
	return all, objects
}

// compiled is what the compiler makes of objects for a node, as its interfaces are.
func compiled(t testing.TB, x *node, objects []store.Event) *state.Fabric {
	t.Helper()
	c := compile.New(compile.Config{Node: fmt.Sprintf("node%d", x.n)})
	must(t, x.ns.Do(func() error {
		underlay, err := link.Here.Underlay()
		c.SetUnderlay(underlay)
		return err
	}))
	s := store.New()
	s.Apply(objects)
	dirty := s.Take()
	s.Read(func(v *store.View) { c.Update(v, dirty) })
	if issues := c.Issues(); len(issues) > 0 {
		t.Errorf("issues: %v", issues)
	}
	return c.Fabric()
}

// underlay is the modes of pools of both families, and the devices by which the first node reaches
// the second, on its own subnet, and the third.
type underlay struct {
	name         string
	v4, v6       model.IPPool
	near4, far4  string
	near6, far6  string
	device, size string // one of its tunnels, and what is shown of its MTU
}

// underlays are those that this kernel has the devices for: Debian's, in the guest, have all.
func underlays(t testing.TB) []underlay {
	all := []underlay{
		{"VXLAN across subnets", model.IPPool{VXLAN: model.CrossSubnet}, model.IPPool{VXLAN: model.CrossSubnet}, "eth0", "sluice.vxlan", "eth0", "sluice.vxlan6", "sluice.vxlan", "mtu 1350 "},
		{"VXLAN", model.IPPool{VXLAN: model.Always}, model.IPPool{VXLAN: model.Always}, "sluice.vxlan", "sluice.vxlan", "sluice.vxlan6", "sluice.vxlan6", "sluice.vxlan6", "mtu 1330 "},
	}
	if fabric.IPIP.Met(t.Context()) == nil {
		all = append(all,
			underlay{"IPIP across subnets", model.IPPool{IPIP: model.CrossSubnet}, model.IPPool{VXLAN: model.CrossSubnet}, "eth0", "sluice.ipip", "eth0", "sluice.vxlan6", "sluice.ipip", "mtu 1380 "},
			underlay{"IPIP", model.IPPool{IPIP: model.Always}, model.IPPool{VXLAN: model.Always}, "sluice.ipip", "sluice.ipip", "sluice.vxlan6", "sluice.vxlan6", "sluice.ipip", "mtu 1380 "})
	}
	return all
}

// From Nodes and IPPools to packets: native on one subnet, in tunnels across, and the MTU of the
// tunnels is what the underlay leaves. Connections go on from one mode to the next.
func TestAcrossSubnets(t *testing.T) {
	all, objects := across(t)
	for _, x := range all {
		echo(t, x.pod)
	}
	var open4 net.Conn
	for _, mode := range underlays(t) {
		mode.v4.Name, mode.v4.CIDR = "v4", netip.MustParsePrefix("10.244.0.0/16")
		mode.v6.Name, mode.v6.CIDR = "v6", netip.MustParsePrefix("fd00:10:244::/48")
		now := objects
		for _, p := range []*model.IPPool{&mode.v4, &mode.v6} {
			now = append(now, store.Event{Kind: model.IPPoolKind, Name: model.Name{Name: p.Name}, Object: p})
		}
		for _, x := range all {
			adopt(t, x.d, compiled(t, x, now))
		}
		t.Run(mode.name, func(t *testing.T) { reach(t, all) })
		if open4 == nil {
			var err error
			open4, err = dial(all[0].pod, addr("10.244.3.2"))
			must(t, err)
		}
		if err := say(open4, "still here?"); err != nil {
			t.Errorf("%s: a connection that was open: %v", mode.name, err)
		}
		for _, x := range all {
			if did := adopt(t, open(t, x.ns), compiled(t, x, now)); did != "" {
				t.Errorf("%s: adopting again did:\n%s", mode.name, did)
			}
			if tampered, err := x.d.Tampered(t.Context()); tampered || err != nil {
				t.Errorf("%s: tampered %v, %v", mode.name, tampered, err)
			}
		}
		for to, device := range map[string]string{"10.244.2.2": mode.near4, "10.244.3.2": mode.far4, "fd00:10:244:2::2": mode.near6, "fd00:10:244:3::2": mode.far6} {
			if got := run(t, all[0].ns, "ip route get "+to); !strings.Contains(got, "dev "+device+" ") {
				t.Errorf("%s: %s by %s", mode.name, to, got)
			}
		}
		if got := run(t, all[0].ns, "ip link show "+mode.device); !strings.Contains(got, mode.size) {
			t.Error(got)
		}
	}
	must(t, open4.Close())
}

// large is the fabric of a cluster of some nodes in VXLAN.
func large(count int) *state.Fabric {
	f := state.NewFabric()
	f.Tunnels[state.DeviceVXLAN] = &state.Tunnel{Encapsulation: state.VXLAN, Local: addr("192.0.2.1"), Address: addr("10.244.1.0"), MTU: 1450, MAC: mac(1), VNI: 4096, Port: 4789}
	for i := range count {
		remote, mac := addr("198.18.%d.%d", i>>8, i&255), state.MAC{2, 3, 0, 0, byte(i >> 8), byte(i)}
		f.VTEPs[state.VTEPKey{Device: state.DeviceVXLAN, Gateway: remote}] = &state.VTEP{MAC: mac, Remote: remote}
		f.Routes[netip.PrefixFrom(addr("100.%d.%d.0", 64+i>>8, i&255), 24)] = &state.Route{Device: state.DeviceVXLAN, Via: remote}
	}
	return f
}

// BenchmarkNodes sets what a cluster takes in the kernel, from nothing.
func BenchmarkNodes(b *testing.B) {
	for _, count := range []int{1000, 10000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			x, f := nodes(b, 1)[0], large(count)
			for b.Loop() {
				adopt(b, x.d, f)
				b.StopTimer()
				must(b, x.d.Purge(b.Context()))
				b.StartTimer()
			}
		})
	}
}

// BenchmarkAdopt compares it with the kernel, as an agent does that starts again.
func BenchmarkAdopt(b *testing.B) {
	for _, count := range []int{1000, 10000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			x, f := nodes(b, 1)[0], large(count)
			adopt(b, x.d, f)
			for b.Loop() {
				if did := adopt(b, x.d, f); did != "" {
					b.Fatal(did)
				}
			}
		})
	}
}

// BenchmarkOneNode adds one node to many, and removes it.
func BenchmarkOneNode(b *testing.B) {
	x, f, more := nodes(b, 1)[0], large(10000), large(10001)
	adopt(b, x.d, f)
	added := difference(state.NewFabric(), more)
	for k := range f.VTEPs {
		delete(added.VTEPs, k)
	}
	for k := range f.Routes {
		delete(added.Routes, k)
	}
	added.Tunnels = nil
	removed := difference(&state.Fabric{VTEPs: added.VTEPs, Routes: added.Routes}, state.NewFabric())
	for b.Loop() {
		update(b, x.d, added)
		update(b, x.d, removed)
	}
}
