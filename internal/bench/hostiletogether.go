package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/hostile"
	"sluice.dev/sluice/internal/bench/peer"
)

// What is measured of policies together, after each of what happens to them.
const (
	togetherResident = "most resident memory with policies together"
	togetherKernel   = "kernel memory with policies together"
	togetherTook     = "time until all is in the kernel with policies together"
	togetherChange   = "slowest change of a bystander's service with policies together"
)

// allTogether measures policies that are each within their limits, and are many.
func (r *run) allTogether(ctx context.Context) error {
	for _, c := range []struct{ policies, namespaces int }{{1, 1}, {10, 1}, {10, 3}, {100, 1}, {100, 3}} {
		if !r.full() && c.policies > 10 {
			continue
		}
		alive, err := r.together(ctx, c.policies, c.namespaces)
		if err != nil {
			return fmt.Errorf("%d policies together in %d namespaces: %w", c.policies, c.namespaces, err)
		}
		if !alive { // more might take the machine
			r.skip("more than %d policies together: those were too many already", c.policies)
			break
		}
	}
	return nil
}

// together has policies that each select as much as one may come to an agent, has pods change under them, starts the agent
// anew, and takes the policies away. An agent that goes too far is stopped, and that is the end of it.
func (r *run) together(ctx context.Context, policies, namespaces int) (alive bool, err error) {
	b, err := r.newTestbed(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	selectors := hostile.Edge(b.each)
	var files []cluster.File
	for i := range policies {
		files = append(files, hostile.WidePolicy(i%namespaces, i, selectors))
	}
	changes := func() error {
		var errs []error
		for i := range min(5, b.crowd().Files()) {
			errs = append(errs, b.write(b.crowd().Change(i)))
		}
		return errors.Join(errs...)
	}
	what := fmt.Sprintf("%d policies of %d selectors in %d namespaces", policies, selectors, namespaces)
	bad := "nothing"
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"before", func() error { return nil }}, {"when they come", func() error { return b.add(files) }}, {"when pods change", changes},
		{"when the agent starts anew", func() error { return nil }}, {"when they go", b.removeAll},
	} {
		began := time.Now()
		var all []trouble
		if step.name == "when the agent starts anew" {
			all = b.restart(ctx)
		}
		if err := step.do(); err != nil {
			return false, err
		}
		seen := b.settleWithin(ctx, tooMuchTogether)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		all = append(all, seen.trouble...)
		took := time.Since(began)
		for _, m := range []struct {
			metric, unit string
			n            float64
		}{{togetherResident, "MB", float64(seen.heaviest) / 1e6}, {togetherTook, "ms", float64(took.Milliseconds())}, {togetherChange, "ms", float64(seen.slowest.Milliseconds())}} {
			r.add(Measurement{Dataplane: peer.Sluice{}.Name(), Policies: policies, Variant: fmt.Sprintf("%d namespaces, %s", namespaces, step.name), Metric: m.metric, Unit: m.unit}, m.n)
		}
		kernel := 0
		if b.group != nil {
			if kernel, err = b.group.kernelBytes(); err == nil {
				r.add(Measurement{Dataplane: peer.Sluice{}.Name(), Policies: policies, Variant: fmt.Sprintf("%d namespaces, %s", namespaces, step.name), Metric: togetherKernel, Unit: "MB"}, float64(kernel)/1e6)
			}
		}
		r.progress("%s, %s: %d MB of %d MB, kernel %d MB, taken in %s, slowest change %s, faults: %d", what, step.name, seen.heaviest>>20, b.most>>20, kernel>>20,
			took.Round(time.Millisecond), seen.slowest.Round(time.Millisecond), len(seen.faults))
		if len(all) > 0 {
			bad = fmt.Sprintf("%s, %s: %.300s", step.name, all[0].kind, all[0].what)
			for _, one := range all {
				r.note("%s, %s: %s: %.300s.", what, step.name, one.kind, one.what)
			}
			if b.running() != nil {
				break
			}
		}
	}
	r.goal(fmt.Sprintf("%s, beside %s pods: what goes wrong", what, chart.Number(float64(r.crowd()))), "nothing", bad, bad == "nothing")
	return b.running() == nil, nil
}

// tooMuchTogether is when an agent is stopped, and leastLeft what the machine is to have left: what the kernel takes for an agent's
// transaction is in no process's memory, and others' processes end when there is none.
const (
	tooMuchTogether = 6 << 30
	leastLeft       = 12 << 30
)

// settleWithin is settle, and kills an agent that takes more memory than that, or with which the kernel does.
func (b *testbed) settleWithin(ctx context.Context, most int) seen {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		least := min(leastLeft, availableMemory()/2)
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if now, err := peakMemory(b.agent.pid()); err == nil && (now > most || availableMemory() < least) {
				b.agent.kill()
				return
			}
		}
	}()
	s := b.settle(ctx)
	close(done)
	<-ended
	return s
}

// availableMemory is what the machine has left, in bytes.
func availableMemory() int { return kilobytes(field("/proc/meminfo", "MemAvailable")) }
