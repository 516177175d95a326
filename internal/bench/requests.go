package bench

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/load"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/bench/testbed"
)

const nodePort = 30080

var requests = Experiment{
	Name:  "requests",
	Title: "HTTP requests a second through a NodePort",
	How: "A client sends HTTP requests to the NodePort of the last service, each on a connection of its own, 16 at once, as fast as they are answered. " +
		"Client, server and all packets between share one core, which is busy throughout: what changes the rate is what a request costs there.",
	run:   runRequests,
	paint: paintRequests,
}

const (
	rate    = "requests a second"
	perCore = "1/s"
)

func runRequests(ctx context.Context, r *run) error {
	own := []int{1, 1_000}
	peers, lists := []int{1, 1_000}, []int{1, 1_000}
	if r.full() {
		own = []int{1, 1_000, 2_500, 7_000, 10_000, 20_000}
		lists = []int{1, 1_000, 10_000}
		r.skip("kube-proxy nftables at 100,000 endpoints: loading takes half a minute or more, and the cost of a connection does not depend on it (see connections)")
	}
	specs := slices.Concat(cases(10, nodePort, own, peer.Sluice{}),
		cases(10, nodePort, peers, peer.KubeNftables{}), cases(10, nodePort, lists, peer.KubeIptables{}))
	r.skip("nftlb: it has no NodePorts")
	if err := alternate(ctx, r, specs, measureRequests); err != nil {
		return err
	}
	r.judgeRequests(own[1], own[len(own)-1])
	return nil
}

func measureRequests(ctx context.Context, r *run, s *stage[spec]) error {
	res, err := r.load(ctx, s.Testbed, load.Config{
		Target: netip.AddrPortFrom(cluster.NodeAddr, nodePort), Concurrency: 16, Duration: time.Second,
	})
	if err != nil {
		return err
	}
	if res.Failed > 0 {
		r.note("%s: %d of %d requests failed %v.", s.spec, res.Failed, res.Failed+res.Requests, res.Reasons)
	}
	r.record(s.spec, "", rate, perCore, res.PerSecond())
	return nil
}

// short is the first duration at full scale, the second at small.
func (r *run) short(full, small time.Duration) time.Duration {
	if r.full() {
		return full
	}
	return small
}

// load runs requests across a testbed with an empty connection table before and after.
func (r *run) load(ctx context.Context, l *testbed.Testbed, c load.Config) (*load.Result, error) {
	if err := l.FlushConntrack(); err != nil {
		return nil, err
	}
	c.Client, c.Sources, c.Backend, c.Port, c.CPU = l.Client, testbed.ClientAddrs(), l.Backend, cluster.TargetPort, packetCPU
	res, err := load.Run(ctx, c)
	if err != nil {
		return nil, err
	}
	return res, l.FlushConntrack()
}

// judgeRequests compares at the sizes of the published series: the share kept
// from 10,000 endpoints to 200,000.
func (r *run) judgeRequests(from, to int) {
	for _, p := range []peer.Dataplane{peer.Sluice{}, peer.KubeNftables{}, peer.KubeIptables{}} {
		last := to
		far := r.find(p.Name(), last, "", rate)
		for _, n := range []int{10_000, 1_000} { // the largest that was measured
			if far == nil {
				last, far = n, r.find(p.Name(), n, "", rate)
			}
		}
		for _, base := range []int{1, from} {
			b := r.find(p.Name(), base, "", rate)
			if b == nil || far == nil || last == base {
				continue
			}
			kept := ratios(far, b)
			what := fmt.Sprintf("requests/s kept from %s to %s endpoints", chart.Number(float64(base*10)), chart.Number(float64(last*10)))
			if p == (peer.Sluice{}) {
				r.goal(what, "≥ 0.97", kept.String(), kept.Median >= 0.97)
			} else {
				r.note("%s: %s: %s.", p.Name(), what, kept)
			}
		}
	}
}

func paintRequests(r *Result) []painting {
	return []painting{draw(r, "rate", chart.Chart{
		Kind: chart.Lines, Title: "HTTP requests a second through a NodePort, no keep-alive",
		Subtitle: "client, server and packets share one core; higher is better",
		XLabel:   "endpoints in all", YLabel: "requests a second",
	}, byEndpoints, rate, "")}
}
