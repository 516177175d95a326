package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/state"
)

// Follower keeps a driver in step that carries out a part which the base does not: the fabric. It
// works in a goroutine of its own: however long it takes, and whether or not it fails, the base
// waits for nothing. Its methods are safe for concurrent use.
type Follower struct {
	r     *Reconciler
	audit time.Duration // between two comparisons of everything with the kernel
	wake  wake.Signal

	mu      sync.Mutex
	pending state.FabricDelta // what changed since its last attempt began
	next    uint64            // how many changes that comes to
	lacking Lacking
	status  FollowerStatus
	healed  contest.Pace
	tried   uint64        // next at the last attempt
	ended   chan struct{} // closed when the next attempt ends
}

// FollowerStatus is the state of a follower.
type FollowerStatus struct {
	Name    string    `json:"name"`
	Fabric  bool      `json:"fabric,omitempty"` // it carries out the fabric
	InStep  bool      `json:"inStep"`           // it has carried out every change
	Error   string    `json:"error,omitempty"`  // of the last attempt, while attempts fail
	Updated time.Time `json:"updated,omitzero"`
	// Faults is how many are known of what it carries out; who has the Follower fills it in.
	Faults int `json:"faults,omitempty"`
	// Contested says that another program goes on changing what it programs, and is undone.
	Contested bool `json:"contested,omitempty"`
}

// NewFollower returns a Follower of d that Run has do its work; want returns a copy of the
// desired state that nobody else changes, and audit is the time between two audits.
func NewFollower(d driver.Driver, want func() *state.State, audit time.Duration, log *slog.Logger) *Follower {
	can := d.Capabilities()
	return &Follower{r: New(d, want, log.With("follower", can.Name)), audit: audit, wake: wake.New(), ended: make(chan struct{}),
		lacking: Lacking{Any: true}, status: FollowerStatus{Name: can.Name, Fabric: can.Can&driver.Fabric != 0}}
}

// Follow has it follow a change that the base has carried out, and what the sources lack by then.
func (f *Follower) Follow(delta state.Delta, lacking Lacking) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending.Merge(delta.Fabric)
	f.lacking = lacking
	f.next++
	f.status.InStep = f.status.InStep && f.pending.Len() == 0
	f.wake.Set()
}

// Status says how it fares.
func (f *Follower) Status() FollowerStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	status := f.status
	status.Contested = f.healed.Lost(time.Now())
	return status
}

// Wait returns once it has carried out all that it was to follow by then, or failed to.
func (f *Follower) Wait(ctx context.Context) error {
	f.mu.Lock()
	next := f.next
	f.mu.Unlock()
	for {
		f.mu.Lock()
		tried, failure, ended := f.tried >= next, f.status.Error, f.ended
		f.mu.Unlock()
		switch {
		case tried && failure != "":
			return errors.New(failure)
		case tried:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
		}
	}
}

// Run follows until ctx ends, and undoes what others change. Nothing is done before the first call
// of Follow.
func (f *Follower) Run(ctx context.Context) {
	retry := time.NewTimer(0)
	retry.Stop()
	var watch, audit <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
			if watch == nil {
				watch, audit = time.Tick(WatchInterval), time.Tick(f.audit)
			}
		case <-retry.C:
		case <-audit:
			f.r.Doubt(Audit)
		case <-watch:
			if !f.r.Tampered(ctx) {
				continue
			}
			f.r.Doubt(Tampering)
		}
		f.attempt(ctx)
		if at, failing := f.r.Due(); failing {
			retry.Reset(max(time.Until(at), 0))
		}
	}
}

func (f *Follower) attempt(ctx context.Context) {
	f.mu.Lock()
	delta := f.pending
	f.pending = state.FabricDelta{}
	next := f.next
	f.r.Lack(f.lacking)
	f.mu.Unlock()
	done, err := f.r.Attempt(ctx, state.Delta{Fabric: delta}, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tried, f.healed = next, f.r.Healed()
	close(f.ended)
	f.ended = make(chan struct{})
	f.status.InStep, f.status.Error = err == nil && f.pending.Len() == 0, ""
	if err != nil {
		f.status.Error = err.Error()
	} else {
		f.status.Updated = done.Time
	}
}
