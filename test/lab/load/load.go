// Package load sends requests all the time to the servers of a lab, and counts those that fail.
package load

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/netns"
)

// answerTime is the time-out of a request.
const answerTime = 10 * time.Second

// Load sends requests until it is stopped: each over a TCP connection of its own, and on each route
// one after the other over one connection.
type Load struct {
	every   time.Duration
	sent    atomic.Int64
	failed  atomic.Int64
	longest atomic.Int64

	mu      sync.Mutex
	reasons []string // of the first failures

	over    atomic.Bool
	workers sync.WaitGroup
}

// On each route there are so many workers.
const workers = 4

const mostReasons = 3

// Route is a network namespace, by its path or name, and an address that is asked from there.
type Route struct {
	From string
	To   netip.AddrPort
}

// Config says what a load sends.
type Config struct {
	Routes []Route
	Every  time.Duration // between two requests of a worker; default: a millisecond
	// Short has each request use a connection of its own: for servers that end, and with them all
	// their connections.
	Short bool
}

// Start starts four workers on each route.
func Start(c Config) (*Load, error) {
	l := &Load{every: max(c.Every, time.Millisecond)}
	for _, r := range c.Routes {
		for i := range workers {
			ns, err := netns.Open(r.From)
			if err != nil {
				l.Stop()
				return nil, err
			}
			send := func() error { _, err := echo.Ask("TCP", r.To, answerTime); return err }
			if i == 0 && !c.Short {
				send = (&conversation{to: r.To}).send
			}
			l.workers.Go(func() {
				defer ns.Close()
				l.fail(ns.Do(func() error { l.work(r, send); return nil }))
			})
		}
	}
	return l, nil
}

// work sends requests from the calling thread's network.
func (l *Load) work(r Route, send func() error) {
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for answered := time.Now(); !l.over.Load(); <-tick.C {
		err := send()
		l.sent.Add(1)
		if err != nil {
			l.fail(fmt.Errorf("from %s to %s: %w", r.From, r.To, err))
			continue
		}
		now := time.Now()
		for silent := int64(now.Sub(answered)); ; {
			if longest := l.longest.Load(); silent <= longest || l.longest.CompareAndSwap(longest, silent) {
				break
			}
		}
		answered = now
	}
}

// conversation sends requests over one connection, or over a new one after a failure.
type conversation struct {
	to    netip.AddrPort
	conn  net.Conn
	lines *bufio.Reader
}

func (c *conversation) send() (err error) {
	if c.conn == nil {
		if c.conn, err = net.DialTimeout("tcp", c.to.String(), answerTime); err != nil {
			return err
		}
		c.lines = bufio.NewReader(c.conn)
	}
	if err = c.conn.SetDeadline(time.Now().Add(answerTime)); err == nil {
		_, err = c.conn.Write([]byte("who are you?\n"))
	}
	if err == nil {
		_, err = c.lines.ReadString('\n')
	}
	if err != nil {
		_ = c.conn.Close()
		c.conn = nil
		return fmt.Errorf("on an open connection: %w", err)
	}
	return nil
}

// fail counts a failure, if it is one.
func (l *Load) fail(err error) {
	if err == nil {
		return
	}
	l.failed.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.reasons) < mostReasons {
		l.reasons = append(l.reasons, err.Error())
	}
}

// Sent is how many requests were sent.
func (l *Load) Sent() int64 { return l.sent.Load() }

// Failed is how many of them failed.
func (l *Load) Failed() int64 { return l.failed.Load() }

// Silence is the longest time between two answers to the same worker.
func (l *Load) Silence() time.Duration { return time.Duration(l.longest.Load()) }

// More returns once n more requests have been sent, or one has failed.
func (l *Load) More(n int64) {
	for until := l.Sent() + n; l.Sent() < until && l.Failed() == 0; {
		time.Sleep(time.Millisecond)
	}
}

// Stop ends the load. No request is under way when it returns.
func (l *Load) Stop() {
	l.over.Store(true)
	l.workers.Wait()
}

// Outcome stops the load and returns how many requests were sent, and an error if some failed.
func (l *Load) Outcome() (sent int64, err error) {
	l.Stop()
	if n := l.Failed(); n > 0 {
		err = fmt.Errorf("%d of %d requests failed; the first:\n%s", n, l.Sent(), strings.Join(l.reasons, "\n"))
	}
	return l.Sent(), err
}
