package kube

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
)

// maxReported is how many faults are reported: more help nobody.
const maxReported = 500

// reports tells the API of the present faults, one after the other, each when it is due. All nodes
// find a fault at once, so it is told of after a random time. Nothing waits for it. A failure is
// logged once, and tried again.
type reports struct {
	api  *api
	log  *slog.Logger
	pace pace
	wake wake.Signal // set when faults changes

	failure string // what cannot be done, in the log
	// tell tells of a fault, and returns when to do so again.
	tell func(context.Context, model.Issue, *report) (again time.Duration, err error)
	ends bool // that a fault is gone is told, too

	mu sync.Mutex
	// faults are texts by what they are about: an issue, or its object alone. They are replaced as
	// a whole. nil: not known yet.
	faults map[model.Issue]string

	// The following fields belong to Run alone.
	states  map[model.Issue]*report
	failing bool // the last attempt failed
}

// report is what is to be told of one fault.
type report struct {
	fault string    // "": it is gone
	due   time.Time // when to tell it
	event event     // a Recorder's
}

// pace is how often the API is told of faults.
type pace struct {
	spread  time.Duration // random delay before a fault is told of
	between time.Duration // at least, between two reports
	again   time.Duration // until an Event of this node's own is repeated
	others  time.Duration // until what another node may have told is checked: it may be gone
	failed  time.Duration // after a failure
}

var usualPace = pace{spread: 10 * time.Second, between: 200 * time.Millisecond, again: 20 * time.Minute, others: 90 * time.Minute, failed: time.Minute}

func newReports(config Config, log *slog.Logger) reports {
	return reports{api: config.api(usualTiming(), log), log: log, pace: usualPace, wake: wake.New(), states: map[model.Issue]*report{}}
}

// set sets the present faults.
func (r *reports) set(now map[model.Issue]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.faults != nil && maps.Equal(now, r.faults) {
		return
	}
	r.faults = now
	r.wake.Set()
}

// Run reports until ctx ends.
func (r *reports) Run(ctx context.Context) {
	for {
		r.follow()
		wait := r.step(ctx)
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-time.After(wait):
		}
	}
}

// follow notes what has come to be at fault, and what is no longer.
func (r *reports) follow() {
	r.mu.Lock()
	faults := r.faults
	r.mu.Unlock()
	for about, s := range r.states {
		switch _, still := faults[about]; {
		case still || s.fault == "":
		case r.ends:
			r.states[about] = &report{due: time.Now().Add(rand.N(r.pace.spread))}
		default:
			delete(r.states, about)
		}
	}
	for about, fault := range faults {
		if s := r.states[about]; s == nil || s.fault != fault {
			r.states[about] = &report{fault: fault, due: time.Now().Add(rand.N(r.pace.spread))}
		}
	}
}

// step does what is due first, if anything is, and returns when to come back.
func (r *reports) step(ctx context.Context) time.Duration {
	var next model.Issue
	var s *report
	for about, candidate := range r.states {
		if s == nil || candidate.due.Before(s.due) {
			next, s = about, candidate
		}
	}
	if s == nil {
		return time.Hour
	}
	if wait := time.Until(s.due); wait > 0 {
		return wait
	}
	again, err := r.tell(ctx, next, s)
	switch {
	case err != nil:
		s.due = time.Now().Add(jitter(r.pace.failed))
	case s.fault == "":
		delete(r.states, next)
	default:
		s.due = time.Now().Add(jitter(again))
	}
	if err != nil && ctx.Err() == nil && !r.failing {
		r.log.Warn(r.failure+"; trying again", "object", next.Object, "error", err)
	}
	r.failing = err != nil
	return r.pace.between
}
