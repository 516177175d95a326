package policy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Copy is the experiment policy-copy.
var Copy = harness.Experiment{
	Name:  "policy-copy",
	Title: "What a block list costs a bulk TCP copy",
	How: "A client sends on one TCP connection through the node as fast as it is read; both ends and the packets between share one thread and core. " +
		"Of five copies in a row, a fifth of a second each, the fastest counts. The connection's address is in no list. Bare is plain forwarding: no rules, no connection tracking.",
	Run:    runCopy,
	Charts: copyCharts,
}

const copied = "bytes a second"

// copies is how many copies a sample takes. The fastest counts, as only other work makes one
// slower.
const copies = 5

func runCopy(ctx context.Context, r *harness.Run) error {
	usual, large := listSizes(r)
	specs := slices.Concat(
		listCases(peer.DenyList{}, ofAddresses, 0, usual, large), listCases(peer.Ipset{}, ofAddresses, usual),
		listCases(peer.Rules{}, ofAddresses, usual), listCases(peer.Forwarding{}, ofAddresses, 0))
	if err := harness.InTurns(ctx, r, specs, measureCopy); err != nil {
		return err
	}
	bare := withoutList(r, peer.Forwarding{}, copied)
	for _, b := range specs {
		m := r.Same(b.measurement(copied, ""))
		if m == nil || bare == nil || m == bare {
			continue
		}
		kept := report.Ratios(m, bare)
		if b.Blocker == (peer.DenyList{}) && b.size == usual {
			r.Goal(fmt.Sprintf("speed of a bulk TCP copy with %s addresses over bare", chart.Number(float64(usual))), "≥ 0.98", kept.String(), kept.Median >= 0.98)
		} else {
			r.Note("%s, over bare: %s.", b, kept)
		}
	}
	return nil
}

func measureCopy(ctx context.Context, r *harness.Run, s *harness.Setup[listCase]) error {
	if err := s.FlushConntrack(); err != nil {
		return err
	}
	var fastest float64
	for range copies {
		c, err := load.Copy(ctx, load.CopyConfig{
			Client: s.Client, Backend: s.Backend, CPU: harness.PacketCPU, Duration: r.Short(200*time.Millisecond, 50*time.Millisecond),
			Target: netip.AddrPortFrom(cluster.Cluster{Endpoints: 1}.Endpoint(0, 0).Addr(), cluster.TargetPort),
			Port:   cluster.TargetPort,
		})
		if err != nil {
			return err
		}
		fastest = max(fastest, c.Rate())
	}
	recordList(r, s.Case, copied, "GB/s", fastest/1e9)
	return nil
}

func copyCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "speed", chart.Chart{
		Kind: chart.Bars, Title: "A bulk TCP copy through a node with a block list",
		Subtitle: "one connection, both ends and all packets on one core; higher is better",
		XLabel:   "addresses in the list", YLabel: "GB/s",
	}, report.ByAddresses, copied, ofAddresses)}
}
