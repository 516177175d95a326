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
		if err := r.together(ctx, c.policies, c.namespaces); err != nil {
			return fmt.Errorf("%d policies together in %d namespaces: %w", c.policies, c.namespaces, err)
		}
	}
	return nil
}

// together has policies that each select as much as one may come to an agent, has pods change under them, starts the agent
// anew, and takes the policies away. The first time that it goes too far ends it.
func (r *run) together(ctx context.Context, policies, namespaces int) (err error) {
	b, err := r.newTestbed(ctx)
	if err != nil {
		return err
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
			return err
		}
		seen := b.settleWithin(ctx, tooMuchTogether)
		if ctx.Err() != nil {
			return ctx.Err()
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
			if !b.alive() {
				break
			}
		}
	}
	r.goal(fmt.Sprintf("%s, beside %s pods: what goes wrong", what, chart.Number(float64(r.crowd()))), "nothing", bad, bad == "nothing")
	return nil
}

// tooMuchTogether is when an agent is stopped, so that the machine is left some memory.
const tooMuchTogether = 6 << 30

// settleWithin is settle, and kills an agent that takes more memory than that.
func (b *testbed) settleWithin(ctx context.Context, most int) seen {
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if now, err := peakMemory(b.agent.pid()); err == nil && now > most {
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

func (b *testbed) alive() bool { return b.running() == nil }
