package pathmtu

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// between makes two nodes, and a router between them whose far link has an MTU.
func between(t *testing.T, mtu int) (node, router *world.Host) {
	t.Helper()
	node, router = world.NewHost(t, "node"), world.NewHost(t, "router")
	far := world.NewHost(t, "far")
	for _, h := range []*world.Host{node, router, far} {
		h.Forward()
		h.Set("net.ipv4.icmp_ratelimit", "0")
		h.Set("net.ipv6.icmp.ratelimit", "0")
	}
	node.Join("eth0", router, "near")
	far.Join("eth0", router, "far")
	node.Address("eth0", "192.0.2.1/24", "fd00:2::1/64")
	node.Gateway("192.0.2.254", "fd00:2::254")
	router.Address("near", "192.0.2.254/24", "fd00:2::254/64")
	router.Address("far", "198.51.100.254/24", "fd00:3::254/64")
	router.IP(fmt.Sprint("link set far mtu ", mtu))
	far.Address("eth0", "198.51.100.3/24", "fd00:3::3/64")
	far.Gateway("198.51.100.254", "fd00:3::254")
	return node, router
}

// A path that carries less than the interface says is named with what it carries, whether the
// router on the way says so or drops in silence; one that carries all is not, nor one of which
// nothing can be told.
func TestPaths(t *testing.T) {
	for name, silent := range map[string]bool{"a router says so": false, "silence": true} {
		t.Run(name, func(t *testing.T) {
			node, router := between(t, 1393)
			if silent {
				router.Exec("nft", "add table inet t; add chain inet t out { type filter hook output priority 0; }; "+
					"add rule inet t out icmp type destination-unreachable icmp code frag-needed drop; add rule inet t out icmpv6 type packet-too-big drop")
			}
			var p *Prober
			node.In(func() (err error) { p, err = Open(); return err })
			defer p.Close()
			p.pause, p.rest, p.again = 50*time.Millisecond, 0, 0
			path := func(node, to string, mtu int) model.Path {
				return model.Path{Node: node, To: netip.MustParseAddr(to), Device: "eth0", MTU: mtu}
			}
			paths := []model.Path{
				path("far", "198.51.100.3", 1500), path("far", "fd00:3::3", 1500), path("right", "198.51.100.3", 1393),
				path("near", "192.0.2.254", 1500), path("near", "fd00:2::254", 1500), path("down", "192.0.2.77", 1500), path("tiny", "192.0.2.254", 576),
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); p.Run(ctx, func() []model.Path { return paths }) }()
			defer func() { cancel(); <-done }()
			want := []string{
				"Node far: packets of 1500 bytes, the MTU of eth0 on this node, do not reach its address 198.51.100.3, those of 1393 do",
				"Node far: packets of 1500 bytes, the MTU of eth0 on this node, do not reach its address fd00:3::3, those of 1393 do",
			}
			right := func() bool {
				p.mu.Lock()
				measured := len(p.known)
				for _, r := range p.known {
					if r.asked.IsZero() {
						measured--
					}
				}
				p.mu.Unlock()
				got := p.Issues()
				return measured == len(paths)-1 && slices.EqualFunc(got, want, func(i model.Issue, want string) bool { return strings.HasPrefix(i.String(), want) })
			}
			for begin := time.Now(); !right(); time.Sleep(10 * time.Millisecond) {
				if time.Since(begin) > time.Minute {
					t.Fatalf("%v, want %q", p.Issues(), want)
				}
			}
		})
	}
}

// A path that is mended is no fault any more after one more packet, long before it is measured
// anew, and one that comes to carry less is one; meanwhile others are measured.
func TestMended(t *testing.T) {
	node, router := between(t, 1393)
	var p *Prober
	node.In(func() (err error) { p, err = Open(); return err })
	defer p.Close()
	p.pause, p.rest, p.again = 20*time.Millisecond, 0, time.Hour
	far := model.Path{Node: "far", To: netip.MustParseAddr("198.51.100.3"), Device: "eth0", MTU: 1500}
	near := model.Path{Node: "near", To: netip.MustParseAddr("192.0.2.254"), Device: "eth0", MTU: 1500}
	paths := make(chan []model.Path, 1)
	paths <- []model.Path{far}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx, func() []model.Path { now := <-paths; paths <- now; return now })
	}()
	defer func() { cancel(); <-done }()
	faults := func(want int) {
		t.Helper()
		for begin := time.Now(); len(p.Issues()) != want; time.Sleep(5 * time.Millisecond) {
			if time.Since(begin) > time.Minute {
				t.Fatalf("%v, want %d", p.Issues(), want)
			}
		}
	}
	faults(1)
	<-paths
	paths <- []model.Path{far, near}
	for begin, measured := time.Now(), false; !measured; time.Sleep(5 * time.Millisecond) {
		p.mu.Lock()
		measured = p.known[near].largest == 1500
		p.mu.Unlock()
		if time.Since(begin) > time.Minute {
			t.Fatal("beside a path that is tried again and again, no other is measured")
		}
	}
	faults(1)
	if m := p.Missing(); len(m) != 1 || m[far.To] != 107 {
		t.Errorf("missing: %v", m)
	}
	router.IP("link set far mtu 1500")
	faults(0)
	if m := p.Missing(); len(m) != 0 {
		t.Errorf("missing of paths that carry all: %v", m)
	}
	router.IP("link set far mtu 1400")
	faults(1)
	if m := p.Missing(); len(m) != 1 || m[far.To] != 100 {
		t.Errorf("missing of a path that carries less than before: %v", m)
	}
}
