// Package accelerate holds the experiments about the eBPF programs that do part of what nftables
// does, earlier, beside nftables, iptables and the plain kernel.
package accelerate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"sluice.dev/sluice/internal/accelerate/xdp"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Direct is the experiment accelerate-direct.
var Direct = harness.Experiment{
	Name:  "accelerate-direct",
	Title: "Packets of dsr farms, by XDP and by nftables",
	How: "Datagrams to farms with three backends each, the same for all, as XDP live frames on the client's device, on one core, from their making until they leave towards a backend. " +
		"One farm: of 256 flows, which have been answered before where connections are tracked. Each a new flow: to one farm. Spread: to all farms in turns. " +
		"The generator alone: a program at the device drops every packet. Net: without what that takes.",
	Run:    runDirect,
	Charts: directCharts,
}

func directCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "one", chart.Chart{
		Kind: chart.Bars, Title: "Time a packet of dsr farms takes, one core", Subtitle: "datagrams to one of so many farms; lower is better", XLabel: "farms", YLabel: "µs",
	}, report.ByServices, micros, one)}
}

const (
	micros  = "time a packet"
	netTime = "time a packet, net"
	one     = "one farm"
	fresh   = "each a new flow"
	spread  = "spread"
	flows   = 256
	backend = 3

	generator = "the generator alone"
	forward   = "forwarding"
	iptables  = "iptables DNAT"
	nftables  = "nftables"
	byXDP     = "XDP"
)

// direct is a way that packets of so many farms take.
type direct struct {
	name  string
	farms int
	run   *harness.Run
	alone *float64 // what the generator took in this round
}

func (d direct) String() string { return fmt.Sprintf("%s, %d farms", d.name, d.farms) }

// SkipReason implements harness.Case.
func (d direct) SkipReason() string { return "" }

func (d direct) cluster() cluster.Cluster { return cluster.Cluster{Services: 1, Endpoints: backend} }

