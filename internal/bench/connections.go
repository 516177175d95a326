package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/inject"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/bench/testbed"
)

var connections = Experiment{
	Name:  "connections",
	Title: "Cost of a new connection",
	How: "SYNs of flows that never existed before enter a node as XDP live frames, are translated and forwarded, and are counted and dropped as they " +
		"reach the backends' device; all on one core. The time from the first flow to the last, by their number. " +
		"Either all flows go to the last service (the worst place in a list), or each to the next of all services (nothing stays in the CPU's caches). " +
		"A sample counts only if the flows arrived translated (all but one in a thousand). Connection tracking is emptied between any two.",
	run:   runConnections,
	paint: paintConnections,
}

func runConnections(ctx context.Context, r *run) error {
	sizes := []int{10, 1_000}
	if r.full() {
		sizes = append(sizes, 10_000)
	}
	kube := cases(10, 0, sizes, peer.Sluice{}, peer.KubeNftables{}, peer.KubeIptables{})
	own := cases(10, 0, []int{100_000}, peer.Sluice{})
	lb := cases(10, 0, []int{10, 250}, peer.Nftlb{})
	plain := cases(10, 0, sizes[len(sizes)-1:], peer.Plain{}, peer.Plain{Track: true})
	if !r.full() {
		own, lb = nil, cases(10, 0, []int{10, 100}, peer.Nftlb{})
	}
	most, why := peer.Nftlb{}.Limit()
	r.skip("nftlb beyond %d services: %s", most, why)
	err := alternate(ctx, r, slices.Concat(kube, own, lb, plain), measureConnections)
	if err != nil {
		return err
	}
	r.judgeConnections(sizes[len(sizes)-1])
	return nil
}

// injector opens what sends packets into a testbed's node, and what counts them where they arrive; end closes both.
func injector(l *testbed.Testbed) (g *inject.Generator, c *inject.Counter, end func() error, err error) {
	if g, err = inject.New(l.Node, testbed.NodeIn); err != nil {
		return nil, nil, nil, err
	}
	if c, err = inject.NewCounter(l.Backend, testbed.Uplink, cluster.Endpoints); err != nil {
		return nil, nil, nil, errors.Join(err, g.Close())
	}
	return g, c, func() error { return errors.Join(c.Close(), g.Close()) }, nil
}

func measureConnections(ctx context.Context, r *run, s *stage[spec]) error {
	return r.flowCosts(ctx, flowCase{
		name: s.spec.String(), testbed: s.Testbed, services: s.spec.cluster.Services,
		target: func(first, count int) inject.Target { return s.spec.dataplane.Target(s.spec.cluster, first, count) },
		record: func(variant string, micros float64) { r.record(s.spec, variant, perFlow, "µs", micros) },
	})
}

// flowCase is a node whose services are measured.
type flowCase struct {
	name     string
	testbed  *testbed.Testbed
	services int
	target   func(first, count int) inject.Target // where flows to some of the services go
	record   func(variant string, micros float64)
}

