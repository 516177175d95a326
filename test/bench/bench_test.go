package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/test/bench/experiment/baseline"
	"sluice.dev/sluice/test/bench/experiment/fabric"
	"sluice.dev/sluice/test/bench/experiment/policy"
	"sluice.dev/sluice/test/bench/experiment/services"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/netns"
)

// TestAnExperimentIsFoundByItsName: its file is called like it, in the folder of its family.
func TestAnExperimentIsFoundByItsName(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range Experiments() {
		family, file := "services", e.Name
		for prefix, folder := range map[string]string{"policy-": "policy", "kube-proxy-": "kubeproxy", "hostile-": "hostile", "fabric-": "fabric", "balancer-": "balancer", "accelerate-": "accelerate", "modes-": "modes", "nodes-": "nodes"} {
			if rest, ok := strings.CutPrefix(e.Name, prefix); ok {
				family, file = folder, rest
			}
		}
		if e.Name == "soak" || e.Name == "baseline" {
			family = e.Name
		}
		path := filepath.Join("experiment", family, file+".go")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%s: %v", e.Name, err)
		} else if !strings.Contains(string(text), fmt.Sprintf("Name:  %q", e.Name)) {
			t.Errorf("%s is not in %s", e.Name, path)
		}
		if seen[e.Name] || e.Title == "" || e.How == "" || e.Run == nil || e.Charts == nil {
			t.Errorf("%s: there twice, or incomplete", e.Name)
		}
		seen[e.Name] = true
	}
}

// TestExperiments runs in miniature those that need no agent's program.
func TestExperiments(t *testing.T) {
	dir := t.TempDir()
	err := Run(t.Context(), harness.Options{
		Experiments: []string{policy.Rules.Name, policy.Changes.Name, policy.Cost.Name, policy.Copy.Name, fabric.Nodes.Name}, Scale: harness.Small, Rounds: 1, Out: dir, Progress: io.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	all, err := report.ReadResults(dir, names(Experiments()))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 5 {
		t.Fatalf("%d results, want 5", len(all))
	}
	for _, r := range all {
		if len(r.Series) == 0 || len(r.Charts) == 0 {
			t.Errorf("%s: nothing was measured or drawn", r.Experiment)
		}
		if r.Experiment != policy.Rules.Name {
			continue // results on a busy machine do not matter in a test
		}
		for _, g := range r.Goals {
			if !g.Met {
				t.Errorf("%s: %s, want %s", g.What, g.Result, g.Goal)
			}
		}
	}
}

// TestExperimentsAreChosenByTheirFirstWord: they run in the order of the list.
func TestExperimentsAreChosenByTheirFirstWord(t *testing.T) {
	chosen, err := choose(harness.Options{Scale: harness.Small, Experiments: []string{"policy", "latency"}})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(chosen); n != 9 || chosen[0].Name != policy.Rules.Name || chosen[n-1].Name != services.Latency.Name {
		t.Errorf("%d chosen", n)
	}
}

// TestBaselineRunsWhereThereIsOne: with --baseline, that experiment runs alone unless others are
// named.
func TestBaselineRunsWhereThereIsOne(t *testing.T) {
	with, err := choose(harness.Options{Scale: harness.Small, Baseline: "x"})
	if err != nil || len(with) != 1 || with[0].Name != baseline.Experiment.Name {
		t.Errorf("with one %d are chosen: %v", len(with), err)
	}
	without, err := choose(harness.Options{Scale: harness.Small})
	if err != nil || len(without) != len(Experiments())-1 {
		t.Errorf("without one %d are chosen: %v", len(without), err)
	}
}

func TestUnknownNames(t *testing.T) {
	for _, o := range []harness.Options{{Scale: "huge"}, {Scale: harness.Small, Experiments: []string{"nothing"}}} {
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
	err := Run(ctx, harness.Options{
		Experiments: []string{"requests"}, Scale: harness.Small, Out: dir, Progress: stopAfter{"round 1 of", cancel},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v, want it cancelled", err)
	}
	entries, err := os.ReadDir(netns.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), fmt.Sprintf("%s%d-", harness.Marker, os.Getpid())) {
			t.Errorf("namespace %s was left", e.Name())
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("results were kept: %v %v", files, err)
	}
}
