package kubeproxy

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/probe"
	"sluice.dev/sluice/test/bench/report"
)

// Burst is the experiment kube-proxy-burst.
var Burst = harness.Experiment{
	Name:  "kube-proxy-burst",
	Title: "A thousand changes at once beside kube-proxy, from the API to packets",
	How: "A thousand EndpointSlices are written as fast as the API server accepts them, each with other addresses for all its endpoints. Connections to each of the services in turn show since when all of them go to the new addresses. " +
		"A client that only watches records when it has seen the last change. The time is measured from then (0.2 ms, the time between two connections, if everything is in force by then), and also from the first write. The programs are measured in turns; the others are stopped meanwhile.",
	Run:    runBurst,
	Charts: burstCharts,
}

const (
	burstLess  = "last change seen by a bare watch to all in force"
	burstAll   = "first write to all in force"
	burstWrite = "first write to last change seen by a bare watch"
)

// secondRange is the distance of the endpoints' second addresses from their first ones.
const secondRange = 1 << 20

// addressRanges are the networks of the first and of the second addresses.
var addressRanges = [2]netip.Prefix{netip.MustParsePrefix("10.128.0.0/12"), netip.MustParsePrefix("10.144.0.0/12")}

func runBurst(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	sizes := kubeSizes(r)
	if err := kubeProxy.InTurns(ctx, r, sizes, func(st *APICluster, s *dataplane.Process) error { return burstOf(ctx, r, st, s) }); err != nil {
		return err
	}
	for _, n := range sizes {
		ratioGoal(r, n, "a thousand changes at once, "+burstLess, "", burstLess, "≤ 1/20", 1./20)
	}
	return nil
}

// burstOf moves the endpoints of a thousand services; moving them back is not measured.
func burstOf(ctx context.Context, r *harness.Run, st *APICluster, s *dataplane.Process) error {
	services := min(1_000, st.Services)
	wrote, seen, followed, err := st.moveEndpoints(ctx, s, services, 1)
	if err != nil {
		return err
	}
	RecordProcess(r, st, s, "", burstLess, "ms", harness.Millis(max(followed.Sub(seen), probe.Interval)))
	RecordProcess(r, st, s, "", burstAll, "ms", harness.Millis(followed.Sub(wrote)))
	RecordProcess(r, st, s, "", burstWrite, "ms", harness.Millis(seen.Sub(wrote)))
	_, _, _, err = st.moveEndpoints(ctx, s, services, 0)
	return err
}

// moveEndpoints gives the endpoints of the first services addresses of one range. It returns when
// the first write began, when a bare watch had seen all changes, and when packets to all services
// followed.
func (st *APICluster) moveEndpoints(ctx context.Context, s *dataplane.Process, services, addresses int) (wrote, seen, followed time.Time, err error) {
	w, err := st.Watch(ctx)
	if err != nil {
		return wrote, seen, followed, err
	}
	defer w.Close()
	var targets []probe.Target
	var files []cluster.File
	for i := range services {
		d := serviceTarget(i)
		d.Backends = addressRanges[addresses]
		targets = append(targets, d)
		files = append(files, st.sliceAt(i, addresses))
	}
	done := make(chan error, 1)
	go func() {
		var err error
		followed, err = waitReachable(ctx, s, targets...)
		done <- err
	}()
	wrote = time.Now()
	seen, err = st.putAll(ctx, w.Seen, files)
	return wrote, seen, followed, errors.Join(err, <-done)
}

// sliceAt is service i's slice with all endpoints in one of the ranges.
func (st *APICluster) sliceAt(i, addresses int) cluster.File {
	members := make([]cluster.Member, st.Endpoints)
	for j := range members {
		members[j].Index = addresses*secondRange + j
	}
	return st.MembersFile(i, members...)
}

// putAll writes objects, several at once, and returns when a bare watch had seen the last one.
func (st *APICluster) putAll(ctx context.Context, when func(context.Context, string) (time.Time, error), files []cluster.File) (time.Time, error) {
	const writers = 16
	versions := make([]string, len(files))
	group, under := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i, f := range files {
		group.Go(func() error {
			var err error
			versions[i], err = st.Put(under, f)
			return err
		})
	}
	var last time.Time
	if err := group.Wait(); err != nil {
		return last, err
	}
	for _, v := range versions {
		at, err := when(ctx, v)
		if err != nil {
			return last, err
		}
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}

func burstCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "time", chart.Chart{
		Kind: chart.Bars, LogY: true, Title: "A thousand changes at once, until all are in force",
		Subtitle: "from when a bare watch has seen the last one; lower is better", XLabel: "services", YLabel: "ms (logarithmic)",
	}, report.ByServices, burstLess, "")}
}
