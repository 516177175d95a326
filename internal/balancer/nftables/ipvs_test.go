package nftables_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	moby "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// virtual has the balancer of a site carry out farms with IPVS.
func (w *site) virtual() {
	w.t.Helper()
	w.open = func() (driver.Driver, error) { return ipvs.OpenFarms("") }
	w.restart()
	if err := w.driver.Probe(w.t.Context()); errors.Is(err, probe.ErrNotSupported) {
		w.t.Skip(err)
	} else if err != nil {
		w.t.Fatal(err)
	}
}

// virtualFar is a far site whose balancer carries out farms with IPVS.
func virtualFar(t *testing.T) *farSite {
	w := newFarSite(t)
	w.virtual()
	return w
}

// table is a table of the balancer's, in /proc/net.
func (w *site) table(name string) string {
	w.t.Helper()
	var text []byte
	w.balancer.In(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/" + name); return err })
	return string(text)
}

// dnat is a farm of the first so many servers.
func dnat(virtual string, is4 bool, servers int) *model.Farm {
	return &model.Farm{Name: "web", Mode: model.DNAT, Refuse: true, Addresses: []model.FarmAddress{at(virtual, port(80))}, Backends: backends(servers, is4, 8080)}
}

// held is a connection that is open, and who answers by it.
type held struct {
	net.Conn
	world.Answer
}

func (w *site) hold(network, to, from string) held {
	w.t.Helper()
	c, err := w.client.Dial(network, from, to, world.Patience)
	w.must(err)
	w.t.Cleanup(func() { _ = c.Close() })
	g, err := exchange(c)
	w.must(err)
	return held{c, g}
}

func (w *site) goesOn(c held, when string) {
	w.t.Helper()
	if g, err := exchange(c); err != nil || g != c.Answer {
		w.t.Fatalf("%s: %+v, %v; was %+v\n%s", when, g, err, c.Answer, w.list())
	}
}

func eachFamily(t *testing.T, f func(t *testing.T, is4 bool, virtual, client string)) {
	for _, is4 := range []bool{true, false} {
		t.Run(map[bool]string{true: "IPv4", false: "IPv6"}[is4], func(t *testing.T) {
			t.Parallel()
			f(t, is4, map[bool]string{true: virtual4, false: virtual6}[is4], clientAddr(0, is4))
		})
	}
}

// TestIPVSDirect has servers answer clients of two networks themselves. Connection tracking, where
// a firewall of the machine asks for it, has no entries of that: it would see one half of each
// connection, and keep them for long.
func TestIPVSDirect(t *testing.T) {
	t.Parallel()
	bothDirect(t, func(t *testing.T, w *site, clients []*world.Host, is4 bool, virtual string) {
		w.virtual()
		if _, err := w.balancer.Run("nft", "add table inet firewall { chain input { type filter hook input priority 0; ct state invalid counter; }; }"); err != nil {
			t.Fatal(err)
		}
		w.set(dsr(virtual, is4, port(80), port(5300)))
		for i, c := range clients {
			for network, at := range map[string]string{"tcp": "80", "udp": "5300"} {
				counts := map[string]int{}
				for range 12 {
					g, err := c.Ask(network, clientAddr(i, is4), hostPort(virtual, at), world.Patience)
					if err != nil {
						t.Fatalf("client %d, %s: %v\n%s", i, network, err, w.list())
					}
					if g.Client.Addr().String() != clientAddr(i, is4) {
						t.Errorf("the server sees %s", g.Client)
					}
					counts[g.Server]++
				}
				if counts["s1"] != 4 || counts["s2"] != 4 || counts["s3"] != 4 {
					t.Errorf("client %d, %s: %v, which is not in turns", i, network, counts)
				}
			}
		}
		w.balancer.In(func() error {
			n, err := sysctl.Read("net.netfilter.nf_conntrack_count")
			if n != "0" {
				t.Errorf("%s connections are tracked", n)
			}
			return err
		})
	})
}

// TestIPVSTunnel has servers behind a router answer clients themselves beside a near one, while
// they come and go, and another driver takes over.
func TestIPVSTunnel(t *testing.T) {
	t.Parallel()
	w := virtualFar(t)
	w.set(w.farm(true, 2))
	w.only("f1", "f2", "s1")
	if !strings.Contains(w.list(), "Tunnel") || !strings.Contains(w.list(), "Route") || len(w.ours()) > 0 {
		t.Errorf("devices %v\n%s", w.ours(), w.list())
	}
	c := w.hold("tcp", virtual4+":80", clientAddr(0, true))
	for _, down := range w.farm(true, 2).Backends {
		if down.Name != c.Server {
			f := w.farm(true, 2)
			f.Backends[slices.IndexFunc(f.Backends, func(b model.FarmBackend) bool { return b.Name == down.Name })].State = model.BackendDown
			w.set(f)
			w.goesOn(c, down.Name+" is down")
		}
	}
	w.set(w.farm(true, 2))
	w.restart()
	w.settled()
	w.goesOn(c, "another driver took over")
	w.must(c.SetDeadline(time.Now().Add(20 * time.Second)))
	if _, err := c.Write([]byte(strings.Repeat("long ", 40_000) + "\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.HasPrefix(line, c.Server) {
		t.Errorf("a long request: %q, %v", line, err)
	}
	w.set(w.farm(false, 1))
	w.only("f1")
}

// TestIPVSNAT has clients, and the balancer itself, reach servers at another port, and backends
// come and go in each way that there is.
func TestIPVSNAT(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, is4 bool, virtual, from string) {
		w := newSite(t, 3)
		w.virtual()
		to := hostPort(virtual, "80")
		answered := func(f *model.Farm, want string) {
			t.Helper()
			w.set(f)
			if got := fmt.Sprint(w.answers(6, "tcp", to)); got != want {
				t.Errorf("answered by %s, want %s\n%s", got, want, w.list())
			}
		}
		answered(dnat(virtual, is4, 3), "map[s1:2 s2:2 s3:2]")
		if counts := w.answers(6, "udp", to); counts["s1"] != 2 || counts["s2"] != 2 {
			t.Errorf("UDP: %v", counts)
		}
		if g, err := w.balancer.Ask("tcp", "", to, world.Patience); err != nil || g.Port != 8080 {
			t.Errorf("the balancer itself: %+v, %v", g, err)
		}
		c := w.hold("tcp", to, from)
		if c.Client.Addr().String() != from || c.Port != 8080 {
			t.Errorf("the server sees %+v", c.Answer)
		}
		f := dnat(virtual, is4, 3)
		mine := slices.IndexFunc(f.Backends, func(b model.FarmBackend) bool { return b.Name == c.Server })
		if mine < 0 {
			t.Fatalf("answered by %q", c.Server)
		}
		others := slices.Delete([]string{"s1", "s2", "s3"}, mine, mine+1)
		two := fmt.Sprintf("map[%s:3 %s:3]", others[0], others[1])
		f.Backends[mine].State = model.BackendDraining
		answered(f, two)
		w.goesOn(c, "its backend drains")
		w.restart()
		w.settled()
		w.goesOn(c, "another driver took over")
		answered(f, two)

		f = dnat(virtual, is4, 3)
		f.Backends[mine].Priority = 2
		answered(f, two)
		w.goesOn(c, "its backend is a backup")
		f = dnat(virtual, is4, 3)
		f.Backends[mine].Weight = 4
		answered(f, fmt.Sprint(map[string]int{c.Server: 4, others[0]: 1, others[1]: 1}))

		f = dnat(virtual, is4, 3)
		f.Backends[mine].State = model.BackendDown
		answered(f, two)
		if g, err := world.Exchange(c, silence); err == nil {
			t.Errorf("a connection to a backend that is down goes on: %+v", g)
		}
		for i := range f.Backends {
			f.Backends[i].State = model.BackendDown
		}
		w.set(f)
		if _, err := w.ask("tcp", to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("nobody serves: %v", err)
		}
		w.set()
		if _, err := w.ask("tcp", to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("the farm is gone: %v", err)
		}
	})
}

