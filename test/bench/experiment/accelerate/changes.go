package accelerate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Changes is the experiment accelerate-changes.
var Changes = harness.Experiment{
	Name:  "accelerate-changes",
	Title: "What the maps of services at the socket cost the agent",
	How: "The accelerator beside a driver that programs nothing, so that the time is its own: to write all endpoints to empty maps, and to follow one endpoint of one service " +
		"that comes or goes. Memory is what the kernel says of the maps.",
	Run:    runChanges,
	Charts: changeCharts,
}

const (
	filling = "all endpoints to empty maps"
	memory  = "memory of the maps"
	p50     = "one endpoint's change, p50"
	p99     = "one endpoint's change, p99"
)

func runChanges(ctx context.Context, r *harness.Run) error {
	sizes := r.Sizes([]int{1_000, 10_000}, []int{100, 1_000})
	for range r.Options.Rounds {
		for _, n := range sizes {
			if err := timeChanges(ctx, r, cluster.Cluster{Services: n, Endpoints: 10}); err != nil {
				return err
			}
		}
	}
	most := sizes[len(sizes)-1]
	for _, g := range []struct {
		metric string
		most   float64
		goal   string
	}{{filling, 100, "≤ 100 ms"}, {memory, 60, "≤ 60 MB"}, {p50, 0.5, "≤ 0.5 ms"}, {p99, 1, "≤ 1 ms"}} {
		if m := r.Find(plane, most, "", g.metric); m != nil {
			r.Goal(fmt.Sprintf("%s, %s endpoints", g.metric, chart.Number(float64(10*most))), g.goal, fmt.Sprintf("%.2f", m.Median), m.Median <= g.most)
		}
	}
	return nil
}

const plane = "sluice sockets alone"

func timeChanges(ctx context.Context, r *harness.Run, c cluster.Cluster) (err error) {
	l, err := r.NewTestbed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	n, err := peer.Start(l.Node, peer.SocketsAlone, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	record := func(metric, unit string, sample float64) {
		r.Record(harness.ServiceCase{Dataplane: peer.Sluice{Mode: peer.SocketsAlone}, Cluster: c}, "", metric, unit, sample)
	}
	took, err := n.Apply(ctx, nil)
	if err != nil {
		return err
	}
	record(filling, "ms", harness.Millis(took.Apply))
	var changes []time.Duration
	for i := range 2_000 {
		service := i % c.Services
		took, err := n.Apply(ctx, []store.Event{{
			Kind: model.EndpointSliceKind, Name: cluster.ServiceName(service), Object: c.Slice(service, c.Endpoints-1+i/c.Services%2),
		}})
		if err != nil {
			return err
		}
		changes = append(changes, took.Apply)
	}
	slices.Sort(changes)
	record(p50, "ms", harness.Millis(changes[len(changes)/2]))
	record(p99, "ms", harness.Millis(changes[len(changes)*99/100]))
	size, err := n.Maps()
	if err != nil {
		return err
	}
	record(memory, "MB", float64(size)/1e6)
	return nil
}

func changeCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "p50", chart.Chart{
		Kind: chart.Bars, Title: "One endpoint's change", Subtitle: "10 endpoints a service; the accelerator's own time, median", XLabel: "services", YLabel: "ms",
	}, report.ByServices, p50, "")}
}
