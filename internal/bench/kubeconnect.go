package bench

import (
	"context"
	"errors"
	"fmt"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cpuaffinity"
	"sluice.dev/sluice/internal/bench/dataplane"
	"sluice.dev/sluice/internal/bench/inject"
	"sluice.dev/sluice/internal/bench/peer"
)

var kubeConnections = Experiment{
	Name:  "kube-proxy-connections",
	Title: "Cost of a new connection beside the real kube-proxy's rules",
	How: "As in \"" + connections.Title + "\", with the tables that the real programs made of what a real API server has; the programs themselves are stopped. " +
		"Either all flows go to one service, the last by address, or each to the next of all services. kube-proxy's iptables mode lists services in no particular order: what one of them costs there is chance, so that no goal is judged by it.",
	run:   runKubeConnections,
	paint: paintKubeConnections,
}

func runKubeConnections(ctx context.Context, r *run) error {
	r.Options.Rounds = min(r.Options.Rounds, 5)
	r.Result.Rounds = r.Options.Rounds
	for _, n := range r.kubeSizes() {
		st, err := r.stand(ctx, n)
		if err != nil {
			return err
		}
		processes, err := r.started(ctx, st)
		if err != nil {
			return err
		}
		for _, s := range processes {
			if err := errors.Join(st.caughtUp(ctx, s), s.Pause()); err != nil {
				return err
			}
		}
		if err := r.compareConnections(ctx, st, processes); err != nil {
			return err
		}
		r.judgeKubeConnections(n)
	}
	return nil
}

func (r *run) compareConnections(ctx context.Context, st *stand, processes []*dataplane.Process) (err error) {
	if err := cpuaffinity.Reserve(packetCPU); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cpuaffinity.Release()) }()
	for round := range r.Options.Rounds {
		for _, s := range processes {
			r.progress("round %d of %d: %s, %s", round+1, r.Options.Rounds, s.Name, st.Cluster)
			err := r.flowCosts(ctx, flowCase{
				name: fmt.Sprintf("%s, %s", s.Name, st.Cluster), testbed: s.Testbed, services: st.Services,
				target: func(first, count int) inject.Target { return peer.Sluice{}.Target(st.Cluster, first, count) },
				record: func(variant string, micros float64) { r.recordProcess(st, s, variant, perFlow, "µs", micros) },
			})
			if err != nil {
				return fmt.Errorf("measure %s: %w", s.Name, err)
			}
		}
	}
	return nil
}

func (r *run) judgeKubeConnections(services int) {
	for _, variant := range []string{lastHit, evenHit} {
		own := r.find(peer.Sluice{}.Name(), services, variant, perFlow)
		for _, g := range []struct {
			other peer.Dataplane
			goal  string
			most  float64
		}{{peer.KubeNftables{}, "≤ 1.0", 1}, {peer.KubeIptables{}, "≤ 0.1", 0.1}} {
			other := r.find(g.other.Name(), services, variant, perFlow)
			if own == nil || other == nil {
				continue
			}
			ratio := ratios(own, other)
			what := fmt.Sprintf("new connection, %s services, %s, over the real %s", chart.Number(float64(services)), variant, g.other.Name())
			chance := variant == lastHit && g.other == peer.KubeIptables{}
			if chance || r.full() && services < 10_000 {
				r.note("%s: %s.", what, ratio)
				continue
			}
			r.goal(what, g.goal, ratio.String(), ratio.Median <= g.most)
		}
	}
}

func paintKubeConnections(r *Result) []painting {
	var ps []painting
	for _, v := range []struct{ name, variant string }{{"last", lastHit}, {"even", evenHit}} {
		ps = append(ps, draw(r, v.name, chart.Chart{
			Kind: chart.Bars, LogY: true, Title: "Cost of a new connection beside the real kube-proxy's rules, " + v.variant,
			Subtitle: "10 endpoints a service, one core, connection tracking included; lower is better", XLabel: "services", YLabel: "µs a flow (logarithmic)",
		}, byServices, perFlow, v.variant))
	}
	return ps
}
