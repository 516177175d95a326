package ipvs_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	moby "github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// node is a network namespace with a driver.
type node struct {
	ns     *netns.NS
	t      *testing.T
	record string
	driver.Driver
	ipvs *moby.Handle // another program
}

func newNode(t *testing.T, scheduler string) *node {
	t.Helper()
	needIPVS(t)
	ns := world.NewHost(t, "ipvs").NS
	n := &node{ns: ns, t: t, record: filepath.Join(t.TempDir(), "sysctls")}
	var err error
	if n.ipvs, err = moby.New(ns.Path()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.ipvs.Close)
	n.open(scheduler)
	t.Cleanup(func() { n.must(n.Close()) })
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) open(scheduler string) {
	n.t.Helper()
	n.must(n.ns.Do(func() (err error) {
		n.Driver, err = ipvs.Open(ipvs.Options{Scheduler: scheduler, Record: n.record})
		return err
	}))
}

// adopt applies a state and returns how much there was to do.
func (n *node) adopt(s *state.State) int {
	n.t.Helper()
	p, err := n.Adopt(n.t.Context(), s, driver.Keep{})
	n.must(err)
	todo := p.Len()
	n.must(p.Apply(n.t.Context()))
	return todo
}

// servers are the kernel's virtual servers, with their destinations.
func (n *node) servers() (all []string) {
	n.t.Helper()
	services, err := n.ipvs.GetServices()
	n.must(err)
	for _, s := range services {
		text := fmt.Sprintf("%s:%d %s", s.Address, s.Port, s.SchedName)
		dests, err := n.ipvs.GetDestinations(s)
		n.must(err)
		for _, d := range dests {
			text += fmt.Sprintf(" %s:%d=%d", d.Address, d.Port, d.Weight)
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}

func (n *node) wants(all ...string) {
	n.t.Helper()
	if got := n.servers(); !slices.Equal(got, all) {
		n.t.Errorf("virtual servers: %q, want %q", got, all)
	}
}

func (n *node) parameter(key string) (value string) {
	n.t.Helper()
	n.must(n.ns.Do(func() (err error) {
		value, err = sysctl.Read(key)
		return err
	}))
	return value
}

func tcp(at string) state.FrontendKey {
	a := netip.MustParseAddrPort(at)
	return state.FrontendKey{Addr: a.Addr(), Protocol: model.TCP, Port: a.Port()}
}

func one(service, backend string) *state.Frontend {
	to := []netip.AddrPort{netip.MustParseAddrPort(backend)}
	return &state.Frontend{Service: model.Name{Namespace: "test", Name: service}, Kind: state.LoadBalancer, Backends: to, Alive: to, Serving: to}
}

func services(all map[string]string) *state.State {
	s := state.New()
	for at, to := range all {
		s.Services.Frontends[tcp(at)] = one("web", to)
	}
	return s
}

// What another program has in IPVS stays as it is. A service at the same address and port is set
// aside, and served once that is free.
func TestOthers(t *testing.T) {
	t.Parallel()
	n := newNode(t, "")
	theirs := &moby.Service{Address: netip.MustParseAddr("203.0.113.1").AsSlice(), Port: 80, Protocol: unix.IPPROTO_TCP,
		SchedName: "wlc", AddressFamily: unix.AF_INET, Netmask: ^uint32(0)}
	n.must(n.ipvs.NewService(theirs))
	const their, ours, late = "203.0.113.1:80 wlc", "203.0.113.2:80 rr 10.1.0.1:80=1", "203.0.113.1:81 rr 10.1.0.1:80=1"
	want := services(map[string]string{"203.0.113.1:80": "10.1.0.1:80", "203.0.113.2:80": "10.1.0.1:80"})
	n.adopt(want)
	n.wants(their, ours)
	aside := n.SetAside()
	if len(aside) != 1 || aside[0].Object() != "Service test/web" || !strings.Contains(aside[0].Reason, "TCP 203.0.113.1:80 is not served: another program has a virtual server of IPVS there") {
		t.Errorf("set aside: %v", aside)
	}
	if todo := n.adopt(want); todo != 0 {
		t.Errorf("%d operations, though nothing changed", todo)
	}
	n.Held(func(s *state.State) {
		if len(s.Services.Frontends) != 1 {
			t.Errorf("holds %v", s.Services.Frontends)
		}
	})

	// The same is found out while services change.
	theirs.Port = 81
	n.must(n.ipvs.NewService(theirs))
	delta := state.Delta{}
	delta.Services.Frontends = map[state.FrontendKey]*state.Frontend{tcp("203.0.113.1:81"): one("late", "10.1.0.1:80")}
	want.Apply(delta)
	p, err := n.Update(t.Context(), delta)
	n.must(err)
	n.must(p.Apply(t.Context()))
	n.wants(their, "203.0.113.1:81 wlc", ours)
	if len(n.SetAside()) != 2 {
		t.Errorf("set aside: %v", n.SetAside())
	}
	n.must(n.ipvs.DelService(theirs))
	n.adopt(want)
	n.wants(their, late, ours)
	if len(n.SetAside()) != 1 {
		t.Errorf("set aside: %v", n.SetAside())
	}
	n.must(n.Purge(t.Context()))
	n.wants(their)
}

// What others change is noticed and mended, and parameters have their former values after a purge.
func TestTampered(t *testing.T) {
	t.Parallel()
	n := newNode(t, "")
	want := services(map[string]string{"203.0.113.2:80": "10.1.0.1:80", "[2001:db8::2]:80": "[2001:db8:1::1]:80"})
	n.adopt(want)
	all := n.servers()
	tampered := func(want bool) {
		t.Helper()
		if is, err := n.Tampered(t.Context()); is != want || err != nil {
			t.Errorf("tampered: %v, %v, want %v", is, err, want)
		}
	}
	tampered(false)
	n.must(n.ipvs.Flush())
	tampered(true)
	n.adopt(want)
	n.wants(all...)
	tampered(false)
	// Another way out of the node has another source.
	n.must(netns.Veth(n.ns, "out", n.ns, "far"))
	out, err := n.ns.LinkByName("out")
	n.must(err)
	address, err := netlink.ParseAddr("192.168.1.1/24")
	n.must(err)
	n.must(n.ns.AddrAdd(out, address))
	n.must(n.ns.RouteAdd(&netlink.Route{Gw: netip.MustParseAddr("192.168.1.2").AsSlice(), LinkIndex: out.Attrs().Index}))
	tampered(true)
	if todo := n.adopt(want); todo != 1 {
		t.Errorf("%d operations to change a route", todo)
	}
	tampered(false)
	for range 2 {
		for key, value := range map[string]string{"net.ipv4.vs.conntrack": "1", "net.ipv4.conf.all.arp_ignore": "1"} {
			if got := n.parameter(key); got != value {
				t.Errorf("%s = %s, want %s", key, got, value)
			}
		}
		n.must(n.Close())
		n.open("mh")
		if todo := n.adopt(want); todo != 2 {
			t.Errorf("%d operations to change two schedulers", todo)
		}
		n.must(n.Close())
		n.open("")
		n.adopt(want)
	}
	n.wants(all...)
	n.must(n.Purge(t.Context()))
	n.wants()
	for key, value := range map[string]string{"net.ipv4.vs.conntrack": "0", "net.ipv4.conf.all.arp_ignore": "0"} {
		if got := n.parameter(key); got != value {
			t.Errorf("after a purge, %s = %s, want %s", key, got, value)
		}
	}
	left, err := n.ns.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: ipvs.RouteProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil || len(left) > 0 {
		t.Errorf("a purge leaves routes: %v, %v", left, err)
	}
}

// Each scheduler can be had, by a service alone too; another name is refused.
func TestSchedulers(t *testing.T) {
	t.Parallel()
	if _, err := ipvs.Open(ipvs.Options{Scheduler: "fair"}); err == nil || !strings.Contains(err.Error(), `no scheduler "fair"`) {
		t.Error(err)
	}
	n := newNode(t, "")
	want := services(map[string]string{"203.0.113.2:80": "10.1.0.1:80"})
	for _, scheduler := range model.IPVSSchedulers {
		n.must(n.Close())
		n.open(scheduler)
		n.must(n.Probe(t.Context()))
		n.adopt(want)
		n.wants("203.0.113.2:80 " + scheduler + " 10.1.0.1:80=1")
	}
	own := *one("web", "10.1.0.1:80")
	own.IPVSScheduler = "lblcr"
	delta := state.Delta{}
	delta.Services.Frontends = map[state.FrontendKey]*state.Frontend{tcp("203.0.113.2:80"): &own}
	p, err := n.Update(t.Context(), delta)
	n.must(err)
	n.must(p.Apply(t.Context()))
	n.wants("203.0.113.2:80 lblcr 10.1.0.1:80=1")
}

// Many services are there in one go, are found again, and make no change of one dearer.
func TestManyServices(t *testing.T) {
	t.Parallel()
	n := newNode(t, "")
	const services, each = 10000, 10
	want := state.New()
	for i := range services {
		f := &state.Frontend{Service: model.Name{Namespace: "test", Name: fmt.Sprint("s", i)}, Kind: state.ClusterIP}
		for j := range each {
			f.Backends = append(f.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), byte(1 + j)}), 8080))
		}
		f.Alive, f.Serving = f.Backends, f.Backends
		addr := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		want.Services.Frontends[state.FrontendKey{Addr: addr, Protocol: model.TCP, Port: 80}] = f
		want.Services.ClusterIPs[addr] = struct{}{}
	}
	begun := time.Now()
	n.adopt(want)
	t.Logf("%d services with %d endpoints each are there after %v", services, each, time.Since(begun))

	more := *want.Services.Frontends[tcp("10.96.1.1:80")]
	more.Backends = append(slices.Clone(more.Backends), netip.MustParseAddrPort("10.244.1.99:8080"))
	more.Alive, more.Serving = more.Backends, more.Backends
	delta := state.Delta{}
	delta.Services.Frontends = map[state.FrontendKey]*state.Frontend{tcp("10.96.1.1:80"): &more}
	want.Apply(delta)
	begun = time.Now()
	p, err := n.Update(t.Context(), delta)
	n.must(err)
	if text := p.String(); text != "add 10.244.1.99:8080 to virtual server TCP 10.96.1.1:80, weight 1\n" {
		t.Errorf("planned for one endpoint more: %s", text)
	}
	n.must(p.Apply(t.Context()))
	t.Logf("one endpoint more took %v", time.Since(begun))

	n.must(n.Close())
	n.open("")
	begun = time.Now()
	if todo := n.adopt(want); todo != 0 {
		t.Errorf("%d operations, though nothing changed", todo)
	}
	t.Logf("all was found as it should be in %v", time.Since(begun))
	begun = time.Now()
	n.must(n.Purge(t.Context()))
	t.Logf("the purge took %v", time.Since(begun))
}
