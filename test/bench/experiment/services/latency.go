package services

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Latency is the experiment latency.
var Latency = harness.Experiment{
	Name:  "latency",
	Title: "Response time and CPU at 1,000 requests a second",
	How: "1,000 HTTP requests a second to the last service, which has 10 endpoints. Each is started on time even if answers are late, and timed from when it was due. " +
		"Client, server and packets run in one thread on one core; CPU is that thread's own clock, which includes the kernel's packet work, as that happens in the sending thread. " +
		"The core's busy time from /proc/stat is given, too: it also includes timers and whatever else ran there.",
	Run:    runLatency,
	Charts: latencyCharts,
}

const (
	fresh     = "a connection each"
	keptAlive = "keep-alive"
	mean      = "mean response time"
	p99       = "p99 response time"
	share     = "CPU"
	busy      = "CPU of the core"
)

func runLatency(ctx context.Context, r *harness.Run) error {
	sizes := []int{10, 1_000}
	if r.Full() {
		sizes = append(sizes, 10_000)
	}
	err := harness.InTurns(ctx, r, harness.Cases(10, 0, sizes, peer.Sluice{}, peer.KubeNftables{}, peer.KubeIptables{}), measureLatency)
	if err != nil {
		return err
	}
	latencyGoals(r, sizes[len(sizes)-1])
	return nil
}

func measureLatency(ctx context.Context, r *harness.Run, s *harness.Setup[harness.ServiceCase]) error {
	for _, variant := range []string{fresh, keptAlive} {
		was, err := harness.CPUIdle(harness.PacketCPU)
		if err != nil {
			return err
		}
		began := time.Now()
		res, err := r.Load(ctx, s.Testbed, load.Config{
			Target: netip.AddrPortFrom(cluster.ServiceAddr(s.Case.Cluster.Services-1), cluster.ServicePort),
			Rate:   1_000, KeepAlive: variant == keptAlive, Duration: r.Short(1500*time.Millisecond, time.Second),
		})
		if err != nil {
			return err
		}
		now, err := harness.CPUIdle(harness.PacketCPU)
		if err != nil {
			return err
		}
		took := time.Since(began)
		if res.Failed > 0 {
			r.Note("%s, %s: %d of %d requests failed %v.", s.Case, variant, res.Failed, res.Failed+res.Requests, res.Reasons)
		}
		r.Record(s.Case, variant, mean, "µs", harness.Micros(res.Mean()))
		r.Record(s.Case, variant, p99, "µs", harness.Micros(res.Quantile(0.99)))
		r.Record(s.Case, variant, share, "% of a core", 100*res.CPU.Seconds()/res.Took.Seconds())
		r.Record(s.Case, variant, busy, "% of a core", 100*max(0, 1-(now-was).Seconds()/took.Seconds()))
	}
	return nil
}

// latencyGoals takes as noise how far the rounds of the smallest cluster lie apart, but no more
// than a fifth: a busy machine must not make a goal easy to reach.
func latencyGoals(r *harness.Run, large int) {
	for _, variant := range []string{fresh, keptAlive} {
		for _, metric := range []string{mean, p99, share} {
			base, far := r.Find(peer.Sluice{}.Name(), 10, variant, metric), r.Find(peer.Sluice{}.Name(), large, variant, metric)
			if base == nil || far == nil {
				continue
			}
			ratio := report.Ratios(far, base)
			noise := min(0.2, max(0.02, (base.Max-base.Min)/base.Median))
			r.Goal(fmt.Sprintf("%s at 1,000 requests/s, %s, %s services over 10", metric, variant, chart.Number(float64(large))),
				fmt.Sprintf("no growth beyond noise (here %.0f %%)", 100*noise), ratio.String(), ratio.Median <= 1+noise)
			for _, p := range []peer.Dataplane{peer.KubeNftables{}, peer.KubeIptables{}} {
				if a, b := r.Find(p.Name(), large, variant, metric), r.Find(p.Name(), 10, variant, metric); a != nil && b != nil {
					r.Note("%s, %s, %s: %s services over 10: %s.", p.Name(), metric, variant, chart.Number(float64(large)), report.Ratios(a, b))
				}
			}
		}
	}
}

func latencyCharts(r *report.Result) []report.Figure {
	var ps []report.Figure
	for _, p := range []struct{ name, metric, variant, unit string }{
		{"mean", mean, fresh, "µs"}, {"p99", p99, fresh, "µs"}, {"cpu", share, fresh, "% of a core"},
		{"mean-keepalive", mean, keptAlive, "µs"}, {"cpu-keepalive", share, keptAlive, "% of a core"},
	} {
		title := map[string]string{mean: "Mean response time", p99: "p99 of the response time", share: "CPU"}[p.metric]
		ps = append(ps, report.Draw(r, p.name, chart.Chart{
			Kind: chart.Bars, Title: title + " at 1,000 requests a second, " + p.variant,
			Subtitle: "the last service hit, of 10 endpoints each; lower is better", XLabel: "services", YLabel: p.unit,
		}, report.ByServices, p.metric, p.variant))
	}
	return ps
}
