package inject_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/testbed"
)

func newTestbed(t *testing.T) *testbed.Testbed {
	t.Helper()
	l, err := testbed.New(fmt.Sprintf("sbt%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func start(t *testing.T, l *testbed.Testbed) (*inject.Generator, *inject.Counter) {
	t.Helper()
	g, err := inject.New(l.Node, testbed.NodeIn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	c, err := inject.NewCounter(l.Backend, testbed.Uplink, cluster.Endpoints)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return g, c
}

// waitFor polls until the counter has seen n packets in all.
func waitFor(t *testing.T, c *inject.Counter, n int) inject.Arrived {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		a, err := c.Read()
		if err != nil {
			t.Fatal(err)
		}
		if a.Backend+a.Other >= n {
			return a
		}
		if time.Now().After(end) {
			t.Fatalf("%+v arrived, want %d", a, n)
		}
	}
}

func TestEveryFlowIsForwardedAndCounted(t *testing.T) {
	l := newTestbed(t)
	g, c := start(t, l)
	for _, tc := range []struct {
		base netip.Addr
		want inject.Arrived
	}{
		{cluster.Endpoints.Addr(), inject.Arrived{Backend: 5000}},
		{cluster.Services.Addr(), inject.Arrived{Other: 5000}}, // nothing translates it
	} {
		if err := g.Aim(inject.Target{Base: tc.base, First: 1, Count: 100, Port: 80}); err != nil {
			t.Fatal(err)
		}
		if err := c.Reset(); err != nil {
			t.Fatal(err)
		}
		r, err := g.Send(5000, 0)
		if err != nil {
			t.Fatal(err)
		}
		if r.Sent != 5000 || r.PerFlow() < 10 {
			t.Errorf("sent %d flows at %.0f ns each", r.Sent, r.PerFlow())
		}
		if got := waitFor(t, c, 5000); got != tc.want {
			t.Errorf("to %s: %+v arrived, want %+v", tc.base, got, tc.want)
		}
	}
}

// TestFlowsAreFresh: the kernel's own connection tracking shows that no two SYNs belonged to one
// flow, that every header was valid (an invalid one makes no entry), and that targets were hit
// evenly.
func TestFlowsAreFresh(t *testing.T) {
	l := newTestbed(t)
	if _, err := l.Node.Run("nft", "add table ip track; add chain ip track f { type filter hook forward priority 0; }; add rule ip track f ct state new counter"); err != nil {
		t.Fatal(err)
	}
	g, c := start(t, l)
	const targets, flows = 10, 3000
	if err := g.Aim(inject.Target{Base: cluster.Endpoints.Addr(), First: 5, Count: targets, Port: 8080}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second Send goes on where the first ended
		if _, err := g.Send(flows/2, 0); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, c, flows)
	entries, err := l.Node.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != flows {
		t.Errorf("connection tracking knows %d flows, want %d", len(entries), flows)
	}
	perTarget := map[string]int{}
	for _, e := range entries {
		perTarget[e.Forward.DstIP.String()]++
		if src, _ := netip.AddrFromSlice(e.Forward.SrcIP.To4()); !inject.Sources.Contains(src) {
			t.Errorf("flow from %s, want one of %s", src, inject.Sources)
		}
	}
	for addr, n := range perTarget {
		if n != flows/targets {
			t.Errorf("%s was hit %d times, want %d", addr, n, flows/targets)
		}
	}
	if len(perTarget) != targets {
		t.Errorf("%d targets were hit, want %d", len(perTarget), targets)
	}
}

// TestOrigins: the kernel's connection tracking counts the flows of a few kinds of origins.
func TestOrigins(t *testing.T) {
	l := newTestbed(t)
	if _, err := l.Node.Run("nft", "add table ip track; add chain ip track f { type filter hook forward priority 0; }; add rule ip track f ct state new counter"); err != nil {
		t.Fatal(err)
	}
	g, c := start(t, l)
	if err := g.Aim(inject.Target{Base: cluster.Endpoints.Addr(), First: 1, Count: 1, Port: 8080}); err != nil {
		t.Fatal(err)
	}
	const packets = 1024
	base := netip.MustParseAddr("33.0.0.0")
	for name, tc := range map[string]struct {
		origin           inject.Origin
		flows, addresses int // how many there must be, some birthdays among random addresses aside
	}{
		"a few flows in turns": {inject.Origin{Base: base, Flows: 64, UDP: true}, 64, 1},
		"scattered datagrams":  {inject.Origin{Base: base, Scatter: 0x1effffff, UDP: true}, packets, packets},
		"scattered SYNs":       {inject.Origin{Base: base, Scatter: 0xffff}, packets, packets - 40},
	} {
		if err := l.FlushConntrack(); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(g.From(tc.origin), c.Reset()); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Send(packets, 0); err != nil {
			t.Fatal(err)
		}
		waitFor(t, c, packets)
		entries, err := l.Node.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		addresses := map[string]bool{}
		for _, e := range entries {
			addresses[e.Forward.SrcIP.String()] = true
			if ip := e.Forward.SrcIP.To4(); ip[0]&^0x1e != 33 {
				t.Errorf("%s: a packet from %s", name, ip)
			}
			if udp := e.Forward.Protocol == 17; udp != tc.origin.UDP {
				t.Errorf("%s: a packet of protocol %d", name, e.Forward.Protocol)
			}
		}
		if len(entries) != tc.flows || len(addresses) < tc.addresses {
			t.Errorf("%s: %d flows from %d addresses, want %d from %d", name, len(entries), len(addresses), tc.flows, tc.addresses)
		}
	}
}
