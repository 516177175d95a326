package demo

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/lab/echo"
	"sluice.dev/sluice/internal/netns"
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

// load sends requests, each over a TCP connection of its own, until it is stopped.
type load struct {
	sent   atomic.Int64
	failed atomic.Int64

	mu      sync.Mutex
	reasons []string // of the first failures

	over    atomic.Bool
	workers sync.WaitGroup
}

// These bound a load: each worker sends a request at each tick.
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

// startLoad starts workers for each route.
func startLoad(routes ...route) (*load, error) {
	l := &load{}
	for _, r := range routes {
		for range loadWorkers {
			ns, err := netns.Open(r.from)
			if err != nil {
				l.stop()
				return nil, err
			}
			l.workers.Go(func() {
				defer ns.Close()
				l.fail(ns.Do(func() error { l.send(r); return nil }))
			})
		}
	}
	return l, nil
}

// send sends requests from the calling thread's network.
func (l *load) send(r route) {
	tick := time.NewTicker(loadTick)
	defer tick.Stop()
	for !l.over.Load() {
		_, err := echo.Ask("TCP", r.to, answerTime)
		if err != nil {
			err = fmt.Errorf("to %s: %w", r.to, err)
		}
		l.fail(err)
		l.sent.Add(1)
		<-tick.C
	}
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

// more returns once n more requests have been sent, or the load has been stopped.
func (l *load) more(n int64) {
	for until := l.sent.Load() + n; l.sent.Load() < until && !l.over.Load(); {
		time.Sleep(loadTick)
	}
}

// stop ends the load. No request is under way when it returns.
func (l *load) stop() {
	l.over.Store(true)
	l.workers.Wait()
}
