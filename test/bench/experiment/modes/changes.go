package modes

import (
	"context"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/experiment/kubeproxy"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/report"
)

// Changes is the experiment modes-changes.
var Changes = harness.Experiment{
	Name:  "modes-changes",
	Title: "Start, and one endpoint's change, in each mode",
	How: "As in \"" + kubeproxy.Start.Title + "\" and \"" + kubeproxy.Change.Title + "\", with the agent in each of its modes: " +
		"from the start of a program on an empty node until connections through services drawn at random reach a backend, " +
		"and from a change of one EndpointSlice in a real API until new connections go to the new endpoint.",
	Run:    runChanges,
	Charts: changeCharts,
}

func changeSizes(r *harness.Run) []int { return r.Sizes([]int{1_000, 10_000}, []int{10, 100}) }

func runChanges(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	sizes := changeSizes(r)
	for _, n := range sizes {
		if err := starts(ctx, r, n); err != nil {
			return err
		}
	}
	err := compared.InTurns(ctx, r, sizes, func(st *kubeproxy.APICluster, s *dataplane.Process) error {
		return kubeproxy.TimeChanges(ctx, r, st, s)
	})
	if err != nil {
		return err
	}
	changeGoals(r, sizes[len(sizes)-1])
	return nil
}

func starts(ctx context.Context, r *harness.Run, services int) error {
	st, err := compared.Cluster(ctx, r, services)
	if err != nil {
		return err
	}
	for _, s := range st.Processes { // those of earlier experiments
		if err := s.Pause(); err != nil {
			return err
		}
	}
	for round := range r.Options.Rounds {
		for _, p := range compared.Programs(r, st) {
			r.Logf("round %d of %d: %s starts, %s", round+1, r.Options.Rounds, p.Name, st.Cluster)
			if err := kubeproxy.TimeStart(ctx, r, st, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func changeGoals(r *harness.Run, services int) {
	atMost := func(most float64) func(float64) bool { return func(ratio float64) bool { return ratio <= most } }
	const change = "one endpoint's change, API write to packets, less a bare watch"
	for _, metric := range []string{harness.Half, harness.NinetyNine} {
		for _, own := range []string{ownIptables, ownIptablesNft} {
			ratioGoal(r, change+", "+metric, own, kubeIptables, services, kubeproxy.LessWatch, metric, "≤ 1/10", atMost(1./10))
		}
		ratioGoal(r, change+", "+metric, ownIPVS, kubeIPVS, services, kubeproxy.LessWatch, metric, "≤ 1.0", atMost(1))
	}
	ratioGoal(r, harness.Started, ownIPVS, kubeIPVS, services, "", harness.Started, "≤ 1/5", atMost(1./5))
	if a, b := r.Find(ownIptables, services, "", harness.Started), r.Find(kubeIptables, services, "", harness.Started); a != nil && b != nil {
		r.Note("%s, %s services, %s over %s: %s.", harness.Started, chart.Number(float64(services)), ownIptables, kubeIptables, report.Ratios(a, b))
	}
}

func changeCharts(r *report.Result) []report.Figure {
	return []report.Figure{
		report.Draw(r, "p50", chart.Chart{
			Kind: chart.Bars, LogY: true, Title: "From a change in the API to packets following, in each mode, median",
			Subtitle: "one endpoint at a time, less what a bare watch takes; lower is better", XLabel: "services", YLabel: "ms (logarithmic)",
		}, report.ByServices, harness.Half, kubeproxy.LessWatch),
		report.Draw(r, "start", chart.Chart{
			Kind: chart.Bars, LogY: true, Title: "From the start of the program to all services programmed, in each mode",
			Subtitle: "10 endpoints a service, one real API server; lower is better", XLabel: "services", YLabel: "seconds (logarithmic)",
		}, report.ByServices, harness.Started, ""),
	}
}
