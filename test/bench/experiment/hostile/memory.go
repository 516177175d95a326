package hostile

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Memory is the experiment hostile-memory.
var Memory = harness.Experiment{
	Name:  "hostile-memory",
	Title: "What memory legal objects at their extremes take",
	How: "Large hostile objects (100 kB to 1.5 MB) are each given to an agent of their own, which reads and programs them beside the tenants' pods. What counts is the most resident memory that it ever had (VmHWM) " +
		"beyond that of an agent without the object, per byte of the object in JSON. An agent that takes more than 4 GB, or more than a minute, is stopped. " +
		fmt.Sprintf("The bound is %d MB, and %d kB for each pod of other nodes, %d bytes for each byte of tenants' objects, %d for each address that selectors of policies select (at most %d count), and %d for each element of services (at most as many). ", mostBase>>20, mostPerPod>>10, mostPerByte, mostPerAddress, mostSelected, mostPerElement) +
		"Then policies that each select as much as one may, and services of that size, are given together, in one namespace and in several, to a running agent with bystanders; pods change under them, and the agent is killed and started again.",
	Run:    runMemory,
	Charts: noCharts,
}

const (
	largeObject   = 100_000 // bytes
	tooMuchMemory = 4 << 30
	perByte       = "resident memory for each byte of an object"
)

// memoryUse is how much memory an agent took for an object.
type memoryUse struct {
	kind   string
	number int
	demand
	resident int     // bytes, the most
	factor   float64 // bytes that it took beyond an agent without the object, by bytes of the object
	took     time.Duration
	cut      bool // it was stopped
}

func runMemory(ctx context.Context, r *harness.Run) (err error) {
	r.Options.Rounds, r.Result.Rounds = 1, 1
	count := r.Objects
	if count == 0 {
		count = 20
		if r.Full() {
			count = 300
		}
	}
	b, err := newEmptyTestNode(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	alone, _, _, err := b.memoryUse(ctx)
	if err != nil {
		return err
	}
	objects := hostileObjects(r)
	var all []memoryUse
	for number := r.From; len(all) < count && ctx.Err() == nil; number++ {
		files := objects.Draw(number, 0)
		if bytesOf(files) < largeObject {
			continue
		}
		if err := b.add(files); err != nil {
			return err
		}
		bytes, took, cut, err := b.memoryUse(ctx)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return fmt.Errorf("object %d of seed %d: %w", number, r.Seed, err)
		}
		a := memoryUse{files[0].Kind(), number, b.demand, bytes, float64(max(0, bytes-alone)) / float64(bytesOf(files)), took, cut}
		all = append(all, a)
		r.Add(report.Measurement{Dataplane: peer.Sluice{}.Name(), Variant: a.kind, Metric: perByte, Unit: "bytes"}, a.factor)
		r.Logf("%s", a)
		if err := b.removeAll(); err != nil {
			return err
		}
	}
	if len(all) == 0 {
		return ctx.Err()
	}
	slices.SortFunc(all, func(x, y memoryUse) int { return int(y.factor) - int(x.factor) })
	over := 0
	for _, a := range all {
		if a.cut || a.resident > a.memoryBound(remotePods(r)) {
			over++
		}
	}
	r.Goal(fmt.Sprintf("objects of %d large ones that drive an agent's memory over its bound", len(all)), "none",
		fmt.Sprintf("%d; the worst takes %s bytes for each of its own", over, chart.Number(all[0].factor)), over == 0)
	for _, a := range all[:min(10, len(all))] {
		r.Note("Seed %d: %s.", r.Seed, a)
	}
	r.Note("An agent with %s pods on other nodes and nothing hostile has %d MB.", chart.Number(float64(remotePods(r))), alone>>20)
	if err := measureCombinations(ctx, r); ctx.Err() == nil {
		return err
	}
	r.Stopped = true
	r.Note("Stopped before the end.")
	return nil
}

func (a memoryUse) String() string {
	text := fmt.Sprintf("object %d, a %s of %d kB: %d MB, %s bytes for each of its own, in %s", a.number, a.kind, a.bytes/1000, a.resident>>20, chart.Number(a.factor), a.took.Round(time.Millisecond))
	if a.cut {
		text += ", then it was stopped"
	}
	return text
}

// memoryUse starts an agent and returns the most memory in bytes that it had until it was ready, or
// until it was stopped as it took too much.
func (b *testNode) memoryUse(ctx context.Context) (bytes int, took time.Duration, cut bool, err error) {
	// An agent also reads and changes the table that an earlier one has left.
	clean := func() error { return exec.CommandContext(ctx, b.Binary, "cleanup").Run() }
	if err := b.Node.Do(clean); err != nil {
		return 0, 0, false, fmt.Errorf("remove the table of the agent before: %w", err)
	}
	p, err := b.Start()
	if err != nil {
		return 0, 0, false, err
	}
	defer p.Kill()
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		var err error
		took, err = p.Ready(ready, time.Minute)
		ended <- err
	}()
	for {
		if now, err := harness.PeakMemory(p.Pid()); err == nil {
			bytes = now
		}
		select {
		case err := <-ended:
			if err != nil {
				took, cut = time.Since(p.Started), true
			}
			if now, err := harness.PeakMemory(p.Pid()); err == nil {
				bytes = now
			}
			return bytes, took, cut, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
		if bytes > tooMuchMemory {
			p.Kill()
		}
	}
}
