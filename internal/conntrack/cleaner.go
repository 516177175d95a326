package conntrack

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// secondPass is how long after a cut the flows are cut once more: a packet that had chosen its backend
// before the program changed, and was entered into the table after the first cut, has long been by then.
const secondPass = time.Second

// deleter is the part of Conn that a Cleaner uses.
type deleter interface {
	Delete(ctx context.Context, filters []Filter) (int, error)
}

// Cleaner deletes flows in the background, twice: at once, and a second later.
// What is asked for while it works is done together. It is safe for concurrent use.
type Cleaner struct {
	conn    deleter
	log     *slog.Logger
	deleted atomic.Uint64
	done    chan struct{}
	wake    chan struct{} // capacity 1: something changed

	mu     sync.Mutex
	first  []Filter      // to be cut now
	second []delayed     // to be cut again, in the order of time
	idle   chan struct{} // closed when nothing is left to do; nil while that is so
	ending bool          // do not wait any more
}

type delayed struct {
	due     time.Time
	filters []Filter
}

// NewCleaner starts a Cleaner that uses conn, which stays the caller's to close
// after the Cleaner.
func NewCleaner(conn deleter, log *slog.Logger) *Cleaner {
	c := &Cleaner{conn: conn, log: log, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	go c.run()
	return c
}

// Cut asks for the flows that any of the filters matches to be deleted, and returns at
// once. It takes over the slice. After Close it does nothing.
func (c *Cleaner) Cut(filters []Filter) {
	if len(filters) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return
	}
	c.first = append(c.first, filters...)
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	c.poke()
}

// Wait returns when all that was asked for is done, both times, or when ctx ends, with its error.
func (c *Cleaner) Wait(ctx context.Context) error {
	c.mu.Lock()
	idle := c.idle
	c.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Deleted is the number of flows deleted so far.
func (c *Cleaner) Deleted() uint64 { return c.deleted.Load() }

// Close does what is left without waiting for its time, and ends the Cleaner.
func (c *Cleaner) Close() {
	c.mu.Lock()
	c.ending = true
	c.poke()
	c.mu.Unlock()
	<-c.done
}

func (c *Cleaner) run() {
	defer close(c.done)
	for {
		first, second, wait, more := c.next()
		switch {
		case len(first)+len(second) > 0:
			c.pass(first, second)
		case !more:
			return
		default:
			c.sleep(wait)
		}
	}
}

// next takes what is to be cut now. If that is nothing, wait is the time until there will be
// something (0: unknown), and more is false once there never will.
func (c *Cleaner) next() (first, second []Filter, wait time.Duration, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, c.first = c.first, nil
	for len(c.second) > 0 {
		if wait = time.Until(c.second[0].due); wait > 0 && !c.ending {
			break
		}
		second = append(second, c.second[0].filters...)
		c.second, wait = c.second[1:], 0
	}
	if len(first)+len(second)+len(c.second) == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
	return first, second, wait, !c.ending
}

// pass cuts both lists and puts the first down for their second time.
func (c *Cleaner) pass(first, second []Filter) {
	n, err := c.conn.Delete(context.Background(), append(second, first...))
	c.deleted.Add(uint64(n))
	if err != nil {
		c.log.Warn("could not delete connection tracking entries; flows to backends that are gone may hang until they time out",
			"filters", len(first)+len(second), "error", err)
	} else if n > 0 {
		c.log.Debug("deleted connection tracking entries", "filters", len(first)+len(second), "entries", n)
	}
	if len(first) > 0 {
		c.mu.Lock()
		c.second = append(c.second, delayed{due: time.Now().Add(secondPass), filters: first})
		c.mu.Unlock()
	}
}

// sleep waits for the time given, or for something new.
func (c *Cleaner) sleep(d time.Duration) {
	var timer <-chan time.Time
	if d > 0 {
		timer = time.After(d)
	}
	select {
	case <-timer:
	case <-c.wake:
	}
}

// poke wakes the worker.
func (c *Cleaner) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
