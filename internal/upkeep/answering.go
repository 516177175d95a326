package upkeep

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/lib/wake"
)

// answering labels connections in which only answers are sent, while packets of the other direction
// are judged again: otherwise a stream of datagrams would go on until a pass has gone through the
// table. The driver says which connections they are. Methods of nil do nothing.
type answering struct {
	d     *Driver
	cut   *cutter
	ct    *conntrack.Conn // its own: a pass holds the other one
	until atomic.Int64    // in nanoseconds: packets are judged again; 0: they are not
	wake  wake.Signal
	life  context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup
}

// answeringPause is the time between two looks at first. It grows with the time since the change,
// by one part of answeringShare of that: a stream whose first packet is seen late sends few. A look
// takes some 0.2 ms, and more where there is much to see: two thirds of the time are left to
// others. A single one that takes longer was kept from its processor, and puts off nothing. A look
// labels answeringAtOnce connections at most, as changes wait for it.
const (
	answeringPause  = time.Millisecond / 2
	answeringShare  = 8
	answeringAtOnce = 256
)

func newAnswering(d *Driver, cut *cutter) (*answering, error) {
	ct, err := conntrack.Open()
	if err != nil {
		return nil, err
	}
	a := &answering{d: d, cut: cut, ct: ct, wake: wake.New()}
	a.life, a.stop = context.WithCancel(d.life)
	a.work.Go(a.run)
	return a, nil
}

// begin starts looking at connections, at all of them anew, after a change was applied.
func (a *answering) begin() {
	if a != nil {
		a.until.Store(time.Now().Add(driver.JudgeAgain).UnixNano())
		a.wake.Set()
	}
}

// end stops looking, as all are labelled.
func (a *answering) end() {
	if a != nil {
		a.until.Store(0)
	}
}

func (a *answering) close() error {
	if a == nil {
		return nil
	}
	a.stop()
	a.work.Wait()
	return a.ct.Close()
}

func (a *answering) run() {
	var began time.Time
	var took, before time.Duration // by the last look, and the one before it
	var seen map[conntrack.Tuple]bool
	for {
		until := a.until.Load()
		var again <-chan time.Time
		if now := time.Now(); now.UnixNano() < until {
			again = time.After(answeringPause + now.Sub(began)/answeringShare + 2*min(took, before))
		}
		select {
		case <-a.life.Done():
			return
		case <-a.wake:
			began, seen = time.Now(), map[conntrack.Tuple]bool{}
		case <-again:
		}
		var err error
		before = took
		if took, err = a.look(seen); err != nil && a.life.Err() == nil {
			a.d.log.Warn("could not cut streams that policies forbid; they are cut with all other connections", "error", err)
			a.until.CompareAndSwap(until, 0)
		}
	}
}

// look labels the connections that it has not seen before, by the state that is applied; no other
// state is applied meanwhile. It returns how long it has read.
func (a *answering) look(seen map[conntrack.Tuple]bool) (took time.Duration, err error) {
	began := time.Now()
	var found []conntrack.Tuple
	err = a.d.Capabilities().Answerer.Answering(a.life, func(from, to netip.AddrPort) {
		if t := (conntrack.Tuple{Src: from, Dst: to}); !seen[t] && len(found) < answeringAtOnce {
			found = append(found, t)
		}
	})
	if took = time.Since(began); err != nil || len(found) == 0 {
		return took, err
	}
	l, err := newLocator(a.d.links)
	if err != nil {
		return took, err
	}
	a.d.applying.Lock()
	defer a.d.applying.Unlock()
	n, err := a.ct.RelabelEach(a.life, found, func(f conntrack.Flow) bool { return a.d.forbidsNow(f, l) })
	a.cut.early.Add(uint64(n))
	for _, t := range found {
		seen[t] = true
	}
	return took, err
}