// flowCosts measures what a new flow costs, to the last service and to all in turns.
func (r *run) flowCosts(ctx context.Context, f flowCase) (err error) {
	g, c, end, err := injector(f.testbed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, v := range []struct {
		name  string
		first int
		count int
	}{{lastHit, f.services - 1, 1}, {evenHit, 0, f.services}} {
		if err := g.Aim(f.target(v.first, v.count)); err != nil {
			return err
		}
		ns, err := flowPace.cost(ctx, f.testbed, g, c)
		if errors.Is(err, errLost) {
			r.note("%s, %s: a sample does not count, as %s.", f.name, v.name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		f.record(v.name, ns/1000)
	}
	return nil
}

// errLost is wrapped when flows did not arrive at backends.
var errLost = errors.New("flows were lost")

// pace says how many packets make a sample.
type pace struct {
	warmUp  int           // packets of a first run, which tells how many the second takes
	most    int           // of one run
	lasting time.Duration // of the second run, about
	runs    int           // of so many the fastest counts, as nothing but others' work makes one slower; 0: one
	keep    bool          // the connection table stays as it is; otherwise each run begins and ends with an empty one
}

// flowPace is that for fresh flows.
var flowPace = pace{warmUp: 5_000, most: maxFlows, lasting: time.Second}

// cost warms up, then measures, and returns nanoseconds a packet.
func (p pace) cost(ctx context.Context, l *testbed.Testbed, g *inject.Generator, c *inject.Counter) (float64, error) {
	first, err := p.send(ctx, l, g, c, p.warmUp)
	if err != nil {
		return 0, err
	}
	flows := max(p.warmUp, min(p.most, int(float64(p.lasting)/first)))
	fastest, err := p.measure(ctx, l, g, c, flows)
	for range p.runs - 1 {
		if err != nil {
			break
		}
		var ns float64
		ns, err = p.measure(ctx, l, g, c, flows)
		fastest = min(fastest, ns)
	}
	return fastest, err
}

// measure is send, tried again where packets got lost.
func (p pace) measure(ctx context.Context, l *testbed.Testbed, g *inject.Generator, c *inject.Counter, flows int) (float64, error) {
	const tries = 3 // a busy machine loses some, now and then
	for try := 1; ; try++ {
		ns, err := p.send(ctx, l, g, c, flows)
		if try == tries || !errors.Is(err, errLost) {
			return ns, err
		}
	}
}

// send measures so many flows.
func (p pace) send(ctx context.Context, l *testbed.Testbed, g *inject.Generator, c *inject.Counter, flows int) (float64, error) {
	flush := l.FlushConntrack
	if p.keep {
		flush = func() error { return nil }
	}
	if err := errors.Join(flush(), c.Reset()); err != nil {
		return 0, err
	}
	res, err := g.Send(flows, packetCPU)
	if err != nil {
		return 0, err
	}
	return res.PerFlow(), errors.Join(allArrived(ctx, c, flows), flush())
}

// tolerated is the share of flows that may get lost between the node and the
// counter without a sample being void.
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
			return fmt.Errorf("%w: of %d flows %d arrived at backends, %d elsewhere", errLost, n, a.Backend, a.Other)
		}
	}
}

func (r *run) judgeConnections(large int) {
	for _, g := range []struct {
		variant string
		most    float64
	}{{lastHit, 1.10}, {evenHit, 1.25}} {
		what := fmt.Sprintf("new connection, %s services over 10, %s", chart.Number(float64(large)), g.variant)
		base := r.find(peer.Sluice{}.Name(), 10, g.variant, perFlow)
		far := r.find(peer.Sluice{}.Name(), large, g.variant, perFlow)
		if base == nil || far == nil {
			continue
		}
		ratio := ratios(far, base)
		r.goal(what, fmt.Sprintf("≤ %.2f", g.most), ratio.String(), ratio.Median <= g.most)
		for _, p := range []peer.Dataplane{peer.KubeNftables{}, peer.KubeIptables{}} {
			a, b := r.find(p.Name(), large, g.variant, perFlow), r.find(p.Name(), 10, g.variant, perFlow)
			if a != nil && b != nil {
				r.note("%s, the same ratio, %s: %s; its cost over Sluice's at %s services: %s.", p.Name(), g.variant, ratios(a, b),
					chart.Number(float64(large)), ratios(a, far))
			}
		}
	}
}

func paintConnections(r *Result) []painting {
	var ps []painting
	for _, v := range []struct{ name, variant string }{{"last", lastHit}, {"even", evenHit}} {
		ps = append(ps, draw(r, v.name, chart.Chart{
			Kind: chart.Lines, LogY: true, Title: "Cost of a new connection, " + v.variant,
			Subtitle: "10 endpoints a service, one core, connection tracking included; lower is better",
			XLabel:   "services", YLabel: "µs a flow (logarithmic)",
		}, byServices, perFlow, v.variant))
	}
	return ps
}
