package services

import (
	"context"
	"fmt"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Programming is the experiment programming.
var Programming = harness.Experiment{
	Name:  "programming",
	Title: "Time to program an empty kernel",
	How: "Sluice: from a store that holds the cluster to the kernel's acknowledgement (compile, compare with the kernel, apply), in this process. " +
		"kube-proxy's two shapes: how long `nft -f` and `iptables-restore` take for their rule sets, which kube-proxy's own work comes on top of. " +
		"nftlb: until its API has answered the request that holds all farms. Each in a new network namespace.",
	Run:    runProgramming,
	Charts: programmingCharts,
}

const loading = "time to program"

func runProgramming(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3) // the slow ones take half a minute each
	r.Result.Rounds = r.Options.Rounds
	peers, own, farms := []int{1_000}, []int{1_000, 10_000}, []int{10, 100}
	if r.Full() {
		peers, own, farms = []int{1_000, 10_000}, []int{1_000, 10_000, 100_000}, []int{10, 250}
	}
	specs := append(harness.Cases(10, 0, own, peer.Sluice{}), harness.Cases(10, 0, peers, peer.KubeNftables{}, peer.KubeIptables{})...)
	specs = append(specs, harness.Cases(10, 0, farms, peer.Nftlb{})...)
	for _, p := range []peer.Dataplane{peer.KubeNftables{}, peer.KubeIptables{}, peer.Nftlb{}} {
		most, why := p.Limit()
		r.Skip("%s beyond %s services: %s", p.Name(), chart.Number(float64(most)), why)
	}
	notes := map[string]string{}
	for range r.Options.Rounds {
		for _, s := range specs {
			if err := program(ctx, r, s, notes); err != nil {
				return err
			}
		}
	}
	for _, s := range specs {
		if n := notes[s.String()]; n != "" && s.Dataplane == (peer.Sluice{}) {
			r.Note("%s, in the last round: %s.", s, n)
		}
	}
	programmingGoals(r)
	return nil
}

// program measures one case in a testbed that it makes and removes.
func program(ctx context.Context, r *harness.Run, s harness.ServiceCase, notes map[string]string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	harness.Settle()
	st, err := harness.NewSetup(ctx, r, s)
	if err != nil || st == nil {
		return err
	}
	r.Record(s, "", loading, "s", st.Loaded.Took.Seconds())
	notes[s.String()] = st.Loaded.Note
	return st.Close()
}

func programmingGoals(r *harness.Run) {
	for _, g := range []struct {
		services int
		most     float64
	}{{10_000, 0.4}, {100_000, 4}} {
		m := r.Find(peer.Sluice{}.Name(), g.services, "", loading)
		if m == nil {
			continue
		}
		what := fmt.Sprintf("full store to programmed kernel, %s services × 10 endpoints", chart.Number(float64(g.services)))
		r.Goal(what, fmt.Sprintf("≤ %g s", g.most), report.SpreadOf(m.Samples).String()+" s", m.Median <= g.most)
		for _, p := range []peer.Dataplane{peer.KubeNftables{}, peer.KubeIptables{}} {
			if o := r.Find(p.Name(), g.services, "", loading); o != nil {
				r.Note("%s, %s services, over Sluice: %s.", p.Name(), chart.Number(float64(g.services)), report.Ratios(o, m))
			}
		}
	}
}

func programmingCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "time", chart.Chart{
		Kind: chart.Bars, Title: "Time to program an empty kernel",
		Subtitle: "10 endpoints a service; lower is better (peers: loading alone)",
		XLabel:   "services", YLabel: "seconds (logarithmic)", LogY: true,
	}, report.ByServices, loading, "")}
}
