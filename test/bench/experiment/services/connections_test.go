package services

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// sample is a run with everything that a report can show.
func sample() *harness.Run {
	r := &harness.Run{
		Options: harness.Options{Scale: harness.Full},
		Result: &report.Result{
			Experiment: "connections", Title: Connections.Title, How: "As it is done.", Command: "sluice bench connections",
			Started: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Seconds: 61.5, Scale: harness.Full, Rounds: 3,
			Machine: report.Machine{Kernel: "6.18.0", CPU: "some CPU", Cores: 2, Memory: "8000000 kB", Go: "go1.26.0", Load: "0.10",
				Tools: map[string]string{"nft": "nftables v1.0.6", "iptables": "iptables v1.8.9"}},
		},
	}
	for n, cost := range map[int]float64{10: 3, 10_000: 3.1} {
		for _, noise := range []float64{1, 0.9, 1.2} {
			c := cluster.Cluster{Services: n, Endpoints: 10}
			r.Record(harness.ServiceCase{Dataplane: peer.Sluice{}, Cluster: c}, harness.LastHit, harness.PerFlow, "µs", cost*noise)
			r.Record(harness.ServiceCase{Dataplane: peer.KubeIptables{}, Cluster: c}, harness.LastHit, harness.PerFlow, "µs", cost*noise*float64(n)/10)
		}
	}
	r.Skip("nftlb beyond 250 services: it holds 4,095 backends at most")
	connectionGoals(r, 10_000)
	r.Goal("a table cell with | in it", "≤ 1", "2", false)
	r.Charts = []report.Picture{{File: "connections-last.svg", Title: "Cost"}}
	return r
}

func TestReportGolden(t *testing.T) {
	got := report.Markdown([]*report.Result{sample().Result})
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

// TestKeptResultsAreReadBack: a report is made of files alone, so that one experiment can be run
// again without the others.
func TestKeptResultsAreReadBack(t *testing.T) {
	dir := t.TempDir()
	r := sample()
	r.Charts = nil
	if err := r.Keep(dir, Connections.Charts(r.Result)); err != nil {
		t.Fatal(err)
	}
	if err := report.WriteMarkdown(dir, []string{Connections.Name}); err != nil {
		t.Fatal(err)
	}
	all, err := report.ReadResults(dir, []string{Connections.Name})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*report.Result{r.Result}, all); diff != "" {
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
