package modes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/experiment/kubeproxy"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/report"
)

// Connections is the experiment modes-connections.
var Connections = harness.Experiment{
	Name:  "modes-connections",
	Title: "What a connection costs in each mode, by the number of services",
	How: "The agent in each of its modes, and the real kube-proxy in two of its own, carry out what one real API server has, each on a node of its own. " +
		"A new flow: SYNs enter the node as XDP live frames and are counted where the backends are, as in \"Cost of a new connection\". " +
		"HTTP requests: client, server and all packets between are one thread's on one core; a proxy is a process on the other cores, and its CPU time is added. " +
		"They go to all services in turns, a thousand a second, each on a connection of its own or on connections that stay open; " +
		"and to a NodePort, each on a connection of its own, 16 at once, as fast as they are answered: how many a second of CPU time does not depend on what else the machine does. " +
		"Published: from 10,000 endpoints to 200,000, iptables kept 61 % of a NodePort's requests a second; " +
		"from 1 service to 10,000, with ten endpoints each and a thousand requests a second, response time and CPU did not change with keep-alive; " +
		"without it iptables took 35 % of a core more, IPVS 8 %.",
	Run:    runConnections,
	Charts: connectionCharts,
}

const (
	nodePortRate = "requests a second of CPU time through a NodePort"
	requestCPU   = "CPU, 1,000 requests a second"
	responseTime = "response time, 1,000 requests a second"
	eachOwn      = "a connection each"
	keepAlive    = "keep-alive"
)

func connectionSizes(r *harness.Run) []int { return r.Sizes([]int{10, 1_000, 10_000}, []int{10, 100}) }

func runConnections(ctx context.Context, r *harness.Run) (err error) {
	r.Options.Rounds = min(r.Options.Rounds, 5)
	r.Result.Rounds = r.Options.Rounds
	sizes := connectionSizes(r)
	var cases []connectionCase
	for _, n := range sizes {
		st, err := compared.Running(ctx, r, n)
		if err != nil {
			return err
		}
		for i, s := range st.Processes {
			if err := errors.Join(st.WaitCaughtUp(ctx, s), s.Pause()); err != nil {
				return err
			}
			cases = append(cases, connectionCase{st, s, i})
		}
	}
	// The sizes of one program are neighbours, as they are compared with each other.
	slices.SortStableFunc(cases, func(a, b connectionCase) int { return a.order - b.order })
	if err := cpuaffinity.Reserve(harness.PacketCPU); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cpuaffinity.Release()) }()
	for round := range r.Options.Rounds {
		for _, c := range cases {
			r.Logf("round %d of %d: %s, %s", round+1, r.Options.Rounds, c.process.Name, c.Cluster)
			if err := c.measure(ctx, r); err != nil {
				return fmt.Errorf("measure %s, %s: %w", c.process.Name, c.Cluster, err)
			}
		}
	}
	connectionGoals(r, sizes)
	return nil
}

// connectionCase is a program with one size of the cluster.
type connectionCase struct {
	*kubeproxy.APICluster
	process *dataplane.Process
	order   int
}

func (c connectionCase) record(r *harness.Run, variant, metric, unit string, sample float64) {
	kubeproxy.RecordProcess(r, c.APICluster, c.process, variant, metric, unit, sample)
}

func (c connectionCase) measure(ctx context.Context, r *harness.Run) (err error) {
	if c.process.Proxy {
		if err := errors.Join(c.process.Resume(), c.process.KeepOff(harness.PacketCPU)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.process.Pause()) }()
	} else if err := kubeproxy.FlowCosts(ctx, r, c.APICluster, c.process); err != nil {
		return err
	}
	if err := c.atRate(ctx, r, eachOwn); err != nil {
		return err
	}
	if err := c.atRate(ctx, r, keepAlive); err != nil {
		return err
	}
	res, cpu, err := c.load(ctx, r, load.Config{
		Target: netip.AddrPortFrom(cluster.NodeAddr, kubeproxy.NodePort), Concurrency: 16, Duration: r.Short(time.Second, 200*time.Millisecond),
	})
	if err != nil {
		return err
	}
	c.record(r, "", nodePortRate, "1/s", float64(res.Requests)/cpu.Seconds())
	return nil
}

