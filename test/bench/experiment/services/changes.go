package services

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Changes is the experiment changes.
var Changes = harness.Experiment{
	Name:  "changes",
	Title: "From a changed file to the kernel",
	How: "A real agent process holds the cluster from a folder (on a tmpfs, so that no disk is measured) with a file for each object. A new version of one EndpointSlice is renamed into the folder; " +
		"the time is from just before the rename until the kernel's notification of the commit arrives in another process, which is a few microseconds after the commit itself " +
		"and about when the agent has its acknowledgement. If a change takes several transactions, the last one counts. " +
		"Changes are made one at a time, except where a thousand files are renamed as fast as possible.",
	Run:    runChanges,
	Charts: changeCharts,
}

// The kinds of changes, and what is measured.
const (
	InPlace  = "in place"
	NewClass = "size class changes"
	atOnce   = "1,000 at once"
	burst    = "first rename to last commit"
	renaming = "first rename to last rename"
)

func runChanges(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	small, large := cluster.Cluster{Services: 100, Endpoints: 10}, cluster.Cluster{Services: 3_000, Endpoints: 10}
	if r.Full() {
		large.Services = 10_000
	}
	err := r.WithAgent(ctx, small, func(a *harness.Agent) error {
		return r.WithAgent(ctx, large, func(b *harness.Agent) error {
			return alternateChanges(ctx, r, []*harness.Changer{{Agent: a, C: small}, {Agent: b, C: large}})
		})
	})
	if err != nil {
		return err
	}
	changeGoals(r, large.Services)
	return nil
}

func alternateChanges(ctx context.Context, r *harness.Run, agents []*harness.Changer) (err error) {
	for _, a := range agents {
		if a.Commits, err = harness.WatchCommits(a.Namespace); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.Commits.Close()) }()
	}
	count := 200
	if !r.Full() {
		count = 50
	}
	for round := range r.Options.Rounds {
		for _, a := range agents {
			s := harness.ServiceCase{Dataplane: peer.Sluice{}, Cluster: a.C}
			r.Logf("round %d of %d: %s", round+1, r.Options.Rounds, s)
			for _, kind := range []struct {
				name string
				next func() cluster.File
			}{{InPlace, a.NextInPlace}, {NewClass, a.NextClass}} {
				took, err := several(ctx, a, count, kind.next)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", s, kind.name, err)
				}
				r.Record(s, kind.name, harness.Half, "ms", harness.Millis(took[len(took)/2]))
				r.Record(s, kind.name, harness.NinetyNine, "ms", harness.Millis(took[len(took)*99/100]))
			}
			if a.C.Services >= 1_000 {
				renamed, programmed, transactions, err := changeAtOnce(ctx, a, round)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", s, atOnce, err)
				}
				r.Record(s, atOnce, burst, "ms", harness.Millis(programmed))
				r.Record(s, atOnce, renaming, "ms", harness.Millis(renamed))
				r.Record(s, atOnce, "transactions", "", float64(transactions))
			}
		}
	}
	return nil
}

// several makes so many changes, one after the other, and returns their times, sorted.
func several(ctx context.Context, a *harness.Changer, count int, next func() cluster.File) ([]time.Duration, error) {
	var took []time.Duration
	for range count {
		d, err := a.TimeChange(ctx, next())
		if err != nil {
			return nil, err
		}
		took = append(took, d)
	}
	slices.Sort(took)
	return took, nil
}

// changeAtOnce changes a thousand services in place at once, those in the middle, which no other
// change touches, and checks that all changes reached the kernel.
func changeAtOnce(ctx context.Context, a *harness.Changer, round int) (renamed, programmed time.Duration, transactions int, err error) {
	const size = 1_000
	var files []cluster.File
	for i := range size {
		f := a.C.SliceFile((a.C.Services-size)/2+i, a.C.Endpoints-1+round%2)
		if err := a.StageFile(f); err != nil {
			return 0, 0, 0, fmt.Errorf("write manifest: %w", err)
		}
		files = append(files, f)
	}
	a.Commits.Discard()
	began := time.Now()
	for _, f := range files {
		if err := a.Place(f); err != nil {
			return 0, 0, 0, fmt.Errorf("change manifest: %w", err)
		}
	}
	renamed = time.Since(began)
	c, err := a.Commits.Last(ctx, 300*time.Millisecond)
	if err != nil {
		return 0, 0, 0, err
	}
	if err := a.AgentClient().Sync(ctx); err != nil {
		return 0, 0, 0, err
	}
	if late, err := a.Commits.Last(ctx, time.Millisecond); err == nil && late.Elements > 0 {
		return 0, 0, 0, fmt.Errorf("%d elements came later than 300 ms after the last", late.Elements)
	}
	if c.Elements < size/2 {
		return 0, 0, 0, fmt.Errorf("only %d elements changed", c.Elements)
	}
	return renamed, c.At.Sub(began), c.Transactions, nil
}

func changeGoals(r *harness.Run, services int) {
	name := chart.Number(float64(services)) + " services × 10 endpoints"
	for _, g := range []struct {
		variant, metric string
		most            float64
	}{{InPlace, harness.Half, 1}, {InPlace, harness.NinetyNine, 5}, {NewClass, harness.Half, 3}, {NewClass, harness.NinetyNine, 10}, {atOnce, burst, 50}} {
		m := r.Find(peer.Sluice{}.Name(), services, g.variant, g.metric)
		if m == nil {
			continue
		}
		r.Goal(fmt.Sprintf("file event to kernel, %s, %s, %s", g.variant, g.metric, name), fmt.Sprintf("≤ %g ms", g.most),
			report.SpreadOf(m.Samples).String()+" ms", m.Median <= g.most)
	}
	for _, variant := range []string{InPlace, NewClass} {
		small, large := r.Find(peer.Sluice{}.Name(), 100, variant, harness.Half), r.Find(peer.Sluice{}.Name(), services, variant, harness.Half)
		if small != nil && large != nil {
			r.Note("A change, %s: p50 with %s services over 100: %s.", variant, chart.Number(float64(services)), report.Ratios(large, small))
		}
	}
}

func changeCharts(r *report.Result) []report.Figure {
	var ps []report.Figure
	for _, p := range []struct{ name, metric, title string }{{"p50", harness.Half, "median"}, {"p99", harness.NinetyNine, "99th percentile"}} {
		ps = append(ps, report.Draw(r, p.name, chart.Chart{
			Kind: chart.Bars, Title: "From a changed file to the kernel, " + p.title,
			Subtitle: "one EndpointSlice at a time, each object in a file of its own; lower is better", XLabel: "services", YLabel: "ms",
		}, report.ByServices, p.metric, InPlace, NewClass))
	}
	return ps
}
