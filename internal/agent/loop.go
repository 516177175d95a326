package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/internal/wake"
)

const (
	watchInterval = 500 * time.Millisecond // between two looks for tampering and new issues
	firstDelay    = 50 * time.Millisecond  // before the first retry; doubles
	lastDelay     = 10 * time.Second
	// hurriedDelay is how long a change or a busy kernel waits at the most
	// between two attempts while attempts fail: what changed may be the cure.
	hurriedDelay = 250 * time.Millisecond

	maxLogged = 200 // operations of one plan
)

// What an attempt is made for.
const (
	change    = "change"
	audit     = "audit"
	tampering = "tampering"
)

// loop is the goroutine that owns the driver.
type loop struct {
	*Agent
	linked bool          // the compiler knows the node's interfaces, or needs none
	stale  bool          // what the driver believes of the kernel may be wrong: adopt
	delay  time.Duration // before the next retry; 0: the last attempt succeeded
	tried  time.Time     // when the last attempt ended
	retry  *time.Timer
	due    *time.Timer // the next audit
	more   wake.Signal // set if services or policies wait for their slice

	lacking bool                       // the source has not been able to read everything yet
	unread  bool                       // no Pod could be read so far: what no known one sends or gets passes
	had     map[state.FrontendKey]bool // while lacking: what has had an endpoint since the start
	keeping bool                       // what was adopted last kept something: a change needs an adoption, too

	since   time.Time       // when the oldest change came that is not in the kernel yet; zero: all are
	caused  []store.Trigger // when what EndpointSlices tell of happened, of changes that are not in the kernel yet
	waiting []waiter        // answered after an attempt that fails, or leaves nothing that was there when they asked
	known   map[model.Issue]bool
}

// waiter is somebody who waits until all that was there when he asked is in the kernel.
type waiter struct {
	ctx   context.Context
	done  chan<- error // has room for the one answer
	asked time.Time
}

// abandoned reports whether nobody waits any more.
func (w waiter) abandoned() bool { return w.ctx.Err() != nil }

func newLoop(a *Agent) *loop {
	l := &loop{
		Agent: a, linked: a.Links == nil, stale: true, lacking: true, had: map[state.FrontendKey]bool{},
		retry: time.NewTimer(0), due: time.NewTimer(a.AuditInterval), more: wake.New(),
	}
	l.retry.Stop()
	return l
}

// run works until ctx ends. A change is programmed as soon as it is seen; what
// arrives while one is being programmed is taken together.
func (l *loop) run(ctx context.Context) {
	watch := time.NewTicker(watchInterval)
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.Store.Changed():
			l.changed(ctx)
		case <-l.more:
			l.changed(ctx)
		case <-l.retry.C:
			l.attempt(ctx, change)
		case <-l.due.C:
			if l.delay == 0 {
				l.stale = true
				l.attempt(ctx, audit)
			}
		case <-watch.C:
			l.health.beat()
			l.watch(ctx)
		case addrs, ok := <-l.HostAddresses:
			l.moved(ctx, addrs, ok)
		case links, ok := <-l.Links:
			l.rewired(ctx, links, ok)
		case ask := <-l.asks:
			ask(l)
		}
	}
}

// changed programs a change at once, unless attempts fail at the moment: then it
// only hastens the next.
func (l *loop) changed(ctx context.Context) {
	if l.delay > 0 {
		if hurriedDelay < l.delay {
			l.retry.Reset(max(time.Until(l.tried.Add(hurriedDelay)), 0))
		}
		return
	}
	l.attempt(ctx, change)
}

// moved has the compiler follow the host's addresses.
func (l *loop) moved(ctx context.Context, addrs []netip.Prefix, ok bool) {
	if !ok {
		l.HostAddresses = nil
		return
	}
	l.compiling.Lock()
	l.Compiler.SetHostAddresses(addrs)
	l.compiling.Unlock()
	l.changed(ctx)
}

// rewired has the compiler follow the node's interfaces and routes.
func (l *loop) rewired(ctx context.Context, links model.Links, ok bool) {
	if !ok {
		l.Links = nil
		return
	}
	names := make(map[int]string, len(links.Links))
	for _, link := range links.Links {
		names[link.Index] = link.Name
	}
	l.compiling.Lock()
	l.Compiler.SetLinks(links)
	l.interfaces = names
	l.compiling.Unlock()
	l.linked = true
	l.changed(ctx)
}

// ready reports whether all is known that programming needs: what was left out
// would be denied, or let pass.
func (l *loop) ready() bool { return l.linked && l.Store.Synced() }

// protect has the compiler know where the API is reached, and reports whether that has changed.
func (l *loop) protect() bool {
	api, ok := l.Source.(source.Dialer)
	return ok && l.Compiler.SetAPIServers(api.Dialed())
}

