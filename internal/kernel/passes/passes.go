// Package passes does work in the background that is asked for again and again, and can be waited
// for.
package passes

import (
	"context"
	"errors"
	"sync"
	"time"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/lib/wake"
)

// Work is what passes of a kind do.
type Work[T any] struct {
	// Merge adds what is asked for to what was asked for before.
	Merge func(to *T, what T)
	// Pass does it. What fails is merged with what is asked for next.
	Pass func(T) error
	// Pause is the least time between the beginnings of two passes for which nobody waits, by what
	// the next one is to do.
	Pause func(T) time.Duration
}

// Passes are made one after the other: all that is asked for while one is under way is done by the
// next. Before a pass begins, all packets leave the chains that were in them when it was asked for:
// so one pass finds what packets from before a change have left behind. Passes are made by Start;
// to ask nil ones for something, or to wait for them, does nothing. They are safe for concurrent
// use.
type Passes[T any] struct {
	Work[T]
	await func()
	wake  wake.Signal
	ended chan struct{}

	mu          sync.Mutex
	todo        T
	pending     bool   // there is something to do
	asked, done uint64 // how often somebody asked who may wait for it, and what of that is done
	waiters     []waiter
	closing     bool
}

// waiter waits for what was asked for up to a number.
type waiter struct {
	upTo uint64
	done chan<- error // has room for the one answer
}

var errEnded = errors.New("the program is ending")

// Start returns Passes, which Close ends.
func Start[T any](w Work[T]) *Passes[T] { return start(w, AwaitPackets) }

func start[T any](w Work[T], await func()) *Passes[T] {
	p := &Passes[T]{Work: w, await: await, wake: wake.New(), ended: make(chan struct{})}
	go p.run()
	return p
}

// Ask has a pass do something, and returns at once.
func (p *Passes[T]) Ask(what T) { p.ask(what, 1) }

// Suggest does the same, for what nobody waits for.
func (p *Passes[T]) Suggest(what T) { p.ask(what, 0) }

func (p *Passes[T]) ask(what T, counts uint64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Merge(&p.todo, what)
	p.pending = true
	p.asked += counts
	p.wake.Set()
}

// Idle reports whether nothing was asked for that no pass has begun to do.
func (p *Passes[T]) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.pending
}

// Wait returns once all is done that was asked for before, or with the error of the pass that
// failed to do it.
func (p *Passes[T]) Wait(ctx context.Context) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	if p.asked == p.done {
		p.mu.Unlock()
		return nil
	}
	done := make(chan error, 1)
	p.waiters = append(p.waiters, waiter{p.asked, done})
	p.wake.Set()
	p.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ended:
		return errEnded
	}
}

// Close tries once what is left, without a pause, and ends the Passes.
func (p *Passes[T]) Close() {
	p.mu.Lock()
	p.closing = true
	p.wake.Set()
	p.mu.Unlock()
	<-p.ended
}

// AwaitPackets returns once all packets that were in a chain when it was called have left it.
func AwaitPackets() { nft.AwaitPackets() }

func (p *Passes[T]) run() {
	defer close(p.ended)
	var began, ended time.Time // the last pass
	for {
		pause, closing := p.due(began, ended)
		if pause > 0 && !closing {
			p.sleep(pause)
			continue
		}
		if what, upTo, pending := p.take(); pending {
			p.await()
			began = time.Now()
			err := p.Pass(what)
			ended = time.Now()
			p.finished(what, upTo, err)
		}
		if closing {
			return
		}
	}
}

// forever is how long nothing is due.
const forever = 1<<63 - 1

// due is the time to the next pass. Also for those who wait, half of the time is left to others.
func (p *Passes[T]) due(began, ended time.Time) (pause time.Duration, closing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.pending {
		return forever, p.closing
	}
	pause = time.Until(ended.Add(ended.Sub(began)))
	if len(p.waiters) == 0 {
		pause = max(pause, time.Until(began.Add(p.Pause(p.todo))))
	}
	return pause, p.closing
}

// sleep waits for the time given, or for something new.
func (p *Passes[T]) sleep(d time.Duration) {
	var timer <-chan time.Time
	if d < forever {
		timer = time.After(d)
	}
	select {
	case <-timer:
	case <-p.wake:
	}
}

func (p *Passes[T]) take() (what T, upTo uint64, pending bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what, upTo, pending = p.todo, p.asked, p.pending
	var none T
	p.todo, p.pending = none, false
	return what, upTo, pending
}

// finished notes a pass, and tells those who waited for it.
func (p *Passes[T]) finished(what T, upTo uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done = upTo; err != nil {
		p.Merge(&p.todo, what)
		p.pending = true
		p.asked++
	}
	left := p.waiters[:0]
	for _, w := range p.waiters {
		if w.upTo <= upTo {
			w.done <- err
		} else {
			left = append(left, w)
		}
	}
	p.waiters = left
}
