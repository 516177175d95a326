package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Lists is the experiment policy-lists.
var Lists = harness.Experiment{
	Name:  "policy-lists",
	Title: "What a block list costs the packets that it does not hold",
	How: "Datagrams from new random addresses, none of them in the list, enter a node as XDP live frames, are forwarded, and are counted and dropped as they " +
		"leave; all on one core. The time from the first to the last divided by their number, of three runs the fastest: once with connection tracking (each is a new flow then), once without, which is the least that forwarding can cost. " +
		"Listed addresses are random too, and lie between those that send. " +
		"A list of networks has twenty prefix lengths, as public ones have. Sluice looks into its list at the ingress hook, in mode iptables before connection tracking, and an XDP program, to compare with, at the device; its host endpoint and the other programs look where packets are forwarded.",
	Run:    runLists,
	Charts: listCharts,
}

func runLists(ctx context.Context, r *harness.Run) error {
	usual, large := listSizes(r)
	specs := slices.Concat(
		listCases(peer.DenyList{}, ofAddresses, 0, usual, large), listCases(peer.DenyList{}, ofNetworks, usual),
		listCases(peer.HostPolicy{}, ofAddresses, 0, usual),
		listCases(peer.DenyList{Mode: peer.IptablesLegacy}, ofAddresses, 0, usual, large), listCases(peer.DenyList{Mode: peer.IptablesLegacy}, ofNetworks, usual),
		listCases(peer.Ipset{}, ofAddresses, 0, usual, large), listCases(peer.Ipset{}, ofNetworks, usual),
		listCases(peer.NftSet{}, ofAddresses, 0, usual), listCases(peer.Rules{}, ofAddresses, usual),
		listCases(peer.XDP{}, ofAddresses, 0, usual, large), listCases(peer.XDP{}, ofNetworks, usual), listCases(peer.Forwarding{}, ofAddresses, 0))
	if err := harness.InTurns(ctx, r, specs, measureList); err != nil {
		return err
	}
	listGoals(r, usual, large)
	return nil
}

// trackedPace and untrackedPace begin with few packets: each may walk a hundred thousand rules.
var (
	trackedPace   = harness.Pace{WarmUp: 200, Most: harness.MaxFlows, Lasting: 150 * time.Millisecond, Runs: 3}
	untrackedPace = harness.Pace{WarmUp: 200, Most: 2_000_000, Lasting: 150 * time.Millisecond, Runs: 3}
)

func measureList(ctx context.Context, r *harness.Run, s *harness.Setup[listCase]) (err error) {
	g, c, end, err := harness.Injector(s.Testbed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	err = errors.Join(g.From(cluster.Unlisted), g.Aim(inject.Target{Base: cluster.Endpoints.Addr(), First: 1, Count: 1, Port: cluster.TargetPort}))
	if err != nil {
		return err
	}
	for _, v := range []struct {
		metric string
		track  bool
		pace   harness.Pace
	}{{tracked, true, trackedPace}, {untracked, false, untrackedPace}} {
		if !v.track && s.Case.Blocker == (peer.HostPolicy{}) {
			continue // policy does not apply to such packets: they count as allowed by a doNotTrack policy
		}
		if err := s.Track(v.track); err != nil {
			return err
		}
		ns, err := v.pace.Cost(ctx, s.Testbed, g, c)
		if errors.Is(err, harness.ErrLost) {
			r.Note("%s: a sample does not count, as %s.", s.Case, err)
			continue
		}
		if err != nil {
			return err
		}
		recordList(r, s.Case, v.metric, "µs", ns/1000)
	}
	return nil
}

func listGoals(r *harness.Run, usual, large int) {
	for _, metric := range []string{tracked, untracked} {
		for _, g := range []struct {
			size int
			most float64
		}{{usual, 1.05}, {large, 1.10}} {
			if ratio, ok := ratioToNoList(r, listCase{peer.DenyList{}, ofAddresses, g.size}, metric); ok {
				r.Goal(fmt.Sprintf("forwarding with %s unmatched addresses over none, %s", chart.Number(float64(g.size)), metric),
					fmt.Sprintf("≤ %.2f", g.most), ratio.String(), ratio.Median <= g.most)
			}
		}
		for _, b := range slices.Concat(
			listCases(peer.DenyList{}, ofNetworks, usual), listCases(peer.HostPolicy{}, ofAddresses, usual),
			listCases(peer.DenyList{Mode: peer.IptablesLegacy}, ofAddresses, usual, large), listCases(peer.DenyList{Mode: peer.IptablesLegacy}, ofNetworks, usual),
			listCases(peer.Ipset{}, ofAddresses, usual, large), listCases(peer.Ipset{}, ofNetworks, usual),
			listCases(peer.NftSet{}, ofAddresses, usual), listCases(peer.Rules{}, ofAddresses, usual),
			listCases(peer.XDP{}, ofAddresses, usual, large), listCases(peer.XDP{}, ofNetworks, usual),
		) {
			if ratio, ok := ratioToNoList(r, b, metric); ok {
				r.Note("%s, %s, over none: %s.", b, metric, ratio)
			}
		}
		for _, b := range []peer.DenyList{{}, {Mode: peer.IptablesLegacy}} {
			if own, floor := withoutList(r, b, metric), withoutList(r, peer.Forwarding{}, metric); own != nil && floor != nil {
				r.Note("%s without a list over plain forwarding, %s: %s.", b.Name(), metric, report.Ratios(own, floor))
			}
		}
	}
}

func listCharts(r *report.Result) []report.Figure {
	var ps []report.Figure
	for _, v := range []struct{ name, metric, how string }{{"tracked", tracked, "each a new tracked flow"}, {"untracked", untracked, "without connection tracking"}} {
		ps = append(ps, report.Draw(r, v.name, chart.Chart{
			Kind: chart.Bars, LogY: true, Title: "What a block list costs the packets that it does not hold",
			Subtitle: "datagrams from random addresses, " + v.how + ", one core; lower is better",
			XLabel:   "addresses in the list", YLabel: "µs a packet (logarithmic)",
		}, report.ByAddresses, v.metric, ofAddresses))
	}
	return ps
}
