package kernel_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	fabric "sluice.dev/sluice/internal/fabric/kernel"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// difference is what leads from one fabric to another.
func difference(from, to *state.Fabric) (d state.FabricDelta) {
	d = state.FabricDelta{Tunnels: map[string]*state.Tunnel{}, VTEPs: map[state.VTEPKey]*state.VTEP{}, Peers: map[model.PublicKey]*state.Peer{}, Routes: map[netip.Prefix]*state.Route{}}
	for k := range from.Tunnels {
		d.Tunnels[k] = nil
	}
	for k := range from.VTEPs {
		d.VTEPs[k] = nil
	}
	for k := range from.Peers {
		d.Peers[k] = nil
	}
	for k := range from.Routes {
		d.Routes[k] = nil
	}
	maps.Copy(d.Tunnels, to.Tunnels)
	maps.Copy(d.VTEPs, to.VTEPs)
	maps.Copy(d.Peers, to.Peers)
	maps.Copy(d.Routes, to.Routes)
	return d
}

// update carries a change out and returns what was done.
func update(t testing.TB, d *fabric.Driver, delta state.FabricDelta) string {
	t.Helper()
	p, err := d.Update(t.Context(), state.Delta{Fabric: delta})
	must(t, err)
	text := p.String()
	must(t, p.Apply(t.Context()))
	return text
}

// Connections go on while the nodes change from each mode to each other, one node after the other.
func TestConnectionsSurviveAChangeOfMode(t *testing.T) {
	all := nodes(t, 2)
	for _, x := range all {
		echo(t, x.pod)
		adopt(t, x.d, native(all, x))
	}
	var conns []net.Conn
	for _, fam := range families {
		c, err := dial(all[0].pod, fam.pods(2).Addr().Next().Next())
		must(t, err)
		defer c.Close()
		conns = append(conns, c)
	}
	now := 0
	for _, next := range []int{1, 0, 1} {
		stop, done := make(chan struct{}), make(chan error, len(conns))
		for _, c := range conns {
			go func() {
				for n := 0; ; n++ {
					if err := say(c, fmt.Sprintf("line %d ", n)+strings.Repeat(".", 20000)); err != nil {
						done <- err
						return
					}
					select {
					case <-stop:
						done <- nil
						return
					default:
					}
				}
			}()
		}
		for _, x := range all {
			update(t, x.d, difference(modes[now].of(all, x), modes[next].of(all, x)))
		}
		close(stop)
		for range conns {
			if err := <-done; err != nil {
				t.Errorf("%s to %s: %v", modes[now].name, modes[next].name, err)
			}
		}
		now = next
	}
	for _, x := range all {
		if did := adopt(t, x.d, modes[now].of(all, x)); did != "" {
			t.Errorf("the changes left to do:\n%s", did)
		}
	}
}

// tamper is what others may do to what is ours.
var tamper = []string{
	"ip link del sluice.vxlan",
	"ip link set sluice.vxlan down",
	"ip link set sluice.vxlan6 mtu 1300",
	"ip link set sluice.vxlan address 02:00:00:00:00:99",
	"ip addr flush dev sluice.vxlan",
	"ip addr add 10.9.9.9/32 dev sluice.vxlan",
	"ip route del 10.244.2.0/24 proto 83",
	"ip -6 route del fd00:10:244:2::/64 proto 83",
	"ip route del blackhole 10.244.1.0/24 proto 83",
	"ip route flush proto 83",
	"ip route add 10.77.0.0/16 via 192.0.2.3 dev eth0 proto 83",
	"ip neigh del 192.0.2.2 dev sluice.vxlan",
	"ip neigh replace 192.0.2.2 lladdr 02:00:00:00:00:98 dev sluice.vxlan nud permanent",
	"ip -6 neigh flush dev sluice.vxlan6 nud permanent",
	"bridge fdb del 66:00:00:00:00:02 dev sluice.vxlan",
	"bridge fdb replace 66:00:00:00:00:02 dev sluice.vxlan dst 192.0.2.77",
	"bridge fdb append 00:00:00:00:00:00 dev sluice.vxlan dst 192.0.2.77",
	"ip link set eth0 down",
}

