package balancer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
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

// Packets is the experiment balancer-packets.
var Packets = harness.Experiment{
	Name:  "balancer-packets",
	Title: "Packets of established flows through a balancer, and packets that it drops",
	How: "Datagrams of 256 flows that have been answered before, to one farm with three backends, as XDP live frames on the client's device, on one core, from their making until they leave towards a backend, or are dropped. " +
		"New: each datagram is of another flow. Dropped: the same from a network that a blacklist of the farm holds, and that a rule of iptables' table raw names. " +
		"Checked: the farm has a health check, so that the answers by which backends refuse connections are looked for. " +
		"One rule, at ingress, forwards everything to one backend: the least that dsr can take. Each sample is the fastest of 20 runs of 20,000 packets (new flows: 10).",
	Run:    runPackets,
	Charts: packetCharts,
}

const (
	perPacket   = "packets a second"
	micros      = "time a packet"
	established = "established"
	newFlow     = "each a new flow"
	dropped     = "dropped"
)

// packetCase is a program that packets are sent through.
type packetCase struct {
	farmCase
	name string
	drop bool // what is measured is dropped
	load func(ctx context.Context, l *testbed.Testbed, c cluster.Cluster) (*peer.Loaded, error)
}

func (p packetCase) String() string { return p.name }

// Load implements harness.Case.
func (p packetCase) Load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error) {
	return p.load(ctx, l, p.Cluster)
}

// packetCases are all of them.
func packetCases(r *harness.Run) []packetCase {
	var all []packetCase
	add := func(d peer.Dataplane, name string, drop bool, load func(context.Context, *testbed.Testbed, cluster.Cluster) (*peer.Loaded, error)) {
		all = append(all, packetCase{cases([]int{1}, d)[0], name, drop, load})
	}
	plain := func(d peer.Dataplane) {
		add(d, d.Name(), false, func(ctx context.Context, l *testbed.Testbed, c cluster.Cluster) (*peer.Loaded, error) {
			return d.Load(ctx, l.Node, c)
		})
	}
	plain(peer.Plain{})
	plain(peer.Nth{Protocol: "udp"})
	for _, mode := range []peer.FarmMode{peer.DNAT, peer.Stateless, peer.DSR} {
		b := peer.Balance{Program: r.Binary, Mode: mode, Protocol: "udp"}
		plain(b)
	}
	add(peer.Plain{}, oneRule, false, func(_ context.Context, l *testbed.Testbed, c cluster.Cluster) (*peer.Loaded, error) {
		return atIngress(l, fmt.Sprintf("fwd ip to %s device %s", c.Endpoint(0, 0).Addr(), testbed.NodeOut))
	})
	direct := peer.Balance{Program: r.Binary, Mode: peer.DSR, Protocol: "udp"}
	add(direct, directMaglev, false, func(ctx context.Context, l *testbed.Testbed, c cluster.Cluster) (*peer.Loaded, error) {
		return loadFarm(ctx, direct, l, c, func(all *peer.Farms) { all.Farms[0].Scheduler = "maglev" })
	})
	plain(peer.Nftlb{Mode: peer.DNAT, Protocol: "udp"})
	add(peer.Plain{}, rawDrop, true, func(_ context.Context, l *testbed.Testbed, _ cluster.Cluster) (*peer.Loaded, error) {
		_, err := l.Node.Run("iptables-legacy", "-w", "-t", "raw", "-A", "PREROUTING", "-s", inject.Sources.String(), "-j", "DROP")
		return &peer.Loaded{Close: func() error { return nil }}, err
	})
	add(peer.Plain{}, firstDrop, true, func(_ context.Context, l *testbed.Testbed, _ cluster.Cluster) (*peer.Loaded, error) {
		return atIngress(l, "drop")
	})
	b := peer.Balance{Program: r.Binary, Mode: peer.DNAT, Protocol: "udp"}
	add(b, listDrop, true, func(ctx context.Context, l *testbed.Testbed, c cluster.Cluster) (*peer.Loaded, error) {
		return loadFarm(ctx, b, l, c, blacklist)
	})
	add(b, checked, false, func(ctx context.Context, l *testbed.Testbed, c cluster.Cluster) (*peer.Loaded, error) {
		return loadFarm(ctx, b, l, c, func(all *peer.Farms) {
			all.Farms[0].Check = map[string]string{"type": "icmp", "interval": "5", "timeout": "1", "rise": "1", "fall": "3"}
		})
	})
	return all
}

