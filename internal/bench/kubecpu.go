package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/bench/seat"
)

var kubeCPU = Experiment{
	Name:  "kube-proxy-cpu",
	Title: "CPU beside kube-proxy, under 50 changes a second and idle",
	How: "For a minute, 50 EndpointSlices a second are written to a real API server, which by turns lose an endpoint and get it back. CPU is the process's own clock, user and system, and that of its children (iptables-restore, nft) that have ended. " +
		"The programs are measured in turns, and the others are stopped meanwhile. Idle is half a minute in which nothing changes, for all at once.",
	run:   runKubeCPU,
	paint: paintKubeCPU,
}

// perSecond is how often slices change.
const perSecond = 50

func runKubeCPU(ctx context.Context, r *run) error {
	r.Options.Rounds, r.Result.Rounds = 1, 1
	sizes := r.kubeSizes()
	lasting := r.short(time.Minute, 10*time.Second)
	err := r.inTurns(ctx, sizes, func(st *stand, s *seat.Seat) error {
		return r.usage(st, churnCPU, []*seat.Seat{s}, func() error { return st.churn(ctx, lasting) })
	})
	if err != nil {
		return err
	}
	for _, n := range sizes {
		if err := r.idleSeats(ctx, n); err != nil {
			return err
		}
		r.judgeRatio(n, churnCPU, "", churnCPU, "≤ 1/8", 1./8)
		if m := r.find(peer.Sluice{}.Name(), n, "", idleCPU); m != nil {
			other := r.better(n, "", idleCPU)
			r.goal("CPU on a real API, nothing changes, "+chart.Number(float64(n))+" services × 10 endpoints", "≤ 0.1 % of a core",
				spread(m.Samples).String()+" %; "+other.Dataplane+" "+chart.Number(other.Median)+" %", m.Median <= 0.1)
		}
	}
	return nil
}

// usage files the share of a core that programs use while something happens.
func (r *run) usage(st *stand, metric string, seats []*seat.Seat, during func() error) error {
	began := time.Now()
	was := make([]time.Duration, len(seats))
	for i, s := range seats {
		var err error
		if was[i], err = s.CPU(); err != nil {
			return err
		}
	}
	if err := during(); err != nil {
		return err
	}
	for i, s := range seats {
		now, err := s.CPU()
		if err != nil {
			return err
		}
		r.recordSeat(st, s, "", metric, "% of a core", 100*(now-was[i]).Seconds()/time.Since(began).Seconds())
	}
	return nil
}

// idleSeats measures all programs of a size once they have come to rest.
func (r *run) idleSeats(ctx context.Context, services int) error {
	st, err := r.stand(ctx, services)
	if err != nil {
		return err
	}
	seats, err := r.started(ctx, st)
	if err != nil {
		return err
	}
	for _, s := range seats {
		if err := st.caughtUp(ctx, s); err != nil {
			return err
		}
	}
	r.progress("idle: %s", st.Cluster)
	if err := wait(ctx, 5*time.Second); err != nil {
		return err
	}
	return r.usage(st, idleCPU, seats, func() error { return wait(ctx, r.short(30*time.Second, 10*time.Second)) })
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