// What others change is noticed at once, and put back.
func TestTamperingIsPutRight(t *testing.T) {
	all := nodes(t, 3)
	x := all[0]
	want := tunnelled(all, x)
	want.Routes[families[0].pods(3)] = native(all, x).Routes[families[0].pods(3)] // as across subnets
	adopt(t, x.d, want)
	for _, line := range tamper {
		run(x.ns, line)
		if strings.HasSuffix(line, "eth0 down") {
			x.ns.IP("link set eth0 up")
		}
		if tampered, err := x.d.Tampered(t.Context()); !tampered || err != nil {
			t.Errorf("%s: not noticed (%v)", line, err)
		}
		if did := adopt(t, x.d, want); did == "" {
			t.Errorf("%s: nothing was put right", line)
		}
		if did := adopt(t, open(t, x.ns), want); did != "" {
			t.Errorf("%s: putting right left to do:\n%s", line, did)
		}
		if tampered, err := x.d.Tampered(t.Context()); tampered || err != nil {
			t.Errorf("%s: after it was put right: tampered %v, %v", line, tampered, err)
		}
	}
}

// An update that meets what others have changed fails, and the adoption that follows puts it right.
func TestUpdateAfterTampering(t *testing.T) {
	all := nodes(t, 3)
	x := all[0]
	for _, line := range []string{"ip link del sluice.vxlan", "ip link del sluice.vxlan6"} {
		adopt(t, x.d, tunnelled(all[:2], x))
		run(x.ns, line)
		want := tunnelled(all, x)
		for _, tunnel := range want.Tunnels {
			tunnel.MTU -= 10
		}
		p, err := x.d.Update(t.Context(), state.Delta{Fabric: difference(tunnelled(all[:2], x), want)})
		must(t, err)
		if err := p.Apply(t.Context()); err == nil {
			t.Errorf("%s: the update succeeded", line)
		}
		adopt(t, x.d, want)
		if did := adopt(t, open(t, x.ns), want); did != "" {
			t.Errorf("%s: left to do:\n%s", line, did)
		}
	}
}

// everything is all that a namespace has of what we could touch.
func everything(t testing.TB, x *node) string {
	t.Helper()
	var b strings.Builder
	for _, line := range []string{
		"ip -o link", "ip -o addr", "ip route show table all", "ip -6 route show table all",
		"ip neigh show nud permanent", "ip -6 neigh show nud permanent", "bridge fdb",
	} {
		// ip(8) complains of namespaces of other tests that go while it lists them.
		b.WriteString(x.ns.Exec("sh", "-c", line+" 2>/dev/null"))
	}
	// The groups that interfaces listen to come and go with IPv6's own addresses.
	return regexp.MustCompile(`(?m)^(01:00:5e|33:33):.*\n`).ReplaceAllString(b.String(), "")
}

// Nothing that is not ours is touched, also where it is much like ours, and a purge leaves it
// alone.
func TestOthersAreLeftAlone(t *testing.T) {
	all := nodes(t, 2)
	x := all[0]
	for _, line := range []string{
		"ip link add vxlan.calico type vxlan id 4096 local 192.0.2.1 dstport 4799 nolearning",
		"ip addr add 10.244.200.0/32 dev vxlan.calico",
		"ip link set vxlan.calico up",
		"bridge fdb append 66:00:00:00:00:02 dev vxlan.calico dst 192.0.2.2",
		"ip neigh add 10.244.2.0 lladdr 66:00:00:00:00:02 dev vxlan.calico nud permanent",
		"ip route add 10.244.2.0/24 via 192.0.2.9 dev eth0 metric 9000 proto 80",
		"ip route add 10.244.3.0/24 via 192.0.2.9 dev eth0",
		"ip -6 route add fd00:10:244:2::/64 via fd00:2::9 dev eth0 metric 9000",
		"ip route add 10.250.0.0/16 via 192.0.2.9 dev eth0 table 83",
	} {
		run(x.ns, line)
	}
	before := everything(t, x)
	writes, done := make(chan netlink.RouteUpdate, 1000), make(chan struct{})
	x.ns.In(func() error { return netlink.RouteSubscribe(writes, done) })
	for _, f := range []*state.Fabric{native(all, x), tunnelled(all, x), state.NewFabric(), tunnelled(all, x)} {
		adopt(t, x.d, f)
		if did := adopt(t, x.d, f); did != "" {
			t.Errorf("beside others' routes there is always something to do:\n%s", did)
		}
	}
	must(t, x.d.Purge(t.Context()))
	if after := everything(t, x); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	must(t, x.d.Purge(t.Context()))
	run(x.ns, "ip route add 10.251.0.0/16 via 192.0.2.9 dev eth0") // the last of which we hear
	for u := range writes {
		if u.Dst.String() == "10.251.0.0/16" {
			break
		}
		if u.Protocol != fabric.RouteProtocol && u.Protocol != unix.RTPROT_KERNEL { // projectcalico/calico#12797
			t.Errorf("a route of another program is written: %v", u)
		}
	}
	close(done)
}

