package peer_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/testbed"
)

// TestBlockers: each way to block drops everything that is listed, and nothing else. If packets are
// not tracked, host endpoints do not apply to them.
func TestBlockers(t *testing.T) {
	const packets = 500
	for i, b := range append(peer.Blockers(), peer.HostPolicy{}) {
		for j, list := range [][]netip.Prefix{nil, cluster.Addresses(300), cluster.Networks(300)} {
			if _, interval := b.(peer.NftSet); interval && j == 2 {
				continue // its networks must not overlap
			}
			t.Run(fmt.Sprintf("%s, list %d", b.Name(), j), func(t *testing.T) {
				l, err := testbed.New(fmt.Sprintf("sbb%d-%d%d", os.Getpid(), i, j))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
				blocked, err := b.Block(t.Context(), l.Node, testbed.NodeIn, list)
				if errors.Is(err, peer.ErrMissing) {
					t.Skip(err)
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = blocked.Close() })
				if err := l.Track(j == 1 || b == (peer.HostPolicy{})); err != nil {
					t.Fatal(err)
				}
				if got := arrive(t, l, cluster.Unlisted, packets); got != packets {
					t.Errorf("%d of %d packets that are not listed arrived", got, packets)
				}
				if len(list) == 0 {
					return
				}
				for _, p := range []netip.Prefix{list[0], list[len(list)-1]} {
					if got := arrive(t, l, inject.Origin{Base: p.Addr(), Flows: 64, UDP: true}, 64); got != 0 {
						t.Errorf("%d packets from %s, which is listed, arrived", got, p)
					}
				}
			})
		}
	}
}

// arrive sends n packets and returns how many got through.
func arrive(t *testing.T, l *testbed.Testbed, o inject.Origin, n int) int {
	t.Helper()
	g, err := inject.New(l.Node, testbed.NodeIn)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	c, err := inject.NewCounter(l.Backend, testbed.Uplink, cluster.Endpoints)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := errors.Join(g.From(o), g.Aim(inject.Target{Base: cluster.Endpoints.Addr(), First: 1, Count: 1, Port: 80})); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Send(n, 0); err != nil {
		t.Fatal(err)
	}
	// Dropped packets never come, so the wait for them is short. The others have as long as they
	// need.
	limit := 100 * time.Millisecond
	if o == cluster.Unlisted {
		limit = 5 * time.Second
	}
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		a, err := c.Read()
		if err != nil {
			t.Fatal(err)
		}
		if a.Backend == n || time.Now().After(end) {
			return a.Backend
		}
	}
}
