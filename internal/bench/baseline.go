package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/cpuaffinity"
	"sluice.dev/sluice/internal/bench/inject"
	"sluice.dev/sluice/internal/bench/load"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/bench/testbed"
)

var baseline = Experiment{
	Name:  "baseline",
	Title: "This program and an earlier one",
	How: "The agent (`sluice run`) of this program and that of the program given by `--baseline` hold the same cluster, each in network namespaces of its own. " +
		"In each round every quantity is measured with one of the two and at once with the other; the order changes from round to round. " +
		"Start to programmed is from the start of the process, with an empty kernel, until it answers that it is ready; start to adopted is the same with the kernel full. " +
		"For the restart the agent is killed (SIGKILL) under 1,000 HTTP requests a second, each on a connection of its own, stays away for half a second and is started again; " +
		"for the upgrade the other program is started in its place. 15 clients of a service with session affinity ask it before and after. " +
		"A ratio is this program's sample over the baseline's of the same round. Noise is half the distance between the quartiles of these ratios, a fifth at most.",
	run:   runBaseline,
	paint: paintBaseline,
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

// agentProgram is one of the two programs under comparison.
type agentProgram struct {
	name   string // as a data plane
	binary string
}

// inOrder are the two in the order of a round.
func (r *run) inOrder(round int) []agentProgram {
	two := []agentProgram{{baselineName, r.Baseline}, {peer.Sluice{}.Name(), r.Binary}}
	if round%2 == 1 {
		slices.Reverse(two)
	}
	return two
}

func runBaseline(ctx context.Context, r *run) error {
	if r.Baseline == "" {
		return errors.New("nothing to compare with: name another sluice program with --baseline")
	}
	for _, p := range r.inOrder(0) {
		if err := r.identify(ctx, p); err != nil {
			return err
		}
	}
	c, large := cluster.Cluster{Services: 1_000, Endpoints: 10}, cluster.Cluster{Services: 5_000, Endpoints: 10}
	tenants := cluster.Tenants{Pods: 300, Local: podsOnNode, Policies: 300}
	if r.full() {
		c.Services, large.Services = 10_000, 100_000
		tenants.Pods, tenants.Policies = 1_000, 1_000
	}
	for round := range r.Options.Rounds {
		r.progress("round %d of %d", round+1, r.Options.Rounds)
		err := errors.Join(r.compareServices(ctx, round, c), r.comparePolicies(ctx, round, tenants))
		if err != nil {
			return err
		}
	}
	if err := r.compareLarge(ctx, large); err != nil {
		return err
	}
	r.judgeBaseline()
	return nil
}

// identify notes which program was measured. Its size is a part of its memory, so both should be built alike.
func (r *run) identify(ctx context.Context, p agentProgram) error {
	out, err := exec.CommandContext(ctx, p.binary, "version").Output()
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", p.binary, err)
	}
	file, err := os.Stat(p.binary)
	if err != nil {
		return err
	}
	r.note("%s: %s, a file of %s MB.", p.name, firstLine(out), chart.Number(float64(file.Size())/1e6))
	return nil
}

// contestant is the agent of one of the programs, running.
type contestant struct {
	agentProgram
	*agentProcess
	testbed *testbed.Testbed
	record  func(variant, metric, unit string, sample float64) // variant may be ""
}

// setting is what both programs are given.
type setting struct {
	name    string
	testbed func(prefix string) (*testbed.Testbed, error)
	files   iter.Seq[cluster.File]
	size    Measurement // how large it is, and its usual variant
}

// step is a part of a round, with the agents of both programs.
type step func(context.Context, []*contestant) error

