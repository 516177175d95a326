// Package bench measures what Sluice promises, and the programs it is compared
// with, on one machine in one run.
//
// An experiment is data: data planes, cluster sizes and a load. All of its cases
// stand side by side, each in a testbed of network namespaces of its own, and are
// measured in turns (A B C A B C …), so that whatever else the machine does
// befalls all alike; what counts are ratios within a round, their median and
// their spread. One CPU does the packet work, the others do the rest.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// packetCPU does the measured work.
const packetCPU = 0

// Scale is how large the experiments are.
type Scale string

// The scales: small takes a quarter of an hour, full about one, and is what goals are for.
const (
	Small Scale = "small"
	Full  Scale = "full"
)

// ErrUnknown is wrapped when an experiment or scale of that name does not exist.
var ErrUnknown = errors.New("unknown")

// Options of a run.
type Options struct {
	Experiments []string // names, or what several names begin with ("policy"); empty: baseline alone if there is one, or else all others
	Scale       Scale
	Rounds      int           // how often each case is measured; 0: as many as the scale says
	SoakFor     time.Duration // of the experiment soak; 0: as long as the scale says
	Objects     int           // of the experiment hostile; 0: as many as the scale says
	From        int           // number of the first of those
	Pods        int           // about as many are on other nodes beside them; 0: as the scale says
	Seed        uint64        // of those objects
	Out         string        // folder for results; made if absent
	Progress    io.Writer     // a line for each step
	Binary      string        // the sluice program whose agent is measured
	Baseline    string        // another sluice program, which the experiment baseline compares this one with; "": none
	Command     string        // how the user asked for this run
}

// Experiment is one question with its answer.
type Experiment struct {
	Name  string
	Title string
	How   string // what is done, for people
	run   func(ctx context.Context, r *run) error
	paint func(r *Result) []painting
}

// Experiments are all there are, in the order in which they run.
func Experiments() []Experiment {
	return []Experiment{
		connections, requests, latency, programming, changes, footprint, restart,
		rules, blocking, copying, filling, labels, starting, costing, removal,
		kubeStart, kubeMemory, kubeChange, kubeBurst, kubeCPU, kubeConnections, kubeRollout, soak, hostileObjects, hostileMemory,
		baseline,
	}
}

// run is one experiment under way.
type run struct {
	Options
	*Result
	prefix   string // of the names of its namespaces
	testbeds int    // made so far
	shared   Shared
	cut      bool // it was stopped before its end, and what it has by then counts
}

// Shared is what several experiments of one invocation use, such as an API server that takes long to
// fill. Who needs it first makes it; it is closed at the end.
type Shared map[any]io.Closer

// Close closes all of it.
func (s Shared) Close() error {
	var errs []error
	for _, c := range s {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// progress prints what happens now.
func (r *run) progress(format string, args ...any) {
	fmt.Fprintf(r.Options.Progress, "%s  %-22s  %s\n", time.Now().Format(time.TimeOnly), r.Experiment, fmt.Sprintf(format, args...))
}

// full tells whether the goals' own scale is run.
func (r *run) full() bool { return r.Options.Scale == Full }

// goal files a goal that was measured at its own scale or, small, at a lesser one.
func (r *run) goal(what, goal, result string, met bool) {
	g := Goal{What: what, Goal: goal, Result: result, Met: met}
	if !r.full() {
		g.Scale = string(r.Options.Scale)
	}
	r.Goals = append(r.Goals, g)
}

// Run runs the experiments one after the other and writes their results; a
// failed experiment is reported at the end and does not keep the others from
// running. When ctx ends, what is running is cleaned up and nothing more starts.
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
	if err := sweep(); err != nil {
		return err
	}
	shared := Shared{}
	var failed []error
	for i, e := range chosen {
		if err := runOne(ctx, o, e, i, shared); err != nil {
			failed = append(failed, fmt.Errorf("run experiment %s: %w", e.Name, err))
			fmt.Fprintf(o.Progress, "%s\n", failed[len(failed)-1])
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(append(failed, shared.Close(), writeReport(o.Out, names(Experiments())))...)
}

func choose(o Options) ([]Experiment, error) {
	if o.Scale != Small && o.Scale != Full {
		return nil, fmt.Errorf("%w scale %q: choose small or full", ErrUnknown, o.Scale)
	}
	all := Experiments()
	if len(o.Experiments) == 0 {
		return slices.DeleteFunc(all, func(e Experiment) bool { return (e.Name == baseline.Name) != (o.Baseline != "") }), nil
	}
	var chosen []Experiment
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

func names(experiments []Experiment) []string {
	var all []string
	for _, e := range experiments {
		all = append(all, e.Name)
	}
	return all
}

// runOne runs an experiment; number tells it from the others of this run.
func runOne(ctx context.Context, o Options, e Experiment, number int, shared Shared) error {
	r := &run{
		Options: o,
		Result: &Result{
			Experiment: e.Name, Title: e.Title, How: e.How, Command: o.Command, Started: time.Now().UTC().Truncate(time.Second),
			Scale: o.Scale, Rounds: o.Rounds, Machine: thisMachine(),
			Goals: []Goal{}, Charts: []Picture{}, Skipped: []string{}, Notes: []string{},
		},
		prefix: fmt.Sprintf("%s%d-%d", marker, os.Getpid(), number),
		shared: shared,
	}
	r.progress("%s", e.Title)
	began := time.Now()
	if err := e.run(ctx, r); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil && !r.cut {
		return fmt.Errorf("stopped before the end, nothing kept: %w", err)
	}
	r.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
	for _, s := range r.Skipped {
		r.progress("not run: %s", s)
	}
	for _, g := range r.Goals {
		r.progress("%s: goal %s, got %s: %s", g.What, g.Goal, g.Result, g.verdict())
	}
	r.progress("took %.0f s", r.Seconds)
	return r.keep(o.Out, e.paint(r.Result))
}

// verdict of a goal in a word.
func (g Goal) verdict() string {
	if g.Met {
		return "met"
	}
	return "missed"
}
