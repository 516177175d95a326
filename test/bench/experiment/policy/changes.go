package policy

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Changes is the experiment policy-changes.
var Changes = harness.Experiment{
	Name:  "policy-changes",
	Title: "A pod's label or address changes",
	How: "All selectors are those of policies of the node's own 30 pods, so each is a set in this kernel; ten of them select each pod of the cluster. A pod elsewhere changes its team, and so leaves ten sets and enters ten others; " +
		"or its address, in ten sets. The clock runs from the event's arrival in the store until the kernel has acknowledged the change: index, compile, plan, apply, in this process, one change at a time.",
	Run:    runChanges,
	Charts: changeCharts,
}

const (
	ofLabel   = "label"
	ofAddress = "address"
)

func runChanges(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	small := cluster.Teams{Pods: 1_000, Local: PodsOnNode, Selectors: 100}
	large := cluster.Teams{Pods: 10_000, Local: PodsOnNode, Selectors: 1_000}
	count := 100
	if r.Full() {
		large = cluster.Teams{Pods: 100_000, Local: PodsOnNode, Selectors: 10_000}
		count = 1_000
	}
	for _, t := range []cluster.Teams{small, large} {
		if err := changeLabels(ctx, r, t, min(count, t.Pods-t.Local)); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	changeGoals(r, large)
	return nil
}

func changeLabels(ctx context.Context, r *harness.Run, t cluster.Teams, count int) (err error) {
	l, err := testbed.NewPods(r.NextPrefix(), t.Local)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	cfg := peer.Config()
	cfg.Policy = true
	n, err := peer.NewNode(l.Node, "", cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	took, err := n.Apply(ctx, t.Events())
	if err != nil {
		return err
	}
	r.Logf("programmed %s: %s", t, took)
	runtime.GC()
	for round := range r.Options.Rounds {
		r.Logf("round %d of %d: %s", round+1, r.Options.Rounds, t)
		for _, kind := range []struct {
			name string
			next func(i int) *model.Pod
		}{
			{ofLabel, func(i int) *model.Pod { return t.Pod(i, 1+round, 2*round) }},
			{ofAddress, func(i int) *model.Pod { return t.Pod(i, 1+round, 2*round+1) }},
		} {
			if err := changePods(ctx, r, n, t, kind.name, count, kind.next); err != nil {
				return err
			}
		}
	}
	return nil
}

// changePods changes so many pods one after the other, spread over all pods of other nodes.
func changePods(ctx context.Context, r *harness.Run, n *peer.Node, t cluster.Teams, kind string, count int, next func(i int) *model.Pod) error {
	var all []time.Duration
	var parts peer.Took
	for k := range count {
		i := t.Local + k*((t.Pods-t.Local)/count)
		events := []store.Event{cluster.PodEvent(next(i))}
		took, err := n.Apply(ctx, events)
		if err != nil {
			return fmt.Errorf("change %s of pod %d: %w", kind, i, err)
		}
		if want := 2 * cluster.PerTeam; took.Operations != want {
			return fmt.Errorf("change %s of pod %d: %d elements changed in the kernel, want %d", kind, i, took.Operations, want)
		}
		all = append(all, took.Sum())
		parts.Store += took.Store / time.Duration(count)
		parts.Compile += took.Compile / time.Duration(count)
		parts.Plan += took.Plan / time.Duration(count)
		parts.Apply += took.Apply / time.Duration(count)
	}
	slices.Sort(all)
	for _, m := range []struct {
		metric string
		took   time.Duration
	}{{harness.Half, all[len(all)/2]}, {harness.NinetyNine, all[len(all)*99/100]}} {
		r.Add(labelMeasurement(t, kind, m.metric), harness.Millis(m.took))
	}
	r.Logf("%s, %s: store %s, compile %s, plan %s, apply %s on average", t, kind, parts.Store, parts.Compile, parts.Plan, parts.Apply)
	return nil
}

// labelMeasurement counts selectors as policies: there is a rule for each.
func labelMeasurement(t cluster.Teams, kind, metric string) report.Measurement {
	return report.Measurement{Dataplane: peer.Sluice{}.Name(), Policies: t.Selectors, Addresses: t.Pods, Variant: kind, Metric: metric, Unit: "ms"}
}

func changeGoals(r *harness.Run, t cluster.Teams) {
	for _, kind := range []string{ofLabel, ofAddress} {
		for _, g := range []struct {
			metric string
			most   float64
		}{{harness.Half, 1}, {harness.NinetyNine, 5}} {
			if m := r.Same(labelMeasurement(t, kind, g.metric)); m != nil {
				r.Goal(fmt.Sprintf("one pod's %s changes, %s selectors and %s pods known, event to kernel, %s",
					kind, chart.Number(float64(t.Selectors)), chart.Number(float64(t.Pods)), g.metric),
					fmt.Sprintf("≤ %g ms", g.most), report.SpreadOf(m.Samples).String()+" ms", m.Median <= g.most)
			}
		}
	}
	r.Note("The columns say pods (addresses) and selectors (policies: a hundredth as many, of a hundred rules a direction each).")
}

func changeCharts(r *report.Result) []report.Figure {
	var ps []report.Figure
	for _, p := range []struct{ name, metric, title string }{{"p50", harness.Half, "median"}, {"p99", harness.NinetyNine, "99th percentile"}} {
		ps = append(ps, report.Draw(r, p.name, chart.Chart{
			Kind: chart.Bars, Title: "From a pod's change to the kernel, " + p.title,
			Subtitle: "ten selectors select the pod; lower is better", XLabel: "selectors, with ten pods for each", YLabel: "ms",
		}, report.ByPolicies, p.metric, ofLabel, ofAddress))
	}
	return ps
}
