package nftables_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// farSite is a site with a router on the servers' network and, behind that, two far servers: f1
// and f2 with 10.9.0.11 and 10.9.0.12, the virtual address, and a device for IPIP. The router has a
// way of its own to the client, by which far servers answer.
type farSite struct {
	*site
	router *world.Host
	far    []*world.Host
}

func newFarSite(t *testing.T) *farSite {
	near, _ := newDirectSite(t, 1)
	w := &farSite{site: near}
	if err := w.rules().IPIP(); errors.Is(err, probe.ErrNotSupported) {
		t.Skipf("this kernel has no IPIP: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	w.tunnels = true
	w.router = world.NewHost(t, "router")
	w.router.Set("net.ipv4.ip_forward", "1")
	w.router.Join("r0", w.balancer, "r")
	w.balancer.Port("back", "r")
	w.router.Address("r0", "10.1.0.9/24", "10.1.0.8/24")
	w.router.Join("side", w.client, "side")
	w.router.Address("side", "10.5.0.1/24")
	w.client.Address("side", "10.5.0.2/24")
	w.router.IP("route replace 10.0.0.0/24 via 10.5.0.2")
	w.balancer.IP("route replace 10.9.0.0/16 via 10.1.0.9")
	for i := range 2 {
		n := i + 1
		name := fmt.Sprintf("f%d", n)
		f := world.NewHost(t, name)
		f.Join("eth0", w.router, fmt.Sprintf("f%d", n))
		w.router.Address(fmt.Sprintf("f%d", n), fmt.Sprintf("10.9.%d.1/24", n))
		f.Address("eth0", fmt.Sprintf("10.9.%d.9/24", n))
		f.Gateway(fmt.Sprintf("10.9.%d.1", n))
		w.ipip(f, "farm", farAddr(n), netip.Addr{})
		f.Address("farm", virtual4+"/32")
		f.Set("net.ipv4.conf.farm.rp_filter", "2")
		f.Serve(name, ":80", ":81", ":8080")
		w.far = append(w.far, f)
	}
	return w
}

func farAddr(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("10.9.%d.9", n)) }

// ipip makes a device of the kernel's kind ipip.
func (w *farSite) ipip(ns *world.Host, name string, local, remote netip.Addr) {
	w.t.Helper()
	a := netlink.NewLinkAttrs()
	a.Name = name
	w.must(ns.LinkAdd(&netlink.Iptun{LinkAttrs: a, Local: local.AsSlice(), Remote: remote.AsSlice(), PMtuDisc: 1}))
	ns.IP("link set " + name + " up")
	ns.Set("net.ipv4.conf."+name+".rp_filter", "0")
}

// farm is one of the near server, where wanted, and the first so many far ones.
func (w *farSite) farm(near bool, far int) *model.Farm {
	f := dsr(virtual4, true, port(80))
	f.Backends = nil
	if near {
		f.Backends = backends(1, true, 0)
	}
	for n := 1; n <= far; n++ {
		f.Backends = append(f.Backends, model.FarmBackend{Name: fmt.Sprintf("f%d", n), Addr: farAddr(n), Weight: 1, Priority: 1})
	}
	return f
}

// answerers has the client open so many connections, and returns who answered.
func (w *farSite) answerers(n int) map[string]int {
	w.t.Helper()
	counts := map[string]int{}
	for range n {
		g, err := w.client.Ask("tcp", clientAddr(0, true), virtual4+":80", world.Patience)
		if err != nil {
			w.t.Fatalf("%v\n%s%s", err, w.ingress(), w.devices())
		}
		if g.Client.Addr().String() != clientAddr(0, true) {
			w.t.Errorf("%s sees %s", g.Server, g.Client)
		}
		counts[g.Server]++
	}
	return counts
}

// only fails unless connections are answered by these servers, by each.
func (w *farSite) only(servers ...string) {
	w.t.Helper()
	counts := w.answerers(40)
	for _, s := range servers {
		if counts[s] == 0 || len(counts) != len(servers) {
			w.t.Fatalf("answered by %v, want %v", counts, servers)
		}
	}
}

func (w *farSite) devices() string {
	out, err := w.balancer.Run("ip", "-d", "-s", "addr")
	w.must(err)
	return string(out)
}

// ours are the tunnels on the balancer that have names such as ours.
func (w *farSite) ours() (names []string) {
	links, err := w.balancer.LinkList()
	w.must(err)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "sluice-") {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// TestTunnel has servers behind a router answer clients themselves, alone and beside a near one,
// while they come and go, the way to them changes, and another driver takes over.
func TestTunnel(t *testing.T) {
	t.Parallel()
	w := newFarSite(t)
	w.set(w.farm(false, 2))
	w.only("f1", "f2")
	c, err := w.client.Dial("tcp", clientAddr(0, true), virtual4+":80", world.Patience)
	w.must(err)
	defer func() { _ = c.Close() }()
	first, err := exchange(c)
	w.must(err)
	goesOn := func(when string) {
		t.Helper()
		if g, err := exchange(c); err != nil || g != first {
			t.Fatalf("%s: %+v, %v; was %+v\n%s%s", when, g, err, first, w.ingress(), w.devices())
		}
	}

	f := w.farm(false, 2)
	for i, b := range f.Backends {
		if b.Name != first.Server {
			f.Backends[i].State = model.BackendDown
		}
	}
	w.set(f)
	w.only(first.Server)
	goesOn("the other server is down")
	for _, name := range w.ours() {
		if out, err := w.balancer.Run("ip", "addr", "show", "dev", name); err != nil || strings.Contains(string(out), "inet") {
			t.Errorf("addresses that nobody asked for: %v, %s", err, out)
		}
	}
	if n := len(w.ours()); n != 2 {
		t.Errorf("%d tunnels, as long as the farm has both backends", n)
	}
	w.set(w.farm(false, 2))
	goesOn("it is up again")

	w.balancer.IP("route replace 10.9.0.0/16 via 10.1.0.8")
	w.only("f1", "f2")
	goesOn("the way to the servers has changed")

	before := w.ours()
	w.restart()
	w.settled() // with nothing to do
	goesOn("another driver took over")
	if after := w.ours(); len(before) != 2 || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("tunnels: %v, before %v", after, before)
	}

	w.set(w.farm(true, 2))
	w.only("f1", "f2", "s1")
	w.set(w.farm(true, 1))
	w.only("f1", "s1")
	if n := len(w.ours()); n != 1 {
		t.Errorf("%d tunnels for one far backend", n)
	}
	w.set()
	if left := w.ours(); len(left) > 0 || strings.Contains(w.ingress(), "chain tunnel-") { // chains of other interfaces stay as long as these
		t.Errorf("without a farm there are %v\n%s", left, w.ingress())
	}
}

// TestTunnelSize sends more than fits into a tunnel at once.
func TestTunnelSize(t *testing.T) {
	t.Parallel()
	w := newFarSite(t)
	w.set(w.farm(false, 1))
	l, err := w.client.LinkByName("eth0")
	w.must(err)
	for _, segments := range []int{65535, 1} { // offloaded to the device, and packet by packet
		w.must(w.client.LinkSetGSOMaxSegs(l, segments))
		c, err := w.client.Dial("tcp", clientAddr(0, true), virtual4+":80", world.Patience)
		w.must(err)
		w.must(c.SetDeadline(time.Now().Add(20 * time.Second)))
		long := strings.Repeat("long ", 40_000) + "\n"
		if _, err := c.Write([]byte(long)); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the answer to it, and to one more
			if g, err := exchange(c); err != nil || g.Server != "f1" {
				t.Fatalf("%d segments at once: %+v, %v\n%s", segments, g, err, w.devices())
			}
		}
		_ = c.Close()
	}
}

