package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/bench/testbed"
)

var footprint = Experiment{
	Name:  "footprint",
	Title: "What the agent uses",
	How: "A real agent process (`sluice run`) holds the cluster from a folder with a file for each object. Resident memory is VmRSS once it has settled; " +
		"kernel memory is what its control group was charged for the tables. CPU is the process's own clock, to the nanosecond: over ten seconds in which nothing changes, " +
		"and while one EndpointSlice changes every 20 ms, by turns to lose an endpoint and to get it back.",
	run:   runFootprint,
	paint: paintFootprint,
}

func runFootprint(ctx context.Context, r *run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	sizes := []int{10, 1_000}
	if r.full() {
		sizes = []int{10, 10_000}
	}
	for range r.Options.Rounds {
		for _, n := range sizes {
			if err := r.measureFootprint(ctx, cluster.Cluster{Services: n, Endpoints: 10}); err != nil {
				return err
			}
		}
	}
	r.judgeFootprint(sizes[1])
	return nil
}

func (r *run) measureFootprint(ctx context.Context, c cluster.Cluster) error {
	return r.withAgent(ctx, c, func(p *agentProcess) error {
		s := spec{dataplane: peer.Sluice{}, cluster: c}
		for _, step := range []struct {
			metric string
			during func(context.Context) error
		}{
			{idleCPU, func(ctx context.Context) error { return wait(ctx, r.short(10*time.Second, 3*time.Second)) }},
			{churnCPU, func(ctx context.Context) error { return r.churn(ctx, p, c, r.short(10*time.Second, 3*time.Second)) }},
		} {
			r.progress("%s: %s", s, step.metric)
			// What the start, or the last change, still makes to do comes first.
			if err := wait(ctx, 2*time.Second); err != nil {
				return err
			}
			began := time.Now()
			was, err := processCPU(p.pid())
			if err == nil {
				err = step.during(ctx)
			}
			if err != nil {
				return err
			}
			now, err := processCPU(p.pid())
			if err != nil {
				return err
			}
			r.record(s, "", step.metric, "% of a core", 100*(now-was).Seconds()/time.Since(began).Seconds())
			if step.metric == idleCPU {
				if err := r.weigh(s, p); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// weigh files the agent's memory and the kernel's for it.
func (r *run) weigh(s spec, p *agentProcess) error {
	rss, err := residentMemory(p.pid())
	if err != nil {
		return err
	}
	r.record(s, "", resident, "MB", float64(rss)/1e6)
	if p.group == nil {
		return nil
	}
	kernel, err := p.group.kernelBytes()
	if err != nil {
		r.skip("kernel memory: %s", err)
		return nil
	}
	r.record(s, "", kernelMemory, "MB", float64(kernel)/1e6)
	return nil
}

// withSite runs f with an empty place for an agent, in a testbed of its own.
func (r *run) withSite(ctx context.Context, f func(*site) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	l, err := r.newTestbed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return r.withSiteOn(l, f)
}

// withSiteOn is withSite on a testbed that is there.
func (r *run) withSiteOn(l *testbed.Testbed, f func(*site) error) (err error) {
	s, err := r.newSite(l.Node)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if g, gerr := newMemoryGroup(fmt.Sprintf("%s-%d", r.prefix, r.testbeds)); gerr != nil {
		r.skip("kernel memory: %s", gerr)
	} else {
		s.group = g
		defer func() { err = errors.Join(err, g.Close()) }()
	}
	return f(s)
}

// withAgent runs f with an agent that has programmed the cluster, in a testbed of its own.
func (r *run) withAgent(ctx context.Context, c cluster.Cluster, f func(*agentProcess) error) error {
	return r.withSite(ctx, func(s *site) error {
		if err := s.fill(c.Files()); err != nil {
			return err
		}
		p, err := s.start()
		if err != nil {
			return err
		}
		defer p.kill()
		took, err := p.ready(ctx, time.Minute)
		if err != nil {
			return err
		}
		r.progress("agent holds %s, %s after its start", c, took.Round(time.Millisecond))
		return f(p)
	})
}

// churn takes an endpoint out of a service and, with the next change, puts it back, 50 changes a second.
func (r *run) churn(ctx context.Context, p *agentProcess, c cluster.Cluster, d time.Duration) error {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	began := time.Now()
	for i := 0; time.Since(began) < d; i++ {
		f := c.SliceFile(i/2%c.Services, c.Endpoints-1+i%2)
		if err := errors.Join(p.stageFile(f), p.place(f)); err != nil {
			return fmt.Errorf("change a manifest: %w", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *run) judgeFootprint(services int) {
	for _, g := range []struct {
		metric, goal, unit string
		most               float64
	}{
		{resident, "≤ 200 MB", " MB", 200},
		{idleCPU, "none (< 0.1 % of a core)", " %", 0.1},
		{churnCPU, "≤ 2 % of a core", " %", 2},
	} {
		m := r.find(peer.Sluice{}.Name(), services, "", g.metric)
		if m == nil {
			continue
		}
		result := spread(m.Samples).String() + g.unit
		if k := r.find(peer.Sluice{}.Name(), services, "", kernelMemory); k != nil && g.metric == resident {
			result += fmt.Sprintf("; kernel memory beside it %s MB", spread(k.Samples))
		}
		r.goal(fmt.Sprintf("agent's %s, %s services × 10 endpoints", g.metric, chart.Number(float64(services))), g.goal, result, m.Median <= g.most)
	}
}

func paintFootprint(r *Result) []painting {
	memory := draw(r, "memory", chart.Chart{
		Kind: chart.Bars, Title: "The agent's memory", Subtitle: "10 endpoints a service; lower is better", XLabel: "services", YLabel: "MB",
	}, byServices, resident, "")
	kernel := draw(r, "", chart.Chart{}, byServices, kernelMemory, "")
	for i := range memory.Series {
		memory.Series[i].Name = resident
	}
	for _, s := range kernel.Series {
		s.Name = kernelMemory
		memory.Series = append(memory.Series, s)
	}
	cpu := draw(r, "cpu", chart.Chart{
		Kind: chart.Bars, Title: "The agent's CPU", Subtitle: "10 endpoints a service; lower is better", XLabel: "services", YLabel: "% of a core",
	}, byServices, churnCPU, "")
	for i := range cpu.Series {
		cpu.Series[i].Name = churnCPU
	}
	quiet := draw(r, "", chart.Chart{}, byServices, idleCPU, "")
	for _, s := range quiet.Series {
		s.Name = idleCPU
		cpu.Series = append(cpu.Series, s)
	}
	return []painting{memory, cpu}
}
