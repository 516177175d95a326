package baseline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// agentProgram is one of the two programs that are compared.
type agentProgram struct {
	name   string // as a data plane
	binary string
}

// inOrder returns the two programs in the order of a round.
func inOrder(r *harness.Run, round int) []agentProgram {
	two := []agentProgram{{baselineName, r.Baseline}, {peer.Sluice{}.Name(), r.Binary}}
	if round%2 == 1 {
		slices.Reverse(two)
	}
	return two
}

// identify notes version and size of a program. The size is a part of an agent's memory, so both
// programs should be built with the same flags.
func identify(ctx context.Context, r *harness.Run, p agentProgram) error {
	out, err := exec.CommandContext(ctx, p.binary, "version").Output()
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", p.binary, err)
	}
	file, err := os.Stat(p.binary)
	if err != nil {
		return err
	}
	r.Note("%s: %s, a file of %s MB.", p.name, harness.FirstLine(out), chart.Number(float64(file.Size())/1e6))
	return nil
}

// runningAgent is a running agent of one of the programs.
type runningAgent struct {
	agentProgram
	*harness.Agent
	testbed *testbed.Testbed
	record  func(variant, metric, unit string, sample float64) // variant may be ""
}

// scenario is the testbed and the objects that both programs get.
type scenario struct {
	name    string
	testbed func(prefix string) (*testbed.Testbed, error)
	files   iter.Seq[cluster.File]
	size    report.Measurement // how large it is, and its usual variant
}

// step measures something with the agents of both programs.
type step func(context.Context, []*runningAgent) error

// oneByOne is the step that measures one agent and right after it the other one.
func oneByOne(measure func(context.Context, *runningAgent) error) step {
	return func(ctx context.Context, both []*runningAgent) error {
		for _, c := range both {
			if err := errors.Join(ctx.Err(), measure(ctx, c)); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		return nil
	}
}

// withBoth starts an agent of each program, one after the other, and runs the steps.
func withBoth(ctx context.Context, r *harness.Run, round int, s scenario, steps ...step) error {
	var both []*runningAgent
	pairs := samples{}
	var next func(rest []agentProgram) error
	next = func(rest []agentProgram) error {
		if len(rest) > 0 {
			return withRunningAgent(ctx, r, rest[0], s, pairs, func(c *runningAgent) error {
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
	return next(inOrder(r, round))
}

// withRunningAgent runs f with an agent that has programmed the scenario, and records how long that
// took.
func withRunningAgent(ctx context.Context, r *harness.Run, p agentProgram, s scenario, pairs samples, f func(*runningAgent) error) (err error) {
	l, err := s.testbed(r.NextPrefix())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return r.WithSiteOn(l, func(at *harness.Site) error {
		if err := at.Fill(s.files); err != nil {
			return err
		}
		harness.Settle()
		c := &runningAgent{agentProgram: p, testbed: l, record: recorder(r, p.name, s.size, pairs)}
		defer func() {
			if c.Agent != nil {
				c.Kill()
			}
		}()
		if err := c.startOn(ctx, at, p.binary, harness.Started); err != nil {
			return fmt.Errorf("%s, %s: %w", p.name, s.name, err)
		}
		return f(c)
	})
}

// samples are the samples of one round. The second one of a pair adds a ratio to the result.
type samples map[string]float64

// recorder returns a function that adds samples of a program in a scenario of that size, and the
// ratio as soon as the round has samples of both programs.
func recorder(r *harness.Run, name string, size report.Measurement, round samples) func(variant, metric, unit string, sample float64) {
	return func(variant, metric, unit string, sample float64) {
		m := size
		m.Dataplane, m.Metric, m.Unit = name, metric, unit
		m.Variant = cmp.Or(variant, m.Variant)
		r.Add(m, sample)
		r.Logf("%s: %s %s: %s %s", name, metric, m.Variant, chart.Number(sample), unit)
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
		r.Add(ratioOf(m), own/was)
	}
}

// startOn starts an agent of a program, waits until it is ready and records the time as metric
// unless that is "".
func (c *runningAgent) startOn(ctx context.Context, at *harness.Site, binary, metric string) error {
	at.Binary = binary
	p, err := at.Start()
	if err != nil {
		return err
	}
	c.Agent = p
	took, err := p.Ready(ctx, 2*time.Minute)
	if err == nil && metric != "" {
		c.record("", metric, "s", took.Seconds())
	}
	return err
}

// reserved is oneByOne with PacketCPU reserved for packets.
func reserved(measure func(context.Context, *runningAgent) error) step {
	return func(ctx context.Context, both []*runningAgent) error {
		if err := cpuaffinity.Reserve(harness.PacketCPU); err != nil {
			return err
		}
		return errors.Join(oneByOne(measure)(ctx, both), cpuaffinity.Release())
	}
}

// cost names a cost of packets.
type cost struct{ variant, metric string }

// packets is the step that measures the cost of packets, three times with the agents in turns, and
// records the least: other work on the machine can only make packets slower.
func packets(measure func(ctx context.Context, c *runningAgent, sample func(variant, metric string, micros float64)) error) step {
	return func(ctx context.Context, both []*runningAgent) error {
		least := map[*runningAgent]map[cost]float64{}
		once := reserved(func(ctx context.Context, c *runningAgent) error {
			return measure(ctx, c, func(variant, metric string, micros float64) {
				k := cost{variant, metric}
				if least[c] == nil {
					least[c] = map[cost]float64{}
				}
				if was, ok := least[c][k]; !ok || micros < was {
					least[c][k] = micros
				}
			})
		})
		for range 3 {
			if err := once(ctx, both); err != nil {
				return err
			}
		}
		for _, c := range both {
			for k, micros := range least[c] {
				c.record(k.variant, k.metric, "µs", micros)
			}
		}
		return nil
	}
}
