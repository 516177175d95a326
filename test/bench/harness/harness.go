// Package harness is what experiments use: the run with its options and result, testbeds with an
// agent or another data plane, packets and requests through them, and cases that are measured in
// turns.
package harness

import (
	"context"
	"fmt"
	"io"
	"time"

	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// PacketCPU is the CPU that does the measured packet work.
const PacketCPU = 0

// The scales. Small takes a quarter of an hour, full about an hour. Goals are for the full scale.
const (
	Small report.Scale = "small"
	Full  report.Scale = "full"
)

// Options of a run.
type Options struct {
	Experiments []string // names or first parts of names ("policy"); empty: baseline alone if Baseline is set, all others if not
	Scale       report.Scale
	Rounds      int           // how often each case is measured; 0: what the scale says
	SoakFor     time.Duration // duration of the experiment soak; 0: what the scale says
	Services    []int         // numbers of services, or farms, where a size can be chosen (see Run.Sizes); none: what the scale says
	Objects     int           // how many objects the hostile experiments draw; 0: what the scale says
	From        int           // number of the first of these objects
	Pods        int           // how many pods, about, other nodes have; 0: what the scale says
	Seed        uint64        // what these objects are drawn from
	Out         string        // folder for results; it is made if it does not exist
	Progress    io.Writer     // a line for each step
	Binary      string        // the sluice program whose agent is measured
	Baseline    string        // the sluice program that the experiment baseline compares Binary with; "": none
	Command     string        // how the user asked for this run
}

// Experiment measures one thing.
type Experiment struct {
	Name   string
	Title  string
	How    string // what is done, for people
	Run    func(ctx context.Context, r *Run) error
	Charts func(r *report.Result) []report.Figure
}

// Run is a running experiment.
type Run struct {
	Options
	*report.Result
	Prefix   string // the names of its namespaces begin with it
	Testbeds int    // how many it has made
	Shared   Shared
	Stopped  bool // it was stopped before its end; keep its results so far
}

// Logf prints a line about progress.
func (r *Run) Logf(format string, args ...any) {
	fmt.Fprintf(r.Options.Progress, "%s  %-22s  %s\n", time.Now().Format(time.TimeOnly), r.Experiment, fmt.Sprintf(format, args...))
}

// Full reports whether this is the full scale.
func (r *Run) Full() bool { return r.Options.Scale == Full }

// Sizes returns the numbers of services, or of farms, to measure: those of the options, or what the
// scale says.
func (r *Run) Sizes(full, small []int) []int {
	switch {
	case len(r.Options.Services) > 0:
		return r.Options.Services
	case r.Full():
		return full
	}
	return small
}

// Goal adds a goal and how it was met. At the small scale the goal is marked so.
func (r *Run) Goal(what, goal, result string, met bool) {
	g := report.Goal{What: what, Goal: goal, Result: result, Met: met}
	if !r.Full() {
		g.Scale = string(r.Options.Scale)
	}
	r.Goals = append(r.Goals, g)
}

// Short returns the first duration at full scale and the second at small scale.
func (r *Run) Short(full, small time.Duration) time.Duration {
	if r.Full() {
		return full
	}
	return small
}

// NextPrefix returns what the names of the run's next testbed begin with.
func (r *Run) NextPrefix() string {
	r.Testbeds++
	return fmt.Sprintf("%s-%d", r.Prefix, r.Testbeds)
}

// NewTestbed makes the run's next testbed.
func (r *Run) NewTestbed() (*testbed.Testbed, error) { return testbed.New(r.NextPrefix()) }
