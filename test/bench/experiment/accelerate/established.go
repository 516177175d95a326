package accelerate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/accelerate/established"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Established is the experiment accelerate-established.
var Established = harness.Experiment{
	Name:  "accelerate-established",
	Title: "What packets of established connections cost",
	How: "From outside to a pod through a service, and from pod to pod of a node with three policies at either end. Packets are datagrams of 256 flows that have been answered, as XDP live frames at the node's end of the sender's veth pair, on one core; a program in the pod's namespace counts and drops them. " +
		"Requests and bulk are of one thread that is client and server, whose CPU time counts. Bare is forwarding without rules and without connection tracking.",
	Run:    runEstablished,
	Charts: establishedCharts,
}

const (
	fromOutside  = "from outside, through a service"
	betweenPods  = "from pod to pod"
	aPacket      = "time of a packet"
	aRequest     = "time of a request and its response"
	aGigabyte    = "time of a gigabyte in bulk"
	onlyForwards = "forwarding"
)

// flowCase is a node with two pods, or with one and a host outside.
type flowCase struct {
	mode    peer.Mode
	bare    bool // nothing is programmed
	outside bool
}

func (c flowCase) name() string {
	if c.bare {
		return onlyForwards
	}
	return c.mode.Name()
}

func (c flowCase) variant() string {
	if c.outside {
		return fromOutside
	}
	return betweenPods
}

func (c flowCase) String() string { return c.name() + ", " + c.variant() }

// SkipReason implements harness.Case.
func (flowCase) SkipReason() string { return "" }

var outsider = inject.Sources.Addr().Next()

// events are the objects: the pods, with policies where they talk to each other, and a service of
// both protocols.
func (c flowCase) events() []store.Event {
	all := cluster.Tenants{Pods: 2, Local: 2, Policies: cluster.PoliciesPerPod, Services: 1}.Events()
	if c.outside {
		all = slices.DeleteFunc(all, func(e store.Event) bool { return e.Kind == model.NetworkPolicy })
	}
	const name = "datagrams"
	for _, e := range all {
		switch o := e.Object.(type) {
		case *model.Service:
			port := o.Ports[0]
			port.Name, port.Protocol = name, model.UDP
			o.Ports = append(o.Ports, port)
		case *model.EndpointSlice:
			port := o.Ports[0]
			port.Name, port.Protocol = name, model.UDP
			o.Ports = append(o.Ports, port)
		}
	}
	return all
}

