package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Restart is the experiment restart.
var Restart = harness.Experiment{
	Name:  "restart",
	Title: "The agent killed and restarted under load",
	How: "While 1,000 HTTP requests a second, each on a connection of its own, go to the last service, the agent is killed (SIGKILL) and started again half a second later. " +
		"The time is from the start of the new process until it answers that it is ready: it has read its manifests, compared the table in the kernel with them, and adopted it. " +
		"Then it is asked what it would change. 10,000 services are read from a file for each object, a million endpoints from Lists of a thousand services.",
	Run:    runRestart,
	Charts: restartCharts,
}

const (
	operations = "kernel operations changed or planned"
)

func runRestart(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	sizes := []int{1_000}
	if r.Full() {
		sizes = []int{10_000, 100_000}
	}
	for _, n := range sizes {
		if err := restarts(ctx, r, cluster.Cluster{Services: n, Endpoints: 10}); err != nil {
			return fmt.Errorf("%d services: %w", n, err)
		}
	}
	for _, n := range sizes {
		restartGoals(r, n)
	}
	return nil
}

func restarts(ctx context.Context, r *harness.Run, c cluster.Cluster) (err error) {
	if err := cpuaffinity.Reserve(harness.PacketCPU); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cpuaffinity.Release()) }()
	st, err := r.NewTestbed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	s, err := r.NewSite(st.Node)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if c.Services > 10_000 {
		err = s.FillLists(c)
	} else {
		err = s.Fill(c.Files())
	}
	if err != nil {
		return err
	}
	p, err := s.Start()
	if err != nil {
		return err
	}
	defer func() { p.Kill() }()
	if _, err := p.Ready(ctx, 2*time.Minute); err != nil {
		return err
	}
	for round := range r.Options.Rounds {
		r.Logf("round %d of %d: %s", round+1, r.Options.Rounds, c)
		if err := st.FlushConntrack(); err != nil {
			return err
		}
		under, cancel := context.WithCancel(ctx)
		answers := make(chan error, 1)
		go func() {
			res, err := r.Load(under, st, load.Config{
				Target: netip.AddrPortFrom(cluster.ServiceAddr(c.Services-1), cluster.ServicePort),
				Rate:   1_000, Duration: 10 * time.Minute,
			})
			if err == nil {
				recordLoad(r, harness.ServiceCase{Dataplane: peer.Sluice{}, Cluster: c}, res)
			}
			answers <- err
		}()
		p, err = restartOnce(ctx, r, p, c)
		cancel()
		if err = errors.Join(err, <-answers); err != nil {
			return err
		}
	}
	return nil
}

func recordLoad(r *harness.Run, s harness.ServiceCase, res *load.Result) {
	r.Record(s, "", harness.Failed, "", float64(res.Failed))
	r.Record(s, "", harness.Answered, "", float64(res.Requests))
	if res.Failed > 0 {
		r.Note("%s: %d of %d requests failed %v.", s, res.Failed, res.Failed+res.Requests, res.Reasons)
	}
}

// restartOnce kills the agent and starts a new one, which it returns also with an error.
func restartOnce(ctx context.Context, r *harness.Run, p *harness.Agent, c cluster.Cluster) (*harness.Agent, error) {
	s := harness.ServiceCase{Dataplane: peer.Sluice{}, Cluster: c}
	if err := harness.Wait(ctx, 500*time.Millisecond); err != nil {
		return p, err
	}
	p.Kill()
	if err := harness.Wait(ctx, 500*time.Millisecond); err != nil {
		return p, err
	}
	next, err := p.Start()
	if err != nil {
		return p, err
	}
	took, err := next.Ready(ctx, time.Minute)
	if err != nil {
		return next, err
	}
	r.Record(s, "", harness.Adopted, "s", took.Seconds())
	status, err := next.AgentClient().Status(ctx)
	if err != nil {
		return next, err
	}
	changed := 0
	if status.LastApply != nil {
		changed = status.LastApply.Operations
	}
	plan, err := next.AgentClient().Plan(ctx)
	if err != nil {
		return next, err
	}
	r.Record(s, "", operations, "", float64(changed+plan.Operations))
	return next, harness.Wait(ctx, 500*time.Millisecond)
}

func restartGoals(r *harness.Run, services int) {
	name := fmt.Sprintf("agent killed under load, %s endpoints", chart.Number(float64(services*10)))
	most := 1.0
	if services > 10_000 {
		most = 5
	}
	for _, g := range []struct {
		metric, goal, unit string
		most               float64
	}{
		{harness.Failed, "none", "", 0}, {operations, "none", "", 0}, {harness.Adopted, fmt.Sprintf("≤ %g s", most), " s", most},
	} {
		if m := r.Find(peer.Sluice{}.Name(), services, "", g.metric); m != nil {
			r.Goal(name+": "+g.metric, g.goal, report.SpreadOf(m.Samples).String()+g.unit, m.Max <= g.most)
		}
	}
}

func restartCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "time", chart.Chart{
		Kind: chart.Bars, Title: "From the start of a new agent to the table adopted",
		Subtitle: "after SIGKILL, under load; lower is better", XLabel: "endpoints in all", YLabel: "s",
	}, report.ByEndpoints, harness.Adopted, "")}
}
