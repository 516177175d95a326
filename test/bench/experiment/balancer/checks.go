package balancer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Checks is the experiment balancer-checks.
var Checks = harness.Experiment{
	Name:  "balancer-checks",
	Title: "CPU of health checks",
	How: "10,000 backends, ten a farm and all behind a router, are checked every five seconds by TCP or by HTTP, each check on a connection of its own. All answer. " +
		"CPU is that of the process with its system calls, over at least two intervals, of which the first does not count.",
	Run:    runChecks,
	Charts: checkCharts,
}

const (
	checkedFarms = 1_000
	checkedEach  = 10
	checkEvery   = 5 * time.Second
	checkCPU     = "CPU"
)

func runChecks(ctx context.Context, r *harness.Run) error {
	c := farmCase{ServiceCase: harness.ServiceCase{
		Dataplane: peer.Balance{Program: r.Binary, Mode: peer.DNAT}, Cluster: cluster.Cluster{Services: checkedFarms, Endpoints: checkedEach},
	}, routed: true} // so many neighbours are more than the kernel keeps by default
	err := inTurns(ctx, r, []farmCase{c}, func(ctx context.Context, r *harness.Run, c *changing) error {
		f := &faulty{}
		end, err := f.serve(c.Testbed)
		if err != nil {
			return err
		}
		defer end()
		for _, kind := range []string{"tcp", "http"} {
			if err := measureCheck(ctx, r, c, kind); err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	goal := func(kind string, most float64) {
		if m := r.Find(c.Dataplane.Name(), checkedFarms, kind, checkCPU); m != nil {
			r.Goal("10,000 backends checked every five seconds, "+kind, fmt.Sprintf("≤ %v %% of a core", most), report.SpreadOf(m.Samples).String()+" %", m.Median <= most)
		}
	}
	goal("tcp", 10)
	goal("http", 15)
	return nil
}

// measureCheck has all backends be checked in one way, and measures the process.
func measureCheck(ctx context.Context, r *harness.Run, c *changing, kind string) error {
	all := peer.Farms{}
	for i := range c.Cluster.Services {
		all.Farms = append(all.Farms, peer.Farm{Name: peer.FarmName(i), Check: map[string]string{
			"type": kind, "interval": fmt.Sprint(checkEvery.Seconds()), "timeout": "2",
		}})
	}
	if _, err := c.Call(ctx, http.MethodPut, "/farms", all); err != nil {
		return err
	}
	if err := harness.Wait(ctx, checkEvery); err != nil { // each has been checked once
		return err
	}
	lasting := r.Short(3*checkEvery, checkEvery)
	before, err := harness.ProcessCPU(c.Pid())
	if err != nil {
		return err
	}
	err = harness.Wait(ctx, lasting)
	after, err2 := harness.ProcessCPU(c.Pid())
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	r.Record(c.ServiceCase, kind, checkCPU, "% of a core", 100*(after-before).Seconds()/lasting.Seconds())
	return nil
}

func checkCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "cpu", chart.Chart{
		Kind: chart.Bars, Title: "CPU of health checks: 10,000 backends every five seconds", Subtitle: "lower is better", XLabel: "farms", YLabel: "% of a core",
	}, report.ByServices, checkCPU, "tcp", "http")}
}
