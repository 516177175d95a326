// Package services has the experiments about services: packets, programming, changes, memory and
// restart.
package services

import (
	"context"
	"fmt"
	"slices"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Connections is the experiment connections.
var Connections = harness.Experiment{
	Name:  "connections",
	Title: "Cost of a new connection",
	How: "SYNs of new flows enter a node as XDP live frames, are translated and forwarded, and are counted and dropped as they " +
		"reach the backends' device; all on one core. The time from the first flow to the last, divided by their number. " +
		"Either all flows go to the last service (the worst place in a list), or to all services in turns (nothing stays in the CPU's caches). " +
		"A sample counts only if the flows arrived translated (all but one in a thousand). The connection table is emptied between any two samples.",
	Run:    runConnections,
	Charts: connectionCharts,
}

func runConnections(ctx context.Context, r *harness.Run) error {
	sizes := []int{10, 1_000}
	if r.Full() {
		sizes = append(sizes, 10_000)
	}
	kube := harness.Cases(10, 0, sizes, peer.Sluice{}, peer.KubeNftables{}, peer.KubeIptables{})
	own := harness.Cases(10, 0, []int{100_000}, peer.Sluice{})
	lb := harness.Cases(10, 0, []int{10, 250}, peer.Nftlb{})
	plain := harness.Cases(10, 0, sizes[len(sizes)-1:], peer.Plain{}, peer.Plain{Track: true})
	if !r.Full() {
		own, lb = nil, harness.Cases(10, 0, []int{10, 100}, peer.Nftlb{})
	}
	most, why := peer.Nftlb{}.Limit()
	r.Skip("nftlb beyond %d services: %s", most, why)
	err := harness.InTurns(ctx, r, slices.Concat(kube, own, lb, plain), measureConnections)
	if err != nil {
		return err
	}
	connectionGoals(r, sizes[len(sizes)-1])
	return nil
}

func measureConnections(ctx context.Context, r *harness.Run, s *harness.Setup[harness.ServiceCase]) error {
	return r.FlowCosts(ctx, harness.FlowCase{
		Name: s.Case.String(), Testbed: s.Testbed, Services: s.Case.Cluster.Services,
		Target: func(first, count int) inject.Target { return s.Case.Dataplane.Target(s.Case.Cluster, first, count) },
		Record: func(variant string, micros float64) { r.Record(s.Case, variant, harness.PerFlow, "µs", micros) },
	})
}

func connectionGoals(r *harness.Run, large int) {
	for _, g := range []struct {
		variant string
		most    float64
	}{{harness.LastHit, 1.10}, {harness.EvenHit, 1.25}} {
		what := fmt.Sprintf("new connection, %s services over 10, %s", chart.Number(float64(large)), g.variant)
		base := r.Find(peer.Sluice{}.Name(), 10, g.variant, harness.PerFlow)
		far := r.Find(peer.Sluice{}.Name(), large, g.variant, harness.PerFlow)
		if base == nil || far == nil {
			continue
		}
		ratio := report.Ratios(far, base)
		r.Goal(what, fmt.Sprintf("≤ %.2f", g.most), ratio.String(), ratio.Median <= g.most)
		for _, p := range []peer.Dataplane{peer.KubeNftables{}, peer.KubeIptables{}} {
			a, b := r.Find(p.Name(), large, g.variant, harness.PerFlow), r.Find(p.Name(), 10, g.variant, harness.PerFlow)
			if a != nil && b != nil {
				r.Note("%s, the same ratio, %s: %s; its cost over Sluice's at %s services: %s.", p.Name(), g.variant, report.Ratios(a, b),
					chart.Number(float64(large)), report.Ratios(a, far))
			}
		}
	}
}

func connectionCharts(r *report.Result) []report.Figure {
	var ps []report.Figure
	for _, v := range []struct{ name, variant string }{{"last", harness.LastHit}, {"even", harness.EvenHit}} {
		ps = append(ps, report.Draw(r, v.name, chart.Chart{
			Kind: chart.Lines, LogY: true, Title: "Cost of a new connection, " + v.variant,
			Subtitle: "10 endpoints a service, one core, connection tracking included; lower is better",
			XLabel:   "services", YLabel: "µs a flow (logarithmic)",
		}, report.ByServices, harness.PerFlow, v.variant))
	}
	return ps
}
