package balancer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Loading is the experiment balancer-loading.
var Loading = harness.Experiment{
	Name:  "balancer-loading",
	Title: "Farms from JSON to the kernel",
	How: "Farms with three backends each. Posted: all of them in one request to a program that has none, until its answer. At start: they are in the file of --config, until the program is ready, from the start of its process. " +
		"Then a packet is sent to each farm; those that reach a backend are counted.",
	Run:    runLoading,
	Charts: loadingCharts,
}

const (
	posted  = "posted"
	atStart = "at start"
	took    = "time to the kernel"
	memory  = "resident memory"
	served  = "farms that work"
)

// loadCase is a program that gets so many farms in one of two ways.
type loadCase struct {
	farmCase
	way  string
	once bool // in the first round only
}

func runLoading(ctx context.Context, r *harness.Run) error {
	own, nftlb := peer.Balance{Program: r.Binary, Mode: peer.DNAT}, peer.Nftlb{Mode: peer.DNAT}
	var specs []loadCase
	add := func(d peer.Dataplane, way string, farms ...int) {
		for _, c := range cases(farms, d) {
			specs = append(specs, loadCase{farmCase: c, way: way, once: way == posted && d == nftlb && c.Cluster.Services > 500})
		}
	}
	add(own, posted, 250, 2_000)
	add(own, atStart, 2_000)
	add(nftlb, posted, 250)
	if r.Full() {
		add(own, posted, 500, 1_000, 20_000)
		add(own, atStart, 100_000)
		add(nftlb, posted, 500, 1_000)
		r.Skip("nftlb, 2,000 farms: it holds 4,095 backends at most, and takes five minutes")
	}
	for round := range r.Options.Rounds {
		for _, s := range specs {
			if s.once && round > 0 {
				continue
			}
			r.Logf("round %d of %d: %s, %s", round+1, r.Options.Rounds, s, s.way)
			err := loadOnce(ctx, r, s)
			if errors.Is(err, peer.ErrMissing) {
				r.Skip("%s", err)
			} else if err != nil {
				return fmt.Errorf("%s, %s: %w", s, s.way, err)
			}
		}
	}
	loadingGoals(r, own.Name())
	return nil
}

// loadOnce loads farms into a testbed of their own.
func loadOnce(ctx context.Context, r *harness.Run, s loadCase) (err error) {
	l, err := r.NewTestbed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	document, err := json.Marshal(s.farms())
	if err != nil {
		return err
	}
	load := s.post
	if s.way == atStart {
		load = s.startWith
	}
	server, d, err := load(ctx, l, document)
	if server != nil {
		defer func() { err = errors.Join(err, server.Close()) }()
	}
	if err != nil {
		return err
	}
	bytes, err := harness.ResidentMemory(server.Pid())
	if err != nil {
		return err
	}
	works, err := countServed(l, s.Cluster.Services)
	if err != nil {
		return err
	}
	r.Record(s.ServiceCase, s.way, took, "ms", harness.Millis(d))
	r.Record(s.ServiceCase, s.way, memory, "MB", float64(bytes)/1e6)
	r.Record(s.ServiceCase, s.way, served, "farms", float64(works))
	return nil
}

// post posts farms to a program that has none, and returns the time to its answer.
func (s loadCase) post(ctx context.Context, l *testbed.Testbed, document []byte) (*peer.FarmServer, time.Duration, error) {
	server, err := s.start(ctx, l)
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	_, err = server.Call(ctx, http.MethodPost, "/farms", json.RawMessage(document))
	return server, time.Since(began), err
}

// startWith starts a program that has the farms in its file, and returns the time until it is
// ready.
func (s loadCase) startWith(ctx context.Context, l *testbed.Testbed, document []byte) (*peer.FarmServer, time.Duration, error) {
	dir, err := os.MkdirTemp(harness.WorkDir(), l.Node.Name+"-*")
	if err != nil {
		return nil, 0, fmt.Errorf("write farms: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "farms.json")
	if err := os.WriteFile(file, document, 0o600); err != nil {
		return nil, 0, fmt.Errorf("write farms: %w", err)
	}
	began := time.Now()
	server, err := s.start(ctx, l, "--config", file)
	if err != nil {
		return nil, 0, err
	}
	err = server.Ready(ctx)
	return server, time.Since(began), err
}

// countServed sends a packet to each farm, and returns how many reach a backend.
func countServed(l *testbed.Testbed, farms int) (works int, err error) {
	g, c, end, err := harness.Injector(l)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err := g.Aim(inject.Target{Base: cluster.ServiceAddr(0), Count: farms, Port: cluster.ServicePort}); err != nil {
		return 0, err
	}
	if _, err := g.Send(farms, harness.PacketCPU); err != nil {
		return 0, err
	}
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		arrived, err := c.Read()
		if err != nil || arrived.Backend+arrived.Other >= farms || time.Now().After(end) {
			return arrived.Backend, errors.Join(err, l.FlushConntrack())
		}
	}
}

func loadingGoals(r *harness.Run, own string) {
	for _, way := range []string{posted, atStart} {
		if m := r.Find(own, 2_000, way, took); m != nil {
			r.Goal("2,000 farms with three backends, "+way+", until the kernel has them", "≤ 300 ms", report.SpreadOf(m.Samples).String()+" ms", m.Median <= 300)
		}
	}
	for _, m := range r.Series {
		if m.Metric != served {
			continue
		}
		if m.Dataplane == own {
			r.Goal(fmt.Sprintf("%s, %s: farms that work", farmCount(m.Services), m.Variant), "all", fmt.Sprint(m.Min), int(m.Min) == m.Services)
		} else if int(m.Min) != m.Services {
			r.Note("%s: %.0f of %s work.", m.Dataplane, m.Min, farmCount(m.Services))
		}
	}
}

func loadingCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "time", chart.Chart{
		Kind: chart.Bars, LogY: true, Title: "Farms from JSON to the kernel",
		Subtitle: "three backends each, all in one request; lower is better", XLabel: "farms", YLabel: "ms (logarithmic)",
	}, report.ByServices, took, posted)}
}
