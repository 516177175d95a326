package health

import (
	"cmp"
	"context"
	"net/netip"
	"time"
)

// target is a Target with what the loop knows of it.
type target struct {
	Key
	check Check // with defaults
	kind  kind  // of the check
	at    netip.AddrPort
	standing

	due     time.Time // as the schedule has it
	index   int       // in the schedule; -1: not in it
	begun   time.Time // the newest check
	spread  bool      // the schedule has spread its checks
	cancel  func()    // ends the check under way; nil between checks
	request []byte    // of HTTP; nil: not made yet
	late    string    // what is wrong if the check under way gets no further; empty: silence
	suspicion
}

// loop runs all checks. It belongs to one goroutine, which it has start them, see to sockets, and
// give up what takes too long.
type loop struct {
	*Checker
	targets  map[Key]*target
	schedule schedule
	sockets  *sockets
	requests *pool
	commands *pool
	results  []Result  // that Report is to have
	troubled time.Time // when trouble was last logged
	suspects
}

func newLoop(c *Checker) *loop {
	l := &loop{Checker: c, targets: map[Key]*target{}, suspects: newSuspects()}
	l.sockets = &sockets{end: l.end}
	l.requests = newPool(c.o.Requests, c.finish)
	l.commands = newPool(c.o.Commands, c.finish)
	return l
}

// turn does what there is to do by now. Answers are read before anything is given up for the lack
// of them, so that nobody is blamed for a loop that is late.
func (l *loop) turn() {
	l.take(l.replace, l.ended, l.suspect)
	l.sockets.read()
	now := time.Now()
	for t := l.schedule.due(now); t != nil; t = l.schedule.due(now) {
		if t.cancel != nil {
			l.end(t, down(cmp.Or(t.late, silence(t.check.Timeout))))
		} else {
			l.start(t, now)
		}
	}
	report := l.current(l.results)
	if l.results = nil; len(report) > 0 {
		l.o.Report(report)
	}
}

// sleep returns when there is something to do, while checks are under way on sockets after a slot
// at the latest.
func (l *loop) sleep(ctx context.Context) {
	if l.sockets.busy() {
		l.sockets.wait(l.slot())
		return
	}
	timer := time.NewTimer(l.schedule.wait(time.Now(), l.slot()))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.wake:
	case <-ctx.Done():
	}
}

func (l *loop) replace(key Key, to *Target) {
	if t := l.targets[key]; t != nil {
		l.abandon(t)
		delete(l.targets, key)
		l.leave(t)
	}
	if to == nil {
		return
	}
	t := &target{Key: key, check: to.Check.WithDefaults(), kind: kindOf(to.Check.Type), at: to.address(), index: -1}
	l.targets[key] = t
	l.enter(t, netip.AddrPortFrom(to.Addr.Unmap().WithZone(""), to.Port))
	l.schedule.first(t, time.Now())
}

// abandon ends a target's check, and has no other begin.
func (l *loop) abandon(t *target) {
	l.schedule.remove(t)
	if t.cancel != nil {
		t.cancel()
		t.cancel = nil
	}
}

// start begins a check. What is sent on a socket ends by itself or when it is due, a task always by
// itself.
func (l *loop) start(t *target, now time.Time) {
	t.begun, t.late = now, ""
	switch {
	case t.at.Port() == 0 && t.kind.needs != nothing:
		l.end(t, down("it has no port: set the check's"))
		return
	case t.kind.waits:
		l.schedule.remove(t)
	default:
		l.schedule.set(t, now.Add(t.check.Timeout))
	}
	t.kind.start(l, t)
}

// end takes in what a target's check has found.
func (l *loop) end(t *target, o outcome) {
	l.abandon(t)
	now := time.Now()
	l.schedule.next(t, now)
	if o.err != nil {
		l.trouble(t, o.err, now)
		l.acquit(t)
		return
	}
	if !o.up {
		l.fail(t.Key)
		o.why = t.askedFor(o.why)
	}
	before := t.standing.why
	changed := t.observe(o, t.check.Rise, t.check.Fall, now)
	if changed || !t.up && t.why != before {
		l.results = append(l.results, Result{t.Key, t.up, t.why, t.since})
	}
	l.pursue(t, o.up, now)
}

// ended takes in what a task has found, unless it was abandoned.
func (l *loop) ended(e ending) {
	e.task.pool.next()
	if !e.abandoned {
		l.end(e.target, e.outcome)
	}
}

// trouble logs what keeps checks from being made, once a minute at most.
func (l *loop) trouble(t *target, err error, now time.Time) {
	if now.Sub(l.troubled) < time.Minute {
		return
	}
	l.troubled = now
	l.o.Log.Error("a health check could not be made, and says nothing of the backend",
		"farm", t.Farm, "backend", t.Backend, "type", t.check.Type, "error", err)
}

// close ends all checks, and waits for the goroutines of tasks.
func (l *loop) close() {
	for _, t := range l.targets {
		l.abandon(t)
	}
	l.requests.wait()
	l.commands.wait()
	l.sockets.close()
}
