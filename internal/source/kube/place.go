package kube

import (
	"context"
	"errors"
	"fmt"

	"sluice.dev/sluice/internal/source/kinds"
)

// moveTo sets where the API serves the kind; nil is nowhere.
func (f *follower) moveTo(place *kinds.Resource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.placed && (place == nil && f.place == nil || place != nil && f.isAt(*place)) {
		return
	}
	f.place, f.placed, f.version = place, true, ""
	f.poke()
}

// isNowhere reports whether it is certain that the API does not serve the kind.
func (f *follower) isNowhere() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.placed && f.place == nil
}

// refuse records that nobody can tell where the API serves the kind.
func (f *follower) refuse(err error) {
	f.mu.Lock()
	defer f.notify()
	defer f.mu.Unlock()
	if f.placed {
		return
	}
	f.phase = denied
	f.setTrouble(trouble{reason: "it is not known whether the API serves it: " + err.Error()})
	release(f.asks)
	f.asks = nil
}

// poke interrupts the follower's watch or pause.
func (f *follower) poke() {
	if f.interrupt != nil {
		f.interrupt()
	}
	f.wake.Set()
}

// flush returns once all present objects of the kind have been delivered. It has the whole list
// read: a watch does not show how far it has come until an object of its kind changes, or a minute
// is over.
func (f *follower) flush(ctx context.Context) error {
	ask := make(chan struct{})
	f.mu.Lock()
	f.asks = append(f.asks, ask)
	f.poke()
	f.mu.Unlock()
	select {
	case <-ask:
		return nil
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	cause := errors.New("it takes longer than there is time")
	if f.trouble.reason != "" {
		cause = errors.New(f.trouble.reason)
	}
	return fmt.Errorf("read all of %s: %w: %w", f.kind.Kind, cause, ctx.Err())
}

// reached returns the follower's progress.
func (f *follower) reached() phase {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.phase
}