// each is a step with one agent, and at once with the other.
func each(measure func(context.Context, *contestant) error) step {
	return func(ctx context.Context, both []*contestant) error {
		for _, c := range both {
			if err := errors.Join(ctx.Err(), measure(ctx, c)); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		return nil
	}
}

// withBoth starts an agent of each program, one after the other, and runs the steps.
func (r *run) withBoth(ctx context.Context, round int, s setting, steps ...step) error {
	var both []*contestant
	pairs := samples{}
	var next func(rest []agentProgram) error
	next = func(rest []agentProgram) error {
		if len(rest) > 0 {
			return r.withContestant(ctx, rest[0], s, pairs, func(c *contestant) error {
				both = append(both, c)
				return next(rest[1:])
			})
		}
		for _, step := range steps {
			if err := step(ctx, both); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		return nil
	}
	return next(r.inOrder(round))
}

// withContestant runs f with an agent that has programmed the setting, and files how long that took.
func (r *run) withContestant(ctx context.Context, p agentProgram, s setting, pairs samples, f func(*contestant) error) (err error) {
	l, err := s.testbed(r.nextPrefix())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return r.withSiteOn(l, func(at *site) error {
		if err := at.fill(s.files); err != nil {
			return err
		}
		settle()
		c := &contestant{agentProgram: p, testbed: l, record: r.recorder(p.name, s.size, pairs)}
		defer func() {
			if c.agentProcess != nil {
				c.kill()
			}
		}()
		if err := c.startOn(ctx, at, p.binary, started); err != nil {
			return fmt.Errorf("%s, %s: %w", p.name, s.name, err)
		}
		return f(c)
	})
}

// samples are those of one round by what was measured; the second of a pair makes a ratio.
type samples map[string]float64

// recorder files samples of a program in a setting of that size, and the ratio as soon as the round has both.
func (r *run) recorder(name string, size Measurement, round samples) func(variant, metric, unit string, sample float64) {
	return func(variant, metric, unit string, sample float64) {
		m := size
		m.Dataplane, m.Metric, m.Unit = name, metric, unit
		m.Variant = cmp.Or(variant, m.Variant)
		r.add(m, sample)
		r.progress("%s: %s %s: %s %s", name, metric, m.Variant, chart.Number(sample), unit)
		key := fmt.Sprint(m.Services, m.Policies, m.Variant, metric)
		first, both := round[key]
		round[key] = sample
		if !both || unit == "" {
			return
		}
		own, was := sample, first
		if name == baselineName {
			own, was = first, sample
		}
		r.add(ratioOf(m), own/was)
	}
}

// startOn starts an agent of a program, waits until it is ready and files the time as metric, if there is one.
func (c *contestant) startOn(ctx context.Context, at *site, binary, metric string) error {
	at.binary = binary
	p, err := at.start()
	if err != nil {
		return err
	}
	c.agentProcess = p
	took, err := p.ready(ctx, 2*time.Minute)
	if err == nil && metric != "" {
		c.record("", metric, "s", took.Seconds())
	}
	return err
}

func clusterSize(c cluster.Cluster) Measurement {
	return Measurement{Services: c.Services, Endpoints: c.Services * c.Endpoints}
}

// compareServices measures all that concerns services: packets, changes, memory, commands, restart.
func (r *run) compareServices(ctx context.Context, round int, c cluster.Cluster) error {
	files := func(yield func(cluster.File) bool) {
		for _, f := range c.StickyFiles() {
			if !yield(f) {
				return
			}
		}
		c.Files()(yield)
	}
	return r.withBoth(ctx, round, setting{c.String(), testbed.New, files, clusterSize(c)},
		each(weighContestant), each(timeCommands),
		func(ctx context.Context, both []*contestant) error { return r.timeChanges(ctx, both, c) },
		reserved(func(ctx context.Context, x *contestant) error { return r.newFlows(ctx, x, c) }),
		reserved(func(ctx context.Context, x *contestant) error {
			return r.replace(ctx, x, c, x.binary, restarted, adopted)
		}),
		reserved(func(ctx context.Context, x *contestant) error { return r.upgrade(ctx, x, c) }),
	)
}

// reserved is each, with the packets' CPU left to them.
func reserved(measure func(context.Context, *contestant) error) step {
	return func(ctx context.Context, both []*contestant) error {
		if err := cpuaffinity.Reserve(packetCPU); err != nil {
			return err
		}
		return errors.Join(each(measure)(ctx, both), cpuaffinity.Release())
	}
}

// weighContestant files the agent's memory, and the kernel's for it, two seconds later.
func weighContestant(ctx context.Context, c *contestant) error {
	if err := wait(ctx, 2*time.Second); err != nil {
		return err
	}
	rss, err := residentMemory(c.pid())
	if err != nil {
		return err
	}
	c.record("", resident, "MB", float64(rss)/1e6)
	if c.group == nil {
		return nil
	}
	kernel, err := c.group.kernelBytes()
	if err != nil {
		return err
	}
	c.record("", kernelMemory, "MB", float64(kernel)/1e6)
	return nil
}

// timeCommands files the median time of the program's own commands about its agent.
func timeCommands(ctx context.Context, c *contestant) error {
	const times = 21
	for _, command := range []struct{ name, metric string }{{"status", statusTime}, {"sync", syncTime}} {
		var took []time.Duration
		for range times {
			began := time.Now()
			out, err := exec.CommandContext(ctx, c.agentProgram.binary, command.name, "--socket", c.socket()).CombinedOutput()
			if err != nil {
				return fmt.Errorf("run sluice %s: %w: %.400s", command.name, err, out)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		c.record("", command.metric, "ms", millis(took[times/2]))
	}
	return nil
}

// timeChanges files the time from a changed file to the kernel. The agents get their changes by turns.
func (r *run) timeChanges(ctx context.Context, both []*contestant, c cluster.Cluster) (err error) {
	count := 200
	if !r.full() {
		count = 50
	}
	changers := make([]*changer, len(both))
	for i, x := range both {
		a := &changer{agentProcess: x.agentProcess, c: c}
		if a.commits, err = watchCommits(a.node); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.commits.Close()) }()
		changers[i] = a
	}
	for _, kind := range []struct {
		name string
		next func(*changer) cluster.File
	}{{inPlace, (*changer).nextInPlace}, {newClass, (*changer).nextClass}} {
		took := make([][]time.Duration, len(both))
		for range count {
			for i, a := range changers {
				d, err := a.time(ctx, kind.next(a))
				if err != nil {
					return fmt.Errorf("%s, %s: %w", both[i].name, kind.name, err)
				}
				took[i] = append(took[i], d)
			}
		}
		for i, x := range both {
			slices.Sort(took[i])
			x.record(kind.name, half, "ms", millis(took[i][count/2]))
			x.record(kind.name, ninetyNine, "ms", millis(took[i][count*99/100]))
		}
	}
	return nil
}

func (r *run) newFlows(ctx context.Context, x *contestant, c cluster.Cluster) error {
	return r.flowCosts(ctx, flowCase{
		name: x.name, testbed: x.testbed, services: c.Services,
		target: func(first, count int) inject.Target { return peer.Sluice{}.Target(c, first, count) },
		record: func(variant string, micros float64) { x.record(variant, perFlow, "µs", micros) },
	})
}

// replace kills the agent under load and starts one of that program in its place. It files what
// clients noticed as that variant, and the time until the new agent is ready as metric, if there is one.
func (r *run) replace(ctx context.Context, x *contestant, c cluster.Cluster, binary, variant, metric string) error {
	before, err := stickyEndpoints(ctx, x.testbed, c.Services)
	if err != nil {
		return err
	}
	res, err := r.whileLoaded(ctx, x.testbed, c, func() error {
		if err := wait(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		x.kill()
		if err := wait(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		if err := x.startOn(ctx, x.site, binary, metric); err != nil {
			return err
		}
		return wait(ctx, 500*time.Millisecond)
	})
	if err != nil {
		return err
	}
	after, err := stickyEndpoints(ctx, x.testbed, c.Services)
	if err != nil {
		return err
	}
	others := 0
	for i := range before {
		if before[i] != after[i] {
			others++
		}
	}
	x.record(variant, failed, "", float64(res.Failed))
	x.record(variant, moved, "", float64(others))
	if res.Failed > 0 {
		r.note("%s, %s: %d of %d requests failed %v.", x.name, variant, res.Failed, res.Failed+res.Requests, res.Reasons)
	}
	return nil
}

// upgrade replaces the baseline's agent with this program's, and back; of the other there is nothing to do.
func (r *run) upgrade(ctx context.Context, x *contestant, c cluster.Cluster) error {
	if x.name != baselineName {
		return nil
	}
	if err := r.replace(ctx, x, c, r.Binary, upgraded, ""); err != nil {
		return err
	}
	return r.replace(ctx, x, c, r.Baseline, downgraded, "")
}

// whileLoaded runs f under 1,000 requests a second to the last service, and returns what became of them.
func (r *run) whileLoaded(ctx context.Context, l *testbed.Testbed, c cluster.Cluster, f func() error) (*load.Result, error) {
	under, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		res *load.Result
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		res, err := r.load(under, l, load.Config{
			Target: netip.AddrPortFrom(cluster.ServiceAddr(c.Services-1), cluster.ServicePort),
			Rate:   1_000, Duration: 10 * time.Minute,
		})
		answers <- answer{res, err}
	}()
	err := f()
	cancel()
	a := <-answers
	return a.res, errors.Join(err, a.err)
}

// stickyEndpoints asks the service with session affinity once from each address of the client, and
// returns which endpoint answered each.
func stickyEndpoints(ctx context.Context, l *testbed.Testbed, services int) ([]netip.Addr, error) {
	var listener net.Listener
	err := l.Backend.Do(func() (err error) {
		listener, err = new(net.ListenConfig).Listen(ctx, "tcp4", fmt.Sprintf(":%d", cluster.StickyPort))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for clients with session affinity: %w", err)
	}
	defer listener.Close()
	sticky := netip.AddrPortFrom(cluster.ServiceAddr(services), cluster.ServicePort).String()
	var endpoints []netip.Addr
	for _, client := range testbed.ClientAddrs() {
		var asked net.Conn
		err := l.Client.Do(func() (err error) {
			d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(client, 0))}
			asked, err = d.DialContext(ctx, "tcp4", sticky)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("ask the service with session affinity from %s: %w", client, err)
		}
		answered, err := listener.Accept()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("accept a client with session affinity: %w", err), asked.Close())
		}
		endpoints = append(endpoints, answered.LocalAddr().(*net.TCPAddr).AddrPort().Addr())
		_ = errors.Join(answered.Close(), asked.Close()) // they have served their purpose
	}
	return endpoints, nil
}

// comparePolicies measures what a connection between two pods costs where policies judge it.
func (r *run) comparePolicies(ctx context.Context, round int, t cluster.Tenants) error {
	pods := func(prefix string) (*testbed.Testbed, error) { return testbed.NewPods(prefix, t.Local) }
	return r.withBoth(ctx, round, setting{t.String(), pods, t.Files(), Measurement{Policies: t.Policies, Variant: "with policies"}},
		each(func(ctx context.Context, x *contestant) error { return holds(ctx, x.testbed, t) }),
		each(weighContestant),
		reserved(func(ctx context.Context, x *contestant) error {
			return r.podCosts(ctx, x.testbed, t, x.name, func(metric string, micros float64) { x.record("", metric, "µs", micros) })
		}),
	)
}

// compareLarge measures start, memory and adoption with a large cluster, which both programs read from
// the same files, one program at a time.
func (r *run) compareLarge(ctx context.Context, c cluster.Cluster) (err error) {
	files, err := r.newSite(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	if err := files.fillLists(c); err != nil {
		return err
	}
	for round := range r.Options.Rounds {
		pairs := samples{}
		for _, p := range r.inOrder(round) {
			r.progress("round %d of %d: %s, %s", round+1, r.Options.Rounds, p.name, c)
			if err := r.measureLarge(ctx, p, c, files.manifests(), pairs); err != nil {
				return fmt.Errorf("%s, %s: %w", p.name, c, err)
			}
		}
	}
	return nil
}

func (r *run) measureLarge(ctx context.Context, p agentProgram, c cluster.Cluster, manifests string, pairs samples) error {
	return r.withSite(ctx, func(at *site) error {
		at.from = manifests
		settle()
		x := &contestant{agentProgram: p, record: r.recorder(p.name, clusterSize(c), pairs)}
		defer func() {
			if x.agentProcess != nil {
				x.kill()
			}
		}()
		if err := x.startOn(ctx, at, p.binary, started); err != nil {
			return err
		}
		if err := weighContestant(ctx, x); err != nil {
			return err
		}
		x.kill()
		return x.startOn(ctx, at, p.binary, adopted)
	})
}

// judgeBaseline demands that nothing is more than 3 % worse beyond the noise of its own ratios, and that of
// what is counted there is no more; where there is nothing to compare with, that it did not happen.
func (r *run) judgeBaseline() {
	for _, own := range slices.Clone(r.Series) {
		if own.Variant == upgraded || own.Variant == downgraded {
			r.goal(own.Variant+" under load: "+own.Metric, "none", spread(own.Samples).String(), own.Max == 0)
			continue
		}
		was := r.same(withDataplane(own, baselineName))
		if own.Dataplane != (peer.Sluice{}).Name() || was == nil {
			continue
		}
		what := strings.Join(slices.DeleteFunc([]string{describe(own.Metric), own.Variant, sizeOf(own)}, func(s string) bool { return s == "" }), ", ")
		pairs := r.same(ratioOf(own))
		if own.Unit == "" {
			r.goal(what, fmt.Sprintf("no more than the baseline (%s)", spread(was.Samples)), spread(own.Samples).String(), sum(own.Samples) <= sum(was.Samples))
		} else if pairs != nil {
			beyond := noise(pairs.Samples)
			r.goal(what+", over the baseline", fmt.Sprintf("≤ 1.03 beyond noise (here %.1f %%)", 100*beyond),
				fmt.Sprintf("%s; of the medians %.3f", spread(pairs.Samples), own.Median/was.Median), pairs.Median <= 1.03+beyond)
		}
	}
}

// noise is half the distance between the quartiles of some ratios, a fifth at most: a busy machine
// must not make a goal easy to reach.
func noise(ratios []float64) float64 {
	s := slices.Sorted(slices.Values(ratios))
	quarter := (len(s) - 1) / 4
	return min(0.2, (s[len(s)-1-quarter]-s[quarter])/2)
}

func sum(samples []float64) float64 {
	var total float64
	for _, s := range samples {
		total += s
	}
	return total
}

func withDataplane(m Measurement, name string) Measurement {
	m.Dataplane = name
	return m
}

// ratioOf is the measurement of the ratios of what both programs were measured for.
func ratioOf(m Measurement) Measurement {
	m.Dataplane, m.Metric, m.Unit, m.Samples = "sluice over baseline", m.Metric+", ratio", "", nil
	return m
}

// describe says what a metric is where its name alone does not.
func describe(metric string) string {
	if metric == half || metric == ninetyNine {
		return "file event to kernel, " + metric
	}
	return metric
}

// sizeOf says how large a case was.
func sizeOf(m Measurement) string {
	if m.Policies > 0 {
		return chart.Number(float64(m.Policies)) + " policies"
	}
	return chart.Number(float64(m.Endpoints)) + " endpoints"
}

func paintBaseline(r *Result) []painting {
	var ps []painting
	for _, p := range []struct{ name, title, metric, variant, unit string }{
		{"start", "From the start of an agent to a programmed kernel", started, "", "s"},
		{"adopt", "From the start of an agent to a full kernel adopted", adopted, "", "s"},
		{"memory", "The agent's memory", resident, "", "MB"},
		{"connections", "Cost of a new connection", perFlow, evenHit, "µs"},
		{"change", "From a changed file to the kernel, median", half, inPlace, "ms"},
	} {
		ps = append(ps, draw(r, p.name, chart.Chart{
			Kind: chart.Bars, Title: p.title, Subtitle: "this program and an earlier one, in turns; lower is better",
			XLabel: "endpoints in all", YLabel: p.unit,
		}, byEndpoints, p.metric, p.variant))
	}
	return ps
}
