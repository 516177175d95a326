// Package soak has the experiment soak: an agent under churn and faults.
package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/experiment/kubeproxy"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/report"
)

// Experiment is the experiment soak.
var Experiment = harness.Experiment{
	Name:  "soak",
	Title: "Churn and faults for ten minutes",
	How: "An agent follows a real API server with 1,000 services of ten endpoints (or as many as --services says, 200 at least). Each second 50 of them change: endpoints are added, removed and terminating, up to twenty and down to none, and slices and services are deleted and created again. " +
		"Meanwhile, at times drawn from a seed, the API server is killed and stays away for some seconds, etcd is compacted so that every client must list everything again, the agent is killed, the agent is stopped for seconds so that all events come late, and hostile services and policies are created and deleted beside 500 pods, some of which change, too. " +
		"500 requests a second, each on a connection of its own, go to services that nothing happens to. At the end the agent is asked what it would change, another agent programs an empty node from the same API, and the tables of both nodes are compared.",
	Run:    runExperiment,
	Charts: charts,
}

const (
	volatile  = 50 // services that come and go, the first
	untouched = 10 // services, the last
	// leastServices has others between them, which only change.
	leastServices = 200

	changesMade  = "changes made"
	planned      = "operations that the agent would still do"
	differences  = "differences from a fresh agent's table"
	firstQuarter = "resident memory, first quarter"
	lastQuarter  = "resident memory, last quarter"
	mostResident = "resident memory, most"
	faultsMade   = "faults made"
)

// settled is the age from which the agent's memory counts: in its first seconds it collects no
// garbage.
const settled = 2 * time.Minute

// soakSeed makes faults and changes the same in each run.
const soakSeed = 20

func runExperiment(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds, r.Result.Rounds = 1, 1
	lasting := r.SoakFor
	if lasting == 0 {
		lasting = r.Short(10*time.Minute, 30*time.Second)
	}
	return runFor(ctx, r, max(leastServices, slices.Max(r.Sizes([]int{1_000}, []int{1_000}))), lasting)
}

// runFor keeps an agent under churn and faults for a time and sets the goals.
func runFor(ctx context.Context, r *harness.Run, services int, lasting time.Duration) (err error) {
	st, err := kubeproxy.NewCluster(ctx, r, services)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	s, err := kubeproxy.NewProcess(r, st, dataplane.SluiceWithPolicy(r.Binary))
	if err != nil {
		return err
	}
	st.Processes = append(st.Processes, s)
	if err := createHostilePods(ctx, st); err != nil {
		return fmt.Errorf("make what hostile objects are about: %w", err)
	}
	if err := s.Start(); err != nil {
		return err
	}
	if _, err := kubeproxy.Programmed(ctx, st, s); err != nil {
		return err
	}
	t := &soakRun{Run: r, cluster: st, process: s, length: lasting}
	if err := t.runParts(ctx); err != nil {
		return err
	}
	if err := t.verify(ctx); err != nil {
		return err
	}
	t.setGoals()
	return nil
}

// soakRun is an agent under churn and faults.
type soakRun struct {
	*harness.Run
	cluster *kubeproxy.APICluster
	process *dataplane.Process
	length  time.Duration

	mu sync.Mutex // guards process while it is killed and started

	// The results. Each is written by one goroutine and read after all have ended.
	memory         []memorySample
	changes        int
	faults         int
	hostile        int // number of the next hostile object
	failed, served int
	reasons        map[string]int // why requests failed, with counts
}

// memorySample is the agent's memory at one time.
type memorySample struct {
	at    time.Duration // since the start of the soak
	bytes int
}