const (
	rawDrop   = "iptables raw"
	firstDrop = "all packets, at ingress" // the least that any drop in nftables can cost
	listDrop  = "sluice blacklist"
	checked   = "sluice dnat, checked" // and so told of connections that its backends refuse
	oneRule   = "one rule"
	// directMaglev is one of the farms that need two look-ups.
	directMaglev = "sluice dsr, maglev"
)

// atIngress is one rule that all packets meet as they arrive.
func atIngress(l *testbed.Testbed, rule string) (*peer.Loaded, error) {
	_, err := l.Node.Run("nft", "add table netdev first; add chain netdev first ingress { type filter hook ingress device "+testbed.NodeIn+
		" priority 0; }; add rule netdev first ingress "+rule)
	return &peer.Loaded{Close: func() error { return nil }}, err
}

// blacklist has the generator's network be on a blacklist of the farm.
func blacklist(all *peer.Farms) {
	all.Policies = []peer.FarmPolicy{{Name: "bad", Type: "blacklist", Elements: []peer.FarmElement{{Data: inject.Sources.String()}}}}
	all.Farms[0].Verdict = "drop" // by default each packet would also be logged
	all.Farms[0].Policies = []peer.FarmPolicyName{{Name: "bad"}}
}

// loadFarm programs a farm that was edited.
func loadFarm(ctx context.Context, b peer.Balance, l *testbed.Testbed, c cluster.Cluster, edit func(*peer.Farms)) (*peer.Loaded, error) {
	s, err := peer.StartBalance(ctx, l.Node, b.Program)
	if err != nil {
		return nil, err
	}
	all := peer.FarmsOf(c, b.Mode, b.Protocol)
	edit(&all)
	if _, err := s.Call(ctx, http.MethodPost, "/farms", all); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &peer.Loaded{Close: s.Close}, nil
}

func runPackets(ctx context.Context, r *harness.Run) error {
	r.Skip("nftlb dsr and stlsdnat: they choose a backend for each packet, or need all devices to be one")
	if err := harness.InTurns(ctx, r, packetCases(r), measurePackets); err != nil {
		return err
	}
	for _, own := range []string{"sluice dnat", "sluice stlsdnat", "sluice dsr"} {
		a, b := r.Find(own, 1, newFlow, perPacket), r.Find("iptables DNAT", 1, newFlow, perPacket)
		if a != nil && b != nil {
			r.Note("Packets a second, %s: %s over iptables DNAT %s.", newFlow, own, report.Ratios(a, b))
		}
	}
	for _, v := range []string{established, newFlow} {
		if a, b := r.Find(checked, 1, v, micros), r.Find("sluice dnat", 1, v, micros); a != nil && b != nil {
			r.Note("Time a packet, %s: a farm with a health check over one without %s, as refused connections are looked for.", v, report.Ratios(a, b))
		}
	}
	if m := r.Find(firstDrop, 1, dropped, micros); m != nil {
		r.Note("Of each packet's time, about %s µs is its making, which is the same for all.", chart.Number(m.Median))
	}
	if a, b := r.Find("sluice dsr", 1, established, micros), r.Find(oneRule, 1, established, micros); a != nil && b != nil {
		got := report.Ratios(a, b)
		r.Goal(fmt.Sprintf("%s, %s, sluice dsr over %s", micros, established, oneRule), "≤ 1.14", got.String(), got.Median <= 1.14)
	}
	for _, g := range []struct {
		own, other, variant string
		least               float64
	}{
		{"sluice dnat", "iptables DNAT", established, 1}, {"sluice stlsdnat", "iptables DNAT", established, 3},
		{"sluice dsr", "iptables DNAT", established, 6}, {listDrop, rawDrop, dropped, 1.2},
	} {
		a, b := r.Find(g.own, 1, g.variant, perPacket), r.Find(g.other, 1, g.variant, perPacket)
		if a != nil && b != nil {
			got := report.Ratios(a, b)
			r.Goal(fmt.Sprintf("packets a second, %s, %s over %s", g.variant, g.own, g.other), "≥ "+chart.Number(g.least), got.String(), got.Median >= g.least)
		}
	}
	return nil
}

// flows is how many flows the packets belong to.
const flows = 256

// Many short runs find moments in which nothing else happens.
var (
	packetPace = harness.Pace{WarmUp: 5_000, Most: 20_000, Lasting: time.Second, Runs: 20, Keep: true}
	newPace    = harness.Pace{WarmUp: 5_000, Most: 20_000, Lasting: time.Second, Runs: 10}
)

