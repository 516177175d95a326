package kernel_test

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	compile "sluice.dev/sluice/internal/fabric/compile"
	fabric "sluice.dev/sluice/internal/fabric/kernel"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/world"
)

// across makes three nodes, the first two on one subnet, and the third behind a router that knows
// nothing of pods. The underlay's MTU is another one than usual.
func across(t testing.TB) (all []*node, objects []store.Event) {
	t.Helper()
	router := world.NewHost(t, "router")
	router.Forward()
	for subnet := 1; subnet <= 2; subnet++ {
		bridge := fmt.Sprint("br", subnet)
		router.Bridge(bridge)
		router.Address(bridge, fmt.Sprintf("192.0.%d.254/24", subnet), fmt.Sprintf("fd00:%d::254/64", subnet))
	}
	for n := 1; n <= 3; n++ {
		subnet := 1 + n/3
		v4, v6 := fmt.Sprintf("192.0.%d.%d", subnet, n), fmt.Sprintf("fd00:%d::%d", subnet, n)
		x := newNode(t, n, router, v4+"/24", v6+"/64")
		router.Port(fmt.Sprint("br", subnet), fmt.Sprint("n", n))
		x.ns.Gateway(fmt.Sprintf("192.0.%d.254", subnet), fmt.Sprintf("fd00:%d::254", subnet))
		x.ns.IP("link set eth0 mtu 1400")
		all = append(all, x)
		objects = append(objects, store.Event{Kind: model.NodeKind, Name: model.Name{Name: fmt.Sprintf("node%d", n)}, Object: &model.Node{
			Name: fmt.Sprintf("node%d", n), IPs: []netip.Addr{addr("%s", v4), addr("%s", v6)},
			PodCIDRs: []netip.Prefix{families[0].pods(n), families[1].pods(n)}, Fabric: &model.NodeFabric{WireGuard: fabric.PublicKey(private(n))},
		}})
	}
	return all, objects
}

// private is the key of a node.
func private(n int) [32]byte { return sha256.Sum256([]byte{byte(n)}) }

// compiled is what the compiler makes of objects for a node, as its interfaces are.
func compiled(t testing.TB, x *node, objects []store.Event, encrypt bool) *state.Fabric {
	t.Helper()
	return compiler(t, x, objects, encrypt).Fabric()
}

func compiler(t testing.TB, x *node, objects []store.Event, encrypt bool) *compile.Compiler {
	t.Helper()
	cfg := compile.Config{Node: fmt.Sprintf("node%d", x.n)}
	if encrypt {
		cfg.Key = fabric.PublicKey(private(x.n))
	} else {
		objects = slices.Clone(objects)
		for i, o := range objects {
			if n, is := o.Object.(*model.Node); is {
				plain, said := *n, *n.Fabric
				said.WireGuard = model.PublicKey{}
				plain.Fabric = &said
				objects[i].Object = &plain
			}
		}
	}
	c := compile.New(cfg)
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
	return c
}

// underlay is the modes of pools of both families, and the devices by which the first node reaches
// the second, on its own subnet, and the third.
type underlay struct {
	name         string
	v4, v6       model.IPPool
	near4, far4  string
	near6, far6  string
	device, size string // one of its tunnels, and what is shown of its MTU
	encrypt      bool
}

// underlays are those that this kernel has the devices for: Debian's, in the guest, have all.
func underlays(t testing.TB) []underlay {
	across, always := model.IPPool{VXLAN: model.CrossSubnet}, model.IPPool{VXLAN: model.Always}
	all := []underlay{
		{"VXLAN across subnets", across, across, "eth0", "sluice.vxlan", "eth0", "sluice.vxlan6", "sluice.vxlan", "mtu 1350 ", false},
		{"VXLAN", always, always, "sluice.vxlan", "sluice.vxlan", "sluice.vxlan6", "sluice.vxlan6", "sluice.vxlan6", "mtu 1330 ", false},
	}
	if fabric.WireGuard.Met(t.Context()) == nil {
		const wg = state.DeviceWG
		all = append(all, underlay{"WireGuard", model.IPPool{}, model.IPPool{}, wg, wg, wg, wg, wg, "mtu 1340 ", true})
	}
	if fabric.IPIP.Met(t.Context()) == nil {
		all = append(all,
			underlay{"IPIP across subnets", model.IPPool{IPIP: model.CrossSubnet}, across, "eth0", "sluice.ipip", "eth0", "sluice.vxlan6", "sluice.ipip", "mtu 1380 ", false},
			underlay{"IPIP", model.IPPool{IPIP: model.Always}, always, "sluice.ipip", "sluice.ipip", "sluice.vxlan6", "sluice.vxlan6", "sluice.ipip", "mtu 1380 ", false})
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
	again := func(x *node) *fabric.Driver { // another one for the same node
		d := open(t, x.ns)
		x.ns.In(func() error { return d.Encrypt(private(x.n)) })
		return d
	}
	for _, x := range all {
		x.d = again(x)
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
			adopt(t, x.d, compiled(t, x, now, mode.encrypt))
		}
		seen := func() map[string]int { return nil }
		if mode.encrypt {
			seen = capture(t, all)
		}
		t.Run(mode.name, func(t *testing.T) { reach(t, all) })
		if got := seen(); mode.encrypt && (got["UDP 51820"] < 100 || len(got) > 1) {
			t.Errorf("%s: between the nodes passed %v", mode.name, got)
		}
		if open4 == nil {
			var err error
			open4, err = dial(all[0].pod, addr("10.244.3.2"))
			must(t, err)
		}
		if err := say(open4, "still here?"); err != nil {
			t.Errorf("%s: a connection that was open: %v", mode.name, err)
		}
		for _, x := range all {
			if did := adopt(t, again(x), compiled(t, x, now, mode.encrypt)); did != "" {
				t.Errorf("%s: adopting again did:\n%s", mode.name, did)
			}
			if tampered, err := x.d.Tampered(t.Context()); tampered || err != nil {
				t.Errorf("%s: tampered %v, %v", mode.name, tampered, err)
			}
		}
		for to, device := range map[string]string{"10.244.2.2": mode.near4, "10.244.3.2": mode.far4, "fd00:10:244:2::2": mode.near6, "fd00:10:244:3::2": mode.far6} {
			if got := run(all[0].ns, "ip route get "+to); !strings.Contains(got, "dev "+device+" ") {
				t.Errorf("%s: %s by %s", mode.name, to, got)
			}
		}
		if got := run(all[0].ns, "ip link show "+mode.device); !strings.Contains(got, mode.size) {
			t.Error(got)
		}
	}
	must(t, open4.Close())
}