// runParts runs churn, faults, requests and memory samples at the same time until the time is over.
func (t *soakRun) runParts(ctx context.Context) error {
	under, cancel := context.WithTimeout(ctx, t.length)
	defer cancel()
	began := time.Now()
	parts := []func(context.Context) error{
		t.churn, t.injectFaults, t.requests, func(ctx context.Context) error { return t.sampleMemory(ctx, began) },
	}
	ends := make(chan error, len(parts))
	for _, part := range parts {
		go func() {
			err := part(under)
			if under.Err() != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
				err = nil
			}
			if err != nil {
				cancel() // stop the other parts
			}
			ends <- err
		}()
	}
	var errs []error
	for range parts {
		errs = append(errs, <-ends)
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// churn makes fifty changes a second, or as many as the API server takes.
func (t *soakRun) churn(ctx context.Context) error {
	draw := rand.New(rand.NewPCG(soakSeed, 1))
	tick := time.NewTicker(time.Second / kubeproxy.PerSecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// Changes that fail do not count, as the API server may be away. What it stores is what the
		// agent must have.
		if changeOne(ctx, t.cluster, draw) == nil {
			t.changes++
		}
	}
}

// changeOne makes one random change. Some services, the first ones, come and go.
func changeOne(ctx context.Context, st *kubeproxy.APICluster, draw *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n := draw.IntN(100)
	i := draw.IntN(volatile)
	slice := st.MembersFile(i, members(draw)...)
	err := errNothing
	switch {
	case n < 5:
		err = st.Delete(ctx, st.ServiceFile(i))
	case n < 10:
		err = st.Create(ctx, st.ServiceFile(i))
	case n < 15:
		err = st.Delete(ctx, slice)
	case n < 20:
		err = st.Create(ctx, slice)
	}
	if err != nil { // none of these, or the object is already as it would be
		_, err = st.Put(ctx, st.MembersFile(volatile+draw.IntN(st.Services-untouched-volatile), members(draw)...))
	}
	return err
}

var errNothing = errors.New("nothing to create or delete")

// members draws endpoints, some of them terminating.
func members(draw *rand.Rand) []cluster.Member {
	all := make([]cluster.Member, draw.IntN(21))
	for j, index := range draw.Perm(24)[:len(all)] {
		all[j] = cluster.Member{Index: index, Terminating: draw.IntN(5) == 0}
	}
	return all
}

// requests sends requests to the services that nothing happens to, one service after the other.
func (t *soakRun) requests(ctx context.Context) error {
	t.reasons = map[string]int{}
	for i := 0; ctx.Err() == nil; i++ {
		target := netip.AddrPortFrom(cluster.ServiceAddr(t.cluster.Services-1-i%untouched), cluster.ServicePort)
		res, err := t.Load(ctx, t.process.Testbed, load.Config{Target: target, Rate: 500, Duration: 5 * time.Second})
		if err != nil {
			return err
		}
		t.failed, t.served = t.failed+res.Failed, t.served+res.Requests
		for why, n := range res.Reasons {
			t.reasons[why] += n
		}
	}
	return nil
}

// sampleMemory samples the agent's memory. It fails if the agent has ended by itself.
func (t *soakRun) sampleMemory(ctx context.Context, began time.Time) error {
	for harness.Wait(ctx, t.length/120) == nil {
		t.mu.Lock()
		n, err := t.process.Resident()
		if err = errors.Join(t.process.Running(), err); err == nil {
			t.memory = append(t.memory, memorySample{time.Since(began), n})
		}
		t.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *soakRun) setGoals() {
	for metric, n := range map[string]int{changesMade: t.changes, faultsMade: t.faults, harness.Failed: t.failed, harness.Answered: t.served} {
		kubeproxy.RecordProcess(t.Run, t.cluster, t.process, "", metric, "", float64(n))
	}
	if t.failed > 0 {
		t.Note("Requests failed %v.", t.reasons)
	}
	for _, g := range []struct{ metric, what string }{
		{harness.Failed, "failed requests to services that nothing happened to"}, {planned, planned}, {differences, differences},
	} {
		if m := t.Find(t.process.Name, t.cluster.Services, "", g.metric); m != nil {
			t.Goal(fmt.Sprintf("%s of churn and faults: %s", t.length, g.what), "none", chart.Number(m.Max), m.Max == 0)
		}
	}
	quarter := func(from, to time.Duration) float64 {
		var all []float64
		for _, s := range t.memory {
			if s.at >= from && s.at < to {
				all = append(all, float64(s.bytes)/1e6)
			}
		}
		return report.SpreadOf(all).Median
	}
	for _, w := range t.memory {
		kubeproxy.RecordProcess(t.Run, t.cluster, t.process, "", harness.Resident, "MB", float64(w.bytes)/1e6)
	}
	early, late := quarter(0, t.length/4), quarter(t.length*3/4, 2*t.length)
	kubeproxy.RecordProcess(t.Run, t.cluster, t.process, "", firstQuarter, "MB", early)
	kubeproxy.RecordProcess(t.Run, t.cluster, t.process, "", lastQuarter, "MB", late)
	if t.length < settled {
		return
	}
	t.Goal(fmt.Sprintf("%s of churn and faults: the agent's memory, last quarter over first (medians)", t.length), "flat (≤ 1.1)",
		fmt.Sprintf("%s; %s MB at the end", chart.Number(late/early), chart.Number(late)), late <= 1.1*early)
}

// charts draws the agent's memory over time, in tenths.
func charts(r *report.Result) []report.Figure {
	c := chart.Chart{
		Kind: chart.Lines, Title: "The agent's resident memory under churn and faults",
		Subtitle: "median, least and greatest of each tenth of the time; the agent is killed now and then", XLabel: "tenth of the time", YLabel: "MB",
	}
	const parts = 10
	for _, m := range r.Series {
		if m.Metric != harness.Resident || len(m.Samples) < parts {
			continue
		}
		line := chart.Series{Name: m.Dataplane}
		for i := range parts {
			s := report.SpreadOf(m.Samples[i*len(m.Samples)/parts : (i+1)*len(m.Samples)/parts])
			c.Categories = append(c.Categories, fmt.Sprint(i+1))
			line.Values = append(line.Values, chart.Value{Y: s.Median, Low: s.Min, High: s.Max})
		}
		c.Series = append(c.Series, line)
	}
	return []report.Figure{{Name: "memory", Chart: c}}
}
