package child

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/bgp"
)

// The test's own program plays the speaker: it tells of a route for each peer that it is told of,
// named as the peer, and ends when a peer is called "crash".
func TestMain(m *testing.M) {
	if dir := os.Getenv("CHILD_TEST_SPEAKER"); dir != "" {
		speak(dir)
		return
	}
	os.Exit(m.Run())
}

func speak(dir string) {
	started, _ := os.CreateTemp(dir, "started-*")
	_ = started.Close()
	// A second speaker has lost what is in the file.
	lost, _ := os.ReadFile(filepath.Join(dir, "lost"))
	reports := json.NewEncoder(os.Stdout)
	for orders := json.NewDecoder(os.Stdin); ; {
		var o bgp.Order
		if orders.Decode(&o) != nil {
			return
		}
		r := bgp.Report{Learned: map[netip.Prefix]*bgp.Learned{}, Settled: true}
		for name, p := range o.Peers {
			switch to, err := netip.ParsePrefix(name); {
			case name == "crash" && p != nil:
				os.Exit(3)
			case err != nil || strings.Contains(string(lost), name):
			case p == nil:
				r.Learned[to] = nil
			default:
				r.Learned[to] = &bgp.Learned{Peer: name}
			}
		}
		_ = reports.Encode(r)
	}
}

// play runs a child whose speaker is the test's own program.
func play(t *testing.T) (c *Child, dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv("CHILD_TEST_SPEAKER", dir)
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c = New(own, slog.New(slog.NewTextHandler(t.Output(), nil)))
	c.after = func(pause time.Duration) <-chan time.Time {
		if pause < firstPause || pause > maxPause {
			t.Errorf("the speaker is started again after %s", pause)
		}
		return time.After(0)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return c, dir
}

// learned keeps all that a child has told.
type learned map[netip.Prefix]*bgp.Learned

// until takes reports until one of them meets a condition, and returns that one.
func (l learned) until(t *testing.T, c *Child, met func(bgp.Report) bool) bgp.Report {
	t.Helper()
	for {
		select {
		case <-c.Reported():
		case <-time.After(time.Minute):
			t.Fatalf("no report comes; learned are %v", l)
		}
		r := c.Take()
		for p, is := range r.Learned {
			if is == nil {
				delete(l, p)
			} else {
				l[p] = is
			}
		}
		if met(r) {
			return r
		}
	}
}

func (l learned) is(names ...string) func(bgp.Report) bool {
	return func(bgp.Report) bool {
		have := make([]string, 0, len(l))
		for p := range maps.Keys(l) {
			have = append(have, p.String())
		}
		slices.Sort(have)
		return slices.Equal(have, names)
	}
}

func order(names ...string) bgp.Order {
	o := bgp.Order{Peers: map[string]*bgp.Peer{}}
	for _, name := range names {
		if gone, ok := strings.CutPrefix(name, "-"); ok {
			o.Peers[gone] = nil
		} else {
			o.Peers[name] = &bgp.Peer{}
		}
	}
	return o
}

func TestRoutesOutliveTheSpeaker(t *testing.T) {
	c, dir := play(t)
	have := learned{}
	if c.Follow(order("10.1.0.0/16")); !have.until(t, c, have.is("10.1.0.0/16")).Settled {
		t.Error("the first speaker is not settled")
	}
	c.Follow(order("10.2.0.0/16", "10.3.0.0/16"))
	have.until(t, c, have.is("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"))
	c.Follow(order("-10.2.0.0/16"))
	have.until(t, c, have.is("10.1.0.0/16", "10.3.0.0/16"))

	// It ends; the next one learns one route less, and is told all.
	if err := os.WriteFile(filepath.Join(dir, "lost"), []byte("10.3.0.0/16"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Follow(order("crash"))
	down := have.until(t, c, func(r bgp.Report) bool { return r.Error != "" })
	if p := down.Peers["10.1.0.0/16"]; !strings.Contains(down.Error, "exit status 3") || p == nil || p.State != "idle" || !have.is("10.1.0.0/16", "10.3.0.0/16")(down) {
		t.Errorf("when the speaker ends it says %+v, and has %v", down, have)
	}
	c.Follow(order("-crash"))
	have.until(t, c, have.is("10.1.0.0/16"))
	if started, _ := filepath.Glob(filepath.Join(dir, "started-*")); len(started) < 2 {
		t.Errorf("%d speakers were started", len(started))
	}
}

func TestProgramIsMissing(t *testing.T) {
	c := New("/nonexistent/sluice-bgp", slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	defer func() { stop(); <-ended }()
	c.Follow(order("10.1.0.0/16"))
	have := learned{}
	r := have.until(t, c, func(r bgp.Report) bool { return r.Error != "" })
	if !strings.Contains(r.Error, "/nonexistent/sluice-bgp") || r.Settled {
		t.Errorf("without its program it says %+v", r)
	}
}
