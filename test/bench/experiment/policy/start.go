package policy

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
	"sluice.dev/sluice/test/bench/testbed"
)

// Start is the experiment policy-start.
var Start = harness.Experiment{
	Name:  "policy-start",
	Title: "The start of an agent with policies",
	How: "A real agent process (`sluice run`) reads pods and NetworkPolicies from a folder with a file for each, on a node with 30 of the pods and an empty kernel. Three policies select each pod, in both directions. " +
		"The time is from the start of the process until it answers that it is ready: everything read and programmed. Memory is VmRSS two seconds later, and the greatest until then (VmHWM).",
	Run:    runStart,
	Charts: startCharts,
}

const peakResident = "peak of resident memory"

func runStart(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 5)
	r.Result.Rounds = r.Options.Rounds
	sizes := []int{100, 1_000}
	if r.Full() {
		sizes = []int{100, 1_000, 10_000}
	}
	for range r.Options.Rounds {
		for _, n := range sizes {
			t := cluster.Tenants{Pods: n, Local: PodsOnNode, Policies: n}
			if err := startAgent(ctx, r, t); err != nil {
				return fmt.Errorf("%s: %w", t, err)
			}
		}
	}
	startGoals(r, sizes[len(sizes)-1])
	return nil
}

func startAgent(ctx context.Context, r *harness.Run, t cluster.Tenants) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	l, err := testbed.NewPods(r.NextPrefix(), t.Local)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return r.WithSiteOn(l, func(s *harness.Site) error {
		if err := s.Fill(t.Files()); err != nil {
			return err
		}
		harness.Settle()
		p, err := s.Start()
		if err != nil {
			return err
		}
		defer p.Kill()
		took, err := p.Ready(ctx, time.Minute)
		if err != nil {
			return err
		}
		r.Logf("%s: ready after %s", t, took.Round(time.Millisecond))
		recordStart(r, t, harness.Started, "s", took.Seconds())
		if err := CheckInForce(ctx, l, t); err != nil {
			return err
		}
		if err := harness.Wait(ctx, 2*time.Second); err != nil {
			return err
		}
		return measureStartMemory(r, t, p)
	})
}

func measureStartMemory(r *harness.Run, t cluster.Tenants, p *harness.Agent) error {
	rss, err1 := harness.ResidentMemory(p.Pid())
	peak, err2 := harness.PeakMemory(p.Pid())
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	recordStart(r, t, harness.Resident, "MB", float64(rss)/1e6)
	recordStart(r, t, peakResident, "MB", float64(peak)/1e6)
	if p.Group == nil {
		return nil
	}
	kernel, err := p.Group.KernelBytes()
	if err != nil {
		r.Skip("kernel memory: %s", err)
		return nil
	}
	recordStart(r, t, harness.KernelMemory, "MB", float64(kernel)/1e6)
	return nil
}

func recordStart(r *harness.Run, t cluster.Tenants, metric, unit string, sample float64) {
	r.Add(startMeasurement(t.Policies, metric, unit), sample)
}

func startMeasurement(policies int, metric, unit string) report.Measurement {
	return report.Measurement{Dataplane: peer.Sluice{}.Name(), Policies: policies, Metric: metric, Unit: unit}
}

func startGoals(r *harness.Run, large int) {
	name := fmt.Sprintf("start with %s pods and policies, %d pods local", chart.Number(float64(large)), PodsOnNode)
	for _, g := range []struct {
		metric, goal, unit string
		most               float64
	}{{harness.Started, "≤ 1 s", " s", 1}, {harness.Resident, "≤ 300 MB", " MB", 300}, {peakResident, "≤ 300 MB", " MB", 300}} {
		if m := r.Same(startMeasurement(large, g.metric, "")); m != nil {
			r.Goal(name+": "+g.metric, g.goal, report.SpreadOf(m.Samples).String()+g.unit, m.Median <= g.most)
		}
	}
}

func startCharts(r *report.Result) []report.Figure {
	time := report.Draw(r, "time", chart.Chart{
		Kind: chart.Bars, Title: "From the start of an agent to policies in the kernel",
		Subtitle: "30 pods on the node, three policies each; lower is better", XLabel: "policies, and as many pods", YLabel: "s",
	}, report.ByPolicies, harness.Started, "")
	memory := report.Draw(r, "memory", chart.Chart{
		Kind: chart.Bars, Title: "The agent's memory with policies",
		Subtitle: "30 pods on the node, three policies each; lower is better", XLabel: "policies, and as many pods", YLabel: "MB",
	}, report.ByPolicies, harness.Resident, "")
	for i := range memory.Series {
		memory.Series[i].Name = harness.Resident
	}
	for _, metric := range []string{peakResident, harness.KernelMemory} {
		for _, s := range report.Draw(r, "", chart.Chart{}, report.ByPolicies, metric, "").Series {
			s.Name = metric
			memory.Series = append(memory.Series, s)
		}
	}
	return []report.Figure{time, memory}
}
