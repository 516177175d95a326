// Package reconcile keeps a kernel in step with the desired state, part by part: it decides when a
// part is updated by what changed and when it is compared with the kernel as a whole, what stays
// while the sources lack something, and when a part that failed is tried again. A part that fails
// holds up no other.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// The time between two attempts of a part that fails: it begins with firstDelay and doubles up to
// lastDelay. What changes meanwhile, and an owner of the kernel's objects that may be on its way
// out, make it hurriedDelay at the most: what changed may be the cure.
const (
	firstDelay   = 50 * time.Millisecond
	lastDelay    = 10 * time.Second
	hurriedDelay = 250 * time.Millisecond
)

// WatchInterval is the time between two calls of Tampered.
const WatchInterval = 500 * time.Millisecond

// Why everything is compared with the kernel though nothing is known to differ.
const (
	Audit     = "audit"     // from time to time
	Tampering = "tampering" // there is evidence of it
)

// Lacking is what the sources have not been able to read yet.
type Lacking struct {
	Any      bool              // something: nothing may be taken from the kernel that may belong to it
	Policies []model.PolicyKey // sorted: all that is lacking, if Any (empty: it may be anything), and those that wait
	Routes   bool              // those of the fabric that BGP has still to learn
}

// keep is what may not be taken from the kernel.
func (l Lacking) keep() driver.Keep {
	if l.Any && len(l.Policies) == 0 {
		return driver.Keep{Services: true, Policy: true, Fabric: true}
	}
	return driver.Keep{Fabric: l.Routes, Policies: l.Policies}
}

// How the kernel was brought up to date.
const (
	PathUpdate = "update" // by what changed alone
	PathAdopt  = "adopt"  // everything was compared with the kernel
)

// Done is what an attempt did to the kernel.
type Done struct {
	Path       string // the more thorough of those that it took; "": nothing was to be done
	Operations int
	Time       time.Time     // when the kernel had it
	Took       time.Duration // to plan and apply
	// Healed says by what it was found that someone else had changed what was put right; "":
	// nothing was.
	Healed string
	// Failed: parts were tried that failed.
	Failed bool
	// UpdateFailed: a change could not be carried out alone, so that all was compared with the
	// kernel.
	UpdateFailed bool
}

// Failure describes attempts to program the kernel that keep failing.
type Failure struct {
	// "services" or "policy"; empty: all parts, for the same reason.
	Part     string    `json:"part,omitempty"`
	Since    time.Time `json:"since"`
	Error    string    `json:"error"` // of the last attempt
	Attempts int       `json:"attempts"`
}

// String describes it in words.
func (f Failure) String() string {
	what := "the kernel could not be programmed"
	if f.Part != "" {
		what = "the kernel could not be programmed with " + f.Part + ", though all else is in it,"
	}
	return fmt.Sprintf("%s in %s since %s: %s", what, model.Count(f.Attempts, "attempt"), f.Since.Format(time.TimeOnly), f.Error)
}

// Reconciler keeps the parts that one driver carries out in step with the desired state. It is not
// safe for concurrent use.
type Reconciler struct {
	driver driver.Driver
	want   func() *state.State
	log    *slog.Logger
	parts  []*part
	now    func() time.Time

	lacking     Lacking
	hadEndpoint map[state.FrontendKey]bool // while something is lacking: frontends that have had an endpoint since the start
	// suspicion is why parts are compared with the kernel though nothing is known to differ; "":
	// none are.
	suspicion string
	healed    contest.Pace // of what is said of changes by others
}

// part is what is known of a part in the kernel.
type part struct {
	of      Part
	holds   uint64 // the generation up to which the kernel has all of it
	stale   bool   // what the driver believes of it may be wrong: adopt it
	kept    int    // how much of it the last adoption kept; if any, a change needs an adoption
	delay   time.Duration
	due     time.Time // not before, while delay is not 0
	tried   time.Time
	failure *Failure
	err     error // of the last attempt, while there is a failure
}

