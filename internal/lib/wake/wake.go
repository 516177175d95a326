// Package wake tells a goroutine that there is something to do, or that it is time.
package wake

import (
	"context"
	"time"
)

// Signal is set by any number of goroutines and received by one. However often it is set before it
// is received, it is received once: the receiver then looks for all that there is to do. It is made
// by New.
type Signal chan struct{}

// New returns a Signal that is not set.
func New() Signal { return make(Signal, 1) }

// Set has the receiver wake up. It does not wait.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default: // the receiver has not seen the last one yet
	}
}

// Sleep waits for some time, and reports whether that passed before ctx ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
