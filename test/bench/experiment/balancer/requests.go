package balancer

import (
	"context"
	"fmt"
	"time"

	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Requests is the experiment balancer-requests.
var Requests = harness.Experiment{
	Name:  "balancer-requests",
	Title: "HTTP requests a second through a balancer",
	How: "A client sends HTTP requests to the last farm, which has three backends, each on a connection of its own, 16 at once, as fast as they are answered; an answer has 210 bytes. " +
		"Client, servers and all packets between share one core, HAProxy too. CPU a connection is the busy time of all cores by /proc/stat, with whatever else ran; own CPU is that of the thread that is client and server and carries the packets, without HAProxy's. " +
		"iptables has a rule for each service, and a chain for each with one rule a backend (statistic, mode nth).",
	Run:    runRequests,
	Charts: requestCharts,
}

const (
	rate    = "requests a second"
	cost    = "CPU a connection"
	ownCost = "own CPU a connection"
	atOnce  = 16
	bodyLen = 147 // with its head, the answer has 210 bytes
)

// ahead is how many farms there are besides the one that is used, and that one.
const ahead = 5_001

func runRequests(ctx context.Context, r *harness.Run) error {
	dnat, snat := peer.Balance{Program: r.Binary, Mode: peer.DNAT}, peer.Balance{Program: r.Binary, Mode: peer.SNAT}
	specs := append(cases([]int{1}, dnat, peer.Nth{}, snat, peer.Nth{Masquerade: true},
		peer.Nftlb{Mode: peer.DNAT}, peer.Nftlb{Mode: peer.SNAT}, peer.HAProxy{CPU: harness.PacketCPU},
		peer.Balance{Program: r.Binary, Mode: peer.Stateless}, peer.Balance{Program: r.Binary, Mode: peer.DSR}, peer.Plain{}),
		cases([]int{ahead}, dnat, peer.Nth{}, snat, peer.Nth{Masquerade: true})...)
	if err := probe.Missing(ctx, ipvs.Requirements); err != nil {
		r.Skip("IPVS: %s; it is measured in the guest (docs/measured.md)", err)
	} else {
		specs = append(specs, cases([]int{1, ahead}, peer.IPVS{})...)
	}
	r.Skip("nftlb, 5,001 farms: it holds 4,095 backends at most")
	r.Skip("nftlb stlsdnat: no connection is answered where clients and backends are on different devices")
	if err := harness.InTurns(ctx, r, specs, measureRequests); err != nil {
		return err
	}
	for _, farms := range []int{1, ahead} {
		least := 1.0
		if farms == ahead {
			least = 1.4
		}
		for _, pair := range [][2]string{{dnat.Name(), peer.Nth{}.Name()}, {snat.Name(), peer.Nth{Masquerade: true}.Name()}} {
			compare(r, pair[0], pair[1], farms, rate, least)
			if a, b := r.Find(pair[0], farms, "", ownCost), r.Find(pair[1], farms, "", ownCost); a != nil && b != nil {
				r.Note("%s, %s over %s, %s: %s.", ownCost, pair[0], pair[1], farmCount(farms), report.Ratios(a, b))
			}
		}
	}
	return nil
}

func measureRequests(ctx context.Context, r *harness.Run, s *harness.Setup[farmCase]) error {
	if err := s.FlushConntrack(); err != nil {
		return err
	}
	was, err := harness.BusyTime()
	if err != nil {
		return err
	}
	res, err := load.Run(ctx, load.Config{
		Client: s.Client, Sources: testbed.ClientAddrs(), Target: s.Case.target(), Backend: s.Backend, Port: s.Case.port(),
		Body: bodyLen, Concurrency: atOnce, Duration: time.Second, CPU: harness.PacketCPU,
	})
	if err != nil {
		return err
	}
	now, err := harness.BusyTime()
	if err != nil {
		return err
	}
	if res.Failed > 0 {
		r.Note("%s: %d of %d requests failed %v.", s.Case, res.Failed, res.Failed+res.Requests, res.Reasons)
	}
	if res.Requests == 0 {
		return fmt.Errorf("no request was answered: %v", res.Reasons)
	}
	r.Record(s.Case.ServiceCase, "", rate, "1/s", res.PerSecond())
	r.Record(s.Case.ServiceCase, "", cost, "µs", harness.Micros(now-was)/float64(res.Requests))
	r.Record(s.Case.ServiceCase, "", ownCost, "µs", harness.Micros(res.CPU)/float64(res.Requests))
	return s.FlushConntrack()
}

func requestCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "rate", chart.Chart{
		Kind: chart.Bars, Title: "HTTP requests a second through a balancer, no keep-alive",
		Subtitle: "three backends; client, servers and packets share one core; higher is better",
		XLabel:   "farms", YLabel: "requests a second",
	}, report.ByServices, rate, "")}
}