// TestIPVSRouted has a farm at an address that the balancer does not have, and is on the route to.
func TestIPVSRouted(t *testing.T) {
	t.Parallel()
	w := newSite(t, 2)
	w.virtual()
	w.set(dnat("192.0.2.80", true, 2))
	if counts := w.answers(4, "tcp", "192.0.2.80:80"); counts["s1"] != 2 || counts["s2"] != 2 {
		t.Errorf("%v", counts)
	}
	w.set(dnat("10.0.0.200", true, 2))
	if g, err := w.askWithin("tcp", "10.0.0.200:80", silence); err == nil {
		t.Errorf("the balancer answers ARP for an address that another machine may have: %+v", g)
	}
	w.must(w.driver.Purge(t.Context()))
	out, err := w.balancer.Run("ip", "route", "show", "table", "local", "proto", fmt.Sprint(ipvs.FarmRouteProtocol))
	if err != nil || len(out) > 0 {
		t.Errorf("routes are left: %v: %s", err, out)
	}
}

// connections are how many are open at each address of a server, by the kernel's table.
func (w *site) connections() map[string]string {
	open := map[string]string{}
	for line := range strings.Lines(w.table("ip_vs")) {
		if field := strings.Fields(line); len(field) == 6 && field[0] == "->" {
			open[field[1]] = field[4]
		}
	}
	return open
}

