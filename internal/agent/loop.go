package agent

import (
	"cmp"
	"context"
	"net/netip"
	"runtime/debug"
	"slices"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// loop is the goroutine that owns the driver.
type loop struct {
	*Agent
	kernel   *reconcile.Reconciler
	prepared bool        // Prepare has been called
	linked   bool        // the compiler knows the node's interfaces, or needs none
	rooted   bool        // and its underlay
	retry    *time.Timer // of what failed
	audit    *time.Timer // the next one
	more     wake.Signal // set if services or policies wait for their slice

	routes   map[model.LinkRoute]bool // of the node
	rerouted map[int]*rerouting       // by the pod's interface

	inStep  func()            // called once the kernel has all, and the sources lack nothing
	whole   bool              // it has been called
	lacking reconcile.Lacking // what the source has not been able to read yet
	unread  bool              // no Pod could be read so far: what no known one sends or gets passes

	since   time.Time       // when the oldest change came that is not in the kernel yet; zero: all are
	caused  []store.Trigger // the events behind EndpointSlices whose changes are not in the kernel yet
	takes   []take          // the takes of which something may still wait for its slice, and the last one before
	waiting []waiter        // answered once the kernel has their generation of their parts, or a part fails
	known   map[model.Issue]bool
}

// waiter waits until the kernel has a generation.
type waiter struct {
	ctx        context.Context
	done       chan<- error // has room for the one answer
	generation uint64
	parts      []reconcile.Part // that have to be in the kernel; none: all
}

// take is when a generation was taken from the store.
type take struct {
	generation uint64
	at         time.Time
}

// abandoned reports whether nobody waits any more.
func (w waiter) abandoned() bool { return w.ctx.Err() != nil }

func newLoop(a *Agent) *loop {
	l := &loop{
		Agent: a, kernel: reconcile.New(a.Driver, a.Compiler.State, a.Log), linked: a.Links == nil, rooted: a.Underlay == nil, lacking: reconcile.Lacking{Any: true},
		inStep: func() {}, retry: time.NewTimer(0), audit: time.NewTimer(a.AuditInterval), more: wake.New(),
	}
	l.retry.Stop()
	return l
}

// run works until ctx ends. A change is programmed as soon as it is seen; what arrives while one is
// being programmed is taken together.
func (l *loop) run(ctx context.Context) {
	watch := time.NewTicker(reconcile.WatchInterval)
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.Store.Changed():
			l.attempt(ctx)
		case <-l.more:
			l.attempt(ctx)
		case <-l.retry.C:
			l.attempt(ctx)
		case <-l.audit.C:
			l.audit.Reset(l.AuditInterval)
			l.kernel.Doubt(reconcile.Audit)
			l.attempt(ctx)
		case <-watch.C:
			l.health.beat()
			l.watch(ctx)
		case ask := <-l.asks:
			ask(l)
		}
	}
}

// moved gives the compiler the host's addresses.
func (l *loop) moved(ctx context.Context, addrs []netip.Prefix) {
	l.changing(func() { l.Compiler.Services.SetHostAddresses(addrs) })
	l.attempt(ctx)
}

// rewired gives the compiler the node's interfaces and routes.
func (l *loop) rewired(ctx context.Context, links model.Links) {
	names := make(map[int]string, len(links.Links))
	for _, link := range links.Links {
		names[link.Index] = link.Name
	}
	l.routes = make(map[model.LinkRoute]bool, len(links.Routes))
	for _, r := range links.Routes {
		l.routes[r] = true
	}
	l.reattach(&links)
	l.changing(func() {
		l.Compiler.SetLinks(links)
		l.interfaces = names
	})
	l.linked = true
	l.attempt(ctx)
}

// reached gives the compiler the addresses that other nodes are reached from.
func (l *loop) reached(ctx context.Context, addrs []model.HostAddress) {
	l.changing(func() { l.Compiler.SetUnderlay(addrs) })
	l.rooted = true
	l.attempt(ctx)
}

// ready reports whether everything is known that programming needs. A policy programmed without it
// would deny too much, or too little.
func (l *loop) ready() bool { return l.linked && l.rooted && l.Store.Synced() }

// protect tells the compiler the addresses of the API servers, and reports whether they have
// changed.
func (l *loop) protect() bool {
	api, ok := l.Source.(source.Dialer)
	return ok && l.Compiler.SetAPIServers(api.Dialed())
}

// watch polls what sends no event when it changes.
func (l *loop) watch(ctx context.Context) {
	l.checks.retry()
	l.logIssues()
	l.reroute(time.Now())
	if l.ready() && l.checkSource() {
		l.attempt(ctx)
	}
	if l.kernel.Tampered(ctx) {
		l.kernel.Doubt(reconcile.Tampering)
		l.attempt(ctx)
	}
	l.compiling.Lock()
	moved := l.protect()
	for _, s := range l.subjects {
		moved = s.moved != nil && s.moved() || moved
	}
	l.compiling.Unlock()
	if moved {
		l.attempt(ctx)
	}
}

// attempt brings the kernel in step with the store, and does the bookkeeping. Nothing happens
// before the sources are synced and the node's interfaces known. What comes to more than a kernel
// takes within some tenths of a second goes in by several attempts, among which others have their
// turn.
func (l *loop) attempt(ctx context.Context) {
	if !l.ready() {
		return
	}
	if l.Prepare != nil && !l.prepared {
		l.prepared = true
		l.Prepare()
	}
	l.health.queued(time.Now())
	l.checkSource()
	delta, checks := l.compile()
	waiting := l.Compiler.Waiting()
	done, err := l.kernel.Attempt(ctx, delta, l.compiled(waiting))
	l.followUp(delta, checks)
	if ctx.Err() != nil {
		return
	}
	l.schedule(done)
	if done.UpdateFailed {
		l.metrics.failed(touched(delta))
	}
	if err != nil {
		l.failed(err, done, delta)
	} else {
		l.succeeded(applied(done, delta), waiting)
	}
	if waiting.Len() > 0 && (err == nil || l.kernel.InSlices()) {
		l.more.Set() // a part that fails does not hold up the slices of another
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(w waiter) bool {
		has, err := l.kernel.Has(w.generation, w.parts...)
		if has || err != nil {
			w.done <- err
		}
		return has || err != nil
	})
}