// NewTestbed implements harness.Case.
func (d direct) NewTestbed(prefix string) (*testbed.Testbed, error) {
	l, err := testbed.New(prefix)
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	for j := range backend {
		all = append(all, d.cluster().Endpoint(0, j).Addr())
	}
	if err := l.Direct(all...); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Load implements harness.Case.
func (d direct) Load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error) {
	switch d.name {
	case generator:
		return dropAll(l)
	case forward:
		return peer.Plain{}.Load(ctx, l.Node, d.cluster())
	case iptables:
		return peer.Nth{Protocol: "udp"}.Load(ctx, l.Node, d.cluster())
	}
	flag := map[string]string{nftables: "none", byXDP: "dsr"}[d.name]
	s, err := peer.StartBalance(ctx, l.Node, d.run.Binary, "--accelerate", flag)
	if err != nil {
		return nil, err
	}
	all := peer.FarmsOf(cluster.Cluster{Services: d.farms, Endpoints: backend}, peer.DSR, "udp")
	for i := range all.Farms {
		all.Farms[i].Backends = all.Farms[0].Backends
	}
	const atOnce = 10_000 // a request may be so long only
	for part := range slices.Chunk(all.Farms, atOnce) {
		if _, err := s.Call(ctx, http.MethodPost, "/farms", peer.Farms{Farms: part}); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return &peer.Loaded{Close: ending(l, s)}, nil
}

// ending ends a balancer, and the program that would outlast it and the testbed.
func ending(l *testbed.Testbed, s *peer.FarmServer) func() error {
	return func() error { return errors.Join(s.Close(), l.Node.Do(xdp.Remove)) }
}

// dropAll has a program drop what arrives.
func dropAll(l *testbed.Testbed) (*peer.Loaded, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	if err != nil {
		return nil, fmt.Errorf("load a program that drops: %w", err)
	}
	device, err := l.Node.LinkByName(testbed.NodeIn)
	var hold link.Link
	if err == nil {
		err = l.Node.Do(func() (err error) {
			hold, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: device.Attrs().Index, Flags: link.XDPDriverMode})
			return err
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach a program that drops: %w", err), p.Close())
	}
	return &peer.Loaded{Close: func() error { return errors.Join(hold.Close(), p.Close()) }}, nil
}

// pace: each sample is the fastest of three runs.
var (
	pace      = harness.Pace{WarmUp: 5_000, Most: 1_000_000, Lasting: 300 * time.Millisecond, Runs: 3, Keep: true}
	freshPace = harness.Pace{WarmUp: 5_000, Most: harness.MaxFlows, Lasting: 300 * time.Millisecond, Runs: 3}
)

func runDirect(ctx context.Context, r *harness.Run) error {
	many := 100_000
	if !r.Full() {
		many = 20_000
	}
	var cases []direct
	alone := new(float64)
	for _, c := range []struct {
		name  string
		farms int
	}{{generator, 1}, {forward, 1}, {iptables, 1}, {nftables, 1}, {byXDP, 1}, {byXDP, 10_000}, {byXDP, many}} {
		cases = append(cases, direct{c.name, c.farms, r, alone})
	}
	if err := harness.InTurns(ctx, r, cases, measureDirect); err != nil {
		return err
	}
	for _, g := range []struct {
		farms   int
		variant string
		most    float64
	}{{1, one, 0.32}, {10_000, one, 0.32}, {10_000, spread, 0.85}, {many, spread, 0.85}} {
		a, b := r.Find(byXDP, g.farms, g.variant, micros), r.Find(forward, 1, one, micros)
		if a != nil && b != nil {
			got := report.Ratios(a, b)
			r.Goal(fmt.Sprintf("time a packet by XDP over plain forwarding, %s farms, %s", chart.Number(float64(g.farms)), g.variant), "≤ "+chart.Number(g.most), got.String(), got.Median <= g.most)
		}
	}
	for variant, least := range map[string]float64{one: 4, fresh: 15} {
		a, b := r.Find(iptables, 1, variant, netTime), r.Find(byXDP, 1, variant, netTime)
		if a != nil && b != nil {
			got := report.Ratios(a, b)
			r.Goal("time a packet, net, by iptables DNAT over XDP, "+variant, "≥ "+chart.Number(least), got.String(), got.Median >= least)
		}
	}
	return nil
}

func measureDirect(ctx context.Context, r *harness.Run, s *harness.Setup[direct]) (err error) {
	origin := testbed.ClientAddrs()[0]
	target := netip.AddrPortFrom(cluster.ServiceAddr(0), cluster.ServicePort)
	arrive := cluster.Services
	switch s.Case.name {
	case iptables:
		arrive = cluster.Endpoints
		if err := answered(s, target, origin); err != nil {
			return err
		}
	case forward:
		arrive, target = cluster.Endpoints, s.Case.cluster().Endpoint(0, 0)
	}
	c, err := inject.NewCounter(s.Backend, testbed.Uplink, arrive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if s.Case.name == byXDP {
		time.Sleep(time.Second) // the balancer sees that the far end takes frames now
	}
	g, err := inject.New(s.Node, testbed.NodeIn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if s.Case.name == generator {
		err := errors.Join(g.Aim(inject.Target{Base: target.Addr(), Count: 1, Port: target.Port()}), g.From(inject.Origin{Base: origin, Flows: flows, UDP: true}))
		if err != nil {
			return err
		}
		ns, err := dropped(g, c)
		return record(r, s.Case, one, ns, err)
	}
	for _, v := range []struct {
		name  string
		first netip.Addr
		flows int
		count int
		pace  harness.Pace
	}{{one, origin, flows, 1, pace}, {fresh, inject.Sources.Addr(), 0, 1, freshPace}, {spread, inject.Sources.Addr(), 1 << 18, s.Case.farms, pace}} {
		if v.name == spread && s.Case.farms == 1 || v.name == fresh && s.Case.farms > 1 {
			continue
		}
		err := errors.Join(g.Aim(inject.Target{Base: target.Addr(), Count: v.count, Port: target.Port()}), g.From(inject.Origin{Base: v.first, Flows: v.flows, UDP: true}))
		if err != nil {
			return err
		}
		ns, err := v.pace.Cost(ctx, s.Testbed, g, c)
		if err := record(r, s.Case, v.name, ns, err); err != nil {
			return err
		}
	}
	return nil
}

// record adds a sample, unless packets got lost.
func record(r *harness.Run, d direct, variant string, ns float64, err error) error {
	if errors.Is(err, harness.ErrLost) {
		r.Note("%s, %s: a sample does not count, as %s.", d, variant, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", variant, err)
	}
	m := report.Measurement{Dataplane: d.name, Services: d.farms, Endpoints: backend, Variant: variant, Metric: micros, Unit: "µs"}
	if r.Add(m, ns/1000); d.name == generator {
		*d.alone = ns
		return nil
	}
	m.Metric = netTime
	r.Add(m, (ns-*d.alone)/1000)
	return nil
}

// dropped returns nanoseconds a packet of packets none of which may arrive.
func dropped(g *inject.Generator, c *inject.Counter) (fastest float64, err error) {
	if err := c.Reset(); err != nil {
		return 0, err
	}
	for i := range pace.Runs + 1 { // the first warms up
		res, err := g.Send(pace.Most, harness.PacketCPU)
		if err != nil {
			return 0, err
		}
		if ns := res.PerFlow(); i == 1 || i > 1 && ns < fastest {
			fastest = ns
		}
	}
	got, err := c.Read()
	if err == nil && got.Backend+got.Other > 0 {
		err = fmt.Errorf("%d packets arrived that should be dropped", got.Backend+got.Other)
	}
	return fastest, err
}

// answered has a datagram of each flow answered by a backend.
func answered(s *harness.Setup[direct], to netip.AddrPort, from netip.Addr) (err error) {
	for j := range backend {
		var c net.PacketConn
		err := s.Backend.Do(func() (err error) {
			c, err = net.ListenPacket("udp", s.Case.cluster().Endpoint(0, j).String())
			return err
		})
		if err != nil {
			return fmt.Errorf("answer datagrams: %w", err)
		}
		defer func() { _ = c.Close() }()
		go func() {
			buf := make([]byte, 64)
			for n, asker, err := c.ReadFrom(buf); err == nil; n, asker, err = c.ReadFrom(buf) {
				_, _ = c.WriteTo(buf[:n], asker) // a lost answer is missed by who asked
			}
		}()
	}
	buf := make([]byte, 64)
	for i := range flows {
		var client *net.UDPConn
		err := s.Client.Do(func() (err error) {
			client, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, inject.FirstPort+uint16(i))), net.UDPAddrFromAddrPort(to))
			return err
		})
		if err != nil {
			return fmt.Errorf("send datagrams: %w", err)
		}
		err = client.SetDeadline(time.Now().Add(time.Second))
		if err == nil {
			_, err = client.Write([]byte("ask"))
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