// TestIPVSLeastConnections has new connections go to the server with the fewest, which no other
// scheduler would choose.
func TestIPVSLeastConnections(t *testing.T) {
	t.Parallel()
	w := newSite(t, 3)
	w.virtual()
	f := dnat(virtual4, true, 3)
	f.Scheduler, f.Addresses[0].Protocols = model.LeastConnections, []model.Protocol{model.TCP}
	w.set(f)
	open := map[string][]held{}
	for range 9 {
		c := w.hold("tcp", virtual4+":80", "")
		open[c.Server] = append(open[c.Server], c)
	}
	for server, all := range open {
		if len(open) != 3 || len(all) != 3 {
			t.Fatalf("%s has %d connections of 9\n%s", server, len(all), w.list())
		}
	}
	for _, c := range open["s2"] {
		w.must(c.Close())
	}
	for begun := time.Now(); w.connections()["0A01000C:1F90"] != "0"; time.Sleep(time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatalf("connections do not end\n%s", w.list())
		}
	}
	for range 3 {
		if c := w.hold("tcp", virtual4+":80", ""); c.Server != "s2" {
			t.Errorf("answered by %s, and s2 has the fewest connections\n%s", c.Server, w.list())
		}
	}
	counted := func() string {
		traffic, err := w.driver.(*ipvs.Farms).Traffic(t.Context())
		w.must(err)
		text := ""
		for i := range 3 {
			got := traffic[driver.Backend{Farm: "web", Name: fmt.Sprintf("s%d", i+1)}]
			text += fmt.Sprintf("%d/%d/%t ", got.Chosen, got.Active, got.Bytes > 0)
		}
		return text
	}
	const want = "3/3/true 6/6/true 3/3/true "
	for begun := time.Now(); counted() != want; time.Sleep(10 * time.Millisecond) { // the kernel adds up each two seconds
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("counted %s, want %s\n%s", counted(), want, w.list())
		}
	}
}

// TestIPVSPersistence has a client stay on its backend until that drains.
func TestIPVSPersistence(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, is4 bool, virtual, from string) {
		w := newSite(t, 3)
		w.virtual()
		f := dnat(virtual, is4, 3)
		f.Addresses[0].Protocols = []model.Protocol{model.TCP}
		f.Persist, f.PersistFor = model.SrcIP, time.Minute
		w.set(f)
		first := w.answers(6, "tcp", hostPort(virtual, "80"))
		if len(first) != 1 {
			t.Fatalf("answered by %v", first)
		}
		sessions, err := w.driver.(*ipvs.Farms).Sessions(t.Context(), "web")
		if err != nil || len(sessions) != 1 || sessions[0].Client.SrcIP.String() != from || first[sessions[0].Backend] == 0 || sessions[0].Left <= 0 {
			t.Errorf("remembered: %+v, %v\n%s", sessions, err, w.list())
		}
		drained := *f
		drained.Backends = slices.Clone(f.Backends)
		for i, b := range f.Backends {
			if first[b.Name] > 0 {
				drained.Backends[i].State = model.BackendDraining
			}
		}
		w.set(&drained)
		second := w.answers(6, "tcp", hostPort(virtual, "80"))
		for name := range second {
			if len(second) != 1 || first[name] > 0 {
				t.Errorf("answered by %v, before by %v", second, first)
			}
		}
	})
}

