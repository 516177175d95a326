package health

import (
	"context"
	"net/netip"
)

// turns bounds how many checks run in goroutines at a time; the others wait for their turn.
type turns chan struct{}

// task is one check of a target, by a function that returns soon after its context ends.
type task struct {
	target    *target
	abandoned bool
}

// probe is what a task knows of its target, which belongs to the loop.
type probe struct {
	Key
	Check
	at netip.AddrPort
}

// ending is what a task has found.
type ending struct {
	*task
	outcome
}

// run begins a check in a goroutine. Its time-out begins when its turn has come.
func (l *loop) run(t *target, turns turns, check func(context.Context, *probe) outcome) {
	ctx, cancel := context.WithCancel(context.Background())
	k := &task{target: t}
	t.cancel = func() {
		k.abandoned = true
		cancel()
	}
	about := &probe{t.Key, t.check, t.at}
	l.tasks.Go(func() {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-turns }()
		ctx, cancel := context.WithTimeout(ctx, about.Timeout)
		defer cancel()
		l.finish(ending{k, check(ctx, about)})
	})
}
