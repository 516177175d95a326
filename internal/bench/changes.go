package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/peer"
)

var changes = Experiment{
	Name:  "changes",
	Title: "From a changed file to the kernel",
	How: "A real agent process holds the cluster from a folder (on a tmpfs, so that no disk is measured) with a file for each object. A new version of one EndpointSlice is renamed into the folder; " +
		"the clock runs from just before the rename until the kernel's notification of the commit arrives in another process, which is a few microseconds after the commit itself " +
		"and about when the agent has its acknowledgement. If a change takes several transactions, the last counts. " +
		"Changes come one at a time, except where a thousand files are renamed as fast as they can be.",
	run:   runChanges,
	paint: paintChanges,
}

// The kinds of changes, and what is measured.
const (
	inPlace  = "in place"
	newClass = "size class changes"
	atOnce   = "1,000 at once"
	burst    = "first rename to last commit"
	renaming = "first rename to last rename"
)

// growth takes a service through sizes each of which is in another size class.
var growth = []int{13, 17, 25, 33}

func runChanges(ctx context.Context, r *run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	small, large := cluster.Cluster{Services: 100, Endpoints: 10}, cluster.Cluster{Services: 3_000, Endpoints: 10}
	if r.full() {
		large.Services = 10_000
	}
	err := r.withAgent(ctx, small, func(a *agentProcess) error {
		return r.withAgent(ctx, large, func(b *agentProcess) error {
			return r.alternateChanges(ctx, []*changer{{agentProcess: a, c: small}, {agentProcess: b, c: large}})
		})
	})
	if err != nil {
		return err
	}
	r.judgeChanges(large.Services)
	return nil
}

// changer makes changes to one agent's manifests and times them.
type changer struct {
	*agentProcess
	c       cluster.Cluster
	commits *commits
	grown   int // class changes made
	places  int // changes in place made
}

func (r *run) alternateChanges(ctx context.Context, agents []*changer) (err error) {
	for _, a := range agents {
		if a.commits, err = watchCommits(a.node); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.commits.Close()) }()
	}
	count := 200
	if !r.full() {
		count = 50
	}
	for round := range r.Options.Rounds {
		for _, a := range agents {
			s := spec{dataplane: peer.Sluice{}, cluster: a.c}
			r.progress("round %d of %d: %s", round+1, r.Options.Rounds, s)
			for _, kind := range []struct {
				name string
				next func() cluster.File
			}{{inPlace, a.nextInPlace}, {newClass, a.nextClass}} {
				took, err := a.several(ctx, count, kind.next)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", s, kind.name, err)
				}
				r.record(s, kind.name, half, "ms", millis(took[len(took)/2]))
				r.record(s, kind.name, ninetyNine, "ms", millis(took[len(took)*99/100]))
			}
			if a.c.Services >= 1_000 {
				renamed, programmed, transactions, err := a.burst(ctx, round)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", s, atOnce, err)
				}
				r.record(s, atOnce, burst, "ms", millis(programmed))
				r.record(s, atOnce, renaming, "ms", millis(renamed))
				r.record(s, atOnce, "transactions", "", float64(transactions))
			}
		}
	}
	return nil
}

func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// nextInPlace takes an endpoint away from the next service, and gives it back on the next pass:
// ten and nine are in one size class.
func (a *changer) nextInPlace() cluster.File {
	i := a.places
	a.places++
	return a.c.SliceFile(i%a.c.Services, a.c.Endpoints-1+i/a.c.Services%2)
}

// nextClass makes the next service, counted from the end, grow into another size class.
func (a *changer) nextClass() cluster.File {
	i := a.grown
	a.grown++
	return a.c.SliceFile(a.c.Services-1-i%a.c.Services, growth[i/a.c.Services%len(growth)])
}

