package kubeproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Rollout is the experiment kube-proxy-rollout.
var Rollout = harness.Experiment{
	Name:  "kube-proxy-rollout",
	Title: "A rolling update of a busy service beside kube-proxy",
	How: "1,000 HTTP requests a second, each on a connection of its own, go to a service of ten pods, all of which are replaced within three seconds: a new pod serves and is written into the EndpointSlice as ready, as the EndpointSlice controller does; " +
		"then an old one is written as terminating, goes on serving for a while, and ends: its address becomes unreachable and its endpoint is removed from the slice. " +
		"The programs are measured in turns; the others are stopped meanwhile.",
	Run:    runRollout,
	Charts: rolloutCharts,
}

// graces are how long pods go on serving after they have been marked as terminating. The usual
// advice for kube-proxy is some seconds.
var graces = []time.Duration{100 * time.Millisecond, time.Second}

func graceVariant(d time.Duration) string { return fmt.Sprintf("old pods serve for %g s", d.Seconds()) }

func runRollout(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds, r.Result.Rounds = 1, 1
	sizes := kubeSizes(r)
	err := kubeProxy.InTurns(ctx, r, sizes, func(st *APICluster, s *dataplane.Process) error {
		for _, grace := range graces {
			if err := rolloutOf(ctx, r, st, s, grace); err != nil {
				return err
			}
			if err := st.WaitCaughtUp(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, n := range sizes {
		for _, grace := range graces {
			rolloutGoal(r, n, graceVariant(grace))
		}
	}
	return nil
}

func rolloutGoal(r *harness.Run, services int, variant string) {
	own := r.Find(peer.Sluice{}.Name(), services, variant, harness.Failed)
	if own == nil {
		return
	}
	result := fmt.Sprintf("%g", own.Max)
	for _, p := range []peer.Dataplane{peer.KubeNftables{}, peer.KubeIptables{}} {
		if m := r.Find(p.Name(), services, variant, harness.Failed); m != nil {
			result += fmt.Sprintf("; %s %g", p.Name(), m.Max)
		}
	}
	r.Goal(fmt.Sprintf("failed requests during a rolling update, %s services × 10 endpoints, %s", chart.Number(float64(services)), variant),
		"none", result, own.Max == 0)
}

// rolloutOf replaces the pods of the busy service under requests.
func rolloutOf(ctx context.Context, r *harness.Run, st *APICluster, s *dataplane.Process, grace time.Duration) error {
	old, fresh := 0, st.Endpoints
	if st.rolled {
		old, fresh = fresh, old
	}
	st.rolled = !st.rolled
	for j := range st.Endpoints { // the new pods do not run yet
		if err := s.SetUnreachable(st.pod(fresh+j), true); err != nil {
			return err
		}
	}
	under, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, 1)
	var res *load.Result
	go func() {
		var err error
		res, err = r.Load(under, s.Testbed, load.Config{
			Target: netip.AddrPortFrom(cluster.ServiceAddr(st.busy()), cluster.ServicePort), Rate: 1_000, Duration: maxWait,
		})
		answers <- err
	}()
	err := harness.Wait(ctx, 300*time.Millisecond)
	if err == nil {
		err = st.roll(ctx, s, old, fresh, grace)
	}
	if err == nil {
		err = harness.Wait(ctx, 300*time.Millisecond)
	}
	cancel()
	if err = errors.Join(err, <-answers); err != nil {
		return err
	}
	variant := graceVariant(grace)
	r.Logf("%s: %d of %d requests failed %v", variant, res.Failed, res.Failed+res.Requests, res.Reasons)
	RecordProcess(r, st, s, variant, harness.Failed, "", float64(res.Failed))
	RecordProcess(r, st, s, variant, harness.Answered, "", float64(res.Requests))
	for j := range st.Endpoints { // the other programs' turns need them
		if err := s.SetUnreachable(st.pod(old+j), false); err != nil {
			return err
		}
	}
	return nil
}

// pod is the address of the busy service's endpoint j.
func (st *APICluster) pod(j int) netip.Addr { return st.Endpoint(st.busy(), j).Addr() }

// roll replaces one pod after the other: endpoint old+k by fresh+k.
func (st *APICluster) roll(ctx context.Context, s *dataplane.Process, old, fresh int, grace time.Duration) error {
	const step = 300 * time.Millisecond
	type event struct {
		at time.Duration
		do func(members []cluster.Member) ([]cluster.Member, error)
	}
	var members []cluster.Member
	var events []event
	for k := range st.Endpoints {
		members = append(members, cluster.Member{Index: old + k})
		begin := time.Duration(k) * step
		events = append(events,
			event{begin, func(m []cluster.Member) ([]cluster.Member, error) {
				return append(m, cluster.Member{Index: fresh + k}), s.SetUnreachable(st.pod(fresh+k), false)
			}},
			event{begin + step/2, func(m []cluster.Member) ([]cluster.Member, error) {
				m[slices.Index(m, cluster.Member{Index: old + k})].Terminating = true
				return m, nil
			}},
			event{begin + step/2 + grace, func(m []cluster.Member) ([]cluster.Member, error) {
				gone := cluster.Member{Index: old + k, Terminating: true}
				return slices.DeleteFunc(m, func(x cluster.Member) bool { return x == gone }), s.SetUnreachable(st.pod(old+k), true)
			}})
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	began := time.Now()
	for _, e := range events {
		err := harness.Wait(ctx, time.Until(began.Add(e.at)))
		if err == nil {
			members, err = e.do(members)
		}
		if err == nil {
			_, err = st.Put(ctx, st.MembersFile(st.busy(), members...))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func rolloutCharts(r *report.Result) (pictures []report.Figure) {
	for _, g := range graces {
		pictures = append(pictures, report.Draw(r, fmt.Sprintf("failed-%dms", g.Milliseconds()), chart.Chart{
			Kind: chart.Bars, Title: fmt.Sprintf("Failed requests during a rolling update: old pods serve for %g s", g.Seconds()),
			Subtitle: "1,000 requests a second to ten pods that are replaced; lower is better", XLabel: "services", YLabel: "failed requests",
		}, report.ByServices, harness.Failed, graceVariant(g)))
	}
	return pictures
}
