package demo

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

// These are the time-outs of requests that should be answered, and of those that should be dropped.
const (
	answerTime  = 10 * time.Second
	silenceTime = 500 * time.Millisecond
)

// ask sends one request over TCP from a network namespace.
func ask(from string, to netip.AddrPort, timeout time.Duration) (a echo.Answer, err error) {
	ns, err := netns.Open(from)
	if err != nil {
		return a, err
	}
	defer ns.Close()
	err = ns.Do(func() error { a, err = echo.Ask("TCP", to, timeout); return err })
	return a, err
}

// load sends requests until it is stopped: each over a TCP connection of its own, and on each route
// one after the other over one connection.
type load struct {
	sent   atomic.Int64
	failed atomic.Int64

	mu      sync.Mutex
	reasons []string // of the first failures

	over    atomic.Bool
	workers sync.WaitGroup
}

// These bound a load: on each route, each worker sends a request at each tick.
const (
	loadWorkers = 4
	loadTick    = time.Millisecond
	mostReasons = 3
)

// route is a network namespace, and an address that is asked from there.
type route struct {
	from string
	to   netip.AddrPort
}

// startLoad starts the workers of each route.
func startLoad(routes ...route) (*load, error) {
	l := &load{}
	for _, r := range routes {
		for i := range loadWorkers {
			ns, err := netns.Open(r.from)
			if err != nil {
				l.stop()
				return nil, err
			}
			send := func() error { _, err := echo.Ask("TCP", r.to, answerTime); return err }
			if i == 0 {
				send = (&conversation{to: r.to}).send
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
func (l *load) work(r route, send func() error) {
	tick := time.NewTicker(loadTick)
	defer tick.Stop()
	for !l.over.Load() {
		err := send()
		if err != nil {
			err = fmt.Errorf("from %s to %s: %w", r.from, r.to, err)
		}
		l.fail(err)
		l.sent.Add(1)
		<-tick.C
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
func (l *load) fail(err error) {
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

// more returns once n more requests have been sent, or one has failed.
func (l *load) more(n int64) {
	for until := l.sent.Load() + n; l.sent.Load() < until && l.failed.Load() == 0; {
		time.Sleep(loadTick)
	}
}

// stop ends the load. No request is under way when it returns.
func (l *load) stop() {
	l.over.Store(true)
	l.workers.Wait()
}

// outcome stops the load and returns how many requests were sent, and an error if some failed.
func (l *load) outcome() (sent int64, err error) {
	l.stop()
	sent = l.sent.Load()
	if n := l.failed.Load(); n > 0 {
		err = fmt.Errorf("%s of %s requests failed; the first:\n%s", thousands(n), thousands(sent), strings.Join(l.reasons, "\n"))
	}
	return sent, err
}
