// Package bench measures what Sluice promises, and the programs it is compared with, on one machine
// in one run.
//
// An experiment measures several cases: data planes, cluster sizes, a load. Each case has a testbed
// of network namespaces of its own, and the cases are measured in turns (A B C A B C …), so that
// whatever else the machine does affects all of them alike. The results are ratios within a round,
// with their median and spread. One CPU does the packet work, the others do the rest.
//
// Experiments are in experiment/, a file each; experiments.go lists them.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/test/bench/experiment/baseline"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/report"
)

// Options of a run.
type Options = harness.Options

// Result is what one experiment measured.
type Result = report.Result

// The scales.
const (
	Small = harness.Small
	Full  = harness.Full
)

// ErrUnknown is wrapped when an experiment or scale of that name does not exist.
var ErrUnknown = errors.New("unknown")

// Run runs the experiments one after the other and writes their results. If one fails, the others
// run all the same, and the error is returned at the end. When ctx ends, the running experiment is
// cleaned up and nothing more starts.
func Run(ctx context.Context, o Options) error {
	chosen, err := choose(o)
	if err != nil {
		return err
	}
	if o.Rounds <= 0 {
		o.Rounds = 9
		if o.Scale == Small {
			o.Rounds = 2
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and BPF need root: run this as root")
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return fmt.Errorf("make folder for results: %w", err)
	}
	if err := harness.Sweep(); err != nil {
		return err
	}
	shared := harness.Shared{}
	var failed []error
	for _, e := range chosen {
		if err := runOne(ctx, o, e, shared); err != nil {
			failed = append(failed, fmt.Errorf("run experiment %s: %w", e.Name, err))
			fmt.Fprintf(o.Progress, "%s\n", failed[len(failed)-1])
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(append(failed, shared.Close(), report.WriteMarkdown(o.Out, names(Experiments())))...)
}

// choose returns the experiments that the options ask for.
func choose(o Options) ([]harness.Experiment, error) {
	if o.Scale != Small && o.Scale != Full {
		return nil, fmt.Errorf("%w scale %q: choose small or full", ErrUnknown, o.Scale)
	}
	all := Experiments()
	if len(o.Experiments) == 0 {
		return slices.DeleteFunc(all, func(e harness.Experiment) bool { return (e.Name == baseline.Experiment.Name) != (o.Baseline != "") }), nil
	}
	var chosen []harness.Experiment
	for _, name := range o.Experiments {
		before := len(chosen)
		for _, e := range all {
			if e.Name == name || strings.HasPrefix(e.Name, name+"-") {
				chosen = append(chosen, e)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("%w experiment %q: choose from %s", ErrUnknown, name, strings.Join(names(all), ", "))
		}
	}
	return chosen, nil
}

func names(experiments []harness.Experiment) []string {
	var all []string
	for _, e := range experiments {
		all = append(all, e.Name)
	}
	return all
}

// runs counts the experiments of this process. Its number makes the names of an experiment's
// namespaces its own.
var runs atomic.Int64

// runOne runs an experiment and keeps its result.
func runOne(ctx context.Context, o Options, e harness.Experiment, shared harness.Shared) error {
	r := &harness.Run{
		Options: o,
		Result: &report.Result{
			Experiment: e.Name, Title: e.Title, How: e.How, Command: o.Command, Started: time.Now().UTC().Truncate(time.Second),
			Scale: o.Scale, Rounds: o.Rounds, Machine: harness.ReadMachine(),
			Goals: []report.Goal{}, Charts: []report.Picture{}, Skipped: []string{}, Notes: []string{},
		},
		Prefix: fmt.Sprintf("%s%d-%d", harness.Marker, os.Getpid(), runs.Add(1)),
		Shared: shared,
	}
	r.Logf("%s", e.Title)
	began := time.Now()
	if err := e.Run(ctx, r); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil && !r.Stopped {
		return fmt.Errorf("stopped before the end, nothing kept: %w", err)
	}
	r.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
	for _, s := range r.Skipped {
		r.Logf("not run: %s", s)
	}
	for _, g := range r.Goals {
		r.Logf("%s: goal %s, got %s: %s", g.What, g.Goal, g.Result, g.Outcome())
	}
	r.Logf("took %.0f s", r.Seconds)
	return r.Keep(o.Out, e.Charts(r.Result))
}
