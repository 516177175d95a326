package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/dataplane"
	"sluice.dev/sluice/internal/bench/peer"
)

var kubeCPU = Experiment{
	Name:  "kube-proxy-cpu",
	Title: "CPU beside kube-proxy, under 50 changes a second and idle",
	How: "For a minute, 50 EndpointSlices a second are written to a real API server, which by turns lose an endpoint and get it back. CPU is the process's own clock, user and system, and that of its children (iptables-restore, nft) that have ended. " +
		"The programs are measured in turns, each with both sizes of the cluster at once, and the others are stopped meanwhile. Idle is half a minute in which nothing changes, for all at once.",
	run:   runKubeCPU,
	paint: paintKubeCPU,
}

// perSecond is how often slices change.
const perSecond = 50

func runKubeCPU(ctx context.Context, r *run) error {
	r.Options.Rounds, r.Result.Rounds = 1, 1
	sizes := r.kubeSizes()
	var programs [][]taken // each with its processes at all sizes
	for _, n := range sizes {
		st, err := r.stand(ctx, n)
		if err != nil {
			return err
		}
		processes, err := r.started(ctx, st)
		if err != nil {
			return err
		}
		if programs == nil {
			programs = make([][]taken, len(processes))
		}
		for i, s := range processes {
			programs[i] = append(programs[i], taken{st, s})
		}
	}
	for _, at := range programs {
		if err := r.churnCPU(ctx, at); err != nil {
			return err
		}
	}
	if err := r.idleCPU(ctx, slices.Concat(programs...)); err != nil {
		return err
	}
	for _, n := range sizes {
		r.judgeKubeCPU(n)
	}
	return nil
}

func (r *run) judgeKubeCPU(services int) {
	r.judgeRatio(services, churnCPU, "", churnCPU, "≤ 1/8", 1./8)
	own, other := r.find(peer.Sluice{}.Name(), services, "", idleCPU), r.better(services, "", idleCPU)
	if own == nil || other == nil {
		return
	}
	r.goal(fmt.Sprintf("CPU on a real API, nothing changes, %s services × 10 endpoints", chart.Number(float64(services))), "≤ 0.1 % of a core",
		fmt.Sprintf("%s %%; %s %s %%", spread(own.Samples), other.Dataplane, chart.Number(other.Median)), own.Median <= 0.1)
}

// taken is a program at work on one of the stands.
type taken struct {
	*stand
	process *dataplane.Process
}

// usage files the share of a core that programs use while something happens.
func (r *run) usage(metric string, of []taken, during func() error) error {
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
		r.recordProcess(t.stand, t.process, "", metric, "% of a core", 100*(now-was[i]).Seconds()/time.Since(began).Seconds())
	}
	return nil
}

// churnCPU measures one program at all sizes at once, while the others are stopped.
func (r *run) churnCPU(ctx context.Context, of []taken) error {
	for _, t := range of {
		r.progress("%s: %s, %s", churnCPU, t.process.Name, t.Cluster)
		if err := t.only(ctx, t.process); err != nil {
			return err
		}
	}
	return r.usage(churnCPU, of, func() error {
		group, under := errgroup.WithContext(ctx)
		for _, t := range of {
			group.Go(func() error { return t.churn(under, r.short(time.Minute, 10*time.Second)) })
		}
		return group.Wait()
	})
}

// idleCPU measures all programs once they have come to rest.
func (r *run) idleCPU(ctx context.Context, of []taken) error {
	r.progress("%s", idleCPU)
	for _, t := range of {
		if err := t.process.Resume(); err != nil {
			return err
		}
	}
	for _, t := range of {
		if err := t.caughtUp(ctx, t.process); err != nil {
			return err
		}
	}
	if err := wait(ctx, 5*time.Second); err != nil {
		return err
	}
	return r.usage(idleCPU, of, func() error { return wait(ctx, r.short(30*time.Second, 10*time.Second)) })
}

// churn changes a service's slice fifty times a second: on one pass over all services each loses an endpoint, on the next it
// gets it back. Whatever is not in the API then comes back with the next churn.
func (st *stand) churn(ctx context.Context, lasting time.Duration) error {
	group, under := errgroup.WithContext(ctx)
	group.SetLimit(perSecond)
	t := time.NewTicker(time.Second / perSecond)
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

func paintKubeCPU(r *Result) []painting {
	return []painting{draw(r, "churn", chart.Chart{
		Kind: chart.Bars, Title: "CPU under 50 changes a second, children included",
		Subtitle: "10 endpoints a service, a real API server; lower is better", XLabel: "services", YLabel: "% of a core",
	}, byServices, churnCPU, "")}
}
