// Package baseline has the experiment baseline: this program and an earlier one, in turns.
package baseline

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/experiment/policy"
	"sluice.dev/sluice/test/bench/experiment/services"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Experiment is the experiment baseline.
var Experiment = harness.Experiment{
	Name:  "baseline",
	Title: "This program and an earlier one",
	How: "The agent (`sluice run`) of this program and that of the program that `--baseline` names hold the same cluster, each in network namespaces of its own. " +
		"In each round every quantity is measured with one of the two and at once with the other; the order alternates between rounds. The costs of packets are measured three times in turns, and the least counts. " +
		"Start to programmed is from the start of the process, with an empty kernel, until it answers that it is ready; start to adopted is the same with all in the kernel already. " +
		"For the restart the agent is killed (SIGKILL) under 1,000 HTTP requests a second, each on a connection of its own, and started again half a second later; " +
		"for the upgrade the other program is started in its place. 15 clients of a service with session affinity connect before and after, " +
		"and with policies a pod opens connections meanwhile that they deny, and others that they allow. " +
		"A ratio is this program's sample over the baseline's of the same round. Noise is half the distance between the quartiles of these ratios, at most a fifth.",
	Run:    runExperiment,
	Charts: charts,
}

const (
	statusTime = "time of `sluice status`"
	syncTime   = "time of `sluice sync`"
	moved      = "clients that changed their endpoint"
	restarted  = "restart"
	upgraded   = "baseline replaced by sluice"
	downgraded = "sluice replaced by baseline"
)

// baselineName is the baseline's name as a data plane.
const baselineName = "baseline"

func runExperiment(ctx context.Context, r *harness.Run) error {
	if r.Baseline == "" {
		return errors.New("nothing to compare with: name another sluice program with --baseline")
	}
	for _, p := range inOrder(r, 0) {
		if err := identify(ctx, r, p); err != nil {
			return err
		}
	}
	c, large := cluster.Cluster{Services: 1_000, Endpoints: 10}, cluster.Cluster{Services: 5_000, Endpoints: 10}
	tenants := cluster.Tenants{Pods: 300, Local: policy.PodsOnNode, Policies: 300}
	if r.Full() {
		c.Services, large.Services = 10_000, 100_000
		tenants.Pods, tenants.Policies = 1_000, 1_000
	}
	for round := range r.Options.Rounds {
		r.Logf("round %d of %d", round+1, r.Options.Rounds)
		err := errors.Join(compareServices(ctx, r, round, c), comparePolicies(ctx, r, round, tenants))
		if err != nil {
			return err
		}
	}
	if err := compareLarge(ctx, r, large); err != nil {
		return err
	}
	setGoals(r)
	return nil
}

func clusterSize(c cluster.Cluster) report.Measurement {
	return report.Measurement{Services: c.Services, Endpoints: c.Services * c.Endpoints}
}

// compareServices measures memory, commands, changes, packets and restart with services.
func compareServices(ctx context.Context, r *harness.Run, round int, c cluster.Cluster) error {
	files := func(yield func(cluster.File) bool) {
		for _, f := range c.StickyFiles() {
			if !yield(f) {
				return
			}
		}
		c.Files()(yield)
	}
	return withBoth(ctx, r, round, scenario{c.String(), testbed.New, files, clusterSize(c)},
		oneByOne(measureMemory), oneByOne(timeCommands),
		func(ctx context.Context, both []*runningAgent) error { return timeChanges(ctx, r, both, c) },
		packets(func(ctx context.Context, x *runningAgent, sample func(variant, metric string, micros float64)) error {
			return newFlows(ctx, r, x, c, sample)
		}),
		reserved(func(ctx context.Context, x *runningAgent) error {
			return replace(ctx, r, x, c, x.binary, restarted, harness.Adopted)
		}),
		reserved(func(ctx context.Context, x *runningAgent) error { return upgrade(ctx, r, x, c) }),
	)
}

// measureMemory waits two seconds and records the agent's memory and what the kernel allocated for
// it.
func measureMemory(ctx context.Context, c *runningAgent) error {
	if err := harness.Wait(ctx, 2*time.Second); err != nil {
		return err
	}
	rss, err := harness.ResidentMemory(c.Pid())
	if err != nil {
		return err
	}
	c.record("", harness.Resident, "MB", float64(rss)/1e6)
	if c.Group == nil {
		return nil
	}
	kernel, err := c.Group.KernelBytes()
	if err != nil {
		return err
	}
	c.record("", harness.KernelMemory, "MB", float64(kernel)/1e6)
	return nil
}

