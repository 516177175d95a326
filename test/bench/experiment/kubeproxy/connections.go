package kubeproxy

import (
	"context"
	"errors"
	"fmt"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/experiment/services"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Connections is the experiment kube-proxy-connections.
var Connections = harness.Experiment{
	Name:  "kube-proxy-connections",
	Title: "Cost of a new connection beside the real kube-proxy's rules",
	How: "As in \"" + services.Connections.Title + "\", with the tables that the real programs made from what a real API server has; the programs are stopped. " +
		"Either all flows go to one service, the last by address, or to all services in turns. kube-proxy's iptables mode lists services in no particular order, so what one of them costs there is chance, and no goal depends on it.",
	Run:    runConnections,
	Charts: connectionCharts,
}

func runConnections(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 5)
	r.Result.Rounds = r.Options.Rounds
	for _, n := range kubeSizes(r) {
		st, err := kubeProxy.Running(ctx, r, n)
		if err != nil {
			return err
		}
		for _, s := range st.Processes {
			if err := errors.Join(st.WaitCaughtUp(ctx, s), s.Pause()); err != nil {
				return err
			}
		}
		if err := compareConnections(ctx, r, st); err != nil {
			return err
		}
		connectionGoals(r, n)
	}
	return nil
}

func compareConnections(ctx context.Context, r *harness.Run, st *APICluster) (err error) {
	if err := cpuaffinity.Reserve(harness.PacketCPU); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cpuaffinity.Release()) }()
	for round := range r.Options.Rounds {
		for _, s := range st.Processes {
			r.Logf("round %d of %d: %s, %s", round+1, r.Options.Rounds, s.Name, st.Cluster)
			if err := FlowCosts(ctx, r, st, s); err != nil {
				return fmt.Errorf("measure %s: %w", s.Name, err)
			}
		}
	}
	return nil
}

// FlowCosts records what new connections cost in a program's table.
func FlowCosts(ctx context.Context, r *harness.Run, st *APICluster, s *dataplane.Process) error {
	return r.FlowCosts(ctx, harness.FlowCase{
		Name: fmt.Sprintf("%s, %s", s.Name, st.Cluster), Testbed: s.Testbed, Services: st.Services,
		Target: func(first, count int) inject.Target { return peer.Sluice{}.Target(st.Cluster, first, count) },
		Record: func(variant string, micros float64) { RecordProcess(r, st, s, variant, harness.PerFlow, "µs", micros) },
	})
}

func connectionGoals(r *harness.Run, services int) {
	for _, variant := range []string{harness.LastHit, harness.EvenHit} {
		own := r.Find(peer.Sluice{}.Name(), services, variant, harness.PerFlow)
		for _, g := range []struct {
			other peer.Dataplane
			goal  string
			most  float64
		}{{peer.KubeNftables{}, "≤ 1.0", 1}, {peer.KubeIptables{}, "≤ 0.1", 0.1}} {
			other := r.Find(g.other.Name(), services, variant, harness.PerFlow)
			if own == nil || other == nil {
				continue
			}
			ratio := report.Ratios(own, other)
			what := fmt.Sprintf("new connection, %s services, %s, over the real %s", chart.Number(float64(services)), variant, g.other.Name())
			chance := variant == harness.LastHit && g.other == peer.KubeIptables{}
			if chance || r.Full() && services < 10_000 {
				r.Note("%s: %s.", what, ratio)
				continue
			}
			r.Goal(what, g.goal, ratio.String(), ratio.Median <= g.most)
		}
	}
}

func connectionCharts(r *report.Result) []report.Figure {
	var ps []report.Figure
	for _, v := range []struct{ name, variant string }{{"last", harness.LastHit}, {"even", harness.EvenHit}} {
		ps = append(ps, report.Draw(r, v.name, chart.Chart{
			Kind: chart.Bars, LogY: true, Title: "Cost of a new connection beside the real kube-proxy's rules, " + v.variant,
			Subtitle: "10 endpoints a service, one core, connection tracking included; lower is better", XLabel: "services", YLabel: "µs a flow (logarithmic)",
		}, report.ByServices, harness.PerFlow, v.variant))
	}
	return ps
}
