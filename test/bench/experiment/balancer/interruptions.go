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
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Interruptions is the experiment balancer-interruptions.
var Interruptions = harness.Experiment{
	Name:  "balancer-interruptions",
	Title: "Requests that fail while a balancer restarts or changes",
	How: "A client sends 2,000 HTTP requests a second to the last farm, each on a connection of its own, with a second to be answered. Meanwhile the program is killed and started again with the same file (restart), " +
		"backends of that farm are set off and up 50 times in turns (toggles), or all farms are posted again, each with another scheduler (reload).",
	Run:    runInterruptions,
	Charts: interruptionCharts,
}

const (
	failed   = "failed requests"
	requests = "requests"
)

// event is what happens to a program while requests go on.
type event struct {
	name string
	do   func(ctx context.Context, c *changing) error
}

var events = []event{{"restart", restart}, {"toggles", toggle}, {"reload", reload}}

func runInterruptions(ctx context.Context, r *harness.Run) error {
	own, nftlb := peer.Balance{Program: r.Binary, Mode: peer.DNAT}, peer.Nftlb{Mode: peer.DNAT}
	sizes := r.Sizes([]int{250, 2_000}, []int{250, 2_000})
	specs := append(cases(sizes, own), cases(sizes[:1], nftlb)...)
	if err := inTurns(ctx, r, specs, interrupt); err != nil {
		return err
	}
	for _, e := range events {
		for _, m := range r.Series {
			if m.Dataplane == own.Name() && m.Variant == e.name && m.Metric == failed {
				all := r.Find(m.Dataplane, m.Services, m.Variant, requests)
				r.Goal(fmt.Sprintf("failed requests during %s, %s", e.name, farmCount(m.Services)), "0",
					fmt.Sprintf("%.0f of %s", sum(m.Samples), chart.Number(sum(all.Samples))), sum(m.Samples) == 0)
			}
		}
	}
	return nil
}

func sum(samples []float64) (all float64) {
	for _, s := range samples {
		all += s
	}
	return all
}

// calm is how long requests go on before and after an event.
const calm = 500 * time.Millisecond

func interrupt(ctx context.Context, r *harness.Run, c *changing) error {
	for _, e := range events {
		if err := c.FlushConntrack(); err != nil {
			return err
		}
		res, took, err := underLoad(ctx, c, e)
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		if res.Failed > 0 {
			r.Note("%s, %s: %d of %d requests failed %v.", c.farmCase, e.name, res.Failed, res.Failed+res.Requests, res.Reasons)
		}
		r.Record(c.ServiceCase, e.name, failed, "", float64(res.Failed))
		r.Record(c.ServiceCase, e.name, requests, "", float64(res.Failed+res.Requests))
		r.Record(c.ServiceCase, e.name, "duration", "ms", harness.Millis(took))
	}
	return nil
}

// underLoad has an event happen while requests go on.
func underLoad(ctx context.Context, c *changing, e event) (res *load.Result, took time.Duration, err error) {
	loading, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		var err error
		res, err = load.Run(loading, load.Config{
			Client: c.Client, Sources: testbed.ClientAddrs(), Target: c.target(), Backend: c.Backend, Port: c.port(),
			Body: bodyLen, Rate: 2_000, Duration: time.Hour, CPU: harness.PacketCPU,
		})
		ended <- err
	}()
	err = harness.Wait(ctx, calm)
	began := time.Now()
	if err == nil {
		err = e.do(ctx, c)
	}
	took = time.Since(began)
	err = errors.Join(err, harness.Wait(ctx, calm))
	stop()
	return res, took, errors.Join(err, <-ended)
}

// restart kills the program, and starts it with its farms in a file.
func restart(ctx context.Context, c *changing) error {
	dir, err := os.MkdirTemp(harness.WorkDir(), c.Node.Name+"-*")
	if err != nil {
		return fmt.Errorf("write farms: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	document, err := json.Marshal(c.farms())
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "farms.json")
	if err := errors.Join(os.WriteFile(file, document, 0o600), c.FarmServer.Close()); err != nil {
		return err
	}
	_, own := c.Dataplane.(peer.Balance)
	flag := "-c"
	if own {
		flag = "--config"
	}
	if c.FarmServer, err = c.start(ctx, c.Testbed, flag, file); err == nil && own {
		err = c.Ready(ctx)
	}
	return err
}

// toggle sets backends off and up, one after the other.
func toggle(ctx context.Context, c *changing) error {
	for i := range 50 {
		for _, state := range []string{"off", "up"} {
			if err := c.set(ctx, c.Cluster.Services-1, i%backends, state); err != nil {
				return err
			}
		}
	}
	return nil
}

// reload posts all farms again, each with a change.
func reload(ctx context.Context, c *changing) error {
	all := c.farms()
	for i := range all.Farms {
		all.Farms[i].Scheduler = "weight"
	}
	_, err := c.Call(ctx, http.MethodPost, "/farms", all)
	return err
}

func interruptionCharts(r *report.Result) []report.Figure {
	c := chart.Chart{Kind: chart.Bars, Title: "Requests that fail while a balancer restarts or changes", Subtitle: "at 2,000 requests a second; lower is better", YLabel: "failed requests"}
	for _, e := range events {
		c.Categories = append(c.Categories, e.name)
	}
	for _, m := range r.Series {
		if m.Metric != failed || m.Variant != events[0].name {
			continue
		}
		s := chart.Series{Name: m.Dataplane + ", " + farmCount(m.Services)}
		for _, e := range events {
			s.Values = append(s.Values, report.ValueOf(r.Find(m.Dataplane, m.Services, e.name, failed)))
		}
		c.Series = append(c.Series, s)
	}
	return []report.Figure{{Name: "failed", Chart: c}}
}
