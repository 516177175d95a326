package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/cpuaffinity"
	"sluice.dev/sluice/internal/bench/load"
	"sluice.dev/sluice/internal/bench/peer"
)

var restart = Experiment{
	Name:  "restart",
	Title: "The agent killed and restarted under load",
	How: "While 1,000 HTTP requests a second, each on a connection of its own, go to the last service, the agent is killed (SIGKILL), stays away for half a second, and is started again. " +
		"The time is from the start of the new process until it answers that it is ready: its manifests read, the table found in the kernel compared with them and adopted. " +
		"Then it is asked what it would change. 10,000 services are read from a file for each object, a million endpoints from Lists of a thousand services.",
	run:   runRestart,
	paint: paintRestart,
}

const (
	operations = "kernel operations changed or planned"
)

func runRestart(ctx context.Context, r *run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	sizes := []int{1_000}
	if r.full() {
		sizes = []int{10_000, 100_000}
	}
	for _, n := range sizes {
		if err := r.restarts(ctx, cluster.Cluster{Services: n, Endpoints: 10}); err != nil {
			return fmt.Errorf("%d services: %w", n, err)
		}
	}
	for _, n := range sizes {
		r.judgeRestart(n)
	}
	return nil
}

func (r *run) restarts(ctx context.Context, c cluster.Cluster) (err error) {
	if err := cpuaffinity.Reserve(packetCPU); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cpuaffinity.Release()) }()
	st, err := r.newTestbed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	s, err := r.newSite(st.Node)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if c.Services > 10_000 {
		err = s.fillLists(c)
	} else {
		err = s.fill(c.Files())
	}
	if err != nil {
		return err
	}
	p, err := s.start()
	if err != nil {
		return err
	}
	defer func() { p.kill() }()
	if _, err := p.ready(ctx, 2*time.Minute); err != nil {
		return err
	}
	for round := range r.Options.Rounds {
		r.progress("round %d of %d: %s", round+1, r.Options.Rounds, c)
		if err := st.FlushConntrack(); err != nil {
			return err
		}
		under, cancel := context.WithCancel(ctx)
		answers := make(chan error, 1)
		go func() {
			res, err := r.load(under, st, load.Config{
				Target: netip.AddrPortFrom(cluster.ServiceAddr(c.Services-1), cluster.ServicePort),
				Rate:   1_000, Duration: 10 * time.Minute,
			})
			if err == nil {
				r.recordLoad(spec{dataplane: peer.Sluice{}, cluster: c}, res)
			}
			answers <- err
		}()
		p, err = r.restartOnce(ctx, p, c)
		cancel()
		if err = errors.Join(err, <-answers); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) recordLoad(s spec, res *load.Result) {
	r.record(s, "", failed, "", float64(res.Failed))
	r.record(s, "", answered, "", float64(res.Requests))
	if res.Failed > 0 {
		r.note("%s: %d of %d requests failed %v.", s, res.Failed, res.Failed+res.Requests, res.Reasons)
	}
}

// restartOnce kills the agent and returns the new one, also with an error.
func (r *run) restartOnce(ctx context.Context, p *agentProcess, c cluster.Cluster) (*agentProcess, error) {
	s := spec{dataplane: peer.Sluice{}, cluster: c}
	if err := wait(ctx, 500*time.Millisecond); err != nil {
		return p, err
	}
	p.kill()
	if err := wait(ctx, 500*time.Millisecond); err != nil {
		return p, err
	}
	next, err := p.start()
	if err != nil {
		return p, err
	}
	took, err := next.ready(ctx, time.Minute)
	if err != nil {
		return next, err
	}
	r.record(s, "", adopted, "s", took.Seconds())
	status, err := next.ask().Status(ctx)
	if err != nil {
		return next, err
	}
	changed := 0
	if status.LastApply != nil {
		changed = status.LastApply.Operations
	}
	plan, err := next.ask().Plan(ctx)
	if err != nil {
		return next, err
	}
	r.record(s, "", operations, "", float64(changed+plan.Operations))
	return next, wait(ctx, 500*time.Millisecond)
}

func (r *run) judgeRestart(services int) {
	name := fmt.Sprintf("agent killed under load, %s endpoints", chart.Number(float64(services*10)))
	most := 1.0
	if services > 10_000 {
		most = 5
	}
	for _, g := range []struct {
		metric, goal, unit string
		most               float64
	}{
		{failed, "none", "", 0}, {operations, "none", "", 0}, {adopted, fmt.Sprintf("≤ %g s", most), " s", most},
	} {
		if m := r.find(peer.Sluice{}.Name(), services, "", g.metric); m != nil {
			r.goal(name+": "+g.metric, g.goal, spread(m.Samples).String()+g.unit, m.Max <= g.most)
		}
	}
}

func paintRestart(r *Result) []painting {
	return []painting{draw(r, "time", chart.Chart{
		Kind: chart.Bars, Title: "From the start of a new agent to the table adopted",
		Subtitle: "after SIGKILL, under load; lower is better", XLabel: "endpoints in all", YLabel: "s",
	}, byEndpoints, adopted, "")}
}