// atRate sends a thousand requests a second to all services in turns.
func (c connectionCase) atRate(ctx context.Context, r *harness.Run, variant string) error {
	cfg := load.Config{Rate: 1_000, KeepAlive: variant == keepAlive, Duration: r.Short(3*time.Second, 500*time.Millisecond)}
	for i := range c.Services {
		cfg.Targets = append(cfg.Targets, netip.AddrPortFrom(cluster.ServiceAddr(i), cluster.ServicePort))
	}
	res, cpu, err := c.load(ctx, r, cfg)
	if err != nil {
		return err
	}
	c.record(r, variant, requestCPU, "% of a core", 100*cpu.Seconds()/res.Took.Seconds())
	c.record(r, variant, responseTime, "µs", harness.Micros(res.Quantile(0.5)))
	return nil
}

// load sends requests, and returns with the answers the CPU time that they took: of client, server
// and packets, and of a proxy between.
func (c connectionCase) load(ctx context.Context, r *harness.Run, cfg load.Config) (*load.Result, time.Duration, error) {
	before, err := proxyCPU(c.process)
	if err != nil {
		return nil, 0, err
	}
	res, err := r.Load(ctx, c.process.Testbed, cfg)
	if err != nil {
		return nil, 0, err
	}
	after, err := proxyCPU(c.process)
	if err != nil {
		return nil, 0, err
	}
	if res.Failed > 0 {
		r.Note("%s, %s: %d of %d requests failed %v.", c.process.Name, c.Cluster, res.Failed, res.Failed+res.Requests, res.Reasons)
	}
	return res, res.CPU + after - before, nil
}

func connectionGoals(r *harness.Run, sizes []int) {
	small, large := sizes[0], sizes[len(sizes)-1]
	ratioGoal(r, "a new flow, spread over all services", ownIptables, kubeIptables, large, harness.EvenHit, harness.PerFlow,
		"≤ 0.2 at 10,000 services", func(ratio float64) bool { return ratio <= 0.2 })
	ratioGoal(r, "a new flow, spread over all services", ownIPVS, kubeIPVS, large, harness.EvenHit, harness.PerFlow,
		"≤ 1.0", func(ratio float64) bool { return ratio <= 1 })
	for _, p := range measured(r) {
		for _, n := range sizes[1:] {
			keptGoal(r, p, small, n, large)
		}
		for _, variant := range []string{eachOwn, keepAlive} {
			a, b := r.Find(p, small, variant, requestCPU), r.Find(p, large, variant, requestCPU)
			if a != nil && b != nil {
				r.Note("%s, 1,000 requests a second, %s: from %s services to %s %+.1f %% of a core.", p, variant,
					chart.Number(float64(small)), chart.Number(float64(large)), b.Median-a.Median)
			}
		}
	}
}

// keptGoal compares a NodePort's requests at two sizes. It is a goal for the agent's modes, and for
// the largest size.
func keptGoal(r *harness.Run, program string, small, n, large int) {
	a, b := r.Find(program, n, "", nodePortRate), r.Find(program, small, "", nodePortRate)
	if a == nil || b == nil {
		return
	}
	kept := report.Ratios(a, b)
	what := fmt.Sprintf("%s kept from %s services × 10 endpoints to %s, %s", nodePortRate, chart.Number(float64(small)), chart.Number(float64(n)), program)
	if n == large && own(program) {
		r.Goal(what, "≥ 0.97", kept.String(), kept.Median >= 0.97)
	} else {
		r.Note("%s: %s.", what, kept)
	}
}

func connectionCharts(r *report.Result) []report.Figure {
	return []report.Figure{
		report.Draw(r, "flow", chart.Chart{
			Kind: chart.Lines, LogY: true, Title: "Cost of a new connection in each mode, spread over all services",
			Subtitle: "10 endpoints a service, one core, connection tracking included; lower is better", XLabel: "services", YLabel: "µs a flow (logarithmic)",
		}, report.ByServices, harness.PerFlow, harness.EvenHit),
		report.Draw(r, "cpu", chart.Chart{
			Kind: chart.Lines, Title: "CPU of 1,000 HTTP requests a second, a connection each",
			Subtitle: "client, server, packets, and the proxy if there is one; lower is better", XLabel: "services", YLabel: "% of a core",
		}, report.ByServices, requestCPU, eachOwn),
		report.Draw(r, "nodeport", chart.Chart{
			Kind: chart.Lines, Title: "HTTP requests a second through a NodePort, a connection each",
			Subtitle: "client, server, packets, and the proxy if there is one; higher is better", XLabel: "endpoints in all", YLabel: "requests a second of CPU time",
		}, report.ByEndpoints, nodePortRate, ""),
	}
}
