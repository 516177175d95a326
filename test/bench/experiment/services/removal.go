package services

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Removal is the experiment removal.
var Removal = harness.Experiment{
	Name:  "removal",
	Title: "Many entries of one object come and go",
	How: "One object gets so many entries and loses them again: source ranges of a LoadBalancer with three ports (two thirds single addresses, the others of many lengths), pod CIDRs of the node, port ranges of a NetworkPolicy, ipBlocks of one. " +
		"The time is from the event's arrival in the store until the kernel has acknowledged the change: index, compile, plan, apply, in this process. " +
		"Then another service loses its endpoint or gets one, which shows what work the kernel still has to do.",
	Run:    runRemoval,
	Charts: removalCharts,
}

const (
	toAdd    = "time to add"
	toRemove = "time to remove"
	next     = "another service's change after that"
)

func runRemoval(ctx context.Context, r *harness.Run) (err error) {
	r.Options.Rounds = min(r.Options.Rounds, 5)
	r.Result.Rounds = r.Options.Rounds
	objects := []cluster.Large{cluster.LargeRanges(1_000), cluster.LargeCIDRs(100), cluster.LargePorts(1_000), cluster.LargeBlocks(1_000)}
	if r.Full() {
		objects = append(objects, cluster.LargeRanges(10_000), cluster.LargeCIDRs(1_000), cluster.LargePorts(10_000), cluster.LargeBlocks(10_000))
	}
	l, err := testbed.NewPods(r.NextPrefix(), 1)
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
	if _, err := n.Apply(ctx, cluster.LargePrerequisites()); err != nil {
		return err
	}
	for round := range r.Options.Rounds {
		r.Logf("round %d of %d", round+1, r.Options.Rounds)
		for _, o := range objects {
			if err := addAndRemove(ctx, r, n, o); err != nil {
				return fmt.Errorf("%d %s: %w", o.Size, o.Name, err)
			}
		}
	}
	for _, o := range objects {
		for _, metric := range []string{toAdd, toRemove} {
			m := r.Same(removalMeasurement(o, metric))
			r.Goal(fmt.Sprintf("%s %s, %s", chart.Number(float64(o.Size)), o.Name, metric), "≤ 100 ms", report.SpreadOf(m.Samples).String()+" ms", m.Median <= 100)
		}
	}
	r.Note("The column says entries (addresses).")
	return nil
}

func addAndRemove(ctx context.Context, r *harness.Run, n *peer.Node, o cluster.Large) error {
	for _, change := range []struct {
		metric string
		events []store.Event
		beside bool
	}{{toAdd, o.Add, false}, {toRemove, o.Remove, true}} {
		runtime.GC()
		took, err := n.Apply(ctx, change.events)
		if err != nil {
			return err
		}
		after, err := n.Apply(ctx, cluster.ChangeOtherService(change.beside))
		if err != nil {
			return err
		}
		r.Logf("%s, %d: %s: %s; another service's change %s", o.Name, o.Size, change.metric, took, after.Sum().Round(time.Microsecond))
		r.Add(removalMeasurement(o, change.metric), harness.Millis(took.Sum()))
		r.Add(removalMeasurement(o, change.metric+"; "+next), harness.Millis(after.Sum()))
	}
	return nil
}

func removalMeasurement(o cluster.Large, metric string) report.Measurement {
	return report.Measurement{Dataplane: peer.Sluice{}.Name(), Addresses: o.Size, Variant: o.Name, Metric: metric, Unit: "ms"}
}

func removalCharts(r *report.Result) []report.Figure {
	var variants []string
	for _, m := range r.Series {
		if !slices.Contains(variants, m.Variant) {
			variants = append(variants, m.Variant)
		}
	}
	var ps []report.Figure
	for _, p := range []struct{ name, metric string }{{"add", toAdd}, {"remove", toRemove}} {
		ps = append(ps, report.Draw(r, p.name, chart.Chart{
			Kind: chart.Bars, Title: "Many entries of one object: " + p.metric,
			Subtitle: "from the event to the kernel; lower is better", XLabel: "entries", YLabel: "ms",
		}, report.ByAddresses, p.metric, variants...))
	}
	return ps
}
