package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/probe"
	"sluice.dev/sluice/test/bench/report"
)

// Start is the experiment kube-proxy-start.
var Start = harness.Experiment{
	Name:  "kube-proxy-start",
	Title: "Start beside kube-proxy, on a real Kubernetes API",
	How: "Real processes (`sluice run --kubeconfig`, and kube-proxy in nftables and in iptables mode, with iptables-legacy) start one after the other, each on a node of its own with an empty kernel, " +
		"and read one real kube-apiserver. Programmed is when connections through 50 random services, the last service, and ten more reach a backend, tried every fifth of a millisecond. " +
		"Synced is when the program logs that it has read its sources. (kube-proxy checks that ten times a second, so it may have happened up to a tenth of a second earlier.)",
	Run:    runStart,
	Charts: startCharts,
}

const syncedProgrammed = "sources synced to programmed"

func runStart(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	for _, n := range kubeSizes(r) {
		st, err := kubeProxy.Cluster(ctx, r, n)
		if err != nil {
			return err
		}
		for round := range r.Options.Rounds {
			for _, p := range kubeProxy.Programs(r, st) {
				r.Logf("round %d of %d: %s, %s", round+1, r.Options.Rounds, p.Name, st.Cluster)
				if err := TimeStart(ctx, r, st, p); err != nil {
					return err
				}
			}
		}
		startGoals(r, n)
	}
	return nil
}

// TimeStart starts a program on a node of its own, records how long it took until everything was
// programmed, and ends it.
func TimeStart(ctx context.Context, r *harness.Run, st *APICluster, p dataplane.Program) (err error) {
	harness.Settle()
	s, err := NewProcess(r, st, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Start(); err != nil {
		return err
	}
	at, err := Programmed(ctx, st, s)
	if err != nil {
		return err
	}
	// With few services all may be programmed before it has noticed and logged that.
	synced, ok := s.Synced()
	for began := time.Now(); !ok; synced, ok = s.Synced() {
		if time.Since(began) > 5*time.Second {
			return fmt.Errorf("%s does not say when it has read its sources", s.Name)
		}
		if err := harness.Wait(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	all, rest := at.Sub(s.Started()), max(at.Sub(synced), probe.Interval)
	r.Logf("programmed after %s, %s after its sources", all.Round(time.Millisecond), rest.Round(time.Millisecond))
	RecordProcess(r, st, s, "", harness.Started, "s", all.Seconds())
	RecordProcess(r, st, s, "", syncedProgrammed, "s", rest.Seconds())
	return nil
}

func startGoals(r *harness.Run, services int) {
	goal, most := "≤ 1/3", 1./3
	if services >= 10_000 {
		goal, most = "≤ 1/10", 1./10
	}
	ratioGoal(r, services, harness.Started, "", harness.Started, goal, most)
	ratioGoal(r, services, syncedProgrammed, "", syncedProgrammed, "≤ 1/20", 1./20)
}

func startCharts(r *report.Result) []report.Figure {
	return []report.Figure{
		report.Draw(r, "all", chart.Chart{
			Kind: chart.Bars, LogY: true, Title: "From the start of the program to all services programmed",
			Subtitle: "10 endpoints a service, one real API server; lower is better", XLabel: "services", YLabel: "seconds (logarithmic)",
		}, report.ByServices, harness.Started, ""),
		report.Draw(r, "synced", chart.Chart{
			Kind: chart.Bars, LogY: true, Title: "From sources synced to all services programmed",
			Subtitle: "10 endpoints a service; lower is better", XLabel: "services", YLabel: "seconds (logarithmic)",
		}, report.ByServices, syncedProgrammed, ""),
	}
}
