package conntrack

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/wake"
)

// The time between two passes: passInterval if there are UDP flows to cut, whose next packet would
// go to a backend that is gone, and patientInterval if there are not, as a TCP or SCTP connection
// to such a backend is lost anyhow and only has to be told. A pass walks the whole table, some ten
// milliseconds even if it is empty, whatever the number of filters.
const (
	passInterval    = time.Second
	patientInterval = 4 * time.Second
)

// deleter is the part of Conn that a Cleaner uses.
type deleter interface {
	Delete(ctx context.Context, filters []Filter, spare func(*Flow) bool) (int, error)
}

// Cleaner deletes flows in the background, in two passes a second or a few apart: a packet
// that had chosen its backend before the program changed may enter the table after the first. The
// first pass comes at once, or as long after the last one that was made for anybody. It is safe
// for concurrent use.
type Cleaner struct {
	conn    deleter
	spare   func(*Flow) bool
	log     *slog.Logger
	deleted atomic.Uint64
	done    chan struct{}
	wake    wake.Signal

	mu     sync.Mutex
	fresh  []Filter // to be cut in the next pass, and in the one after it
	again  []Filter // to be cut in the next pass for the second time
	ending bool     // do not wait any more
}

// NewCleaner starts a Cleaner that uses conn, which stays the caller's to close after the Cleaner.
// What spare returns true for is left alone: by the second pass a backend may have come back and
// have new flows. It may be nil, and must not call the Cleaner.
func NewCleaner(conn deleter, spare func(*Flow) bool, log *slog.Logger) *Cleaner {
	c := &Cleaner{conn: conn, spare: spare, log: log, done: make(chan struct{}), wake: wake.New()}
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
	c.fresh = append(c.fresh, filters...)
	c.wake.Set()
}

// Deleted is the number of flows deleted so far.
func (c *Cleaner) Deleted() uint64 { return c.deleted.Load() }

// Close does what is left without waiting for its time, and ends the Cleaner.
func (c *Cleaner) Close() {
	c.mu.Lock()
	c.ending = true
	c.wake.Set()
	c.mu.Unlock()
	<-c.done
}

func (c *Cleaner) run() {
	defer close(c.done)
	var last time.Time // when the last pass began
	for {
		wait := max(0, time.Until(last.Add(c.pause())))
		filters, more := c.next(wait == 0)
		switch {
		case len(filters) > 0:
			last = time.Now()
			c.pass(filters)
		case !more:
			return
		default:
			c.sleep(wait)
		}
	}
}

// pause is the time to the next pass, by what waits for it.
func (c *Cleaner) pause() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, filters := range [][]Filter{c.fresh, c.again} {
		if slices.ContainsFunc(filters, func(f Filter) bool { return f.Protocol == model.UDP }) {
			return passInterval
		}
	}
	return patientInterval
}

// next takes what is to be cut now: nothing, if it is not yet time and the Cleaner is not
// ending. more is false once there will never be anything again.
func (c *Cleaner) next(due bool) (filters []Filter, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if due || c.ending {
		filters = slices.Concat(c.again, c.fresh)
		c.again, c.fresh = c.fresh, nil
	}
	return filters, !c.ending
}

func (c *Cleaner) pass(filters []Filter) {
	n, err := c.conn.Delete(context.Background(), filters, c.spare)
	c.deleted.Add(uint64(n))
	if err != nil {
		c.log.Warn("could not delete connection tracking entries; flows to backends that are gone may hang until they time out",
			"filters", len(filters), "error", err)
	} else if n > 0 {
		c.log.Debug("deleted connection tracking entries", "filters", len(filters), "entries", n)
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