// New returns a Reconciler that has done nothing yet, and is lacking everything. Its parts are
// those that the state has now and the driver carries out. want returns the desired state for a
// comparison of everything; it may change after the call of Attempt or Plan.
func New(d driver.Driver, want func() *state.State, log *slog.Logger) *Reconciler {
	r := &Reconciler{driver: d, want: want, log: log, now: time.Now, lacking: Lacking{Any: true}, hadEndpoint: map[state.FrontendKey]bool{},
		healed: contest.Pace{First: 10 * time.Second, Most: 10 * time.Minute, Lasts: contest.Lasts}}
	can, state := d.Capabilities().Can, want()
	for p, row := range parts {
		if row.there(state) && can&row.needs != 0 {
			r.parts = append(r.parts, &part{of: Part(p), stale: true})
		}
	}
	return r
}

// Lack says what the sources lack now. Everything is adopted when what is to be kept changes, and
// for good when the sources lack nothing any more.
func (r *Reconciler) Lack(l Lacking) {
	if r.lacking.Any && !l.Any {
		r.hadEndpoint = nil
	}
	if was, is := r.lacking.keep(), l.keep(); was.Any() && !reflect.DeepEqual(was, is) {
		r.Doubt("")
	}
	r.lacking = l
}

// Doubt has everything compared with the kernel in the next attempt. With a reason, such as an
// audit, a difference counts as someone else's change, found by that.
func (r *Reconciler) Doubt(reason string) {
	for _, p := range r.parts {
		p.stale = true
	}
	r.suspicion = reason
}

// Tampered reports whether someone else touched what is in step with the desired state.
func (r *Reconciler) Tampered(ctx context.Context) bool {
	for _, p := range r.parts {
		if !p.stale {
			return r.tampered(ctx)
		}
	}
	return false // everything is compared anyway
}

func (r *Reconciler) tampered(ctx context.Context) bool {
	tampered, err := r.driver.Tampered(ctx)
	if err != nil && ctx.Err() == nil {
		r.log.Warn("cannot tell whether someone else changed the kernel's tables", "error", err)
	}
	return tampered
}

// InSlices reports whether a change may be carried out in slices: some part is changed by what
// changed alone.
func (r *Reconciler) InSlices() bool {
	for _, p := range r.parts {
		if !p.stale && p.kept == 0 && !r.lacking.Any {
			return true
		}
	}
	return false
}

// Due returns when the next attempt is due of a part that failed, and false if none failed.
func (r *Reconciler) Due() (at time.Time, is bool) {
	for _, p := range r.parts {
		if p.delay > 0 && (!is || p.due.Before(at)) {
			at, is = p.due, true
		}
	}
	return at, is
}

// Has reports whether the kernel has a generation of some parts, or why they fail. No parts, or
// none that the driver carries out, stand for all.
func (r *Reconciler) Has(generation uint64, of ...Part) (bool, error) {
	parts := slices.DeleteFunc(slices.Clone(r.parts), func(p *part) bool { return !slices.Contains(of, p.of) })
	if len(parts) == 0 {
		parts = r.parts
	}
	behind := func(p *part) bool { return p.holds < generation }
	return !slices.ContainsFunc(parts, behind), failure(parts)
}

// Failed returns the failures of the parts; if all parts fail alike, they are one.
func (r *Reconciler) Failed() (list []Failure) {
	for _, p := range r.parts {
		if p.failure != nil {
			list = append(list, *p.failure)
		}
	}
	unlike := func(f Failure) bool { return f.Error != list[0].Error }
	if len(list) > 0 && len(list) == len(r.parts) && !slices.ContainsFunc(list, unlike) {
		list = list[:1]
		list[0].Part = ""
	}
	return list
}

// Hurry has parts that failed tried again in the next attempt.
func (r *Reconciler) Hurry() {
	for _, p := range r.parts {
		p.due = time.Time{}
	}
}

// Plan compares everything with the kernel, and returns what the next attempt would do; that
// attempt compares everything, too. The delta is the change since the last attempt; the next one
// does not get it again.
func (r *Reconciler) Plan(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	if r.lacking.Any {
		r.noteEndpoints(delta)
	}
	r.Doubt("")
	return Adopt(ctx, r.driver, r.want(), r.lacking, r.hadEndpoint)
}

