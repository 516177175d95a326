package balancer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Changes is the experiment balancer-changes.
var Changes = harness.Experiment{
	Name:  "balancer-changes",
	Title: "A backend goes down, or comes back",
	How: "Of farms with three backends, one backend of one farm after the other is set down by a PUT, and up again. By the API: from the request, on a connection of its own, to the answer, which Sluice gives when the kernel has the change. " +
		"By a check: a server begins to answer a health check with status 500, or with 200 again; from that answer to the kernel's commit. " +
		"By its refusals: one of the three begins to answer SYNs with resets while a client connects, one connection after the other; from the first that is refused to the last.",
	Run:    runChanges,
	Charts: changeCharts,
}

const (
	byAPI   = "by the API"
	byCheck = "by a check"
)

// changesARound is how many changes a sample's quantiles are of.
const changesARound = 100

func runChanges(ctx context.Context, r *harness.Run) error {
	own, nftlb := peer.Balance{Program: r.Binary, Mode: peer.DNAT}, peer.Nftlb{Mode: peer.DNAT}
	specs := append(cases([]int{1, 250, 2_000}, own), cases([]int{1, 250}, nftlb)...)
	if err := inTurns(ctx, r, specs, measureChanges); err != nil {
		return err
	}
	for _, way := range []string{byAPI, byCheck} {
		for _, q := range []string{harness.Half, harness.NinetyNine} {
			if m := r.Find(own.Name(), 2_000, way, q); m != nil {
				r.Goal("one backend down or up, 2,000 farms, "+way+", "+q, "≤ 2 ms", report.SpreadOf(m.Samples).String()+" ms", m.Median <= 2)
			}
		}
	}
	return nil
}

func measureChanges(ctx context.Context, r *harness.Run, c *changing) error {
	var times []time.Duration
	for i := range changesARound {
		farm, state := i/2*7%c.Cluster.Services, "down"
		if i%2 == 1 {
			state = "up"
		}
		began := time.Now()
		if err := c.set(ctx, farm, 1, state); err != nil {
			return err
		}
		times = append(times, time.Since(began))
	}
	recordQuantiles(r, c.ServiceCase, byAPI, times)
	if _, own := c.Dataplane.(peer.Balance); !own {
		return nil // it checks nothing
	}
	times, err := timeChecks(ctx, c)
	if err != nil {
		return err
	}
	recordQuantiles(r, c.ServiceCase, byCheck, times)
	times, err = timeRefusals(ctx, c)
	if err == nil {
		recordQuantiles(r, c.ServiceCase, byRefusals, times)
	}
	return err
}

func recordQuantiles(r *harness.Run, s harness.ServiceCase, way string, times []time.Duration) {
	slices.Sort(times)
	r.Record(s, way, harness.Half, "ms", harness.Millis(times[len(times)/2]))
	r.Record(s, way, harness.NinetyNine, "ms", harness.Millis(times[len(times)*99/100]))
}

// timeChecks has the last farm's backends checked, and returns how long the kernel took to have
// what the checks of one of them found.
func timeChecks(ctx context.Context, c *changing) (times []time.Duration, err error) {
	last := c.Cluster.Services - 1
	f := &faulty{at: c.Cluster.Endpoint(last, 0).Addr(), turned: make(chan time.Time, 1)}
	end, err := f.serve(c.Testbed)
	if err != nil {
		return nil, err
	}
	defer end()
	w, err := harness.WatchCommits(c.Node)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	check := map[string]string{"type": "http", "path": "/", "interval": "0.3", "timeout": "0.3", "rise": "1", "fall": "1"}
	if _, err := c.Call(ctx, http.MethodPut, "/farms", peer.Farms{Farms: []peer.Farm{{Name: peer.FarmName(last), Check: check}}}); err != nil {
		return nil, err
	}
	for range changesARound / 5 {
		if err := harness.Wait(ctx, 20*time.Millisecond); err != nil { // the last one's commits are over
			return nil, err
		}
		w.Discard()
		f.turn()
		commit, err := w.Last(ctx, 15*time.Millisecond)
		if err != nil {
			return nil, err
		}
		times = append(times, commit.At.Sub(<-f.turned))
	}
	return times, nil
}

// faulty is a server whose one address now and then turns bad, and good again.
type faulty struct {
	at     netip.Addr
	turned chan time.Time // when it first answered otherwise after each turn

	mu      sync.Mutex
	bad     bool
	pending bool // nobody has been answered since the last turn
}

func (f *faulty) turn() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bad, f.pending = !f.bad, true
}

// ServeHTTP implements http.Handler.
func (f *faulty) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	local, _ := q.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if local == nil || local.AddrPort().Addr().Unmap() != f.at {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bad {
		w.WriteHeader(http.StatusInternalServerError)
	}
	if f.pending {
		f.pending = false
		f.turned <- time.Now()
	}
}

// serve listens on all addresses of the backends.
func (f *faulty) serve(l *testbed.Testbed) (end func(), err error) {
	var listener net.Listener
	err = l.Backend.Do(func() error {
		var err error
		listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", cluster.TargetPort))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("answer health checks: %w", err)
	}
	server := &http.Server{Handler: f, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // until it is closed
	return func() { _ = server.Close() }, nil
}

func changeCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "p50", chart.Chart{
		Kind: chart.Bars, LogY: true, Title: "A backend set down or up by the API, until the answer", Subtitle: "median; lower is better",
		XLabel: "farms", YLabel: "ms (logarithmic)",
	}, report.ByServices, harness.Half, byAPI)}
}
