package bench

import (
	"io"
	"testing"
)

// TestPolicyExperiments runs those in miniature that need no agent's program.
func TestPolicyExperiments(t *testing.T) {
	dir := t.TempDir()
	err := Run(t.Context(), Options{
		Experiments: []string{rules.Name, labels.Name, costing.Name, copying.Name}, Scale: Small, Rounds: 1, Out: dir, Progress: io.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	all, err := readResults(dir, names(Experiments()))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 4 {
		t.Fatalf("%d results, want 4", len(all))
	}
	for _, r := range all {
		if len(r.Series) == 0 || len(r.Charts) == 0 {
			t.Errorf("%s: nothing was measured or drawn", r.Experiment)
		}
		if r.Experiment != rules.Name {
			continue // what a busy machine gives is no matter for a test
		}
		for _, g := range r.Goals {
			if !g.Met {
				t.Errorf("%s: %s, want %s", g.What, g.Result, g.Goal)
			}
		}
	}
}

// TestExperimentsAreChosenByTheirFirstWord: and in their own order.
func TestExperimentsAreChosenByTheirFirstWord(t *testing.T) {
	chosen, err := choose(Options{Scale: Small, Experiments: []string{"policy", "latency"}})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(chosen); n != 8 || chosen[0].Name != rules.Name || chosen[n-1].Name != latency.Name {
		t.Errorf("%d chosen", n)
	}
}