// A node that Calico still runs on, and one that has been taken over, reach each other's pods in
// VXLAN: the annotations say with which addresses.
func TestBesideCalico(t *testing.T) {
	all := nodes(t, 2)
	var objects []store.Event
	for n := 1; n <= 2; n++ {
		echo(t, all[n-1].pod)
		objects = append(objects, store.Event{Kind: model.NodeKind, Name: model.Name{Name: fmt.Sprintf("node%d", n)}, Object: &model.Node{
			Name: fmt.Sprintf("node%d", n), IPs: []netip.Addr{families[0].node(n)},
			Fabric: &model.NodeFabric{VXLAN: addr("10.244.%d.0", n), MAC: model.MAC{0x66, 1, 2, 3, 4, byte(n)}},
		}}, store.Event{Kind: model.BlockAffinityKind, Name: model.Name{Name: fmt.Sprint("block", n)}, Object: &model.BlockAffinity{
			Name: fmt.Sprint("block", n), Node: fmt.Sprintf("node%d", n), CIDR: netip.PrefixFrom(addr("10.244.%d.0", n), 26),
		}})
	}
	objects = append(objects, store.Event{Kind: model.IPPoolKind, Name: model.Name{Name: "pods"}, Object: &model.IPPool{Name: "pods", CIDR: netip.MustParsePrefix("10.244.0.0/16"), VXLAN: model.Always}})
	adopt(t, all[0].d, compiled(t, all[0], objects, false))
	for _, line := range []string{ // as Calico's agent makes it
		"ip link add vxlan.calico address 66:01:02:03:04:02 type vxlan id 4096 local 192.0.2.2 dstport 4789 nolearning",
		"ip addr add 10.244.2.0/32 dev vxlan.calico", "ip link set vxlan.calico up",
		"bridge fdb add 66:01:02:03:04:01 dev vxlan.calico dst 192.0.2.1", "ip neigh add 10.244.1.0 lladdr 66:01:02:03:04:01 dev vxlan.calico nud permanent",
		"ip route add 10.244.1.0/26 via 10.244.1.0 dev vxlan.calico onlink proto 80",
	} {
		run(all[1].ns, line)
	}
	for from, to := range map[*world.Host]string{all[0].pod: "10.244.2.2", all[1].pod: "10.244.1.2", all[0].ns: "10.244.2.2", all[1].ns: "10.244.1.2"} {
		c, err := dial(from, addr("%s", to))
		if err != nil {
			t.Errorf("%s to %s: %v", from.Name, to, err)
			continue
		}
		if err := say(c, "over the border"); err != nil {
			t.Errorf("%s to %s: %v", from.Name, to, err)
		}
		_ = c.Close()
	}
}

// capture counts what passes the nodes' interfaces to the underlay, by protocol and port, except
// for ARP and ICMPv6; what it returns ends it.
func capture(t testing.TB, all []*node) (seen func() map[string]int) {
	t.Helper()
	const any = 0x300 // ETH_P_ALL in the order of the network
	counts, ended, stop := map[string]int{}, make(chan map[string]int), make(chan struct{})
	for _, x := range all {
		var fd int
		must(t, x.ns.Do(func() (err error) {
			if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, any); err != nil {
				return err
			}
			l, err := x.ns.LinkByName("eth0")
			if err != nil {
				return err
			}
			return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: any, Ifindex: l.Attrs().Index}),
				unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
		}))
		go func() {
			defer func() { _ = unix.Close(fd) }()
			mine, frame := map[string]int{}, make([]byte, 65536)
			for {
				n, _, err := unix.Recvfrom(fd, frame, 0)
				select {
				case <-stop:
					ended <- mine
					return
				default:
				}
				if what := protocol(frame[:max(n, 0)]); err == nil && what != "" {
					mine[what]++
				}
			}
		}()
	}
	return func() map[string]int {
		close(stop)
		for range all {
			for what, n := range <-ended {
				counts[what] += n
			}
		}
		return counts
	}
}

// protocol says what a frame carries: "UDP 51820", or a number; "" is what neighbours say.
func protocol(frame []byte) string {
	if len(frame) < 54 {
		return "" // ARP
	}
	kind, next := frame[14+9], frame[14+20:]
	if frame[12] == 0x86 { // IPv6
		kind, next = frame[14+6], frame[14+40:]
	} else if frame[13] == 6 {
		return ""
	}
	switch kind {
	case unix.IPPROTO_ICMPV6, 0: // a hop-by-hop option comes before what multicast listeners report
		return ""
	case unix.IPPROTO_UDP:
		return fmt.Sprintf("UDP %d", binary.BigEndian.Uint16(next[2:]))
	}
	return fmt.Sprint("protocol ", kind)
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
