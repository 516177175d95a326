package modes

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/experiment/kubeproxy"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/report"
)

// Bulk is the experiment modes-bulk.
var Bulk = harness.Experiment{
	Name:  "modes-bulk",
	Title: "A bulk TCP copy, and one request after the other, in each mode",
	How: "A client sends on one TCP connection through a service as fast as it is read; both ends and the packets between share one thread and core, " +
		"and a proxy is a process on the other cores. Of five copies in a row the fastest counts. CPU for a gigabyte is that of the thread and of the proxy. " +
		"Then HTTP requests, each after the answer to the one before, on a connection that stays open, and on connections of their own: the median of the time until the whole answer.",
	Run:    runBulk,
	Charts: bulkCharts,
}

const (
	copied     = "bytes a second"
	copyCPU    = "CPU for a gigabyte"
	answerTime = "time to the answer"
	// copies is how many copies a sample takes. The fastest counts, as only other work makes one
	// slower.
	copies = 5
	// fewServices is the size of the cluster.
	fewServices = 10
)

func runBulk(ctx context.Context, r *harness.Run) (err error) {
	r.Options.Rounds = min(r.Options.Rounds, 5)
	r.Result.Rounds = r.Options.Rounds
	if err := cpuaffinity.Reserve(harness.PacketCPU); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cpuaffinity.Release()) }()
	err = compared.InTurns(ctx, r, []int{fewServices}, func(st *kubeproxy.APICluster, s *dataplane.Process) error {
		return errors.Join(s.KeepOff(harness.PacketCPU), measureCopy(ctx, r, st, s), measureAnswers(ctx, r, st, s))
	})
	if err != nil {
		return err
	}
	for _, p := range []string{ownNftables, ownIptables} {
		ratioGoal(r, "a bulk copy's "+copied, ownUserspace, p, fewServices, "", copied, "≥ 0.5", func(ratio float64) bool { return ratio >= 0.5 })
		if a, b := r.Find(ownUserspace, fewServices, "", copyCPU), r.Find(p, fewServices, "", copyCPU); a != nil && b != nil {
			r.Note("%s, %s over %s: %s.", copyCPU, ownUserspace, p, report.Ratios(a, b))
		}
	}
	return nil
}

// lastService is where copies and requests go.
func lastService(st *kubeproxy.APICluster) netip.AddrPort {
	return netip.AddrPortFrom(cluster.ServiceAddr(st.Services-1), cluster.ServicePort)
}

func measureCopy(ctx context.Context, r *harness.Run, st *kubeproxy.APICluster, s *dataplane.Process) error {
	var best load.Copied
	for range copies {
		before, err := proxyCPU(s)
		if err != nil {
			return err
		}
		c, err := load.Copy(ctx, load.CopyConfig{
			Client: s.Client, Backend: s.Backend, Target: lastService(st), Port: cluster.TargetPort,
			Duration: r.Short(500*time.Millisecond, 50*time.Millisecond), CPU: harness.PacketCPU,
		})
		if err != nil {
			return err
		}
		after, err := proxyCPU(s)
		if err != nil {
			return err
		}
		if c.CPU += after - before; c.Rate() > best.Rate() {
			best = c
		}
	}
	kubeproxy.RecordProcess(r, st, s, "", copied, "GB/s", best.Rate()/1e9)
	kubeproxy.RecordProcess(r, st, s, "", copyCPU, "s", best.CPU.Seconds()/float64(best.Bytes)*1e9)
	return nil
}

func measureAnswers(ctx context.Context, r *harness.Run, st *kubeproxy.APICluster, s *dataplane.Process) error {
	for _, variant := range []string{keepAlive, eachOwn} {
		res, err := r.Load(ctx, s.Testbed, load.Config{
			Target: lastService(st), KeepAlive: variant == keepAlive, Concurrency: 1, Duration: r.Short(time.Second, 100*time.Millisecond),
		})
		if err != nil {
			return err
		}
		kubeproxy.RecordProcess(r, st, s, variant, answerTime, "µs", harness.Micros(res.Quantile(0.5)))
	}
	return nil
}

// proxyCPU is the CPU time that a program has used if it carries connections itself.
func proxyCPU(s *dataplane.Process) (time.Duration, error) {
	if !s.Proxy {
		return 0, nil
	}
	return s.CPU()
}

func bulkCharts(r *report.Result) []report.Figure {
	return []report.Figure{
		report.Draw(r, "speed", chart.Chart{
			Kind: chart.Bars, Title: "A bulk TCP copy through a service, in each mode",
			Subtitle: "one connection; both ends and all packets on one core, a proxy on others; higher is better", XLabel: "services", YLabel: "GB/s",
		}, report.ByServices, copied, ""),
		report.Draw(r, "answer", chart.Chart{
			Kind: chart.Bars, Title: "One HTTP request after the other, in each mode",
			Subtitle: "median of the time to the answer; lower is better", XLabel: "services", YLabel: "µs",
		}, report.ByServices, answerTime, keepAlive, eachOwn),
	}
}