// Healed tells whether someone else goes on changing what is in step: it is Lost then.
func (r *Reconciler) Healed() contest.Pace { return r.healed }

// Kept is how much is in the kernel that is only kept.
func (r *Reconciler) Kept() (n int) {
	for _, p := range r.parts {
		n += p.kept
	}
	return n
}

// Attempt brings the kernel in step with the desired state, of which delta is the change since the
// last attempt, and generation the last generation that it has in full. Parts that failed are tried
// again when they are due, and sooner if delta changes them. An error says which parts are not in
// step, and why; all others are.
func (r *Reconciler) Attempt(ctx context.Context, delta state.Delta, generation uint64) (Done, error) {
	var done Done
	if r.lacking.Any {
		r.noteEndpoints(delta)
	}
	expected := delta.Len() > 0
	for _, p := range r.parts {
		if at := p.tried.Add(hurriedDelay); p.delay > 0 && parts[p.of].changes(delta) > 0 && at.Before(p.due) {
			p.due = at
		}
	}
	r.update(ctx, delta, &done)
	if err := ctx.Err(); err != nil {
		return done, err
	}
	r.adopt(ctx, delta, &done)
	if done.Path == PathAdopt && done.Operations > 0 && (r.suspicion == Tampering || r.suspicion != "" && !expected) {
		done.Healed = r.suspicion
		now := r.now()
		r.healed.Undone(now)
		due := !now.Before(r.healed.Due())
		if due {
			r.healed.Wrote(now)
		}
		if due || !r.healed.Lost(now) {
			r.log.Warn("the kernel's tables had been changed by someone else and were put right", "foundBy", done.Healed, "operations", done.Operations, "took", done.Took, "repeatedly", r.healed.Lost(now))
		}
	}
	r.suspicion = ""
	for _, p := range r.parts {
		if !p.stale {
			p.holds = max(p.holds, generation)
		}
	}
	if done.Time.IsZero() {
		done.Time = r.now()
	}
	return done, failure(r.parts)
}

// update carries out the change of those parts that are in step.
func (r *Reconciler) update(ctx context.Context, delta state.Delta, done *Done) {
	var now []*part
	var d state.Delta
	for _, p := range r.parts {
		switch n := parts[p.of].changes(delta); {
		case p.stale || n == 0:
		case p.kept > 0:
			p.stale = true
		default:
			now = append(now, p)
			parts[p.of].pick(&d, delta)
		}
	}
	if len(now) == 0 {
		return
	}
	_, err := r.apply(ctx, PathUpdate, done, func() (driver.Plan, error) { return r.driver.Update(ctx, d) })
	if err == nil || ctx.Err() != nil {
		return
	}
	for _, p := range now {
		p.stale = true
	}
	if r.suspicion = ""; r.tampered(ctx) {
		r.suspicion = Tampering
		return
	}
	done.UpdateFailed = true
	r.log.Warn("applying a change failed; comparing everything with the kernel", "error", err, "services", names(d), "policy", d.Policy.Len())
}