// watch looks after what tells nobody when it happens.
func (l *loop) watch(ctx context.Context) {
	l.checks.retry()
	l.logIssues()
	if l.lacking && l.ready() && l.look() {
		l.attempt(ctx, change)
	}
	if !l.stale && l.tampered(ctx) {
		l.stale = true
		l.attempt(ctx, tampering)
	}
	l.compiling.Lock()
	moved := l.protect()
	l.compiling.Unlock()
	if moved {
		l.changed(ctx)
	}
}

// tampered asks the driver whether someone else touched its part of the kernel.
func (l *loop) tampered(ctx context.Context) bool {
	auditor, ok := l.Driver.(driver.Auditor)
	if !ok {
		return false
	}
	tampered, err := auditor.Tampered(ctx)
	if err != nil && ctx.Err() == nil {
		l.Log.Warn("cannot tell whether someone else changed the kernel's tables", "error", err)
	}
	return tampered
}

// attempt brings the kernel in step with the store, and does the bookkeeping.
// Nothing happens before the sources are synced and the node's interfaces known. What comes to more than a kernel takes within
// some tenths of a second goes in by several attempts, among which others have their turn.
func (l *loop) attempt(ctx context.Context, why string) {
	if !l.ready() {
		return
	}
	l.health.queued(time.Now())
	if l.look() {
		why = change // what goes now was not anyone's tampering
	}
	delta, checks := l.compile()
	done, err := l.program(ctx, delta, why)
	l.checks.apply(checks)
	l.tried = time.Now()
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		l.failed(err, delta)
	} else {
		l.succeeded(done)
	}
	waiting := l.Compiler.Waiting()
	if waiting.Len() > 0 && err == nil {
		l.more.Set()
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(w waiter) bool {
		if err == nil && waiting.Len() > 0 && !waiting.Since.After(w.asked) {
			return false
		}
		w.done <- err
		return true
	})
}

// compile takes what changed since the last call, and returns the change that this
// makes to the desired state, and to the services' health checks. Services and policies may wait for the next call, unless everything is adopted.
func (l *loop) compile() (delta state.Delta, checks map[model.Name]*compile.HealthCheck) {
	l.compiling.Lock()
	defer l.compiling.Unlock()
	l.protect()
	dirty := l.Store.Take()
	l.metrics.took(dirty)
	if l.since.IsZero() {
		l.since = dirty.Since
	}
	l.caused = append(l.caused, dirty.Triggers...)
	if l.stale || l.lacking || l.keeping {
		delta = l.Compiler.Update(l.Store, dirty)
	} else {
		delta = l.Compiler.Step(l.Store, dirty)
	}
	if l.lacking {
		l.note(delta)
	}
	return delta, l.Compiler.HealthChecks()
}

// program has the driver plan and apply the change. If that fails, or if the kernel
// may not be what the driver believes or holds what is only kept, it adopts the kernel with
// the whole state instead.
func (l *loop) program(ctx context.Context, delta state.Delta, why string) (Applied, error) {
	if !l.stale && delta.Len() == 0 {
		return Applied{Time: time.Now()}, nil
	}
	if !l.stale && !l.keeping {
		done, err := l.apply(ctx, pathUpdate, func() (driver.Plan, error) { return l.Driver.Update(ctx, delta) })
		done.families = touched(delta)
		if err == nil || ctx.Err() != nil {
			return done, err
		}
		if l.tampered(ctx) {
			why = tampering
		} else {
			l.Log.Warn("applying a change failed; comparing everything with the kernel", "error", err, "services", services(delta), "policy", delta.Policy.Len())
			l.metrics.failed(done.families)
		}
		l.stale = true
	}
	kept := 0
	done, err := l.apply(ctx, pathAdopt, func() (p driver.Plan, err error) {
		p, kept, err = l.adopt(ctx)
		return p, err
	})
	done.families = bothFamilies
	if err != nil {
		return done, err
	}
	l.stale = false
	l.keeps(kept)
	l.due.Reset(l.AuditInterval)
	if done.Operations > 0 && (why == tampering || why == audit && delta.Len() == 0) {
		l.healed(done, why)
	}
	return done, nil
}

// apply carries out one plan.
func (l *loop) apply(ctx context.Context, path string, plan func() (driver.Plan, error)) (Applied, error) {
	started := time.Now()
	done := Applied{Path: path}
	p, err := plan()
	if err != nil {
		return done, err
	}
	done.Operations = p.Len()
	if done.Operations > 0 && l.Log.Enabled(ctx, slog.LevelDebug) {
		l.logPlan(p)
	}
	err = p.Apply(ctx)
	done.Time = time.Now()
	done.Seconds = done.Time.Sub(started).Seconds()
	return done, err
}

