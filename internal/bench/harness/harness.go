// Package harness is what experiments are made of: the run under way, testbeds with an agent or another
// data plane, packets and requests sent through them, and the cases that are measured in turns.
package harness

import (
	"context"
	"fmt"
	"io"
	"time"

	"sluice.dev/sluice/internal/bench/report"
	"sluice.dev/sluice/internal/bench/testbed"
)

// PacketCPU does the measured work.
const PacketCPU = 0

// The scales: small takes a quarter of an hour, full about one, and is what goals are for.
const (
	Small report.Scale = "small"
	Full  report.Scale = "full"
)

// Options of a run.
type Options struct {
	Experiments []string // names, or what several names begin with ("policy"); empty: baseline alone if there is one, or else all others
	Scale       report.Scale
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
	Name   string
	Title  string
	How    string // what is done, for people
	Run    func(ctx context.Context, r *Run) error
	Charts func(r *report.Result) []report.Figure
}

// Run is one experiment under way.
type Run struct {
	Options
	*report.Result
	Prefix   string // of the names of its namespaces
	Testbeds int    // made so far
	Shared   Shared
	Cut      bool // it was stopped before its end, and what it has by then counts
}

// Logf prints what happens now.
func (r *Run) Logf(format string, args ...any) {
	fmt.Fprintf(r.Options.Progress, "%s  %-22s  %s\n", time.Now().Format(time.TimeOnly), r.Experiment, fmt.Sprintf(format, args...))
}

// Full tells whether the goals' own scale is run.
func (r *Run) Full() bool { return r.Options.Scale == Full }

// Goal files a goal that was measured at its own scale or, small, at a lesser one.
func (r *Run) Goal(what, goal, result string, met bool) {
	g := report.Goal{What: what, Goal: goal, Result: result, Met: met}
	if !r.Full() {
		g.Scale = string(r.Options.Scale)
	}
	r.Goals = append(r.Goals, g)
}

// Short is the first duration at full scale, the second at small.
func (r *Run) Short(full, small time.Duration) time.Duration {
	if r.Full() {
		return full
	}
	return small
}

// NextPrefix begins the names of the run's next testbed.
func (r *Run) NextPrefix() string {
	r.Testbeds++
	return fmt.Sprintf("%s-%d", r.Prefix, r.Testbeds)
}

// NewTestbed makes the run's next testbed.
func (r *Run) NewTestbed() (*testbed.Testbed, error) { return testbed.New(r.NextPrefix()) }
