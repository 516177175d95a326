package nftables_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// TestPersistence has clients stay on their backend, by each key, as long as it serves.
func TestPersistence(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, client string) {
		to := hostPort(virtual, "80")
		f := func(key model.FlowKey, down ...int) *model.Farm {
			f := &model.Farm{Name: "web", Mode: model.DNAT, Persist: key, PersistFor: time.Minute, Backends: backends(3, is4, 8080),
				Addresses: []model.FarmAddress{at(virtual, port(80), port(81))}}
			for _, i := range down {
				f.Backends[i].State = model.BackendDown
			}
			return f
		}
		for _, key := range []model.FlowKey{model.SrcIP, model.SrcIP | model.DstIP, model.SrcMAC, model.SrcIP | model.DstPort} {
			w.set(f(key))
			n := w.answers(12, "tcp", to)
			if len(n) != 1 {
				t.Fatalf("key %06b: %v\n%s", key, n, w.list())
			}
			for server := range n { // its backend goes, and comes back
				i := int(server[1] - '1')
				w.set(f(key, i))
				n := w.answers(12, "tcp", to)
				if len(n) != 1 || n[server] > 0 {
					t.Errorf("key %06b, without %s: %v", key, server, n)
				}
				w.set(f(key))
				if again := w.answers(12, "tcp", to); len(again) != 1 || again[server] > 0 {
					t.Errorf("key %06b, %s is back: %v, and before it was %v", key, server, again, n)
				}
			}
			w.set()
		}
		w.set(f(model.SrcIP | model.SrcPort))
		if n := w.answers(12, "tcp", to); len(n) != 3 {
			t.Errorf("each connection is a client of its own: %v", n)
		}
	})
}

// TestSessions gives a client a backend. While that is down it gets others.
func TestSessions(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, client string) {
		f := func(state model.BackendState) *model.Farm {
			f := &model.Farm{Name: "web", Mode: model.SNAT, Persist: model.SrcIP, PersistFor: time.Minute, Backends: backends(3, is4, 80),
				Addresses: []model.FarmAddress{at(virtual, model.PortSpan{First: 80, Last: 90})},
				Sessions:  []model.FarmSession{{Client: model.FlowValues{SrcIP: netip.MustParseAddr(client)}, Backend: "s2"}}}
			f.Backends[1].State = state
			return f
		}
		w.set(f(model.BackendUp))
		if n := w.answers(6, "udp", hostPort(virtual, "85")); n["s2"] != 6 {
			t.Errorf("%v\n%s", n, w.list())
		}
		w.set(f(model.BackendDown))
		if n := w.answers(6, "tcp", hostPort(virtual, "80")); n["s2"] != 0 || len(n) != 1 {
			t.Errorf("its backend is down: %v", n)
		}
	})
}

// TestLimits goes beyond each limit, and counts what passes.
func TestLimits(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, client string) {
		f := func(l model.FarmLimits) *model.Farm {
			return &model.Farm{Name: "web", Mode: model.DNAT, Limits: l, Backends: backends(3, is4, 80), Addresses: []model.FarmAddress{at(virtual, port(80))}}
		}
		to := hostPort(virtual, "80")
		w.set(f(model.FarmLimits{New: model.FarmRate{Packets: 1, Per: time.Hour, Burst: 3}, Forget: time.Minute}))
		passed := 0
		for range 8 {
			c, err := w.client.Dial("udp", client, to, world.Patience)
			w.must(err)
			_ = c.SetDeadline(time.Now().Add(silence))
			_, _ = c.Write([]byte("hello\n"))
			if _, err := c.Read(make([]byte, 100)); err == nil {
				passed++
			}
			_ = c.Close()
		}
		if passed < 3 || passed > 4 {
			t.Errorf("%d new connections pass, with 3 at once\n%s", passed, w.list())
		}

		w.set(f(model.FarmLimits{Established: 2}))
		var open []net.Conn
		for range 2 {
			c, err := w.client.Dial("tcp", client, to, world.Patience)
			w.must(err)
			open = append(open, c)
		}
		w.silent("tcp", to, "a third connection at once")
		for _, c := range open {
			if _, err := exchange(c); err != nil {
				t.Errorf("one within the limit: %v", err)
			}
			_ = c.Close()
		}
	})
}

// TestStrict drops segments of no connection, which the kernel would answer with a reset.
func TestStrict(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	f := func(strict bool) *model.Farm {
		return &model.Farm{Name: "web", Mode: model.DNAT, Limits: model.FarmLimits{Strict: strict, RST: model.FarmRate{Packets: 1, Per: time.Hour, Burst: 1}},
			Backends: backends(1, true, 80), Addresses: []model.FarmAddress{at(virtual4, port(80))}}
	}
	for _, strict := range []bool{false, true} {
		w.set(f(strict))
		if strict != strings.Contains(w.list(), "ct state invalid") {
			t.Errorf("strict %t:\n%s", strict, w.list())
		}
		if g, err := w.ask("tcp", hostPort(virtual4, "80")); err != nil || g.Server != "s1" {
			t.Errorf("strict %t: %+v, %v", strict, g, err)
		}
	}
	w.set()
	if strings.Contains(w.list(), "@ip-guards") {
		t.Errorf("the chain's rules are left:\n%s", w.list())
	}
}