func measurePackets(ctx context.Context, r *harness.Run, s *harness.Setup[packetCase]) (err error) {
	arrive, origin := cluster.Endpoints, testbed.ClientAddrs()[0]
	if s.Case.port() == cluster.ServicePort {
		arrive = cluster.Services // packets are as the client sent them
	}
	if s.Case.drop {
		origin = inject.Sources.Addr()
	} else if err := establish(s, origin); err != nil {
		return err
	}
	g, err := inject.New(s.Node, testbed.NodeIn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	c, err := inject.NewCounter(s.Backend, testbed.Uplink, arrive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	target := s.Case.target()
	if err := errors.Join(g.Aim(inject.Target{Base: target.Addr(), Count: 1, Port: target.Port()}), g.From(inject.Origin{Base: origin, Flows: flows, UDP: true})); err != nil {
		return err
	}
	if s.Case.drop {
		ns, err := dropCost(g, c)
		return recordPackets(r, s.Case, dropped, ns, err)
	}
	ns, err := packetPace.Cost(ctx, s.Testbed, g, c)
	if err := recordPackets(r, s.Case, established, ns, err); err != nil {
		return err
	}
	if err := g.From(inject.Origin{Base: inject.Sources.Addr(), UDP: true}); err != nil {
		return err
	}
	ns, err = newPace.Cost(ctx, s.Testbed, g, c)
	return recordPackets(r, s.Case, newFlow, ns, err)
}

// recordPackets adds a sample, unless packets got lost.
func recordPackets(r *harness.Run, p packetCase, variant string, ns float64, err error) error {
	if errors.Is(err, harness.ErrLost) {
		r.Note("%s, %s: a sample does not count, as %s.", p, variant, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", variant, err)
	}
	m := report.Measurement{Dataplane: p.name, Services: 1, Endpoints: backends, Variant: variant, Metric: perPacket, Unit: "1/s"}
	r.Add(m, 1e9/ns)
	m.Metric, m.Unit = micros, "µs"
	r.Add(m, ns/1000)
	return nil
}

// dropCost returns nanoseconds a packet of packets none of which may arrive.
func dropCost(g *inject.Generator, c *inject.Counter) (fastest float64, err error) {
	if err := c.Reset(); err != nil {
		return 0, err
	}
	for i := range packetPace.Runs + 1 { // the first warms up
		res, err := g.Send(packetPace.Most, harness.PacketCPU)
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

// establish has a datagram of each flow answered.
func establish(s *harness.Setup[packetCase], from netip.Addr) error {
	end, err := answerAll(s)
	if err != nil {
		return err
	}
	defer end()
	to := net.UDPAddrFromAddrPort(s.Case.target())
	buf := make([]byte, 64)
	for i := range flows {
		var client *net.UDPConn
		err := s.Client.Do(func() (err error) {
			client, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, inject.FirstPort+uint16(i))), to)
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

// answerAll answers datagrams to all backends, from the addresses that they came to.
func answerAll(s *harness.Setup[packetCase]) (end func(), err error) {
	at := []netip.AddrPort{netip.AddrPortFrom(cluster.ServiceAddr(0), s.Case.port())}
	for j := range backends {
		at = append(at, netip.AddrPortFrom(s.Case.Cluster.Endpoint(0, j).Addr(), s.Case.port()))
	}
	var servers []net.PacketConn
	end = func() {
		for _, c := range servers {
			_ = c.Close()
		}
	}
	for _, a := range at {
		err := s.Backend.Do(func() error {
			c, err := net.ListenPacket("udp", a.String())
			if err == nil {
				servers = append(servers, c)
			}
			return err
		})
		if err != nil {
			end()
			return nil, fmt.Errorf("answer datagrams: %w", err)
		}
	}
	for _, c := range servers {
		go func() {
			buf := make([]byte, 64)
			for {
				n, asker, err := c.ReadFrom(buf)
				if err != nil {
					return // it is closed
				}
				_, _ = c.WriteTo(buf[:n], asker) // a lost answer is missed by who asked
			}
		}()
	}
	return end, nil
}

func packetCharts(r *report.Result) []report.Figure {
	var all []report.Figure
	for _, v := range []struct{ name, variant, title string }{
		{"established", established, "Packets a second of established flows, one core"}, {"new", newFlow, "Packets a second, each a new flow, one core"},
	} {
		all = append(all, report.Draw(r, v.name, chart.Chart{
			Kind: chart.Bars, Title: v.title, Subtitle: "datagrams to one farm with three backends; higher is better", XLabel: "farms", YLabel: "packets a second",
		}, report.ByServices, perPacket, v.variant))
	}
	return all
}
