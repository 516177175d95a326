package heartbeat

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// nodes are three, which are one machine's loopback addresses.
var nodes = map[string][]netip.Addr{"n1": {addr("127.83.0.1")}, "n2": {addr("127.83.0.2")}, "n3": {addr("127.83.0.3")}}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// start runs a node's part, and returns what stops it.
func start(t *testing.T, node string) (*Heartbeat, func()) {
	h := New(node, slog.New(slog.DiscardHandler))
	h.SetPeers(nodes)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { h.Run(ctx) })
	stop := func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return h, stop
}

// await waits until exactly these nodes are silent.
func await(t *testing.T, h *Heartbeat, want ...string) {
	t.Helper()
	all := map[string]bool{}
	for _, n := range want {
		all[n] = true
	}
	var got map[string]bool
	for limit := time.After(30 * time.Second); ; {
		select {
		case got = <-h.Silent():
			if maps.Equal(got, all) {
				return
			}
		case <-limit:
			t.Fatalf("%s finds %v silent, want %v", h.node, got, want)
		}
	}
}

// A node that ends is silent, and no longer once it is back.
func TestHeartbeat(t *testing.T) {
	first, _ := start(t, "n1")
	second, _ := start(t, "n2")
	third, stop := start(t, "n3")
	for _, h := range []*Heartbeat{first, second, third} {
		await(t, h)
	}
	stop()
	for _, h := range []*Heartbeat{first, second} {
		await(t, h, "n3")
	}
	if peers, silent := first.Counts(); peers != 2 || silent != 1 {
		t.Errorf("%d peers, %d silent", peers, silent)
	}
	start(t, "n3")
	for _, h := range []*Heartbeat{first, second} {
		await(t, h)
	}
}

// packet is what a node sends.
func packet(node string, hears byte) []byte {
	return append(append([]byte(magic), hears), node...)
}

// Who counts as silent follows from what came when.
func TestSilent(t *testing.T) {
	h := New("n1", slog.New(slog.DiscardHandler))
	h.SetPeers(nodes)
	now := time.Now()
	check := func(what string, at time.Time, want ...string) {
		t.Helper()
		got := h.silentAt(at)
		for _, n := range want {
			if !got[n] {
				t.Errorf("%s: %s is not silent", what, n)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %v are silent, want %v", what, got, want)
		}
	}
	check("at first", now)
	later := now.Add(2 * SilentAfter)
	check("nothing came", later, "n2", "n3")
	h.take(packet("n2", 1), addr("127.83.0.3"), later)
	h.take(packet("n9", 1), addr("127.83.0.2"), later)
	h.take(packet("n2", 1)[:5], addr("127.83.0.2"), later)
	h.take(packet("", 1), addr("127.83.0.2"), later)
	h.take([]byte("no packet of ours"), addr("127.83.0.2"), later)
	check("what is not from a node's own address is nothing", later, "n2", "n3")
	h.take(packet("n2", 1), addr("127.83.0.2"), later)
	check("one is heard, and hears", later, "n3")
	latest := later.Add(SilentAfter)
	h.take(packet("n2", 0), addr("127.83.0.2"), latest)
	check("one is heard, and does not hear", latest, "n1", "n3")
	more := maps.Clone(nodes)
	more["n4"] = []netip.Addr{addr("127.83.0.4")}
	h.SetPeers(more)
	h.take(packet("n2", 1), addr("127.83.0.2"), latest)
	check("a node that came later", latest, "n3", "n4")
	h.take(packet("n4", 1), addr("127.83.0.4"), latest)
	check("it is heard", latest, "n3")
	h.SetPeers(nil)
	check("no others", latest)
}