// TestMarks gives connections the mark of their farm, in farms of every mode.
func TestMarks(t *testing.T) {
	t.Parallel()
	w := newSite(t, 2)
	w.set(
		&model.Farm{Name: "web", Mode: model.DNAT, Mark: 0x12, Backends: backends(2, true, 80), Addresses: []model.FarmAddress{at(virtual4, port(80))}},
		&model.Farm{Name: "own", Mode: model.Local, Mark: 0x34, Addresses: []model.FarmAddress{at(virtual4, port(7000))}},
	)
	w.balancer.ServeTCP("balancer", ":7000")
	for port, want := range map[string]struct{ server, mark string }{"80": {"", "mark=18 "}, "7000": {"balancer", "mark=52 "}} {
		c, err := w.client.Dial("tcp", "", hostPort(virtual4, port), world.Patience)
		w.must(err)
		defer func() { _ = c.Close() }()
		g, err := exchange(c)
		if err != nil || want.server != "" && g.Server != want.server {
			t.Errorf("%s: %+v, %v", port, g, err)
		}
		out, err := w.balancer.Run("conntrack", "-L", "-p", "tcp", "--dport", port)
		if err != nil || !strings.Contains(string(out), want.mark) {
			t.Errorf("%s: %v\n%s", port, err, out)
		}
	}
	if _, err := w.ask("tcp", hostPort(virtual4, "81")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("another port: %v", err)
	}
}

// TestBackendLimit gives a backend no more connections at once than it may have, whichever of the
// farm's places they come by.
func TestBackendLimit(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, _ string) {
		f := &model.Farm{Name: "web", Mode: model.DNAT, Addresses: []model.FarmAddress{at(virtual, port(80), port(81))}, Backends: backends(1, is4, 8080)}
		f.Backends[0].EstLimit = 2
		w.set(f)
		var open []net.Conn
		for _, p := range []string{"80", "81"} {
			c, err := w.client.Dial("tcp", "", hostPort(virtual, p), world.Patience)
			w.must(err)
			open = append(open, c)
		}
		w.silent("tcp", hostPort(virtual, "80"), "a third connection at once")
		for _, c := range open {
			if _, err := exchange(c); err != nil {
				t.Errorf("one within the limit: %v", err)
			}
			_ = c.Close()
		}
		w.set()
	})
}

// TestHelper gives connections a helper, and takes its object away with the last farm that has it.
func TestHelper(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	f := &model.Farm{Name: "files", Mode: model.DNAT, Helper: "ftp", Addresses: []model.FarmAddress{at(virtual4, port(80))}, Backends: backends(1, true, 80)}
	w.set(f)
	c, err := w.client.Dial("tcp", "", hostPort(virtual4, "80"), world.Patience)
	w.must(err)
	defer func() { _ = c.Close() }()
	if g, err := exchange(c); err != nil || g.Server != "s1" {
		t.Fatalf("%+v, %v", g, err)
	}
	out, err := w.balancer.Run("conntrack", "-L", "-p", "tcp", "--dport", "80", "-o", "extended")
	if err != nil || !strings.Contains(string(out), "helper=ftp") {
		t.Errorf("%v\n%s", err, out)
	}
	w.set()
	if strings.Contains(w.list(), "helper") {
		t.Errorf("the object is left:\n%s", w.list())
	}
}

// TestSYNProxy answers clients in the backends' place: connections work, and first segments of
// clients that never answer leave nothing in connection tracking.
func TestSYNProxy(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, client string) {
		w.balancer.Set("net.netfilter.nf_conntrack_tcp_loose", "0")
		f := func(proxy bool) *model.Farm {
			return &model.Farm{Name: "web", Mode: model.SNAT, Limits: model.FarmLimits{SYNProxy: proxy, Strict: true}, Backends: backends(2, is4, 8080),
				Addresses: []model.FarmAddress{at(virtual, port(80))}}
		}
		w.set(f(true))
		if n := w.answers(10, "tcp", hostPort(virtual, "80")); len(n) != 2 {
			t.Errorf("%v\n%s", n, w.list())
		}
		if n := w.answers(4, "udp", hostPort(virtual, "80")); len(n) != 2 {
			t.Errorf("UDP is none of its business: %v", n)
		}
		w.set(f(false))
		if n := w.answers(10, "tcp", hostPort(virtual, "80")); len(n) != 2 {
			t.Errorf("without: %v", n)
		}

		w.client.Exec("nft", "add table inet deaf; add chain inet deaf in { type filter hook input priority 0; }; add rule inet deaf in tcp sport 80 drop")
		for _, proxy := range []bool{false, true} {
			w.set(f(proxy))
			w.balancer.Exec("conntrack", "-F")
			_, _ = w.client.Dial("tcp", "", hostPort(virtual, "80"), silence)
			if tracked := strings.Contains(w.balancer.Exec("conntrack", "-L", "-p", "tcp", "-f", map[bool]string{true: "ipv4", false: "ipv6"}[is4]), "dport=80 "); tracked == proxy {
				t.Errorf("proxy %t: connection tracking knows of a client that hears nothing: %t", proxy, tracked)
			}
		}
	})
}

// TestTheLastStageIsLookedUpAgain has a kernel that may miss a key find the verdict for a backend,
// without which a packet is dropped.
func TestTheLastStageIsLookedUpAgain(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	w.set(&model.Farm{Name: "web", Mode: model.DNAT, Mark: 7, Addresses: []model.FarmAddress{at(virtual4, port(80))}, Backends: backends(1, true, 8080)})
	chain := w.balancer.Exec("nft", "list", "chain", "inet", farms.TableName, "ip-staged")
	if n := strings.Count(chain, `comment "a backend"`); n != 2 {
		t.Errorf("it is looked up %d times:\n%s", n, chain)
	}
	w.answers(2, "tcp", hostPort(virtual4, "80"))
}
