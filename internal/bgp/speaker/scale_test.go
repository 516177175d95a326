package speaker_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/bgp"
)

// many are n prefixes of 24 bits.
func many(first string, n int) []string {
	base := addr(first).As4()
	all := make([]string, n)
	for i := range all {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(base[:])+uint32(i)<<8)
		all[i] = netip.PrefixFrom(netip.AddrFrom4(a), 24).String()
	}
	return all
}

// 10,000 routes are reported in few lines, and one more in one; as many are announced.
func TestManyRoutes(t *testing.T) {
	t.Parallel()
	const n = 10_000
	w := newWire(t)
	b := w.bird(1, birdConf(1, 64601, many("20.0.0.0", n)...))
	s := w.speaker()
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"bird": peer(1)}, Routes: routes(many("30.0.0.0", n)...)})
	s.up("bird")
	begin := time.Now()
	before := s.count()
	s.await("first learned", func(x *said) bool { return len(x.learned) > 0 })
	t.Logf("first after %v", time.Since(begin))
	s.await("all learned", func(x *said) bool { return len(x.learned) == n })
	took := time.Since(begin)
	few := func() {
		t.Helper()
		if lines, took := s.count()-before, time.Since(begin); lines > int(took/(20*time.Millisecond))+10 {
			t.Errorf("%d lines in %v", lines, took)
		}
	}
	few()
	t.Logf("%d routes in %v and %d lines", n, took, s.count()-before)
	s.await("counted", func(x *said) bool { return x.peers["bird"].Received >= n && x.peers["bird"].Advertised == n })
	eventually(t, "announced", func() (string, error) { return b.Run("show route count") }, contains(fmt.Sprintf("%d of %d routes for %d networks in table master4", 2*n, 2*n, 2*n)))

	s.order(&bgp.Order{Routes: map[netip.Prefix]*bgp.Route{prefix("30.0.0.0/24"): nil}})
	eventually(t, "one less", func() (string, error) { return b.Run("show route count") }, contains(fmt.Sprintf("%d of", 2*n-1)))
	s.quiet()
	begin, before = time.Now(), s.count()
	if _, err := b.Run("disable s4"); err != nil {
		t.Fatal(err)
	}
	s.await("all gone", func(x *said) bool { return len(x.learned) == 0 })
	few()
}

// The session with a peer that announces too much ends, which is named, and its routes go; it is
// not tried again soon, unless the peer is configured anew. Other peers do not notice. What the
// rules reject does not count, but to a higher limit.
func TestTooManyRoutes(t *testing.T) {
	t.Parallel()
	const n = 100
	w := newWire(t)
	b := w.bird(1, birdConf(1, 64601, many("20.0.0.0", n)...)+"protocol static more { disabled; ipv4; route 40.0.0.0/8 blackhole; }\n")
	w.bird(2, birdConf(2, 64602, "198.51.100.0/24"))
	run := func(command string) {
		t.Helper()
		if out, err := b.Run(command); err != nil {
			t.Fatal(out, err)
		}
	}
	s := w.speaker()
	flood := peer(1)
	flood.MaxRoutes = n
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"flood": flood, "good": peer(2)}})
	s.await("as many as there may be", func(x *said) bool { return len(x.learned) == n+1 })
	run("enable more")
	s.says("peer flood (10.7.1.2): it announces more than 100 routes of a family that its filters accept: have it announce fewer; the next session is tried after 5 minutes")
	s.await("none of them", func(x *said) bool {
		p := x.peers["flood"]
		return len(x.learned) == 1 && p.State == "idle" && p.Received == 0 &&
			strings.HasPrefix(p.Why, "this node closed the session: cease, too many prefixes (notification 6/1); since then: it announces more than 100 routes")
	})
	eventually(t, "the peer is told", func() (string, error) { return b.Run("show protocols all node") }, contains("Received: Maximum number of prefixes reached"))
	s.order(&bgp.Order{Routes: routes("30.0.0.0/24")}) // has the server brought to what it should do
	s.quiet()
	s.says("peer flood (10.7.1.2)")
	few := *flood
	few.Import = []bgp.Rule{{Accept: true, Prefix: prefix("40.0.0.0/8")}, {}}
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"flood": &few}})
	s.up("flood")
	s.well()
	s.await("one is accepted", func(x *said) bool { return len(x.learned) == 2 && x.peers["flood"].Received == n+1 })
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"flood": flood}}) // on the same session
	s.says("peer flood (10.7.1.2): it announces more than 100 routes of a family that its filters accept")
	fewer := few
	fewer.MaxRoutes = 3
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"flood": &fewer}})
	s.says("peer flood (10.7.1.2): it announces more than 96 routes of a family, those that its filters reject included: have it announce fewer")
	s.await("good stays", func(x *said) bool { return len(x.learned) == 1 && x.peers["good"].Why == "" })
}

// count is how many Reports there were.
func (s *speaking) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines
}

// quiet waits until there has been no report for three seconds: nothing is said when nothing
// changes.
func (s *speaking) quiet() {
	s.t.Helper()
	limit := time.After(patience)
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(3 * time.Second):
			return
		case <-limit:
			s.t.Fatal("there is always something to say")
		}
	}
}
