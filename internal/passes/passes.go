// Package passes does work in the background that is asked for again and again, and can be waited
// for.
package passes

import (
	"context"
	"sync"
	"time"

	"sluice.dev/sluice/internal/driver/nftables/nft"
	"sluice.dev/sluice/internal/wake"
)

// Passes are made one after the other: all that is asked for while one is under way is done by the
// next. A pass begins when no packet is on its way any more that began before it was asked for, so
// one pass finds whatever such packets left behind. They are made by Start; nil ones do nothing. They are safe for
// concurrent use.
type Passes struct {
	pass  func() error
	pause func() time.Duration

	wake  wake.Signal
	ended chan struct{}

	mu          sync.Mutex
	asked, done uint64 // how often it was asked for, and what of that is done
	waiters     []waiter
	closing     bool
}

// waiter waits for what was asked for up to a number.
type waiter struct {
	upTo uint64
	done chan<- error // has room for the one answer
}

// Start returns Passes that call pass, which does what was asked for until then, and pause, which is
// the least time between the beginnings of two passes for which nobody waits. Neither may call the
// Passes but to Ask. Close ends them.
func Start(pass func() error, pause func() time.Duration) *Passes {
	p := &Passes{pass: pass, pause: pause, wake: wake.New(), ended: make(chan struct{})}
	go p.run()
	return p
}

// Ask has a pass made, and returns at once.
func (p *Passes) Ask() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	p.wake.Set()
}

// Wait returns once all is done that was asked for before, or with the error of the pass that
// failed to do it.
func (p *Passes) Wait(ctx context.Context) error {
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
	}
}

// Close does what is left without a pause, and ends it.
func (p *Passes) Close() {
	p.mu.Lock()
	p.closing = true
	p.wake.Set()
	p.mu.Unlock()
	<-p.ended
}

// AwaitPackets returns once all packets that were in a chain when it was called have left it.
func AwaitPackets() { nft.AwaitPackets() }

func (p *Passes) run() {
	defer close(p.ended)
	var began, ended time.Time // the last pass
	for {
		upTo, hurry, closing := p.due()
		pause := time.Until(ended.Add(ended.Sub(began))) // half of the time is left to others
		if !hurry {
			pause = max(pause, time.Until(began.Add(p.pause())))
		}
		switch {
		case upTo == 0 && closing:
			return
		case upTo == 0:
			<-p.wake
		case pause > 0 && !closing:
			select {
			case <-p.wake:
			case <-time.After(pause):
			}
		default:
			AwaitPackets()
			began = time.Now()
			err := p.pass()
			ended = time.Now()
			p.finished(upTo, err)
		}
	}
}

// due is up to which number there is something to do; 0: nothing.
func (p *Passes) due() (upTo uint64, hurry, closing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked > p.done {
		upTo = p.asked
	}
	return upTo, len(p.waiters) > 0, p.closing
}

// finished notes a pass, and tells those who waited for it.
func (p *Passes) finished(upTo uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = upTo
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