// TestTunnelHealed has a tunnel that someone removed, or took down, be there again.
func TestTunnelHealed(t *testing.T) {
	t.Parallel()
	w := newFarSite(t)
	w.set(w.farm(false, 1))
	_, name := state.FarmTunnel(farAddr(1))
	for _, harm := range []func(netlink.Link) error{w.balancer.LinkDel, w.balancer.LinkSetDown} {
		l, err := w.balancer.LinkByName(name)
		w.must(err)
		w.must(harm(l))
		if tampered, err := w.driver.Tampered(t.Context()); err != nil || !tampered {
			t.Errorf("tampered: %v, %v", tampered, err)
		}
		w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
		w.settled()
		w.only("f1")
	}
	l, err := w.balancer.LinkByName(name)
	w.must(err)
	w.must(w.balancer.LinkDel(l))
	w.set() // nobody has said that it went
	w.set(w.farm(false, 1))
	w.only("f1")
	w.must(w.driver.Purge(t.Context()))
	if left := w.ours(); len(left) > 0 {
		t.Errorf("purged, and %v are left", left)
	}
}

// TestTunnelRefused has another program's interface stand where a backend's tunnel belongs: the
// farms of that backend are set aside, all others are served, and they are tried again.
func TestTunnelRefused(t *testing.T) {
	t.Parallel()
	w := newFarSite(t)
	_, name := state.FarmTunnel(farAddr(2))
	w.balancer.IP("link add " + name + " type bridge")
	of := func(name string, at80 uint16, far int) *model.Farm {
		f := w.farm(false, far)
		f.Name, f.Addresses = name, []model.FarmAddress{at(virtual4, port(at80))}
		return f
	}
	w.set(of("good", 80, 1), of("bad", 81, 2))
	w.mustAside("Farm bad")
	if text := w.driver.SetAside()[0].Reason; !strings.Contains(text, "make tunnel "+name+" to backend 10.9.2.9") {
		t.Error(text)
	}
	w.only("f1")
	w.settled()
	worse := w.farms(of("worse", 8080, 2)).Farms.Farms["worse"]
	w.change(state.Delta{Farms: state.FarmsDelta{Farms: map[string]*state.Farm{"worse": worse}}})
	w.mustAside("Farm bad", "Farm worse")
	w.only("f1")
	w.restart()
	w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
	w.mustAside("Farm bad", "Farm worse")
	w.settled()
	w.balancer.IP("link del " + name)
	w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
	w.mustAside()
	w.settled()
	if counts := w.answers(40, "tcp", hostPort(virtual4, "81")); counts["f1"] == 0 || counts["f2"] == 0 {
		t.Errorf("answered by %v", counts)
	}
}