// compiled is the last generation of which the desired state has everything, with nothing waiting
// for its slice.
func (l *loop) compiled(waiting compile.Backlog) uint64 {
	for len(l.takes) > 1 && (waiting.Len() == 0 || l.takes[1].at.Before(waiting.Since)) {
		l.takes = l.takes[1:]
	}
	if waiting.Len() > 0 && !l.takes[0].at.Before(waiting.Since) {
		return 0
	}
	return l.takes[0].generation
}

// followUp hands a change on to the health checks, the fabric and the subjects.
func (l *loop) followUp(delta state.Delta, checks map[uint16]*services.HealthCheck) {
	l.checks.apply(checks)
	if l.fabric != nil {
		lacking := l.lacking
		lacking.Routes = l.Speaker != nil && !l.sessions.settled
		l.fabric.Follow(delta, lacking)
	}
	for _, s := range l.subjects {
		if s.follow != nil {
			s.follow()
		}
	}
}

// schedule sets the timers of the next retry and audit, and records what an attempt found.
func (l *loop) schedule(done reconcile.Done) {
	if at, failing := l.kernel.Due(); failing {
		l.retry.Reset(max(time.Until(at), 0))
	} else {
		l.retry.Stop()
	}
	if done.Path == reconcile.PathAdopt {
		l.audit.Reset(l.AuditInterval)
		l.recordKept(l.kernel.Kept())
	}
	if done.Healed != "" {
		l.metrics.heals.Inc()
		l.mu.Lock()
		l.record.heals++
		l.record.healed = l.kernel.Healed()
		l.mu.Unlock()
	}
}

// applied is what an attempt did, for people and metrics.
func applied(done reconcile.Done, delta state.Delta) Applied {
	a := Applied{Time: done.Time, Path: done.Path, Operations: done.Operations, Took: model.Duration(done.Took), families: touched(delta)}
	if done.Path == reconcile.PathAdopt {
		a.families = bothFamilies
	}
	return a
}

// sliceElements is about how many elements of services and policies go in at once: what a kernel
// takes in a tenth of a second or two.
const sliceElements = 1 << 15

// compile takes what changed since the last call, and returns the change that this makes to the
// desired state, and to the services' health checks. Services and policies may wait for the next
// call, unless everything is adopted.
func (l *loop) compile() (delta state.Delta, checks map[uint16]*services.HealthCheck) {
	l.compiling.Lock()
	defer l.compiling.Unlock()
	l.protect()
	dirty := l.Store.Take()
	if len(l.takes) == 0 || dirty.Generation > l.takes[len(l.takes)-1].generation {
		l.takes = append(l.takes, take{dirty.Generation, time.Now()})
	}
	l.metrics.took(dirty)
	if l.since.IsZero() {
		l.since = dirty.Since
	}
	l.caused = append(l.caused, dirty.Triggers...)
	if l.kernel.InSlices() {
		delta = l.Compiler.Step(l.Store, dirty, sliceElements)
	} else {
		delta = l.Compiler.Update(l.Store, dirty)
	}
	return delta, l.Compiler.Services.HealthChecks()
}

// succeeded records that the kernel has all that is wanted, except for what waits.
func (l *loop) succeeded(done Applied, waiting compile.Backlog) {
	first := !l.health.ready()
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
	recovered := len(l.record.failures) > 0
	l.record.failures = nil
	l.mu.Unlock()
	if done.Path == reconcile.PathAdopt {
		// Looking at everything leaves garbage several times the size of what stays.
		go debug.FreeOSMemory()
	}
	if !l.whole && waiting.Len() == 0 && !l.lacking.Any {
		l.whole = true
		l.inStep()
	}
	switch {
	case first:
		l.Log.Info("kernel is in step with the sources", "operations", done.Operations, "took", done.Took)
	case recovered:
		l.Log.Info("kernel is in step with the sources again", "operations", done.Operations, "took", done.Took)
	}
}

// followed removes the causes of changes that are in the kernel, and returns them. Of a service
// that waits for its slice, the first cause of each family stays.
func (l *loop) followed() (done []store.Trigger) {
	seen := map[store.Trigger]bool{}
	l.caused = slices.DeleteFunc(l.caused, func(c store.Trigger) bool {
		if !l.Compiler.Services.Waits(c.Service) {
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

// failed records which parts fail, and what was carried out of the others.
func (l *loop) failed(err error, done reconcile.Done, delta state.Delta) {
	if done.Failed {
		l.metrics.failed(bothFamilies)
	}
	l.health.failed(err)
	l.mu.Lock()
	l.record.failures = l.kernel.Failed()
	if done.Operations > 0 {
		l.record.last = new(applied(done, delta))
	}
	l.mu.Unlock()
}

// logIssues logs once that an object is at fault, and once that it no longer is. A source logs its
// own issues.
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
			l.Log.Warn("object is at fault", "object", i.Object, "source", i.Source, "reason", i.Reason)
		}
	}
	for i := range l.known {
		if !now[i] {
			l.Log.Info("object is no longer at fault", "object", i.Object, "source", i.Source, "reason", i.Reason)
		}
	}
	l.known = now
}
