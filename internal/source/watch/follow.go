package watch

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	firstRetry = 50 * time.Microsecond
	lastRetry  = time.Second
	// lastFlushRetry is the longest time that Flush waits between two attempts.
	lastFlushRetry = 20 * time.Millisecond

	// CheckInterval is the time between two checks without an event: not all changes come with one.
	CheckInterval = time.Second
)

// Next says when a step of Follow is to be repeated.
type Next uint8

// The answers of a step.
const (
	OnEvent Next = iota // when something changes
	Again               // also without, after twice the last time
	Soon                // also without, and soon: a writer is just about to go
)

// Follow calls step at once, whenever there are events to take, each second with check set, and
// again as its result says, until ctx ends. The watcher must run.
func (w *Watcher) Follow(ctx context.Context, step func(check bool) Next) {
	retry := time.NewTimer(0)
	defer retry.Stop()
	ticker := time.NewTicker(CheckInterval)
	defer ticker.Stop()
	for wait := firstRetry; ; {
		check := false
		select {
		case <-ctx.Done():
			return
		case <-w.Ready:
		case <-retry.C:
		case <-ticker.C:
			check = true
		}
		next := step(check)
		if next != Again {
			wait = firstRetry
		}
		if next == OnEvent {
			retry.Stop()
			continue
		}
		retry.Reset(wait)
		wait = min(2*wait, lastRetry)
	}
}

// Flush calls read until it fails or names no files that somebody is writing. If it still does when
// ctx ends, the error names them and what was to be read.
func Flush(ctx context.Context, what string, read func() (writing []string, err error)) error {
	var writing []string
	for wait := firstRetry; ; wait = min(2*wait, lastFlushRetry) {
		now, err := read()
		switch {
		case err == nil && len(now) == 0:
			return nil
		case err == nil:
			writing = now
		case writing == nil || ctx.Err() == nil:
			return err
		} // what ended with ctx cannot be read any more
		select {
		case <-ctx.Done():
			return fmt.Errorf("read %s: somebody is still writing %s: %w", what, strings.Join(writing, ", "), ctx.Err())
		case <-time.After(wait):
		}
	}
}
