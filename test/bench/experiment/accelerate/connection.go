package accelerate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Connection is the experiment accelerate-connection.
var Connection = harness.Experiment{
	Name:  "accelerate-connection",
	Title: "CPU of a balancer's network namespace for one short HTTP connection",
	How: "The segments of 10,000 connections, one kind after the other: five of the client's (SYN, ACK, request, ACK, FIN) as XDP live frames on the node's device, and, where answers pass by, four of the server's on the other device. " +
		"Packets end as they are about to leave the node (by XDP: as they arrive at the far end of the veth pair), so that its namespace's own work alone counts, and no network card's. Each segment's time is the least of eight runs, less what one takes that the first rule at ingress drops. " +
		"Two cores: each with connections of its own, both at once. An entry of connection tracking ends by a flush. Requests and answers are empty.",
	Run:    runConnection,
	Charts: connectionCharts,
}

const (
	perConnection = "CPU a connection"
	oneCore       = "one core"
	twoCores      = "two cores"
	// Parts of oneCore.
	opened  = "one core: SYN"
	others  = "one core: the client's other segments"
	answers = "one core: answers"
	ended   = "one core: end of the entry"

	connections = 10_000
)

func connectionCases(r *harness.Run) []program {
	own := func(m peer.FarmMode) peer.Dataplane { return peer.Balance{Program: r.Binary, Mode: m} }
	all := []program{dropFirst(), of(peer.Plain{}, 1), forwardAll()}
	for _, d := range []peer.Dataplane{own(peer.DSR), own(peer.DNAT), peer.Nth{}, peer.Nftlb{Mode: peer.DNAT}} {
		all = append(all, of(d, 1))
	}
	return append(all, of(own(peer.DSR), 1_000), of(peer.Nth{}, 1_000), of(peer.Balance{Program: r.Binary, Mode: peer.DSR, XDP: true}, 1))
}

func runConnection(ctx context.Context, r *harness.Run) error {
	noteMitigations(r)
	cores := min(2, runtime.NumCPU())
	if cores < 2 {
		r.Skip("two cores: this machine has one")
	}
	made := make([]costs, cores) // by the number of cores, in this round
	err := harness.InTurns(ctx, r, connectionCases(r), func(ctx context.Context, r *harness.Run, s *harness.Setup[program]) (err error) {
		st, err := newStage(s, cores)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, st.Close()) }()
		for i := range cores {
			c, err := st.replay(ctx, st.cores[:i+1], connections, 8)
			switch {
			case errors.Is(err, harness.ErrLost):
				r.Note("%s: a sample does not count, as %s.", s.Case, err)
			case err != nil:
				return err
			case s.Case.name == making:
				made[i] = c
			default:
				recordConnection(r, s.Case, i, c, slices.Min(made[i].segments))
			}
		}
		return nil
	})
	if err == nil {
		explain(r)
	}
	return err
}

// recordConnection adds a sample of each quantity; making is what the making of a packet takes.
func recordConnection(r *harness.Run, p program, cores int, c costs, making float64) {
	parts := map[string]float64{opened: 0, others: 0, answers: 0, ended: c.end}
	all := c.end
	for i, s := range segments {
		part := others
		switch {
		case p.direct && s.Answer:
			continue
		case s.Answer:
			part = answers
		case i == 0:
			part = opened
		}
		parts[part] += c.segments[i] - making
		all += c.segments[i] - making
	}
	add := func(variant string, ns float64) {
		r.Add(report.Measurement{Dataplane: p.name, Services: p.Cluster.Services, Endpoints: p.Cluster.Endpoints, Variant: variant, Metric: perConnection, Unit: "µs"}, ns/1000)
	}
	add([]string{oneCore, twoCores}[cores], all)
	if cores == 0 {
		for _, v := range []string{opened, others, answers, ended} {
			add(v, parts[v])
		}
	}
}

// explain says what the difference to direct server return consists of.
func explain(r *harness.Run) {
	find := func(plane string, services int, variant string) *report.Measurement {
		return r.Find(plane, services, variant, perConnection)
	}
	const dsr, early, iptables = "sluice dsr", "sluice dsr, XDP", "iptables DNAT"
	for _, other := range []string{iptables, "nftlb dnat", "sluice dnat"} {
		for _, v := range []string{oneCore, twoCores} {
			if a, b := find(other, 1, v), find(dsr, 1, v); a != nil && b != nil {
				r.Note("CPU a connection, %s: %s over sluice dsr %s.", v, other, report.Ratios(a, b))
			}
		}
	}
	if a, b := find(iptables, 1, oneCore), find(early, 1, oneCore); a != nil && b != nil {
		got := report.Ratios(a, b)
		r.Goal("CPU a connection, "+oneCore+", "+iptables+" over "+early, "≥ 10", got.String(), got.Median >= 10)
	}
	if a, b := find(iptables, 1_000, oneCore), find(dsr, 1_000, oneCore); a != nil && b != nil {
		r.Note("CPU a connection, %s, the last of 1,000 services: %s over sluice dsr %s.", oneCore, iptables, report.Ratios(a, b))
	}
	text := ""
	for _, cause := range []struct {
		what     string
		of, less *report.Measurement
		times    float64
	}{
		{"packets of answers", find(iptables, 1, answers), nil, 0},
		{"an entry made, and the rules met", find(iptables, 1, opened), find(iptables, 1, others), 0.25},
		{"the entry ended", find(iptables, 1, ended), nil, 0},
		{"999 rules in a row before", find(iptables, 1_000, opened), find(iptables, 1, opened), 1},
		{"a second core beside", find(iptables, 1, twoCores), find(iptables, 1, oneCore), 1},
	} {
		if cause.of == nil {
			continue
		}
		us := cause.of.Median
		if cause.less != nil {
			us -= cause.times * cause.less.Median
		}
		text += fmt.Sprintf("; %s %s µs", cause.what, chart.Number(us))
	}
	if text != "" {
		r.Note("What %s takes for a connection, by cause%s.", iptables, text)
	}
}

func connectionCharts(r *report.Result) []report.Figure {
	var all []report.Figure
	for _, v := range []struct{ name, variant string }{{"one", oneCore}, {"two", twoCores}} {
		all = append(all, report.Draw(r, v.name, chart.Chart{
			Kind: chart.Bars, Title: "CPU of the balancer alone for a short HTTP connection, " + v.variant,
			Subtitle: "without the making of packets; lower is better", XLabel: "services", YLabel: "µs",
		}, report.ByServices, perConnection, v.variant))
	}
	return all
}
