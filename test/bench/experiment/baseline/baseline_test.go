package baseline

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// TestBaselineIsComparedByRounds: a round in which the machine was slow changes no ratio, a sample
// that is missing from a round makes no pair, and counts may not grow at all.
func TestBaselineIsComparedByRounds(t *testing.T) {
	r := &harness.Run{Options: harness.Options{Scale: harness.Full, Progress: t.Output()}, Result: &report.Result{}}
	own := peer.Sluice{}.Name()
	for i, round := range []map[string][2]float64{
		{"fast": {10, 10.2}, "slow": {10, 11}, "count": {0, 0}},
		{"fast": {20, 20.4}, "slow": {30, 33}, "count": {0, 1}},
		{"fast": {10, 0}, "slow": {10, 11}, "count": {0, 0}},
	} {
		pairs := samples{}
		for metric, s := range round {
			unit := "ms"
			if metric == "count" {
				unit = ""
			}
			for k, name := range []string{baselineName, own} {
				if i == 1 {
					k, name = 1-k, []string{own, baselineName}[k]
				}
				if s[k] != 0 || unit == "" {
					recorder(r, name, report.Measurement{Services: 1, Endpoints: 10}, pairs)("", metric, unit, s[k])
				}
			}
		}
	}
	r.Add(report.Measurement{Dataplane: baselineName, Variant: upgraded, Metric: harness.Failed}, 0)
	setGoals(r)
	met := map[string]bool{}
	for _, g := range r.Goals {
		met[g.What] = g.Met
	}
	want := map[string]bool{
		"fast, 10 endpoints, over the baseline": true, "slow, 10 endpoints, over the baseline": false, "count, 10 endpoints": false,
		upgraded + " under load: " + harness.Failed: true,
	}
	if diff := cmp.Diff(want, met); diff != "" {
		t.Errorf("goals (-want +got):\n%s", diff)
	}
	if m := r.Same(ratioOf(report.Measurement{Services: 1, Metric: "fast"})); m == nil || len(m.Samples) != 2 || m.Max > 1.021 {
		t.Errorf("ratios %+v, want two of 1.02", m)
	}
}

func TestNoise(t *testing.T) {
	for _, tc := range []struct {
		ratios []float64
		want   float64
	}{
		{[]float64{1}, 0},
		{[]float64{0.75, 1, 1.125, 1.25, 3}, 0.125}, // one odd round says nothing
		{[]float64{1, 3}, 0.2},
	} {
		if got := noise(tc.ratios); got != tc.want {
			t.Errorf("noise(%v) = %v, want %v", tc.ratios, got, tc.want)
		}
	}
}