// What the kernel refuses is set aside and named, holds nothing else up, and is set once it can be.
func TestRefusalsAreSetAside(t *testing.T) {
	all := nodes(t, 3)
	x := all[0]
	adopt(t, x.d, native(all, x))
	_, ours, _ := strings.Cut(run(x.ns, "ip route show 10.244.2.0/24"), " metric ")
	must(t, x.d.Purge(t.Context()))
	x.ns.IP("route add 10.244.2.0/24 via 192.0.2.9 dev eth0 metric " + strings.Fields(ours)[0])
	want := native(all, x)
	want.Routes[netip.MustParsePrefix("10.244.9.0/24")] = &state.Route{Node: "node9", Device: "eth9", Via: addr("198.51.100.9")}
	apply := func() {
		t.Helper()
		p, err := x.d.Adopt(t.Context(), &state.State{Fabric: want}, driver.Keep{})
		must(t, err)
		must(t, p.Apply(t.Context()))
	}
	apply()
	aside := x.d.SetAside()
	if len(aside) != 2 || !strings.Contains(aside[0].Reason, "another program has a route") || !strings.Contains(aside[1].Reason, "eth9") || aside[0].InForce != model.InForceNothing {
		t.Errorf("set aside: %+v", aside)
	}
	x.d.Held(func(s *state.State) {
		if len(s.Fabric.Routes) != len(want.Routes)-2 {
			t.Errorf("held: %v", s.Fabric.Routes)
		}
	})
	if got := run(x.ns, "ip route show 10.244.2.0/24"); !strings.Contains(got, "192.0.2.9") {
		t.Errorf("another's route: %q", got)
	}
	x.ns.IP(
		"route del 10.244.2.0/24",
		"link add eth9 type veth peer name eth9peer",
		"link set eth9 up",
	)
	if tampered, err := x.d.Tampered(t.Context()); !tampered || err != nil {
		t.Errorf("the missing device came: %v, %v", tampered, err)
	}
	apply()
	if aside := x.d.SetAside(); len(aside) != 0 {
		t.Errorf("set aside: %+v", aside)
	}
	if did := adopt(t, open(t, x.ns), want); did != "" {
		t.Errorf("left to do:\n%s", did)
	}
}