// TestTunnelOfOthers has a tunnel of another program work as before, though it is to a backend, and
// what a backend sends into ours come to nothing.
func TestTunnelOfOthers(t *testing.T) {
	t.Parallel()
	w := newFarSite(t)
	here := netip.MustParseAddr("10.1.0.1")
	w.ipip(w.far[0], "back", farAddr(1), here)
	w.router.IP("route replace 10.0.0.1/32 via 10.1.0.1")
	var at net.PacketConn
	w.balancer.In(func() (err error) { at, err = net.ListenPacket("udp", "10.0.0.1:9999"); return err })
	defer func() { _ = at.Close() }()
	send := func(through, text string) {
		t.Helper()
		w.far[0].IP("route replace 10.0.0.1/32 via 10.9.1.1")
		if through != "" {
			tun, err := w.far[0].LinkByName(through)
			w.must(err)
			_, n, _ := net.ParseCIDR("10.0.0.1/32")
			w.must(w.far[0].RouteReplace(&netlink.Route{Dst: n, LinkIndex: tun.Attrs().Index}))
		}
		c, err := w.far[0].Dial("udp", farAddr(1).String(), "10.0.0.1:9999", world.Patience)
		w.must(err)
		_, err = c.Write([]byte(text))
		w.must(err)
		w.must(c.Close())
	}
	arrives := func(want string) {
		t.Helper()
		b := make([]byte, 100)
		w.must(at.SetReadDeadline(time.Now().Add(5 * time.Second)))
		n, _, err := at.ReadFrom(b)
		if got := string(b[:n]); err != nil || got != want {
			t.Errorf("received %q, %v; want %q", got, err, want)
		}
	}
	w.set(w.farm(false, 1))
	w.only("f1")
	send("back", "by our tunnel")
	send("", "directly")
	arrives("directly")

	w.ipip(w.balancer, "theirs", here, netip.Addr{})
	send("back", "by their tunnel")
	arrives("by their tunnel")
	w.only("f1")
	w.set()
	if _, err := w.balancer.LinkByName("theirs"); err != nil {
		t.Error(err)
	}
}
