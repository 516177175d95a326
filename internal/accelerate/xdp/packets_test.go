package xdp_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// TestDirect has servers answer a client whose packets the program forwards, and counts them.
func TestDirect(t *testing.T) {
	t.Parallel()
	w := newSite(t, 3)
	w.restart(true)
	w.set(dsr(true, 3, 80, 53), dsr(false, 3, 80, 53))
	for _, tt := range []struct{ from, virtual string }{{"10.0.0.2", virtual4}, {"fd00::2", virtual6}} {
		for network, port := range map[string]string{"tcp": "80", "udp": "53"} {
			before, counts := w.took(), map[string]int{}
			for range 60 {
				g, err := w.client.Ask(network, tt.from, hostPort(tt.virtual, port), world.Patience)
				if err != nil || g.Client.Addr().String() != tt.from {
					t.Fatalf("%s %s: %+v, %v", network, tt.virtual, g, err)
				}
				counts[g.Server]++
			}
			if len(counts) != 3 {
				t.Errorf("%s %s: %v", network, tt.virtual, counts)
			}
			// The first packet to a backend, and one a second, go by the base.
			w.forwarded(w.took()-before, 40)
		}
	}
}

// TestToggled has the program come and go while clients ask: over connections that stay open, which
// another backend would reset, and over new ones.
func TestToggled(t *testing.T) {
	t.Parallel()
	w := newSite(t, 3)
	all := []*model.Farm{dsr(true, 3, 80, 53), dsr(false, 3, 80, 53)}
	w.set(all...)
	var over atomic.Bool
	var asked atomic.Int64
	var clients sync.WaitGroup
	for _, tt := range []struct{ from, virtual string }{{"10.0.0.2", virtual4}, {"fd00::2", virtual6}} {
		for range 4 {
			clients.Go(func() {
				c, err := w.client.Dial("tcp", tt.from, hostPort(tt.virtual, "80"), world.Patience)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = c.Close() }()
				for !over.Load() {
					if _, err := world.Exchange(c, world.Patience); err != nil {
						t.Errorf("over a connection that was open: %v", err)
						return
					}
					asked.Add(1)
				}
			})
		}
		for network, port := range map[string]string{"tcp": "80", "udp": "53"} {
			clients.Go(func() {
				for !over.Load() {
					if _, err := w.client.Ask(network, tt.from, hostPort(tt.virtual, port), world.Patience); err != nil {
						t.Errorf("%s: %v", network, err)
						return
					}
					asked.Add(1)
				}
			})
		}
	}
	var took uint64
	for i := range 8 {
		w.restart(i%2 == 0)
		// With the program, and without it, farms change, too.
		all[0].Backends[2].Mark++ // a number for people
		w.set(all...)
		before := asked.Load()
		w.eventually("clients are answered", func() bool { return asked.Load() > before+200 })
		took += w.took()
	}
	over.Store(true)
	clients.Wait()
	w.forwarded(took, 500)
}

// silence is how long nothing comes back from where nothing is to come from.
const silence = 200 * time.Millisecond

// TestListed has clients on a list be dropped, those that come onto it, too, and no others; the
// same by the base alone.
func TestListed(t *testing.T) {
	t.Parallel()
	w := newSite(t, 3)
	w.restart(true)
	list := func(addrs ...string) map[string]*model.FarmList {
		l := &model.FarmList{Name: "bad"}
		for _, a := range addrs {
			addr := netip.MustParseAddr(a)
			l.Ranges = append(l.Ranges, model.AddressRange{First: addr, Last: addr})
		}
		return map[string]*model.FarmList{"bad": l}
	}
	four, six := dsr(true, 3, 80, 53), dsr(false, 3, 80, 53)
	four.Lists, six.Lists = []string{"bad"}, []string{"bad"}
	meets := func(when string, denied, served []string) {
		t.Helper()
		for _, from := range denied {
			if g, err := w.client.Ask("udp", from, hostPort(virtualFor(from), "53"), silence); !world.TimedOut(err) {
				t.Errorf("%s, from %s: %+v, %v", when, from, g, err)
			}
		}
		for _, from := range served {
			if g, err := w.client.Ask("udp", from, hostPort(virtualFor(from), "53"), world.Patience); err != nil {
				t.Errorf("%s, from %s: %+v, %v", when, from, g, err)
			}
		}
	}
	w.change(list("10.0.0.3", "fd00::3"), four, six)
	meets("at first", []string{"10.0.0.3", "fd00::3"}, []string{"10.0.0.2", "fd00::2"})
	if note := w.fast.Status().Note; !strings.Contains(note, " packets dropped by bad") || strings.HasPrefix(note, "0 ") {
		t.Errorf("status: %s", note)
	}
	w.change(list("10.0.0.2", "fd00::2"))
	meets("another list", []string{"10.0.0.2", "fd00::2"}, []string{"10.0.0.3", "fd00::3"})
	long := make([]string, 0, 3000)
	for i := range 3000 { // more than there is room for
		long = append(long, netip.AddrFrom4([4]byte{10, 7, byte(i >> 8), byte(i)}).String())
	}
	w.change(list(append(long, "fd00::3")...))
	meets("a long list", []string{"fd00::3"}, []string{"10.0.0.2", "10.0.0.3", "fd00::2"})
	before := w.took()
	for range 30 {
		meets("forwarded", nil, []string{"10.0.0.2"})
	}
	w.forwarded(w.took()-before, 20)
	w.restart(false)
	meets("by the base", []string{"fd00::3"}, []string{"10.0.0.2", "10.0.0.3", "fd00::2"})
	w.restart(true)
	meets("by the program again", []string{"fd00::3"}, []string{"10.0.0.2", "10.0.0.3", "fd00::2"})
}

