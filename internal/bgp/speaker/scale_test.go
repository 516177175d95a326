package speaker_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
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