// logPlan logs what is about to be done, one operation a line.
func (l *loop) logPlan(p driver.Plan) {
	logged := 0
	for operation := range strings.Lines(p.String()) {
		if logged == maxLogged {
			l.Log.Debug("plan is longer", "operations", p.Len())
			return
		}
		l.Log.Debug("plan", "operation", strings.TrimSpace(operation))
		logged++
	}
}

// succeeded records that the kernel has all that is wanted, but for what waits.
func (l *loop) succeeded(done Applied) {
	first := !l.health.ready()
	recovered := l.delay > 0
	l.delay = 0
	l.retry.Stop()
	waiting := l.Compiler.Waiting()
	l.metrics.applied(done, l.since, l.followed(), waiting.Services)
	l.since = time.Time{}
	l.health.applied()
	if waiting.Len() > 0 {
		l.health.queued(cmp.Or(waiting.Since, done.Time))
	}
	l.mu.Lock()
	if done.Operations > 0 || first {
		l.record.last = &done
	}
	l.record.waiting = waiting.Len()
	l.record.failure = nil
	l.mu.Unlock()
	if done.Path == pathAdopt {
		// Looking at everything leaves garbage several times the size of what stays.
		go debug.FreeOSMemory()
	}
	switch {
	case first:
		l.Log.Info("kernel is in step with the sources", "operations", done.Operations, "seconds", done.Seconds)
	case recovered:
		l.Log.Info("kernel is in step with the sources again", "operations", done.Operations, "seconds", done.Seconds)
	}
}

// followed takes what caused the changes that are in the kernel. Of a service that waits, the first of each family stays.
func (l *loop) followed() (done []store.Trigger) {
	seen := map[store.Trigger]bool{}
	l.caused = slices.DeleteFunc(l.caused, func(c store.Trigger) bool {
		if !l.Compiler.Waits(c.Service) {
			done = append(done, c)
			return true
		}
		kind := store.Trigger{Service: c.Service, Is4: c.Is4}
		again := seen[kind]
		seen[kind] = true
		return again
	})
	return done
}

// failed records the error and arranges for the next attempt.
func (l *loop) failed(err error, delta state.Delta) {
	l.stale = true
	l.metrics.failed(bothFamilies)
	l.health.failed(err)
	l.delay = min(max(2*l.delay, firstDelay), lastDelay)
	if errors.Is(err, driver.ErrBusy) {
		l.delay = hurriedDelay // the owner may be on its way out
	}
	l.retry.Reset(l.delay)
	l.mu.Lock()
	old := l.record.failure
	f := &Failure{Since: l.tried, Error: err.Error()}
	if old != nil {
		f.Since, f.Attempts = old.Since, old.Attempts
	}
	f.Attempts++
	l.record.failure = f
	l.mu.Unlock()
	if old != nil && old.Error == f.Error && l.delay < lastDelay {
		return // said already; once the delay has its full length it is said each time
	}
	l.Log.Error("programming the kernel failed; retrying", "error", err, "services", services(delta), "policy", delta.Policy.Len(), "attempts", f.Attempts, "delay", l.delay)
}

// healed records that someone else's change was undone.
func (l *loop) healed(done Applied, why string) {
	l.metrics.heals.Inc()
	l.mu.Lock()
	l.record.heals++
	l.mu.Unlock()
	l.Log.Warn("the kernel's tables had been changed by someone else and were put right", "found by", why, "operations", done.Operations, "seconds", done.Seconds)
}

// logIssues says once that an object is at fault, and once that it no longer is. A
// source logs itself what it finds.
func (l *loop) logIssues() {
	issues := l.found()
	if l.Report != nil {
		l.Report(slices.Concat(issues, l.Source.Status().Issues))
	}
	if len(issues) == 0 && len(l.known) == 0 {
		return
	}
	now := make(map[model.Issue]bool, len(issues))
	for _, i := range issues {
		now[i] = true
		if !l.known[i] {
			l.Log.Warn("object at fault", "object", i.Object, "source", i.Source, "reason", i.Reason)
		}
	}
	for i := range l.known {
		if !now[i] {
			l.Log.Info("object is no longer at fault", "object", i.Object, "source", i.Source, "reason", i.Reason)
		}
	}
	l.known = now
}

// services names the services that a change is about, five at the most.
func services(d state.Delta) []string {
	seen := map[model.Name]bool{}
	var names []string
	for _, f := range d.Services.Frontends {
		if f == nil || seen[f.Service] {
			continue
		}
		if len(names) == 5 {
			return append(names, "…")
		}
		seen[f.Service] = true
		names = append(names, f.Service.String())
	}
	return names
}