// TestErrors has ICMP errors about what servers have sent come to the servers, by the program, and
// by the base.
func TestErrors(t *testing.T) {
	t.Parallel()
	w := newSite(t, 3)
	w.restart(true)
	four, six := dsr(true, 3, 53), dsr(false, 3, 53)
	four.Addresses[0].Ports[0] = model.PortSpan{First: 50, Last: 60}
	w.set(four, six)
	all := map[string]*world.Host{}
	for i, s := range w.servers {
		all[fmt.Sprintf("s%d", i+1)] = s
	}
	for _, tt := range []struct{ from, router, virtual string }{{"10.0.0.2", "10.0.0.3", virtual4}, {"fd00::2", "fd00::3", virtual6}} {
		virtual := netip.MustParseAddr(tt.virtual)
		heard := world.HearICMP(t, virtual.Is4(), all)
		servers := map[world.ICMPError]string{}
		for range 30 {
			g, err := w.client.Ask("udp", tt.from, hostPort(tt.virtual, "53"), world.Patience)
			w.must(err)
			servers[world.TooBig(world.UDP, netip.AddrPortFrom(virtual, 53), g.Client)] = g.Server
		}
		tell := func() {
			t.Helper()
			for e, want := range servers {
				w.client.SendICMP(tt.router, e)
				if got := heard.Who(e, world.Patience); got != want {
					t.Fatalf("%+v is heard by %q, want %q", e, got, want)
				}
			}
		}
		before := w.took()
		tell()
		w.forwarded(w.took()-before, 20)
		w.restart(false)
		tell()
		w.restart(true)
	}
}

// TestPathMTU has servers answer over a way that is narrower than their own network, and than the
// one by which clients ask. What the narrow way's router says comes by the servers' network.
func TestPathMTU(t *testing.T) {
	t.Parallel()
	w := newSite(t, 2)
	narrow := world.NewHost(t, "narrow")
	narrow.Join("in", w.middle, "narrow")
	w.middle.Port("br", "narrow")
	narrow.Feature("in", "tx-checksum-ip-generic", false)
	narrow.Address("in", "10.1.0.9/24", "fd01::9/64")
	narrow.Narrow(w.client, "10.0.0.2", "fd00::2")
	narrow.Route(virtual4+"/32", "10.1.0.1")
	narrow.Route(virtual6+"/128", "fd01::1")
	for _, s := range w.servers {
		s.IP("route replace 10.0.0.2/32 via 10.1.0.9", "route replace fd00::2/128 via fd01::9")
		s.ServeLong(":82", 1<<20)
	}
	w.restart(true)
	w.set(dsr(true, 2, 82), dsr(false, 2, 82))
	for _, tt := range []struct{ from, virtual string }{{"10.0.0.2", virtual4}, {"fd00::2", virtual6}} {
		before := w.took()
		for range 4 {
			if n, err := w.client.Read(tt.from, hostPort(tt.virtual, "82"), world.Patience); n != 1<<20 {
				t.Fatalf("%s: %d bytes, %v; %v", tt.virtual, n, err, w.notes())
			}
		}
		w.forwarded(w.took()-before, 20)
	}
}

func virtualFor(client string) string {
	if netip.MustParseAddr(client).Is4() {
		return virtual4
	}
	return virtual6
}
