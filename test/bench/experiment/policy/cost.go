package policy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Cost is the experiment policy-cost.
var Cost = harness.Experiment{
	Name:  "policy-cost",
	Title: "What policies cost a connection and its packets",
	How: "One pod of the node sends to another, as XDP live frames at its end of the veth pair, on one core. New connections are SYNs of new flows, which three policies at either end judge; the last of them allows them. " +
		"Established packets are datagrams of 256 flows that have been answered before. With policies off, the table translates services only.",
	Run:    runCost,
	Charts: costCharts,
}

const (
	perNew         = "time per new connection"
	perEstablished = "time per established packet"
	policyOn       = "sluice, policies on"
	policyOff      = "sluice, policies off"
)

// podCase is the case of a node with pods, with policies or without.
type podCase struct {
	cluster.Tenants
	policy bool
}

func (p podCase) name() string {
	if p.policy {
		return policyOn
	}
	return policyOff
}

func (p podCase) String() string { return fmt.Sprintf("%s, %s", p.name(), p.Tenants) }

// SkipReason implements harness.Case.
func (podCase) SkipReason() string { return "" }

// NewTestbed implements harness.Case.
func (p podCase) NewTestbed(prefix string) (*testbed.Testbed, error) {
	return testbed.NewPods(prefix, p.Local)
}

// Load implements harness.Case.
func (p podCase) Load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error) {
	cfg := peer.Config()
	cfg.Policy = p.policy
	n, err := peer.NewNode(l.Node, "", cfg)
	if err != nil {
		return nil, err
	}
	took, err := n.Apply(ctx, p.Events())
	if err == nil && p.policy {
		err = CheckInForce(ctx, l, p.Tenants)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return &peer.Loaded{Took: took.Sum(), Note: took.String(), Close: n.Close}, nil
}

func runCost(ctx context.Context, r *harness.Run) error {
	sizes := []int{10, 1_000}
	if r.Full() {
		sizes = []int{10, 10_000}
	}
	var specs []podCase
	for _, n := range sizes {
		t := cluster.Tenants{Pods: max(PodsOnNode, n), Local: PodsOnNode, Policies: n, Services: n}
		specs = append(specs, podCase{t, false}, podCase{t, true})
	}
	if err := harness.InTurns(ctx, r, specs, measurePods); err != nil {
		return err
	}
	for _, n := range sizes {
		for _, metric := range []string{perNew, perEstablished} {
			on, off := r.Same(costMeasurement(policyOn, n, metric)), r.Same(costMeasurement(policyOff, n, metric))
			if on != nil && off != nil {
				r.Note("%s, %s policies: on over off %s.", metric, chart.Number(float64(n)), report.Ratios(on, off))
			}
		}
	}
	for _, metric := range []string{perNew, perEstablished} {
		few, many := r.Same(costMeasurement(policyOn, sizes[0], metric)), r.Same(costMeasurement(policyOn, sizes[1], metric))
		if few != nil && many != nil {
			r.Note("%s, policies on: %s over %s %s.", metric, chart.Number(float64(sizes[1])), chart.Number(float64(sizes[0])), report.Ratios(many, few))
		}
	}
	return nil
}

func costMeasurement(name string, policies int, metric string) report.Measurement {
	return report.Measurement{Dataplane: name, Services: policies, Policies: policies, Metric: metric, Unit: "µs"}
}

// podFlows is how many flows one pod can have to one port of another.
const podFlows = 32_768

// answeredFlows is how many flows the established packets belong to.
const answeredFlows = 256

func measurePods(ctx context.Context, r *harness.Run, s *harness.Setup[podCase]) error {
	return PodCosts(ctx, r, s.Testbed, s.Case.Tenants, s.Case.String(), func(metric string, micros float64) {
		r.Add(costMeasurement(s.Case.name(), s.Case.Policies, metric), micros)
	})
}

// PodCosts measures what established packets and new connections between two pods of a node cost.
func PodCosts(ctx context.Context, r *harness.Run, l *testbed.Testbed, t cluster.Tenants, name string, record func(metric string, micros float64)) (err error) {
	from, to := cluster.PodAddr(0, t.Local), cluster.PodAddr(1, t.Local)
	if err := l.FlushConntrack(); err != nil {
		return err
	}
	if err := answer(l, from, netip.AddrPortFrom(to, cluster.TargetPort)); err != nil {
		return err
	}
	g, c, end, err := harness.Injector(l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err := g.Aim(inject.Target{Base: to, Count: 1, Port: cluster.TargetPort}); err != nil {
		return err
	}
	for _, m := range []struct {
		metric string
		origin inject.Origin
		pace   harness.Pace
	}{
		// The first keeps the connection table, as it needs the established flows.
		{perEstablished, inject.Origin{Base: from, Flows: answeredFlows, UDP: true}, harness.Pace{WarmUp: 5_000, Most: 1_000_000, Lasting: 300 * time.Millisecond, Keep: true}},
		{perNew, inject.Origin{Base: from, Flows: podFlows}, harness.Pace{WarmUp: 1_000, Most: podFlows, Lasting: 300 * time.Millisecond}},
	} {
		if err := g.From(m.origin); err != nil {
			return err
		}
		ns, err := m.pace.Cost(ctx, l, g, c)
		if errors.Is(err, harness.ErrLost) {
			r.Note("%s, %s: a sample does not count, as %s.", name, m.metric, err)
			continue
		}
		if err != nil {
			return err
		}
		record(m.metric, ns/1000)
	}
	return nil
}

// answer establishes the flows of the established packets, with a datagram each way.
func answer(l *testbed.Testbed, from netip.Addr, to netip.AddrPort) error {
	var server net.PacketConn
	err := l.Backend.Do(func() (err error) {
		server, err = net.ListenPacket("udp", to.String())
		return err
	})
	if err != nil {
		return fmt.Errorf("answer datagrams: %w", err)
	}
	defer server.Close()
	buf := make([]byte, 64)
	for i := range answeredFlows {
		var client *net.UDPConn
		err := l.Client.Do(func() (err error) {
			client, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, inject.FirstPort+uint16(i))), net.UDPAddrFromAddrPort(to))
			return err
		})
		if err != nil {
			return fmt.Errorf("send datagrams: %w", err)
		}
		err = errors.Join(server.SetDeadline(time.Now().Add(time.Second)), client.SetDeadline(time.Now().Add(time.Second)))
		if err == nil {
			_, err = client.Write([]byte("ask"))
		}
		var asker net.Addr
		if err == nil {
			_, asker, err = server.ReadFrom(buf)
		}
		if err == nil {
			_, err = server.WriteTo([]byte("answer"), asker)
		}
		if err == nil {
			_, err = client.Read(buf)
		}
		if err = errors.Join(err, client.Close()); err != nil {
			return fmt.Errorf("have a datagram answered: %w", err)
		}
	}
	return nil
}

func costCharts(r *report.Result) []report.Figure {
	var ps []report.Figure
	for _, p := range []struct{ name, metric, title string }{
		{"new", perNew, "What policies cost a new connection"}, {"established", perEstablished, "What policies cost an established packet"},
	} {
		ps = append(ps, report.Draw(r, p.name, chart.Chart{
			Kind: chart.Bars, Title: p.title, Subtitle: "between two pods of a node, three policies at either end, one core; lower is better",
			XLabel: "policies, and as many services", YLabel: "µs",
		}, report.ByPolicies, p.metric, ""))
	}
	return ps
}
