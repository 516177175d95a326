package xdp_test

import (
	"sync"
	"sync/atomic"
	"testing"

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
			if n := w.took() - before; n < 40 {
				t.Errorf("%s %s: the program forwarded %d packets; %v", network, tt.virtual, n, w.notes())
			}
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
	if took < 500 {
		t.Errorf("the program forwarded %d packets of %d requests; %v", took, asked.Load(), w.notes())
	}
}
