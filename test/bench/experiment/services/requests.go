package services

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

const nodePort = 30080

// Requests is the experiment requests.
var Requests = harness.Experiment{
	Name:  "requests",
	Title: "HTTP requests a second through a NodePort",
	How: "A client sends HTTP requests to the NodePort of the last service, each on a connection of its own, 16 at once, as fast as they are answered. " +
		"Client, server and all packets between share one core, which is busy throughout: what changes the rate is what a request costs there.",
	Run:    runRequests,
	Charts: requestCharts,
}

const (
	rate    = "requests a second"
	perCore = "1/s"
)

func runRequests(ctx context.Context, r *harness.Run) error {
	own := []int{1, 1_000}
	peers, lists := []int{1, 1_000}, []int{1, 1_000}
	if r.Full() {
		own = []int{1, 1_000, 2_500, 7_000, 10_000, 20_000}
		lists = []int{1, 1_000, 10_000}
		r.Skip("kube-proxy nftables at 100,000 endpoints: loading takes half a minute or more, and the cost of a connection does not depend on it (see connections)")
	}
	specs := slices.Concat(harness.Cases(10, nodePort, own, peer.Sluice{}),
		harness.Cases(10, nodePort, peers, peer.KubeNftables{}), harness.Cases(10, nodePort, lists, peer.KubeIptables{}))
	r.Skip("nftlb: it has no NodePorts")
	if err := harness.InTurns(ctx, r, specs, measureRequests); err != nil {
		return err
	}
	requestGoals(r, own[1], own[len(own)-1])
	return nil
}

func measureRequests(ctx context.Context, r *harness.Run, s *harness.Setup[harness.ServiceCase]) error {
	res, err := r.Load(ctx, s.Testbed, load.Config{
		Target: netip.AddrPortFrom(cluster.NodeAddr, nodePort), Concurrency: 16, Duration: time.Second,
	})
	if err != nil {
		return err
	}
	if res.Failed > 0 {
		r.Note("%s: %d of %d requests failed %v.", s.Case, res.Failed, res.Failed+res.Requests, res.Reasons)
	}
	r.Record(s.Case, "", rate, perCore, res.PerSecond())
	return nil
}

// requestGoals compares the sizes that others have published: the share of requests kept from
// 10,000 endpoints to 200,000.
func requestGoals(r *harness.Run, from, to int) {
	for _, p := range []peer.Dataplane{peer.Sluice{}, peer.KubeNftables{}, peer.KubeIptables{}} {
		last := to
		far := r.Find(p.Name(), last, "", rate)
		for _, n := range []int{10_000, 1_000} { // the largest that was measured
			if far == nil {
				last, far = n, r.Find(p.Name(), n, "", rate)
			}
		}
		for _, base := range []int{1, from} {
			b := r.Find(p.Name(), base, "", rate)
			if b == nil || far == nil || last == base {
				continue
			}
			kept := report.Ratios(far, b)
			what := fmt.Sprintf("requests/s kept from %s to %s endpoints", chart.Number(float64(base*10)), chart.Number(float64(last*10)))
			if p == (peer.Sluice{}) {
				r.Goal(what, "≥ 0.97", kept.String(), kept.Median >= 0.97)
			} else {
				r.Note("%s: %s: %s.", p.Name(), what, kept)
			}
		}
	}
}

func requestCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "rate", chart.Chart{
		Kind: chart.Lines, Title: "HTTP requests a second through a NodePort, no keep-alive",
		Subtitle: "client, server and packets share one core; higher is better",
		XLabel:   "endpoints in all", YLabel: "requests a second",
	}, report.ByEndpoints, rate, "")}
}