// A route of another program that comes before one of ours is named, as long as it is there, and
// left alone; so is one in the place of ours, which is set once that is gone.
func TestRoutesBeforeOurs(t *testing.T) {
	all := nodes(t, 3)
	x := all[0]
	want := native(all, x)
	want.Routes[families[0].pods(1)] = &state.Route{Node: "node1"} // its own, which a bridge has, too
	adopt(t, x.d, want)
	says := func(what, want string) {
		t.Helper()
		var texts []string
		for _, a := range x.d.SetAside() {
			texts = append(texts, a.Object()+": "+a.Reason)
		}
		if got := strings.Join(texts, "; "); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: set aside %q, want %q", what, got, want)
		}
	}
	again := func(what string, tampered bool) {
		t.Helper()
		if got, err := x.d.Tampered(t.Context()); got != tampered || err != nil {
			t.Errorf("%s: tampered %v, %v", what, got, err)
		}
		p, err := x.d.Adopt(t.Context(), &state.State{Fabric: want}, driver.Keep{})
		must(t, err)
		must(t, p.Apply(t.Context()))
	}
	_, metric, _ := strings.Cut(strings.TrimSpace(run(x.ns, "ip route show 10.244.2.0/24 proto 83")), "metric ")
	metric = strings.Fields(metric)[0]

	x.ns.IP(
		"route add 10.244.1.0/24 dev eth0 metric 5",
		"route add 10.244.2.0/24 via 192.0.2.9 dev eth0 metric 9000",
		"route add 10.99.0.0/24 via 192.0.2.9 dev eth0",
	)
	again("routes that are in no way", false)
	says("routes that are in no way", "")
	x.ns.IP(
		"route add 10.244.2.0/24 via 192.0.2.9 dev eth0 metric 100 proto static",
		"-6 route add fd00:10:244:3::/64 via fd00:2::9 dev eth0 metric 50 proto bird",
	)
	again("routes before ours", true)
	says("routes before ours", "routes of other programs: they come before ours, so what goes to these pods takes them: "+
		"10.244.2.0/24 via 192.0.2.9 dev eth0 proto static metric 100, fd00:10:244:3::/64 via fd00:2::9 dev eth0 proto bird metric 50; remove them")
	x.ns.IP("route del 10.244.2.0/24 metric 100", "-6 route del fd00:10:244:3::/64 metric 50")
	x.ns.IP(
		"route add 10.244.2.0/24 proto bgp metric 20 nexthop via 192.0.2.8 dev eth0 nexthop via 192.0.2.9 dev eth0",
		"route add blackhole 10.244.3.0/24 proto 199 metric 10",
	)
	again("routes by no one device", true)
	says("routes by no one device", "10.244.2.0/24 proto bgp metric 20, 10.244.3.0/24 proto 199 metric 10; remove them")
	x.ns.IP("route del 10.244.2.0/24 metric 20", "route del blackhole 10.244.3.0/24 metric 10")
	again("they are gone", true)
	says("they are gone", "")

	for _, goes := range []string{"set other down", "del other"} { // the kernel tells of the link alone
		x.ns.IP("link add other type veth peer name far", "link set other up", "route add 10.244.2.0/24 dev other metric 7")
		again("a route by another program's device", true)
		says("a route by another program's device", "10.244.2.0/24 dev other proto boot metric 7")
		x.ns.IP("link " + goes)
		again("link "+goes, true)
		says("link "+goes, "")
		if goes != "del other" {
			x.ns.IP("link del other")
		}
	}

	x.ns.IP("route del 10.244.2.0/24 proto 83")
	x.ns.IP("route add 10.244.2.0/24 via 192.0.2.9 dev eth0 proto zebra metric " + metric)
	again("a route in the place of ours", true)
	says("a route in the place of ours", "another program has a route to the same prefix with the same metric: 10.244.2.0/24 via 192.0.2.9 dev eth0 proto zebra metric "+metric+"; remove it")
	x.ns.IP("route del 10.244.2.0/24 metric " + metric)
	again("it is gone", true)
	says("it is gone", "")
	if got := run(x.ns, "ip route show 10.244.2.0/24 proto 83"); !strings.Contains(got, "192.0.2.2") {
		t.Errorf("ours is not back: %q", got)
	}
}

// A device of another program that takes our packets, or has our name, is named, left alone, and no
// longer waited for once it is gone.
func TestRivalIsNamed(t *testing.T) {
	for _, c := range []struct{ device, of, says string }{
		{"vxlan.calico", "type vxlan id 4096 local 192.0.2.1 dstport 4789 nolearning", "has VNI 4096 and port 4789 already"},
		{state.DeviceVXLAN, "type bridge", "is another program's, of type bridge"},
	} {
		t.Run(c.device, func(t *testing.T) { rivalIsNamed(t, c.device, c.of, c.says) })
	}
}

func rivalIsNamed(t *testing.T, device, of, says string) {
	all := nodes(t, 2)
	x := all[0]
	x.ns.IP("link add " + device + " " + of)
	must(t, x.d.Purge(t.Context()))
	want := tunnelled(all, x)
	apply := func() {
		t.Helper()
		p, err := x.d.Adopt(t.Context(), &state.State{Fabric: want}, driver.Keep{})
		must(t, err)
		must(t, p.Apply(t.Context()))
	}
	apply()
	if aside := x.d.SetAside(); len(aside) == 0 || !strings.Contains(aside[0].Reason, "device "+device+" "+says+": remove it (ip link del "+device+")") {
		t.Errorf("set aside: %+v", aside)
	}
	if tampered, err := x.d.Tampered(t.Context()); tampered || err != nil {
		t.Errorf("tampered %v, %v", tampered, err)
	}
	x.ns.IP("link del " + device)
	if tampered, err := x.d.Tampered(t.Context()); !tampered || err != nil {
		t.Errorf("after it went: tampered %v, %v", tampered, err)
	}
	apply()
	if aside := x.d.SetAside(); len(aside) > 0 {
		t.Errorf("set aside: %+v", aside)
	}
}

