package hostile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/hostile"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// The metrics of many policies and services together, one sample after each step.
const (
	togetherResident = "most resident memory with many together"
	togetherKernel   = "kernel memory with many together"
	togetherTook     = "time until all is in the kernel with many together"
	togetherChange   = "slowest change of a bystander's service with many together"
)

// combination is a number of large objects that are each within their limits.
type combination struct{ policies, services, namespaces int }

// measureCombinations measures combinations, the largest last.
func measureCombinations(ctx context.Context, r *harness.Run) error {
	for _, h := range []combination{{1, 0, 1}, {10, 0, 1}, {10, 0, 3}, {100, 0, 1}, {100, 0, 3}, {0, 1, 1}, {0, 20, 3}} {
		if !r.Full() && h.policies+h.services > 10 {
			continue
		}
		alive, err := measureCombination(ctx, r, h)
		if err != nil {
			return fmt.Errorf("%s together: %w", h, err)
		}
		if !alive { // more could use up the machine's memory
			r.Skip("more than %s together: those were too many already", h)
			break
		}
	}
	return nil
}

func (h combination) String() string {
	what := fmt.Sprintf("%d large policies", h.policies)
	switch {
	case h.policies == 1:
		what = "1 large policy"
	case h.services > 0:
		what = fmt.Sprintf("%s of %s elements", model.Count(h.services, "service"), chart.Number(hostile.WideElements))
	}
	return what + " in " + model.Count(h.namespaces, "namespace")
}

// measureCombination adds policies that each select as much as one may, or services of that size,
// changes pods under them, restarts the agent, and removes them. It stops an agent that takes too
// much memory, and then reports that it is not alive.
func measureCombination(ctx context.Context, r *harness.Run, h combination) (alive bool, err error) {
	b, err := newTestNode(ctx, r)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	selectors := hostile.MaxSelectors(b.each)
	var files []cluster.File
	for i := range h.policies {
		files = append(files, hostile.WidePolicy(i%h.namespaces, i, selectors))
	}
	for i := range h.services {
		files = append(files, hostile.WideService(i%h.namespaces, i)...)
	}
	come := func() error {
		b.elements = h.services * hostile.WideElements
		return b.add(files)
	}
	changes := func() error {
		var errs []error
		for i := range min(5, remotePods(b.Run).Files()) {
			errs = append(errs, b.write(remotePods(b.Run).Change(i)))
		}
		return errors.Join(errs...)
	}
	what := h.String()
	bad := "nothing"
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"before", func() error { return nil }}, {"when they come", come}, {"when pods change", changes},
		{"when the agent starts anew", func() error { return nil }}, {"when they go", b.removeAll},
	} {
		began := time.Now()
		var all []problem
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
		all = append(all, seen.problems...)
		took := time.Since(began)
		for _, m := range []struct {
			metric, unit string
			n            float64
		}{{togetherResident, "MB", float64(seen.heaviest) / 1e6}, {togetherTook, "ms", float64(took.Milliseconds())}, {togetherChange, "ms", float64(seen.slowest.Milliseconds())}} {
			r.Add(report.Measurement{Dataplane: peer.Sluice{}.Name(), Policies: h.policies, Services: h.services, Variant: model.Count(h.namespaces, "namespace") + ", " + step.name, Metric: m.metric, Unit: m.unit}, m.n)
		}
		kernel := 0
		if b.Group != nil {
			if kernel, err = b.Group.KernelBytes(); err == nil {
				r.Add(report.Measurement{Dataplane: peer.Sluice{}.Name(), Policies: h.policies, Services: h.services, Variant: model.Count(h.namespaces, "namespace") + ", " + step.name, Metric: togetherKernel, Unit: "MB"}, float64(kernel)/1e6)
			}
		}
		r.Logf("%s, %s: %d MB of %d MB, kernel %d MB, taken in %s, slowest change %s, faults: %d", what, step.name, seen.heaviest>>20, b.bound>>20, kernel>>20,
			took.Round(time.Millisecond), seen.slowest.Round(time.Millisecond), len(seen.faults))
		if len(all) > 0 {
			bad = fmt.Sprintf("%s, %s: %.300s", step.name, all[0].kind, all[0].what)
			for _, one := range all {
				r.Note("%s, %s: %s: %.300s.", what, step.name, one.kind, one.what)
			}
			if b.running() != nil {
				break
			}
		}
	}
	r.Goal(fmt.Sprintf("%s, beside %s pods: what goes wrong", what, chart.Number(float64(remotePods(r)))), "nothing", bad, bad == "nothing")
	return b.running() == nil, nil
}

// tooMuchTogether is the memory with which an agent is stopped, and leastLeft what the machine must
// have left: the memory of a transaction in the kernel belongs to no process, and without memory
// other processes are killed.
const (
	tooMuchTogether = 6 << 30
	leastLeft       = 12 << 30
)

// settleWithin is settle; it kills the agent if it takes more memory than most, or if the machine
// has too little left.
func (b *testNode) settleWithin(ctx context.Context, most int) observation {
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
			if now, err := harness.PeakMemory(b.agent.Pid()); err == nil && (now > most || availableMemory() < least) {
				b.agent.Kill()
				return
			}
		}
	}()
	s := b.settle(ctx)
	close(done)
	<-ended
	return s
}

// availableMemory returns the memory that the machine has left, in bytes.
func availableMemory() int { return harness.Kilobytes(harness.Field("/proc/meminfo", "MemAvailable")) }
