package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/api"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/probe"
	"sluice.dev/sluice/test/bench/report"
)

// Change is the experiment kube-proxy-change.
var Change = harness.Experiment{
	Name:  "kube-proxy-change",
	Title: "One endpoint's change beside kube-proxy, from the API to packets",
	How: "The one endpoint of an EndpointSlice in a real API server gets another address, while nothing else happens. Connections through the service, a new one every fifth of a millisecond, show since when they go there. " +
		"A client that only watches EndpointSlices records when it sees the same change; the time until then is the API server's and is subtracted. " +
		"The programs are measured in turns; the others are stopped meanwhile. kube-proxy runs with its default of at least a second between two rounds (minSyncPeriod), which has passed when the change is made.",
	Run:    runChange,
	Charts: changeCharts,
}

const (
	// LessWatch is the variant of TimeChanges' metrics without the API server's own time.
	LessWatch = "less a bare watch"
	inAll     = "from the API write"
)

func runChange(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	sizes := kubeSizes(r)
	if err := kubeProxy.InTurns(ctx, r, sizes, func(st *APICluster, s *dataplane.Process) error { return TimeChanges(ctx, r, st, s) }); err != nil {
		return err
	}
	for _, n := range sizes {
		for _, g := range []struct {
			metric string
			most   float64
		}{{harness.Half, 5}, {harness.NinetyNine, 20}} {
			m := r.Find(peer.Sluice{}.Name(), n, LessWatch, g.metric)
			other := betterKubeProxy(r, n, LessWatch, g.metric)
			if m == nil || other == nil {
				continue
			}
			r.Goal(fmt.Sprintf("one endpoint's change, API write to packets, %s, %s, %s services × 10 endpoints", LessWatch, g.metric, chart.Number(float64(n))),
				fmt.Sprintf("≤ %g ms", g.most), fmt.Sprintf("%s ms; %s %s ms", report.SpreadOf(m.Samples), other.Dataplane, chart.Number(other.Median)), m.Median <= g.most)
		}
	}
	return nil
}

// TimeChanges makes changes for some seconds, each one when the program could carry it out at once,
// and records how long it took until packets followed.
func TimeChanges(ctx context.Context, r *harness.Run, st *APICluster, s *dataplane.Process) error {
	w, err := st.Watch(ctx)
	if err != nil {
		return err
	}
	defer w.Close()
	var less, all []time.Duration
	for began := time.Now(); time.Since(began) < r.Short(10*time.Second, 4*time.Second) || len(all) < 3; {
		slice, d := st.nextEndpoint(1 + len(all)%(singles-1))
		wrote, seen, followed, err := st.change(ctx, s, w, slice, d)
		if err != nil {
			return err
		}
		less, all = append(less, max(followed.Sub(seen), probe.Interval)), append(all, followed.Sub(wrote))
		if err := harness.Wait(ctx, max(s.Period, 100*time.Millisecond)); err != nil {
			return err
		}
	}
	for variant, took := range map[string][]time.Duration{LessWatch: less, inAll: all} {
		slices.Sort(took)
		RecordProcess(r, st, s, variant, harness.Half, "ms", harness.Millis(took[len(took)/2]))
		RecordProcess(r, st, s, variant, harness.NinetyNine, "ms", harness.Millis(took[len(took)*99/100]))
	}
	RecordProcess(r, st, s, "", "changes measured", "", float64(len(all)))
	return nil
}

// change writes a slice. It returns when the write began, when a bare watch saw it, and when
// packets followed.
func (st *APICluster) change(ctx context.Context, s *dataplane.Process, w *api.Watch, slice cluster.File, d probe.Target) (wrote, seen, followed time.Time, err error) {
	done := make(chan error, 1)
	go func() {
		var err error
		followed, err = waitReachable(ctx, s, d)
		done <- err
	}()
	if err := harness.Wait(ctx, 3*time.Millisecond); err != nil { // until the first probe
		return wrote, seen, followed, errors.Join(err, <-done)
	}
	wrote = time.Now()
	version, err := st.Put(ctx, slice)
	if err == nil {
		seen, err = w.Seen(ctx, version)
	}
	return wrote, seen, followed, errors.Join(err, <-done)
}

func changeCharts(r *report.Result) []report.Figure {
	var ps []report.Figure
	for _, p := range []struct{ name, metric, title string }{{"p50", harness.Half, "median"}, {"p99", harness.NinetyNine, "99th percentile"}} {
		ps = append(ps, report.Draw(r, p.name, chart.Chart{
			Kind: chart.Bars, LogY: true, Title: "From a change in the API to packets following, " + p.title,
			Subtitle: "one endpoint at a time, less what a bare watch takes; lower is better", XLabel: "services", YLabel: "ms (logarithmic)",
		}, report.ByServices, p.metric, LessWatch))
	}
	return ps
}
