package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/bench/testbed"
)

var starting = Experiment{
	Name:  "policy-start",
	Title: "The start of an agent with policies",
	How: "A real agent process (`sluice run`) reads pods and NetworkPolicies from a folder with a file for each, on a node with 30 of the pods and an empty kernel. Three policies select each pod, in both directions. " +
		"The time is from the start of the process until it answers that it is ready: everything read and programmed. Memory is VmRSS two seconds later, and the most that there was until then (VmHWM).",
	run:   runStarting,
	paint: paintStarting,
}

const peakResident = "peak of resident memory"

func runStarting(ctx context.Context, r *run) error {
	r.Options.Rounds = min(r.Options.Rounds, 5)
	r.Result.Rounds = r.Options.Rounds
	sizes := []int{100, 1_000}
	if r.full() {
		sizes = []int{100, 1_000, 10_000}
	}
	for range r.Options.Rounds {
		for _, n := range sizes {
			t := cluster.Tenants{Pods: n, Local: podsOnNode, Policies: n}
			if err := r.startAgent(ctx, t); err != nil {
				return fmt.Errorf("%s: %w", t, err)
			}
		}
	}
	r.judgeStarting(sizes[len(sizes)-1])
	return nil
}

func (r *run) startAgent(ctx context.Context, t cluster.Tenants) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	l, err := testbed.NewPods(r.nextPrefix(), t.Local)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return r.withSiteOn(l, func(s *site) error {
		if err := s.fill(t.Files()); err != nil {
			return err
		}
		settle()
		p, err := s.start()
		if err != nil {
			return err
		}
		defer p.kill()
		took, err := p.ready(ctx, time.Minute)
		if err != nil {
			return err
		}
		r.progress("%s: ready after %s", t, took.Round(time.Millisecond))
		r.recordStart(t, started, "s", took.Seconds())
		if err := holds(ctx, l, t); err != nil {
			return err
		}
		if err := wait(ctx, 2*time.Second); err != nil {
			return err
		}
		return r.weighStart(t, p)
	})
}

// holds makes sure that the tenants' policies are in the kernel: of two ports that a pod of the node serves,
// another one reaches that which they open, and not that which they don't.
func holds(ctx context.Context, l *testbed.Testbed, t cluster.Tenants) error {
	for port, open := range map[uint16]bool{cluster.TargetPort: true, cluster.TargetPort + 1: false} {
		target := netip.AddrPortFrom(cluster.PodAddr(1, t.Local), port)
		var listener net.Listener
		err := l.Backend.Do(func() (err error) {
			listener, err = new(net.ListenConfig).Listen(ctx, "tcp", target.String())
			return err
		})
		if err != nil {
			return fmt.Errorf("listen in a pod: %w", err)
		}
		err = l.Client.Do(func() error {
			conn, err := (&net.Dialer{Timeout: 300 * time.Millisecond}).DialContext(ctx, "tcp", target.String())
			if err == nil {
				_ = conn.Close() // it has served its purpose
			}
			return err
		})
		_ = listener.Close()
		if (err == nil) != open {
			return fmt.Errorf("policies do not hold: a connection to port %d, which is open: %t, came to: %w", port, open, err)
		}
	}
	return nil
}

func (r *run) weighStart(t cluster.Tenants, p *agentProcess) error {
	rss, err1 := residentMemory(p.pid())
	peak, err2 := peakMemory(p.pid())
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	r.recordStart(t, resident, "MB", float64(rss)/1e6)
	r.recordStart(t, peakResident, "MB", float64(peak)/1e6)
	if p.group == nil {
		return nil
	}
	kernel, err := p.group.kernelBytes()
	if err != nil {
		r.skip("kernel memory: %s", err)
		return nil
	}
	r.recordStart(t, kernelMemory, "MB", float64(kernel)/1e6)
	return nil
}

func (r *run) recordStart(t cluster.Tenants, metric, unit string, sample float64) {
	r.add(startMeasurement(t.Policies, metric, unit), sample)
}

func startMeasurement(policies int, metric, unit string) Measurement {
	return Measurement{Dataplane: peer.Sluice{}.Name(), Policies: policies, Metric: metric, Unit: unit}
}

func (r *run) judgeStarting(large int) {
	name := fmt.Sprintf("start with %s pods and policies, %d pods local", chart.Number(float64(large)), podsOnNode)
	for _, g := range []struct {
		metric, goal, unit string
		most               float64
	}{{started, "≤ 1 s", " s", 1}, {resident, "≤ 300 MB", " MB", 300}, {peakResident, "≤ 300 MB", " MB", 300}} {
		if m := r.same(startMeasurement(large, g.metric, "")); m != nil {
			r.goal(name+": "+g.metric, g.goal, spread(m.Samples).String()+g.unit, m.Median <= g.most)
		}
	}
}

func paintStarting(r *Result) []painting {
	time := draw(r, "time", chart.Chart{
		Kind: chart.Bars, Title: "From the start of an agent to policies in the kernel",
		Subtitle: "30 pods on the node, three policies each; lower is better", XLabel: "policies, and as many pods", YLabel: "s",
	}, byPolicies, started, "")
	memory := draw(r, "memory", chart.Chart{
		Kind: chart.Bars, Title: "The agent's memory with policies",
		Subtitle: "30 pods on the node, three policies each; lower is better", XLabel: "policies, and as many pods", YLabel: "MB",
	}, byPolicies, resident, "")
	for i := range memory.Series {
		memory.Series[i].Name = resident
	}
	for _, metric := range []string{peakResident, kernelMemory} {
		for _, s := range draw(r, "", chart.Chart{}, byPolicies, metric, "").Series {
			s.Name = metric
			memory.Series = append(memory.Series, s)
		}
	}
	return []painting{time, memory}
}
