package services

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Footprint is the experiment footprint.
var Footprint = harness.Experiment{
	Name:  "footprint",
	Title: "What the agent uses",
	How: "A real agent process (`sluice run`) holds the cluster from a folder with a file for each object. Resident memory is VmRSS once it has settled; " +
		"kernel memory is what its control group was charged for the tables. CPU is the process's own clock, to the nanosecond: over ten seconds in which nothing changes, " +
		"and while one EndpointSlice changes every 20 ms, by turns to lose an endpoint and to get it back.",
	Run:    runFootprint,
	Charts: footprintCharts,
}

func runFootprint(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	sizes := []int{10, 1_000}
	if r.Full() {
		sizes = []int{10, 10_000}
	}
	for range r.Options.Rounds {
		for _, n := range sizes {
			if err := measureFootprint(ctx, r, cluster.Cluster{Services: n, Endpoints: 10}); err != nil {
				return err
			}
		}
	}
	footprintGoals(r, sizes[1])
	return nil
}

func measureFootprint(ctx context.Context, r *harness.Run, c cluster.Cluster) error {
	return r.WithAgent(ctx, c, func(p *harness.Agent) error {
		s := harness.ServiceCase{Dataplane: peer.Sluice{}, Cluster: c}
		for _, step := range []struct {
			metric string
			during func(context.Context) error
		}{
			{harness.IdleCPU, func(ctx context.Context) error { return harness.Wait(ctx, r.Short(10*time.Second, 3*time.Second)) }},
			{harness.ChurnCPU, func(ctx context.Context) error { return churn(ctx, p, c, r.Short(10*time.Second, 3*time.Second)) }},
		} {
			r.Logf("%s: %s", s, step.metric)
			// First, what the start or the last change still makes the agent do.
			if err := harness.Wait(ctx, 2*time.Second); err != nil {
				return err
			}
			began := time.Now()
			was, err := harness.ProcessCPU(p.Pid())
			if err == nil {
				err = step.during(ctx)
			}
			if err != nil {
				return err
			}
			now, err := harness.ProcessCPU(p.Pid())
			if err != nil {
				return err
			}
			r.Record(s, "", step.metric, "% of a core", 100*(now-was).Seconds()/time.Since(began).Seconds())
			if step.metric == harness.IdleCPU {
				if err := measureMemory(r, s, p); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// measureMemory records the agent's memory and what the kernel allocated for it.
func measureMemory(r *harness.Run, s harness.ServiceCase, p *harness.Agent) error {
	rss, err := harness.ResidentMemory(p.Pid())
	if err != nil {
		return err
	}
	r.Record(s, "", harness.Resident, "MB", float64(rss)/1e6)
	if p.Group == nil {
		return nil
	}
	kernel, err := p.Group.KernelBytes()
	if err != nil {
		r.Skip("kernel memory: %s", err)
		return nil
	}
	r.Record(s, "", harness.KernelMemory, "MB", float64(kernel)/1e6)
	return nil
}

// churn makes 50 changes a second: one takes an endpoint from a service, the next one gives it
// back.
func churn(ctx context.Context, p *harness.Agent, c cluster.Cluster, d time.Duration) error {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	began := time.Now()
	for i := 0; time.Since(began) < d; i++ {
		f := c.SliceFile(i/2%c.Services, c.Endpoints-1+i%2)
		if err := errors.Join(p.StageFile(f), p.Place(f)); err != nil {
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

func footprintGoals(r *harness.Run, services int) {
	for _, g := range []struct {
		metric, goal, unit string
		most               float64
	}{
		{harness.Resident, "≤ 200 MB", " MB", 200},
		{harness.IdleCPU, "none (< 0.1 % of a core)", " %", 0.1},
		{harness.ChurnCPU, "≤ 2 % of a core", " %", 2},
	} {
		m := r.Find(peer.Sluice{}.Name(), services, "", g.metric)
		if m == nil {
			continue
		}
		result := report.SpreadOf(m.Samples).String() + g.unit
		if k := r.Find(peer.Sluice{}.Name(), services, "", harness.KernelMemory); k != nil && g.metric == harness.Resident {
			result += fmt.Sprintf("; kernel memory beside it %s MB", report.SpreadOf(k.Samples))
		}
		r.Goal(fmt.Sprintf("agent's %s, %s services × 10 endpoints", g.metric, chart.Number(float64(services))), g.goal, result, m.Median <= g.most)
	}
}

func footprintCharts(r *report.Result) []report.Figure {
	memory := report.Draw(r, "memory", chart.Chart{
		Kind: chart.Bars, Title: "The agent's memory", Subtitle: "10 endpoints a service; lower is better", XLabel: "services", YLabel: "MB",
	}, report.ByServices, harness.Resident, "")
	kernel := report.Draw(r, "", chart.Chart{}, report.ByServices, harness.KernelMemory, "")
	for i := range memory.Series {
		memory.Series[i].Name = harness.Resident
	}
	for _, s := range kernel.Series {
		s.Name = harness.KernelMemory
		memory.Series = append(memory.Series, s)
	}
	cpu := report.Draw(r, "cpu", chart.Chart{
		Kind: chart.Bars, Title: "The agent's CPU", Subtitle: "10 endpoints a service; lower is better", XLabel: "services", YLabel: "% of a core",
	}, report.ByServices, harness.ChurnCPU, "")
	for i := range cpu.Series {
		cpu.Series[i].Name = harness.ChurnCPU
	}
	quiet := report.Draw(r, "", chart.Chart{}, report.ByServices, harness.IdleCPU, "")
	for _, s := range quiet.Series {
		s.Name = harness.IdleCPU
		cpu.Series = append(cpu.Series, s)
	}
	return []report.Figure{memory, cpu}
}