// TestIPVSHash has each client, or each of its ports, keep to a server.
func TestIPVSHash(t *testing.T) {
	t.Parallel()
	w := newSite(t, 3)
	w.virtual()
	for _, scheduler := range []model.FarmScheduler{model.Hash, model.Maglev} {
		f := dnat(virtual4, true, 3)
		f.Scheduler, f.HashBy = scheduler, model.SrcIP
		w.set(f)
		one := w.answers(6, "tcp", virtual4+":80")
		if len(one) != 1 {
			t.Errorf("%s: answered by %v", scheduler, one)
		}
		for i, b := range f.Backends {
			if one[b.Name] > 0 {
				f.Backends = slices.Clone(f.Backends)
				f.Backends[i].State = model.BackendDraining
			}
		}
		w.set(f)
		for name := range w.answers(6, "tcp", virtual4+":80") {
			if one[name] > 0 {
				t.Errorf("%s: %s drains and answers", scheduler, name)
			}
		}
		f = dnat(virtual4, true, 3)
		f.Scheduler, f.HashBy = scheduler, model.SrcIP|model.SrcPort
		w.set(f)
		if all := w.answers(40, "tcp", virtual4+":80"); len(all) != 3 {
			t.Errorf("%s with ports: answered by %v", scheduler, all)
		}
	}
}

// TestIPVSOthers leaves a virtual server of another program alone, says so, and serves its place
// once that is free. Farms that IPVS cannot carry out are named.
func TestIPVSOthers(t *testing.T) {
	t.Parallel()
	w := newSite(t, 2)
	w.virtual()
	other, err := moby.New(w.balancer.Path())
	w.must(err)
	t.Cleanup(other.Close)
	theirs := &moby.Service{Address: netip.MustParseAddr(virtual4).AsSlice(), Port: 80, Protocol: unix.IPPROTO_TCP,
		SchedName: "wlc", AddressFamily: unix.AF_INET, Netmask: ^uint32(0)}
	w.must(other.NewService(theirs))
	asides := func(want ...string) {
		t.Helper()
		all := w.driver.SetAside()
		for i, a := range all {
			if len(all) != len(want) || a.Object()+": "+a.Reason != want[i] {
				t.Fatalf("set aside: %+v, want %q", all, want)
			}
		}
		if len(all) != len(want) {
			t.Fatalf("set aside: %+v, want %q", all, want)
		}
	}
	const taken = "Farm web: TCP 10.0.0.100:80 is not served: another program has a virtual server of IPVS there"
	unable := dnat("10.0.0.101", true, 2)
	unable.Name, unable.Mark = "marked", 1
	f := dnat(virtual4, true, 2)
	f.Addresses = []model.FarmAddress{at(virtual4, port(80), port(81))}
	for _, when := range []string{"adopted", "updated", "adopted anew"} {
		w.set(f, unable)
		asides("Farm marked: mark: IPVS gives none", taken)
		if counts := w.answers(4, "tcp", virtual4+":81"); len(counts) != 2 {
			t.Errorf("%s: the port beside: %v", when, counts)
		}
		w.driver.Held(func(s *state.State) {
			if len(s.Farms.Farms) != 0 {
				t.Errorf("%s: holds %v", when, s.Farms.Farms)
			}
		})
		if when == "updated" {
			w.restart()
		}
	}
	w.must(other.DelService(theirs))
	w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
	asides("Farm marked: mark: IPVS gives none")
	w.answers(4, "tcp", virtual4+":80")
	if tampered, err := w.driver.Tampered(t.Context()); err != nil || tampered {
		t.Errorf("tampered: %v, %v", tampered, err)
	}
	w.must(other.Flush())
	if tampered, err := w.driver.Tampered(t.Context()); err != nil || !tampered {
		t.Errorf("all virtual servers are gone: %v, %v", tampered, err)
	}
	w.must(other.NewService(theirs))
	w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
	w.must(w.driver.Purge(t.Context()))
	if left := w.table("ip_vs"); strings.Count(left, "TCP") != 1 || strings.Contains(left, "UDP") {
		t.Errorf("purged, and left\n%s", left)
	}
}