// timeCommands records the median time of `sluice status` and `sluice sync`.
func timeCommands(ctx context.Context, c *runningAgent) error {
	const times = 21
	for _, command := range []struct{ name, metric string }{{"status", statusTime}, {"sync", syncTime}} {
		var took []time.Duration
		for range times {
			began := time.Now()
			out, err := exec.CommandContext(ctx, c.agentProgram.binary, command.name, "--socket", c.Socket()).CombinedOutput()
			if err != nil {
				return fmt.Errorf("run sluice %s: %w: %.400s", command.name, err, out)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		c.record("", command.metric, "ms", harness.Millis(took[times/2]))
	}
	return nil
}

// timeChanges records the time from a changed file to the kernel. The agents get changes in turns.
func timeChanges(ctx context.Context, r *harness.Run, both []*runningAgent, c cluster.Cluster) (err error) {
	count := 200
	if !r.Full() {
		count = 50
	}
	changers := make([]*harness.Changer, len(both))
	for i, x := range both {
		a := &harness.Changer{Agent: x.Agent, C: c}
		if a.Commits, err = harness.WatchCommits(a.Namespace); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.Commits.Close()) }()
		changers[i] = a
	}
	for _, kind := range []struct {
		name string
		next func(*harness.Changer) cluster.File
	}{{services.InPlace, (*harness.Changer).NextInPlace}, {services.NewClass, (*harness.Changer).NextClass}} {
		took := make([][]time.Duration, len(both))
		for range count {
			for i, a := range changers {
				d, err := a.TimeChange(ctx, kind.next(a))
				if err != nil {
					return fmt.Errorf("%s, %s: %w", both[i].name, kind.name, err)
				}
				took[i] = append(took[i], d)
			}
		}
		for i, x := range both {
			slices.Sort(took[i])
			x.record(kind.name, harness.Half, "ms", harness.Millis(took[i][count/2]))
			x.record(kind.name, harness.NinetyNine, "ms", harness.Millis(took[i][count*99/100]))
		}
	}
	return nil
}

func newFlows(ctx context.Context, r *harness.Run, x *runningAgent, c cluster.Cluster, sample func(variant, metric string, micros float64)) error {
	return r.FlowCosts(ctx, harness.FlowCase{
		Name: x.name, Testbed: x.testbed, Services: c.Services,
		Target: func(first, count int) inject.Target { return peer.Sluice{}.Target(c, first, count) },
		Record: func(variant string, micros float64) { sample(variant, harness.PerFlow, micros) },
	})
}

// comparePolicies measures the cost of a connection between two pods to which policies apply.
func comparePolicies(ctx context.Context, r *harness.Run, round int, t cluster.Tenants) error {
	pods := func(prefix string) (*testbed.Testbed, error) { return testbed.NewPods(prefix, t.Local) }
	return withBoth(ctx, r, round, scenario{t.String(), pods, t.Files(), report.Measurement{Policies: t.Policies, Variant: "with policies"}},
		oneByOne(func(ctx context.Context, x *runningAgent) error { return policy.CheckInForce(ctx, x.testbed, t) }),
		oneByOne(measureMemory),
		packets(func(ctx context.Context, x *runningAgent, sample func(variant, metric string, micros float64)) error {
			return policy.PodCosts(ctx, r, x.testbed, t, x.name, func(metric string, micros float64) { sample("", metric, micros) })
		}),
		oneByOne(func(ctx context.Context, x *runningAgent) error { return upgradePolicies(ctx, r, x, t) }),
	)
}

// compareLarge measures start, memory and adoption with a large cluster, which both programs read
// from the same files, one program at a time.
func compareLarge(ctx context.Context, r *harness.Run, c cluster.Cluster) (err error) {
	files, err := r.NewSite(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	if err := files.FillLists(c); err != nil {
		return err
	}
	for round := range r.Options.Rounds {
		pairs := samples{}
		for _, p := range inOrder(r, round) {
			r.Logf("round %d of %d: %s, %s", round+1, r.Options.Rounds, p.name, c)
			if err := measureLarge(ctx, r, p, c, files.Manifests(), pairs); err != nil {
				return fmt.Errorf("%s, %s: %w", p.name, c, err)
			}
		}
	}
	return nil
}

func measureLarge(ctx context.Context, r *harness.Run, p agentProgram, c cluster.Cluster, manifests string, pairs samples) error {
	return r.WithSite(ctx, func(at *harness.Site) error {
		at.From = manifests
		harness.Settle()
		x := &runningAgent{agentProgram: p, record: recorder(r, p.name, clusterSize(c), pairs)}
		defer func() {
			if x.Agent != nil {
				x.Kill()
			}
		}()
		if err := x.startOn(ctx, at, p.binary, harness.Started); err != nil {
			return err
		}
		if err := measureMemory(ctx, x); err != nil {
			return err
		}
		x.Kill()
		return x.startOn(ctx, at, p.binary, harness.Adopted)
	})
}
