package kubeproxy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// CPU is the experiment kube-proxy-cpu.
var CPU = harness.Experiment{
	Name:  "kube-proxy-cpu",
	Title: "CPU beside kube-proxy, under 50 changes a second and idle",
	How: "For a minute, 50 EndpointSlices a second are written to a real API server, which lose an endpoint and get it back in turns. CPU is the process's own clock, user and system, with that of its children (iptables-restore, nft) that have ended. " +
		"The programs are measured in turns, each with both sizes of the cluster at the same time; the others are stopped meanwhile. Idle is half a minute in which nothing changes, for all programs at the same time.",
	Run:    runCPU,
	Charts: cpuCharts,
}

// PerSecond is how many slices change each second.
const PerSecond = 50

func runCPU(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds, r.Result.Rounds = 1, 1
	sizes := kubeSizes(r)
	var programs [][]instance // each with its processes at all sizes
	for _, n := range sizes {
		st, err := kubeProxy.Running(ctx, r, n)
		if err != nil {
			return err
		}
		if programs == nil {
			programs = make([][]instance, len(st.Processes))
		}
		for i, s := range st.Processes {
			programs[i] = append(programs[i], instance{st, s})
		}
	}
	for _, at := range programs {
		if err := churnCPU(ctx, r, at); err != nil {
			return err
		}
	}
	if err := idleCPU(ctx, r, slices.Concat(programs...)); err != nil {
		return err
	}
	for _, n := range sizes {
		cpuGoals(r, n)
	}
	return nil
}

func cpuGoals(r *harness.Run, services int) {
	ratioGoal(r, services, harness.ChurnCPU, "", harness.ChurnCPU, "≤ 1/8", 1./8)
	own, other := r.Find(peer.Sluice{}.Name(), services, "", harness.IdleCPU), betterKubeProxy(r, services, "", harness.IdleCPU)
	if own == nil || other == nil {
		return
	}
	r.Goal(fmt.Sprintf("CPU on a real API, nothing changes, %s services × 10 endpoints", chart.Number(float64(services))), "≤ 0.1 % of a core",
		fmt.Sprintf("%s %%; %s %s %%", report.SpreadOf(own.Samples), other.Dataplane, chart.Number(other.Median)), own.Median <= 0.1)
}

// instance is a program at work for one of the APIClusters.
type instance struct {
	*APICluster
	process *dataplane.Process
}

// recordCPU records the share of a core that programs use while during runs.
func recordCPU(r *harness.Run, metric string, of []instance, during func() error) error {
	began := time.Now()
	was := make([]time.Duration, len(of))
	for i, t := range of {
		var err error
		if was[i], err = t.process.CPU(); err != nil {
			return err
		}
	}
	if err := during(); err != nil {
		return err
	}
	for i, t := range of {
		now, err := t.process.CPU()
		if err != nil {
			return err
		}
		RecordProcess(r, t.APICluster, t.process, "", metric, "% of a core", 100*(now-was[i]).Seconds()/time.Since(began).Seconds())
	}
	return nil
}

// churnCPU measures one program at all sizes at once, while the others are stopped.
func churnCPU(ctx context.Context, r *harness.Run, of []instance) error {
	for _, t := range of {
		r.Logf("%s: %s, %s", harness.ChurnCPU, t.process.Name, t.Cluster)
		if err := t.PauseOthers(ctx, t.process); err != nil {
			return err
		}
	}
	return recordCPU(r, harness.ChurnCPU, of, func() error {
		group, under := errgroup.WithContext(ctx)
		for _, t := range of {
			group.Go(func() error { return t.churn(under, r.Short(time.Minute, 10*time.Second)) })
		}
		return group.Wait()
	})
}

// idleCPU measures all programs when they have nothing to do.
func idleCPU(ctx context.Context, r *harness.Run, of []instance) error {
	r.Logf("%s", harness.IdleCPU)
	for _, t := range of {
		if err := t.process.Resume(); err != nil {
			return err
		}
	}
	for _, t := range of {
		if err := t.WaitCaughtUp(ctx, t.process); err != nil {
			return err
		}
	}
	if err := harness.Wait(ctx, 5*time.Second); err != nil {
		return err
	}
	return recordCPU(r, harness.IdleCPU, of, func() error { return harness.Wait(ctx, r.Short(30*time.Second, 10*time.Second)) })
}

// churn changes a slice fifty times a second. On one pass over all services each loses an endpoint,
// on the next pass it gets it back. Endpoints missing at the end come back with the next churn.
func (st *APICluster) churn(ctx context.Context, lasting time.Duration) error {
	group, under := errgroup.WithContext(ctx)
	group.SetLimit(PerSecond)
	t := time.NewTicker(time.Second / PerSecond)
	defer t.Stop()
	for began := time.Now(); time.Since(began) < lasting && under.Err() == nil; {
		f := st.SliceFile(st.churned%st.Services, st.Endpoints-1+st.churned/st.Services%2)
		st.churned++
		group.Go(func() error {
			_, err := st.Put(under, f)
			return err
		})
		select {
		case <-t.C:
		case <-under.Done():
		}
	}
	return group.Wait()
}

func cpuCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "churn", chart.Chart{
		Kind: chart.Bars, Title: "CPU under 50 changes a second, children included",
		Subtitle: "10 endpoints a service, a real API server; lower is better", XLabel: "services", YLabel: "% of a core",
	}, report.ByServices, harness.ChurnCPU, "")}
}