// several makes so many changes, one after the other, and returns their times, sorted.
func (a *changer) several(ctx context.Context, count int, next func() cluster.File) ([]time.Duration, error) {
	var took []time.Duration
	for range count {
		d, err := a.time(ctx, next())
		if err != nil {
			return nil, err
		}
		took = append(took, d)
	}
	slices.Sort(took)
	return took, nil
}

// time makes a change and returns the time until the last commit that it brings.
func (a *changer) time(ctx context.Context, f cluster.File) (time.Duration, error) {
	if err := a.stageFile(f); err != nil {
		return 0, fmt.Errorf("write manifest: %w", err)
	}
	a.commits.drop()
	began := time.Now()
	if err := a.place(f); err != nil {
		return 0, fmt.Errorf("change manifest: %w", err)
	}
	c, err := a.commits.last(ctx, 15*time.Millisecond)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", f.Name, err)
	}
	return c.at.Sub(began), nil
}

// burst changes a thousand services in place at once, those in the middle that no
// other change touches, and makes sure that all came through.
func (a *changer) burst(ctx context.Context, round int) (renamed, programmed time.Duration, transactions int, err error) {
	const size = 1_000
	var files []cluster.File
	for i := range size {
		f := a.c.SliceFile((a.c.Services-size)/2+i, a.c.Endpoints-1+round%2)
		if err := a.stageFile(f); err != nil {
			return 0, 0, 0, fmt.Errorf("write manifest: %w", err)
		}
		files = append(files, f)
	}
	a.commits.drop()
	began := time.Now()
	for _, f := range files {
		if err := a.place(f); err != nil {
			return 0, 0, 0, fmt.Errorf("change manifest: %w", err)
		}
	}
	renamed = time.Since(began)
	c, err := a.commits.last(ctx, 300*time.Millisecond)
	if err != nil {
		return 0, 0, 0, err
	}
	if err := a.ask().Sync(ctx); err != nil {
		return 0, 0, 0, err
	}
	if late, err := a.commits.last(ctx, time.Millisecond); err == nil && late.elements > 0 {
		return 0, 0, 0, fmt.Errorf("%d elements came later than 300 ms after the last", late.elements)
	}
	if c.elements < size/2 {
		return 0, 0, 0, fmt.Errorf("only %d elements changed", c.elements)
	}
	return renamed, c.at.Sub(began), c.transactions, nil
}

func (r *run) judgeChanges(services int) {
	name := chart.Number(float64(services)) + " services × 10 endpoints"
	for _, g := range []struct {
		variant, metric string
		most            float64
	}{{inPlace, half, 1}, {inPlace, ninetyNine, 5}, {newClass, half, 3}, {newClass, ninetyNine, 10}, {atOnce, burst, 50}} {
		m := r.find(peer.Sluice{}.Name(), services, g.variant, g.metric)
		if m == nil {
			continue
		}
		r.goal(fmt.Sprintf("file event to kernel, %s, %s, %s", g.variant, g.metric, name), fmt.Sprintf("≤ %g ms", g.most),
			spread(m.Samples).String()+" ms", m.Median <= g.most)
	}
	for _, variant := range []string{inPlace, newClass} {
		small, large := r.find(peer.Sluice{}.Name(), 100, variant, half), r.find(peer.Sluice{}.Name(), services, variant, half)
		if small != nil && large != nil {
			r.note("A change, %s: p50 with %s services over 100: %s.", variant, chart.Number(float64(services)), ratios(large, small))
		}
	}
}

func paintChanges(r *Result) []painting {
	var ps []painting
	for _, p := range []struct{ name, metric, title string }{{"p50", half, "median"}, {"p99", ninetyNine, "99th percentile"}} {
		ps = append(ps, draw(r, p.name, chart.Chart{
			Kind: chart.Bars, Title: "From a changed file to the kernel, " + p.title,
			Subtitle: "one EndpointSlice at a time, each object in a file of its own; lower is better", XLabel: "services", YLabel: "ms",
		}, byServices, p.metric, inPlace, newClass))
	}
	return ps
}
