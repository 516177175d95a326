package kubetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// meanwhile sends the question's requests, one after the other, each on its own connection, while
// steps are carried out. With Sluice, every request has to be as expected; other data planes may
// fail a tolerated number.
func meanwhile(q Question, steps ...Step) Step {
	return action{fmt.Sprintf("while %s", q), func(ctx context.Context, e *Env) error {
		to, err := q.To.resolve(ctx, e, q.Protocol)
		if err != nil {
			return err
		}
		from, err := e.place(ctx, q.From)
		if err != nil {
			return err
		}
		done := make(chan struct{})
		var asking sync.WaitGroup
		for _, addr := range to {
			asking.Go(func() { q.keepAsking(e, from, addr, done) })
		}
		err = e.steps(ctx, steps)
		close(done)
		asking.Wait()
		return errors.Join(err, e.load.judge(e.dataplane))
	}}
}

// tolerated is the number of requests of which one may fail while pods are replaced, as in
// Kubernetes' end-to-end tests.
const tolerated = 20

// Load is the outcome of requests that were sent during a change.
type Load struct {
	Sent, Failed int
	First        error // of those that failed
}

func (l *Load) judge(d Dataplane) error {
	if l.Failed == 0 || d != Sluice && l.Failed*tolerated <= l.Sent {
		return nil
	}
	return fmt.Errorf("%d of %d requests: the first: %w", l.Failed, l.Sent, l.First)
}

// keepAsking sends requests until done.
func (q Question) keepAsking(e *Env, from *place, to netip.AddrPort, done <-chan struct{}) {
	want := q.want(e.dataplane)
	seen := map[string]bool{}
	for n := 1; ; n++ {
		r := q.request(e, want, from, to)
		err := want.fits(r, e.cluster.nodeAddrs)
		if seen[r.answer.Pod] = true; err == nil && want.same && len(seen) > 1 {
			err = fmt.Errorf("answered by %s, and not always", r.answer.Pod)
		}
		e.mu.Lock()
		e.load.Sent++
		if err != nil {
			e.load.Failed++
			e.load.First = cmp.Or(e.load.First, fmt.Errorf("%s, request %d: %w", to, n, err))
		}
		e.mu.Unlock()
		select {
		case <-done:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}
