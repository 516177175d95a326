package fabric

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"time"

	"sluice.dev/sluice/internal/driver"
	compile "sluice.dev/sluice/internal/fabric/compile"
	fabric "sluice.dev/sluice/internal/fabric/kernel"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/netns"
)

// Nodes is the experiment fabric-nodes.
var Nodes = harness.Experiment{
	Name:  "fabric-nodes",
	Title: "Routes and tunnels to many nodes",
	How: "From the Nodes in the store to the kernel's acknowledgement, in VXLAN: for each other node a route, a neighbour and a forwarding entry. First all nodes from nothing, then one more. " +
		"By hand: the same entries by `ip -batch` and `bridge -batch`.",
	Run:    runNodes,
	Charts: nodeCharts,
}

const (
	fromNothing = "all nodes from nothing"
	oneMore     = "one node more"
)

func runNodes(ctx context.Context, r *harness.Run) error {
	sizes := []int{1_000, 10_000}
	for round := range r.Options.Rounds {
		for _, n := range sizes {
			r.Logf("round %d of %d: %s nodes", round+1, r.Options.Rounds, chart.Number(float64(n)))
			for _, by := range []struct {
				name    string
				measure func(context.Context, *netns.NS, int) (all, one time.Duration, err error)
			}{{sluice, sluiceNodes}, {byHand, handNodes}} {
				all, one, err := onNode(r.NextPrefix(), func(ns *netns.NS) (time.Duration, time.Duration, error) { return by.measure(ctx, ns, n) })
				if err != nil {
					return fmt.Errorf("%s, %d nodes: %w", by.name, n, err)
				}
				recordNodes(r, by.name, n, fromNothing, all)
				recordNodes(r, by.name, n, oneMore, one)
			}
		}
	}
	for _, g := range []struct {
		nodes  int
		metric string
		most   float64
	}{{1_000, fromNothing, 100}, {1_000, oneMore, 2}, {10_000, fromNothing, 1_000}} {
		if m := r.Same(report.Measurement{Dataplane: sluice, Nodes: g.nodes, Metric: g.metric}); m != nil {
			got := report.SpreadOf(m.Samples)
			r.Goal(fmt.Sprintf("%s nodes' routes and tunnels: %s", chart.Number(float64(g.nodes)), g.metric), fmt.Sprintf("≤ %s ms", chart.Number(g.most)), got.String()+" ms", got.Median <= g.most)
		}
	}
	return nil
}

func recordNodes(r *harness.Run, by string, nodes int, metric string, took time.Duration) {
	r.Add(report.Measurement{Dataplane: by, Nodes: nodes, Metric: metric, Unit: "ms"}, took.Seconds()*1000)
}

// onNode calls f with the namespace of a node that is on an underlay.
func onNode(name string, f func(*netns.NS) (time.Duration, time.Duration, error)) (all, one time.Duration, err error) {
	ns, err := netns.New(name)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, ns.Delete()) }()
	err = commands(ns, "ip link add eth0 type veth peer name far", "ip address add 198.18.0.1/15 dev eth0", "ip link set far up", "ip link set eth0 up")
	if err != nil {
		return 0, 0, err
	}
	return f(ns)
}

// many returns Nodes and the pool that they share. The first is the own one.
func many(from, to int) (events []store.Event) {
	for i := from; i < to; i++ {
		name := fmt.Sprintf("node%d", i)
		events = append(events, store.Event{Kind: model.NodeKind, Name: model.Name{Name: name}, Object: &model.Node{
			Name: name, IPs: []netip.Addr{nodeAddr(i)}, PodCIDRs: []netip.Prefix{podCIDR(i)},
		}})
	}
	return events
}

func nodeAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18, byte((i + 1) >> 8), byte(i + 1)})
}

func podCIDR(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
}

func sluiceNodes(ctx context.Context, ns *netns.NS, n int) (all, one time.Duration, err error) {
	c := compile.New(compile.Config{Node: "node0", Pools: []*model.IPPool{{Name: "pods", CIDR: netip.MustParsePrefix("10.0.0.0/8"), VXLAN: model.Always}}})
	var d *fabric.Driver
	err = ns.Do(func() error {
		underlay, err := link.Here.Underlay()
		if err != nil {
			return err
		}
		c.SetUnderlay(underlay)
		d, err = fabric.Open(driver.Options{Log: slog.New(slog.DiscardHandler)})
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	s := store.New()
	update := func(events []store.Event) (state.FabricDelta, time.Time) {
		s.Apply(events)
		began, dirty := time.Now(), s.Take()
		var delta state.FabricDelta
		s.Read(func(v *store.View) { delta = c.Update(v, dirty) })
		return delta, began
	}
	_, began := update(many(0, n))
	plan, err := d.Adopt(ctx, &state.State{Fabric: c.Fabric()}, driver.Keep{})
	if err == nil {
		err = plan.Apply(ctx)
	}
	if all = time.Since(began); err != nil {
		return 0, 0, err
	}
	delta, began := update(many(n, n+1))
	if plan, err = d.Update(ctx, state.Delta{Fabric: delta}); err == nil {
		err = plan.Apply(ctx)
	}
	one = time.Since(began)
	return all, one, err
}

func handNodes(ctx context.Context, ns *netns.NS, n int) (all, one time.Duration, err error) {
	err = commands(ns, "ip link add flannel.1 type vxlan id 1 dstport 8472 nolearning local "+nodeAddr(0).String(),
		"ip address add 10.0.0.0/32 dev flannel.1", "ip link set flannel.1 up")
	if err != nil {
		return 0, 0, err
	}
	set := func(from, to int) (time.Duration, error) {
		var ip, bridge bytes.Buffer
		for i := from; i < to; i++ {
			mac, gateway := fmt.Sprintf("02:00:00:%02x:%02x:01", i>>8, i&255), podCIDR(i).Addr()
			fmt.Fprintf(&ip, "neighbour replace %s lladdr %s dev flannel.1 nud permanent\n", gateway, mac)
			fmt.Fprintf(&bridge, "fdb append %s dev flannel.1 dst %s\n", mac, nodeAddr(i))
			fmt.Fprintf(&ip, "route replace %s via %s dev flannel.1 onlink\n", podCIDR(i), gateway)
		}
		began := time.Now()
		err := errors.Join(batch(ctx, ns, "bridge", &bridge), batch(ctx, ns, "ip", &ip))
		return time.Since(began), err
	}
	if all, err = set(1, n); err != nil {
		return 0, 0, err
	}
	one, err = set(n, n+1)
	return all, one, err
}

func batch(ctx context.Context, ns *netns.NS, program string, lines *bytes.Buffer) error {
	cmd := exec.CommandContext(ctx, program, "-batch", "-")
	cmd.Stdin = lines
	return ns.Do(func() error {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s -batch: %w: %.200s", program, err, out)
		}
		return nil
	})
}

func nodeCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "all", chart.Chart{
		Kind: chart.Bars, LogY: true, Title: "Routes and tunnels to many nodes, from nothing", Subtitle: "VXLAN; lower is better", XLabel: "nodes", YLabel: "ms (logarithmic)",
	}, report.ByNodes, fromNothing, "")}
}
