package harness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/testbed"
)

// Injector opens a generator of packets on a testbed's node and a counter where they arrive; end
// closes both.
func Injector(l *testbed.Testbed) (g *inject.Generator, c *inject.Counter, end func() error, err error) {
	if g, err = inject.New(l.Node, testbed.NodeIn); err != nil {
		return nil, nil, nil, err
	}
	if c, err = inject.NewCounter(l.Backend, testbed.Uplink, cluster.Endpoints); err != nil {
		return nil, nil, nil, errors.Join(err, g.Close())
	}
	return g, c, func() error { return errors.Join(c.Close(), g.Close()) }, nil
}

// FlowCase is a node for FlowCosts to measure.
type FlowCase struct {
	Name     string
	Testbed  *testbed.Testbed
	Services int
	Target   func(first, count int) inject.Target // where flows to some of the services go
	Record   func(variant string, micros float64)
}

// FlowCosts measures the time per new flow, first to the last service, then to all services in
// turns.
func (r *Run) FlowCosts(ctx context.Context, f FlowCase) (err error) {
	g, c, end, err := Injector(f.Testbed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, v := range []struct {
		name  string
		first int
		count int
	}{{LastHit, f.Services - 1, 1}, {EvenHit, 0, f.Services}} {
		if err := g.Aim(f.Target(v.first, v.count)); err != nil {
			return err
		}
		ns, err := flowPace.Cost(ctx, f.Testbed, g, c)
		if errors.Is(err, ErrLost) {
			r.Note("%s, %s: a sample does not count, as %s.", f.Name, v.name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		f.Record(v.name, ns/1000)
	}
	return nil
}

// ErrLost is wrapped when flows did not arrive at backends.
var ErrLost = errors.New("flows were lost")

// Pace says how many packets a sample takes.
type Pace struct {
	WarmUp  int           // packets of the first run, from whose time those of the second follow
	Most    int           // of one run
	Lasting time.Duration // of the second run, about
	Runs    int           // the fastest of so many runs counts, as only other work makes a run slower; 0: one run
	Keep    bool          // do not empty the connection table before and after each run
}

// flowPace is the pace for new flows.
var flowPace = Pace{WarmUp: 5_000, Most: MaxFlows, Lasting: time.Second}

// Cost warms up, then measures, and returns nanoseconds a packet.
func (p Pace) Cost(ctx context.Context, l *testbed.Testbed, g *inject.Generator, c *inject.Counter) (float64, error) {
	first, err := p.send(ctx, l, g, c, p.WarmUp)
	if err != nil {
		return 0, err
	}
	flows := max(p.WarmUp, min(p.Most, int(float64(p.Lasting)/first)))
	fastest, err := p.measure(ctx, l, g, c, flows)
	for range p.Runs - 1 {
		if err != nil {
			break
		}
		var ns float64
		ns, err = p.measure(ctx, l, g, c, flows)
		fastest = min(fastest, ns)
	}
	return fastest, err
}

// measure is send; it tries again if packets got lost.
func (p Pace) measure(ctx context.Context, l *testbed.Testbed, g *inject.Generator, c *inject.Counter, flows int) (float64, error) {
	const tries = 3 // a busy machine now and then loses some
	for try := 1; ; try++ {
		ns, err := p.send(ctx, l, g, c, flows)
		if try == tries || !errors.Is(err, ErrLost) {
			return ns, err
		}
	}
}

// send sends so many flows and returns nanoseconds a flow.
func (p Pace) send(ctx context.Context, l *testbed.Testbed, g *inject.Generator, c *inject.Counter, flows int) (float64, error) {
	flush := l.FlushConntrack
	if p.Keep {
		flush = func() error { return nil }
	}
	if err := errors.Join(flush(), c.Reset()); err != nil {
		return 0, err
	}
	res, err := g.Send(flows, PacketCPU)
	if err != nil {
		return 0, err
	}
	return res.PerFlow(), errors.Join(allArrived(ctx, c, flows), flush())
}

// tolerated is the share of flows that may get lost between node and counter before a sample is
// void.
const tolerated = 0.001

// allArrived waits until the backends have seen n packets, and nothing else.
func allArrived(ctx context.Context, c *inject.Counter, n int) error {
	for deadline := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		a, err := c.Read()
		if err != nil {
			return err
		}
		if a.Backend == n && a.Other == 0 {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			if a.Other == 0 && a.Backend <= n && float64(n-a.Backend) <= tolerated*float64(n) {
				return nil
			}
			return fmt.Errorf("%w: of %d flows %d arrived at backends, %d elsewhere", ErrLost, n, a.Backend, a.Other)
		}
	}
}

// MaxFlows is the most flows of a run: the connection table holds 262,144 entries.
const MaxFlows = 200_000