// adopt compares the parts that are stale and due with the kernel: together, and if that fails
// apart.
func (r *Reconciler) adopt(ctx context.Context, delta state.Delta, done *Done) {
	var due []*part
	for _, p := range r.parts {
		if p.stale && !r.now().Before(p.due) {
			due = append(due, p)
		}
	}
	if len(due) == 0 {
		return
	}
	want := r.want()
	err := r.adoptParts(ctx, want, due, done)
	if errors.Is(err, driver.ErrWhole) && len(due) < len(r.parts) {
		due = r.parts
		err = r.adoptParts(ctx, want, due, done)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	for _, p := range due {
		apart := err
		if len(due) > 1 && !errors.Is(err, driver.ErrBusy) && !errors.Is(err, driver.ErrLocked) {
			if apart = r.adoptParts(ctx, want, []*part{p}, done); errors.Is(apart, driver.ErrWhole) {
				apart = r.adoptAlone(ctx, want, p, done)
			}
			if errors.Is(apart, driver.ErrWhole) {
				apart = err
			}
		}
		if apart != nil {
			r.failed(p, apart, delta, done)
		}
	}
}

// adoptParts adopts some parts; the others stay as they are.
func (r *Reconciler) adoptParts(ctx context.Context, want *state.State, of []*part, done *Done) error {
	var s state.State
	for _, p := range of {
		parts[p.of].copy(&s, want)
	}
	kept, err := r.apply(ctx, PathAdopt, done, func() (driver.Plan, error) { return Adopt(ctx, r.driver, &s, r.lacking, r.hadEndpoint) })
	if err != nil {
		return err
	}
	for _, p := range of {
		p.adopted(kept)
	}
	return nil
}

// adoptAlone adopts one part where the driver needs all. The others, which fail, stay as the driver
// has them; if it has not adopted them yet, the kernel's are kept.
func (r *Reconciler) adoptAlone(ctx context.Context, want *state.State, p *part, done *Done) error {
	if r.driver.Capabilities().Can&driver.Keeps == 0 {
		return driver.ErrWhole
	}
	s, keep := standIn(r.driver, want), r.lacking.keep()
	parts[p.of].copy(s, want)
	mayKeep := keep
	keep.Services, keep.Policy = keep.Services || p.of != Services, keep.Policy || p.of != Policy
	kept, err := r.apply(ctx, PathAdopt, done, func() (driver.Plan, error) { return adopt(ctx, r.driver, s, keep, r.hadEndpoint) })
	switch {
	case err != nil:
		return err
	case p.of == Services && kept.Services > 0 && !mayKeep.Services, p.of == Policy && kept.Policy > 0 && !mayKeep.Policy:
		return fmt.Errorf("%s cannot be changed alone: the kernel has the tables of another version", p.of)
	}
	p.adopted(kept)
	return nil
}

// adopted notes that the kernel has the part.
func (p *part) adopted(kept driver.Kept) {
	p.stale, p.delay, p.due, p.failure = false, 0, time.Time{}, nil
	p.kept = parts[p.of].kept(kept)
}

// apply carries out one plan.
func (r *Reconciler) apply(ctx context.Context, path string, done *Done, plan func() (driver.Plan, error)) (kept driver.Kept, err error) {
	began := r.now()
	p, err := plan()
	if err != nil {
		return kept, err
	}
	if p.Len() > 0 && r.log.Enabled(ctx, slog.LevelDebug) {
		logPlan(r.log, p)
	}
	if err := p.Apply(ctx); err != nil {
		return kept, err
	}
	done.Time = r.now()
	done.Operations += p.Len()
	done.Took += done.Time.Sub(began)
	if done.Path != PathAdopt {
		done.Path = path
	}
	return p.Kept(), nil
}

// failed records an error of a part, and when it is to be tried again.
func (r *Reconciler) failed(p *part, err error, delta state.Delta, done *Done) {
	done.Failed = true
	p.stale, p.tried = true, r.now()
	p.delay = min(max(2*p.delay, firstDelay), lastDelay)
	if errors.Is(err, driver.ErrBusy) {
		p.delay = hurriedDelay
	}
	p.due = p.tried.Add(p.delay)
	old := p.failure
	f := &Failure{Part: p.of.String(), Since: p.tried, Error: err.Error()}
	if old != nil {
		f.Since, f.Attempts = old.Since, old.Attempts
	}
	f.Attempts++
	p.failure, p.err = f, err
	if old != nil && old.Error == f.Error && p.delay < lastDelay {
		return // said already; once the delay has its full length it is said each time
	}
	r.log.Error("programming the kernel failed; retrying", "part", f.Part, "error", err,
		"services", names(delta), "policy", delta.Policy.Len(), "attempts", f.Attempts, "delay", p.delay)
}

// failure joins the errors of the parts that fail.
func failure(parts []*part) error {
	var errs []error
	for _, p := range parts {
		if p.failure != nil && (len(errs) == 0 || errs[0].Error() != p.failure.Error) {
			errs = append(errs, p.err)
		}
	}
	return errors.Join(errs...)
}
