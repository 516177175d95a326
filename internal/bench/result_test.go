package bench

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/netns"
)

var update = flag.Bool("update", false, "rewrite the golden file")

func TestSpread(t *testing.T) {
	for _, tc := range []struct {
		in   []float64
		want Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{3, 1, 2}, Spread{2, 1, 3}},
		{[]float64{4, 1, 2, 3}, Spread{2.5, 1, 4}},
	} {
		if got := spread(tc.in); got != tc.want {
			t.Errorf("spread(%v) = %v, want %v", tc.in, got, tc.want)
		}
	}
}

// TestRatiosPairRounds: a machine that slows down by half during the second
// round changes no ratio.
func TestRatiosPairRounds(t *testing.T) {
	a, base := &Measurement{Samples: []float64{11, 22, 11}}, &Measurement{Samples: []float64{10, 20, 10}}
	if got, want := ratios(a, base), (Spread{1.1, 1.1, 1.1}); got != want {
		t.Errorf("ratios = %v, want %v", got, want)
	}
}

// sample is a run with all that a report can show.
func sample() *run {
	r := &run{
		Options: Options{Scale: Full},
		Result: &Result{
			Experiment: "connections", Title: connections.Title, How: "As it is done.", Command: "sluice bench connections",
			Started: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Seconds: 61.5, Scale: Full, Rounds: 3,
			Machine: Machine{Kernel: "6.18.0", CPU: "some CPU", Cores: 2, Memory: "8000000 kB", Go: "go1.26.0", Load: "0.10",
				Tools: map[string]string{"nft": "nftables v1.0.6", "iptables": "iptables v1.8.9"}},
		},
	}
	for n, cost := range map[int]float64{10: 3, 10_000: 3.1} {
		for _, noise := range []float64{1, 0.9, 1.2} {
			c := cluster.Cluster{Services: n, Endpoints: 10}
			r.record(spec{peer.Sluice{}, c}, lastHit, perFlow, "µs", cost*noise)
			r.record(spec{peer.KubeIptables{}, c}, lastHit, perFlow, "µs", cost*noise*float64(n)/10)
		}
	}
	r.skip("nftlb beyond 250 services: it holds 4,095 backends at most")
	r.judgeConnections(10_000)
	r.goal("a table cell with | in it", "≤ 1", "2", false)
	r.Charts = []Picture{{File: "connections-last.svg", Title: "Cost"}}
	return r
}

func TestReportGolden(t *testing.T) {
	got := report([]*Result{sample().Result})
	path := filepath.Join("testdata", "report.md")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got); run with -update to accept:\n%s", path, diff)
	}
}

// TestKeptResultsAreReadBack: a report is made of files alone, so that one
// experiment can be run again without the others.
func TestKeptResultsAreReadBack(t *testing.T) {
	dir := t.TempDir()
	r := sample()
	r.Charts = nil
	if err := r.keep(dir, connections.paint(r.Result)); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(dir, names(Experiments())); err != nil {
		t.Fatal(err)
	}
	all, err := readResults(dir, names(Experiments()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*Result{r.Result}, all); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	b, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Charts {
		if !bytes.Contains(b, []byte(p.File)) {
			t.Errorf("README.md does not show %s", p.File)
		}
		if _, err := os.Stat(filepath.Join(dir, p.File)); err != nil {
			t.Error(err)
		}
	}
}

func TestUnknownNames(t *testing.T) {
	for _, o := range []Options{{Scale: "huge"}, {Scale: Small, Experiments: []string{"nothing"}}} {
		if err := Run(t.Context(), o); !errors.Is(err, ErrUnknown) {
			t.Errorf("Run(%+v) = %v, want ErrUnknown", o, err)
		}
	}
}

// stopAfter cancels once a line with the text is written.
type stopAfter struct {
	text   string
	cancel func()
}

func (s stopAfter) Write(b []byte) (int, error) {
	if strings.Contains(string(b), s.text) {
		s.cancel()
	}
	return len(b), nil
}

// TestInterruptedRunLeavesNothing stops an experiment in the middle of its load.
func TestInterruptedRunLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	err := Run(ctx, Options{
		Experiments: []string{"requests"}, Scale: Small, Out: dir, Progress: stopAfter{"round 1 of", cancel},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v, want it cancelled", err)
	}
	entries, err := os.ReadDir(netns.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), fmt.Sprintf("%s%d-", marker, os.Getpid())) {
			t.Errorf("namespace %s was left", e.Name())
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("results were kept: %v %v", files, err)
	}
}

// TestSweep: a process and a namespace of a run that was killed are removed.
func TestSweep(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("%s%d-1-node", marker, dead.Process.Pid)
	ns, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close(); _ = netns.Delete(name) })
	left := exec.Command("sleep", "60")
	if err := ns.Start(left); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = left.Process.Kill() })
	if err := sweep(); err != nil {
		t.Fatal(err)
	}
	if err := left.Wait(); err == nil {
		t.Error("the process that was left ended by itself")
	}
	if _, err := os.Stat(ns.Path()); !os.IsNotExist(err) {
		t.Errorf("the namespace is still there: %v", err)
	}
}

func TestCommitsAreSeen(t *testing.T) {
	ns, err := netns.New(fmt.Sprintf("%s%d-commits", marker, os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Delete() })
	w, err := watchCommits(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	began := time.Now()
	if _, err := ns.Run("nft", "add table ip t; add set ip t s { type inet_service; }; add element ip t s { 1, 2, 3 }"); err != nil {
		t.Fatal(err)
	}
	ended := time.Now()
	c, err := w.last(t.Context(), 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if c.elements != 3 || c.at.Before(began) || c.at.After(ended.Add(time.Second)) {
		t.Errorf("saw %d elements at %s, want 3 between %s and %s", c.elements, c.at, began, ended)
	}
}