// This kernel need not have IPIP: either there is a device, or it is set aside with what needs it,
// and all else is there.
func TestIPIP(t *testing.T) {
	all := nodes(t, 2)
	x := all[0]
	want := native(all, x)
	want.Tunnels[state.DeviceIPIP] = &state.Tunnel{Encapsulation: state.IPIP, Local: addr("192.0.2.1"), Address: addr("10.244.1.0"), MTU: 1480}
	want.Routes[families[0].pods(2)] = &state.Route{Node: "node2", Device: state.DeviceIPIP, Via: addr("192.0.2.2")}
	p, err := x.d.Adopt(t.Context(), &state.State{Fabric: want}, driver.Keep{})
	must(t, err)
	must(t, p.Apply(t.Context()))
	aside := x.d.SetAside()
	index, _ := x.ns.LinkByName(state.DeviceIPIP)
	if index == nil != (len(aside) == 1 && strings.Contains(aside[0].Reason, "create IPIP device")) {
		t.Errorf("set aside: %+v", aside)
	}
	x.d.Held(func(s *state.State) {
		if missing := len(want.Routes) - len(s.Fabric.Routes); missing != len(aside) {
			t.Errorf("held: %v", s.Fabric.Routes)
		}
	})
}

// While something is lacking nothing goes, except for what an earlier state named; later it does.
func TestKeeping(t *testing.T) {
	all := nodes(t, 3)
	x := all[0]
	adopt(t, x.d, tunnelled(all, x))
	less := tunnelled(all[:2], x)
	d := open(t, x.ns)
	kept := func(f *state.Fabric, want int) {
		t.Helper()
		p, err := d.Adopt(t.Context(), &state.State{Fabric: f}, driver.Keep{Fabric: true})
		must(t, err)
		if got := p.Kept().Fabric; got != want {
			t.Errorf("kept %d, want %d", got, want)
		}
		must(t, p.Apply(t.Context()))
	}
	kept(less, 6)
	if did := adopt(t, open(t, x.ns), tunnelled(all, x)); did != "" {
		t.Errorf("something went:\n%s", did)
	}
	kept(tunnelled(all[:1], x), 6)
	if did := adopt(t, d, tunnelled(all[:1], x)); strings.Count(did, "remove") != 6 {
		t.Errorf("did:\n%s", did)
	}
}

// However a fabric changes, updates lead to what an adoption makes of it.
func TestUpdateIsAdoption(t *testing.T) {
	all := nodes(t, 4)
	x := all[0]
	r := rand.New(rand.NewPCG(83, 0))
	draw := func() *state.Fabric {
		f := state.NewFabric()
		from := modes[r.IntN(len(modes))].of(all, x)
		for name, tunnel := range tunnelled(all, x).Tunnels {
			if r.IntN(4) > 0 {
				changed := *tunnel
				changed.MTU -= r.IntN(2)
				changed.MAC[5] += byte(10 * r.IntN(2))
				changed.VNI += uint32(r.IntN(10) / 9)
				f.Tunnels[name] = &changed
			}
		}
		for k, v := range from.VTEPs {
			if f.Tunnels[k.Device] != nil && r.IntN(3) > 0 {
				changed := *v
				changed.MAC[4] = byte(r.IntN(2))
				if r.IntN(2) == 0 {
					changed.Remote = changed.Remote.Next()
				}
				f.VTEPs[k] = &changed
			}
		}
		for to, route := range from.Routes {
			if (route.Device == "eth0" || route.Device == "" || f.Tunnels[route.Device] != nil) && r.IntN(3) > 0 {
				f.Routes[to] = route
			}
		}
		return f
	}
	now := draw()
	adopt(t, x.d, now)
	for range 60 {
		next := draw()
		did := update(t, x.d, difference(now, next))
		if aside := x.d.SetAside(); len(aside) > 0 {
			t.Fatalf("set aside %+v by\n%s", aside, did)
		}
		if left := adopt(t, open(t, x.ns), next); left != "" {
			t.Fatalf("an update did\n%sand left\n%s", did, left)
		}
		x.d.Held(func(s *state.State) {
			if !s.Fabric.Equal(next) {
				t.Fatalf("held %+v, want %+v", s.Fabric, next)
			}
		})
		if tampered, err := x.d.Tampered(t.Context()); tampered || err != nil {
			t.Errorf("after\n%stampered %v, %v", did, tampered, err)
		}
		now = next
	}
}