// NewTestbed implements harness.Case.
func (c flowCase) NewTestbed(prefix string) (*testbed.Testbed, error) {
	l, err := testbed.NewPods(prefix, 2)
	if err != nil || !c.outside {
		return l, err
	}
	if err := l.Outside(outsider); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Load implements harness.Case.
func (c flowCase) Load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error) {
	if c.bare {
		return &peer.Loaded{Close: func() error { return nil }}, nil
	}
	for key, value := range established.Sysctls {
		if err := l.Node.Sysctl(key, value); err != nil {
			return nil, err
		}
	}
	cfg := peer.Config()
	cfg.Policy = true
	n, err := peer.NewNode(l.Node, c.mode, cfg)
	if err != nil {
		return nil, err
	}
	took, err := n.Apply(ctx, c.events())
	if err == nil {
		err = n.AwaitCuts(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return &peer.Loaded{Took: took.Sum(), Close: n.Close}, nil
}

func runEstablished(ctx context.Context, r *harness.Run) error {
	cases := []flowCase{{peer.Established, false, true}, {"", false, true}, {peer.Established, false, false}, {"", false, false}, {"", true, false}}
	if err := harness.InTurns(ctx, r, cases, measureEstablished); err != nil {
		return err
	}
	find := func(c flowCase, metric string) *report.Measurement { return r.Same(c.measurement(metric)) }
	for _, g := range []struct {
		of, over flowCase
		metric   string
		most     float64
	}{
		{cases[0], cases[1], aPacket, 0.70}, {cases[0], cases[1], aRequest, 0.90}, {cases[0], cases[1], aGigabyte, 1.00},
		{cases[2], cases[4], aPacket, 1.20}, {cases[2], cases[4], aRequest, 0}, {cases[2], cases[4], aGigabyte, 0},
		{cases[2], cases[3], aPacket, 0}, {cases[2], cases[3], aRequest, 0}, {cases[2], cases[3], aGigabyte, 0}, {cases[3], cases[4], aPacket, 0},
	} {
		of, over := find(g.of, g.metric), find(g.over, g.metric)
		if of == nil || over == nil {
			continue
		}
		ratio := report.Ratios(of, over)
		what := fmt.Sprintf("%s %s, over %s", g.metric, g.of, g.over.name())
		if g.most == 0 {
			r.Note("%s: %s.", what, ratio)
		} else {
			r.Goal(what, fmt.Sprintf("≤ %.2f", g.most), ratio.String(), ratio.Median <= g.most)
		}
	}
	return nil
}

func (c flowCase) measurement(metric string) report.Measurement {
	return report.Measurement{Dataplane: c.name(), Services: 1, Variant: c.variant(), Metric: metric, Unit: "µs"}
}

func measureEstablished(ctx context.Context, r *harness.Run, s *harness.Setup[flowCase]) error {
	c := s.Case
	from, to := cluster.PodAddr(0, 2), netip.AddrPortFrom(cluster.PodAddr(1, 2), cluster.TargetPort)
	if c.outside {
		from, to = outsider, netip.AddrPortFrom(cluster.ServiceAddr(0), cluster.ServicePort)
	}
	record := func(metric string, took time.Duration) { r.Add(c.measurement(metric), harness.Micros(took)) }
	if err := s.FlushConntrack(); err != nil {
		return err
	}
	ns, err := packets(ctx, s.Testbed, from, to)
	if errors.Is(err, harness.ErrLost) {
		r.Note("%s: a sample does not count, as %s.", c, err)
	} else if err != nil {
		return err
	} else {
		record(aPacket, time.Duration(ns))
	}
	if err := s.FlushConntrack(); err != nil {
		return err
	}
	calls := load.Calls{Client: s.Client, Backend: s.Backend, Port: cluster.TargetPort, CPU: harness.PacketCPU}
	took, err := calls.Run(load.Exchange, []netip.AddrPort{to}, 100, 100)
	if err != nil {
		return err
	}
	record(aRequest, median(took[0]))
	var each []time.Duration
	for range 5 {
		copied, err := load.Copy(ctx, load.CopyConfig{
			Client: s.Client, Backend: s.Backend, CPU: harness.PacketCPU, Duration: r.Short(200*time.Millisecond, 50*time.Millisecond), Target: to, Port: cluster.TargetPort,
		})
		if err != nil {
			return err
		}
		each = append(each, time.Duration(float64(copied.CPU)/float64(copied.Bytes)*1e9))
	}
	record(aGigabyte, median(each))
	return nil
}

// packets measures what a datagram of an established flow takes, in nanoseconds.
func packets(ctx context.Context, l *testbed.Testbed, from netip.Addr, to netip.AddrPort) (ns float64, err error) {
	if err := streams(l, from, to); err != nil {
		return 0, err
	}
	g, err := inject.New(l.Node, testbed.NodeIn)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	c, err := inject.NewEnd(l.Backend, testbed.Uplink)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	err = errors.Join(g.Aim(inject.Target{Base: to.Addr(), Count: 1, Port: to.Port()}), g.From(inject.Origin{Base: from, Flows: answeredFlows, UDP: true}))
	if err != nil {
		return 0, err
	}
	return harness.Pace{WarmUp: 5_000, Most: 20_000, Lasting: 20 * time.Millisecond, Runs: 40, Keep: true}.Cost(ctx, l, g, &c.Counter)
}

// answeredFlows is how many flows packets are of, in turns.
const answeredFlows = 256

// streaming is how long a flow of UDP takes until connection tracking knows that it is more than a
// question and its answer.
const streaming = 2100 * time.Millisecond

// streams has all flows answered twice, so that their entries are those of streams.
func streams(l *testbed.Testbed, from netip.Addr, to netip.AddrPort) (err error) {
	var server net.PacketConn
	err = l.Backend.Do(func() (err error) {
		server, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", cluster.TargetPort))
		return err
	})
	if err != nil {
		return fmt.Errorf("answer datagrams: %w", err)
	}
	defer server.Close()
	var clients []*net.UDPConn
	defer func() {
		for _, c := range clients {
			err = errors.Join(err, c.Close())
		}
	}()
	err = l.Client.Do(func() error {
		for i := range answeredFlows {
			c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, inject.FirstPort+uint16(i))), net.UDPAddrFromAddrPort(to))
			if err != nil {
				return err
			}
			clients = append(clients, c)
		}
		return nil
	})
	if err != nil {
		return err
	}
	buf := make([]byte, 64)
	for round := range 2 {
		if round > 0 {
			time.Sleep(streaming)
		}
		for _, c := range clients {
			deadline := time.Now().Add(time.Second)
			err := errors.Join(server.SetDeadline(deadline), c.SetDeadline(deadline))
			var asker net.Addr
			if err == nil {
				_, err = c.Write([]byte("ask"))
			}
			if err == nil {
				_, asker, err = server.ReadFrom(buf)
			}
			if err == nil {
				_, err = server.WriteTo([]byte("answer"), asker)
			}
			if err == nil {
				_, err = c.Read(buf)
			}
			if err != nil {
				return fmt.Errorf("have a datagram answered: %w", err)
			}
		}
	}
	return nil
}

func establishedCharts(r *report.Result) (figures []report.Figure) {
	for _, v := range []struct{ name, metric, title string }{
		{"packet", aPacket, "A packet of an established flow"}, {"request", aRequest, "Request and response on a connection"},
	} {
		figures = append(figures, report.Draw(r, v.name, chart.Chart{
			Kind: chart.Bars, Title: v.title, Subtitle: "lower is better", XLabel: "services", YLabel: "µs",
		}, report.ByServices, v.metric, fromOutside))
	}
	return figures
}
