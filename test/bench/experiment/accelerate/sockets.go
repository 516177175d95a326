// Package accelerate has the experiments about what eBPF programs make faster.
package accelerate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Sockets is the experiment accelerate-sockets.
var Sockets = harness.Experiment{
	Name:  "accelerate-sockets",
	Title: "What a service costs the program that asks it",
	How: "A thread in a pod connects to the last service and closes, or asks and is answered on a connection, or asks by UDP as a resolver does; the same thread is the server, and what packets cost is in its CPU time. " +
		"It does the same with an endpoint's own address, in turns of 100, in the same pod and beside the same tables: the ratio, the median of all turns, is what the service costs. " +
		"What the tables cost beside that is in the notes: there, the ratio is to an endpoint's own address on a node that only forwards.",
	Run:    runSockets,
	Charts: socketCharts,
}

// pod is the client's address: one of the cluster's pods.
var pod = netip.MustParsePrefix("198.19.255.1/32")

// podCase is a case whose client is a pod.
type podCase struct{ harness.ServiceCase }

// NewTestbed implements harness.Case.
func (podCase) NewTestbed(prefix string) (*testbed.Testbed, error) {
	l, err := testbed.New(prefix)
	if err != nil {
		return nil, err
	}
	if err := l.From(pod.Addr()); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// endpoints of a service.
const endpoints = 5

const (
	cost     = "time of a call"
	overhead = "over an endpoint's own address"
)

func runSockets(ctx context.Context, r *harness.Run) error {
	sizes, listed := []int{1, 1_000}, []int{1, 1_000}
	if r.Full() {
		sizes, listed = []int{1, 10_000, 100_000}, []int{1, 10_000}
	}
	var cases []podCase
	for _, proto := range []model.Protocol{model.TCP, model.UDP} {
		for _, c := range slices.Concat(
			harness.Cases(endpoints, 0, sizes, peer.Sluice{Mode: peer.AtSocket}, peer.Sluice{}),
			harness.Cases(endpoints, 0, listed, peer.KubeIptables{}), harness.Cases(endpoints, 0, []int{1}, peer.Plain{})) {
			c.Cluster.Protocol = proto
			cases = append(cases, podCase{c})
		}
	}
	if err := harness.InTurns(ctx, r, cases, measureSockets); err != nil {
		return err
	}
	socketGoals(r, sizes)
	return nil
}

func measureSockets(_ context.Context, r *harness.Run, s *harness.Setup[podCase]) error {
	kinds := []string{load.Connect, load.Exchange}
	if s.Case.Cluster.Transport() == model.UDP {
		kinds = []string{load.Datagram}
	}
	last := s.Case.Cluster.Services - 1
	calls := load.Calls{Client: s.Testbed.Client, Backend: s.Testbed.Backend, Port: cluster.TargetPort, CPU: harness.PacketCPU}
	turns := 50
	if r.Full() {
		turns = 200
	}
	for _, kind := range kinds {
		if err := s.Testbed.FlushConntrack(); err != nil {
			return err
		}
		to := []netip.AddrPort{netip.AddrPortFrom(cluster.ServiceAddr(last), cluster.ServicePort), s.Case.Cluster.Endpoint(last, 0)}
		if s.Case.Dataplane == (peer.Plain{}) {
			to = to[1:]
		}
		took, err := calls.Run(kind, to, turns, 100)
		if err != nil {
			return err
		}
		r.Record(s.Case.ServiceCase, kind, cost, "µs", harness.Micros(median(slices.Clone(took[0]))))
		if len(to) == 1 {
			continue
		}
		var ratios []float64
		for i := range took[0] {
			ratios = append(ratios, took[0][i].Seconds()/took[1][i].Seconds())
		}
		r.Record(s.Case.ServiceCase, kind, overhead, "×", median(ratios))
	}
	return s.Testbed.FlushConntrack()
}

func median[T cmp.Ordered](of []T) T {
	slices.Sort(of)
	return of[len(of)/2]
}

func socketGoals(r *harness.Run, sizes []int) {
	fast := peer.Sluice{Mode: peer.AtSocket}
	for _, g := range []struct {
		kind string
		most float64
	}{{load.Connect, 1.05}, {load.Exchange, 1.01}, {load.Datagram, 1.10}} {
		for _, n := range sizes {
			is := r.Find(fast.Name(), n, g.kind, overhead)
			if is == nil {
				continue
			}
			r.Goal(fmt.Sprintf("%s, %s services, over an endpoint's own address", g.kind, chart.Number(float64(n))),
				fmt.Sprintf("≤ %.2f", g.most), fmt.Sprintf("%.3f", is.Median), is.Median <= g.most)
			for _, p := range []peer.Dataplane{fast, peer.Sluice{}, peer.KubeIptables{}} {
				with, without := r.Find(p.Name(), n, g.kind, cost), r.Find(peer.Plain{}.Name(), 1, g.kind, cost)
				if with != nil && without != nil {
					r.Note("%s, %s, %s services, over a node that only forwards: %s.", p.Name(), g.kind, chart.Number(float64(n)), report.Ratios(with, without))
				}
			}
			for _, p := range []peer.Dataplane{peer.Sluice{}, peer.KubeIptables{}} {
				beside := r.Find(p.Name(), n, g.kind, overhead)
				if beside == nil {
					continue
				}
				r.Note("%s, %s, %s services: %.3f.", p.Name(), g.kind, chart.Number(float64(n)), beside.Median)
				a, b := r.Find(fast.Name(), n, g.kind, cost), r.Find(p.Name(), n, g.kind, cost)
				if p == (peer.KubeIptables{}) {
					r.Goal(fmt.Sprintf("%s, %s services, over kube-proxy's iptables", g.kind, chart.Number(float64(n))),
						"≤ 1.00", report.Ratios(a, b).String(), report.Ratios(a, b).Median <= 1)
				}
			}
		}
	}
}

func socketCharts(r *report.Result) (figures []report.Figure) {
	for _, v := range []struct{ name, kind, title string }{
		{"connect", load.Connect, "Connect and close"}, {"exchange", load.Exchange, "Request and response on a connection"},
		{"datagram", load.Datagram, "A request of UDP, as a resolver makes it"},
	} {
		figures = append(figures, report.Draw(r, v.name, chart.Chart{
			Kind: chart.Bars, Title: v.title, Subtitle: "CPU time of the program and of the packets, the tables and connection tracking included; lower is better",
			XLabel: "services", YLabel: "µs",
		}, report.ByServices, cost, v.kind))
	}
	return figures
}
