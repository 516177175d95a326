package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/store"
)

// phase is the progress of a follower.
type phase uint8

const (
	waiting phase = iota // nothing is known yet
	listed               // everything has been delivered once
	denied               // the agent may not read it
	absent               // the API does not serve it
)

// follower keeps the sink in step with the API's objects of one kind.
type follower struct {
	kind   *kinds.Kind
	api    *api
	sink   source.Sink
	log    *slog.Logger
	notify func() // called when something in the source's status changes
	lost   func() // called when the API no longer serves the place
	tidy   func() // called after each complete list

	ignoreRefused bool // see kinds.Text

	wake wake.Signal // ends a pause

	mu         sync.Mutex
	place      *kinds.Resource // where the API serves the kind; nil: nowhere, or unknown
	placed     bool            // whether place is known
	version    string          // of the API, up to which all has been delivered; "": read the list
	asks       []chan struct{}
	interrupt  context.CancelFunc // ends the present watch; nil if there is none
	phase      phase
	ledger     *ledger
	trouble    trouble
	since      time.Time // when the trouble began; zero: there is none
	away       time.Time // since when the API cannot be reached; zero: it can
	doubted    time.Time // since when refusals are in doubt; zero: there are none
	short      int       // number of watches in a row that the server ended at once
	reconnects uint64
	lists      uint64
	listTook   time.Duration // duration of the last list
}

func newFollower(k *kinds.Kind, a *api, sink source.Sink, log *slog.Logger) *follower {
	f := &follower{kind: k, api: a, sink: sink, log: log.With("kind", string(k.Kind)), wake: wake.New(), ledger: newLedger(k.Kind, 0)}
	if !k.Optional {
		f.place, f.placed = &k.Places[0], true
	}
	return f
}

// run follows the kind until ctx ends.
func (f *follower) run(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	backoff := f.api.timing.first
	for ctx.Err() == nil {
		began := time.Now()
		wait, err := f.attempt(ctx)
		if time.Since(began) > f.api.timing.steady {
			backoff = f.api.timing.first
		}
		if wait == 0 && ctx.Err() == nil && !errors.Is(err, errInterrupted) {
			wait = jitter(backoff)
			backoff = min(2*backoff, f.api.timing.last)
		}
		if wait < 0 {
			pause.Stop()
		} else {
			pause.Reset(wait)
		}
		select {
		case <-ctx.Done():
		case <-f.wake:
		case <-pause.C:
		}
	}
}

// errInterrupted means that a watch was ended because there is something else to do.
var errInterrupted = errors.New("interrupted")

// attempt follows the kind until something fails. wait is the time until the next attempt: 0 means
// the usual back-off, less than 0 means until something wakes the follower.
func (f *follower) attempt(ctx context.Context) (wait time.Duration, err error) {
	f.mu.Lock()
	place, version, asks := f.place, f.version, f.asks
	if !f.placed {
		f.mu.Unlock()
		return -1, nil
	}
	f.asks = nil
	if !f.away.IsZero() && time.Since(f.away) > f.api.timing.outage {
		version = ""
	}
	f.mu.Unlock()
	if place == nil {
		// The API does not serve the kind any more: everything is taken back.
		f.commit(nil, newLedger(f.kind.Kind, 0), "", absent)
		release(asks)
		return -1, nil
	}
	if version == "" || len(asks) > 0 {
		if err := f.list(ctx, *place); err != nil {
			return f.fail(ctx, err, asks), err
		}
		release(asks)
	} else if err := f.checkHistory(ctx, *place, version); err != nil {
		return f.fail(ctx, err, nil), err
	}
	err = f.watch(ctx, *place)
	if err == nil || errors.Is(err, errInterrupted) || errors.Is(err, errBroken) {
		return 0, err // if the API can't be reached, the next attempt says so
	}
	return f.fail(ctx, err, nil), err
}

// release tells the callers of flush that the list has been read, or cannot be.
func release(asks []chan struct{}) {
	for _, a := range asks {
		close(a)
	}
}

// errRewound means that the API server's state is older than one that it has sent before, for
// example after its storage was restored. Watches would deliver nothing until it has caught up.
var errRewound = errors.New("the API has gone back to an older state")

func (f *follower) checkHistory(ctx context.Context, at kinds.Resource, version string) error {
	latest, err := f.api.latest(ctx, at, f.kind)
	if err == nil && isOlder(latest, version) {
		return errRewound
	}
	return err
}

// list reads all objects and delivers the differences from before.
func (f *follower) list(ctx context.Context, at kinds.Resource) error {
	began := time.Now()
	before := f.ledger // nobody else writes it
	next := newLedger(f.kind.Kind, len(before.entries))
	restart := func() { next = newLedger(f.kind.Kind, len(before.entries)) }
	version, err := f.api.list(ctx, at, f.kind, restart, func(r raw) {
		sum := r.sum(at)
		if len(before.entries) > 0 {
			if id, err := r.identify(); err == nil && next.repeat(id.name, sum, before) {
				return
			}
		}
		o := f.decode(at, r)
		o.sum = sum
		next.enter(o, before)
	})
	if err != nil {
		return err
	}
	f.commit(&at, next, version, listed)
	f.mu.Lock()
	f.lists++
	f.listTook = time.Since(began)
	f.mu.Unlock()
	f.tidy()
	return nil
}

// commit delivers the difference between the last state and the next one, which was read at a
// place.
func (f *follower) commit(at *kinds.Resource, next *ledger, version string, reached phase) {
	f.mu.Lock()
	f.apply(next.since(f.ledger))
	f.logFaults(f.ledger.faults, next.faults)
	if at != nil && !f.isAt(*at) {
		version = "" // from now on the kind is followed elsewhere
	}
	f.ledger, f.version, f.phase = next, version, reached
	f.clearTrouble()
	f.mu.Unlock()
	f.notify()
}

func (f *follower) apply(events []store.Event) {
	if len(events) > 0 {
		f.sink.Apply(events)
	}
}

func (f *follower) isAt(place kinds.Resource) bool { return f.place != nil && *f.place == place }

// watch delivers each change as it comes.
func (f *follower) watch(ctx context.Context, at kinds.Resource) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.mu.Lock()
	if len(f.asks) > 0 || !f.isAt(at) {
		f.mu.Unlock()
		return errInterrupted
	}
	f.interrupt = cancel
	version := f.version
	f.mu.Unlock()
	var holds *time.Timer // nil until the server has accepted the watch
	err := f.api.watch(ctx, at, f.kind, version, func() {
		holds = time.AfterFunc(f.api.timing.steady, f.steady)
		f.begun()
	}, func(kind string, r raw) error { return f.event(at, kind, r) })
	atOnce := holds != nil && holds.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.interrupt = nil
	f.reconnects++
	if ctx.Err() != nil {
		return errInterrupted
	}
	if atOnce {
		f.short++
	}
	return err
}

// begun is called when the server has accepted a watch.
func (f *follower) begun() {
	f.mu.Lock()
	cleared := f.clearTrouble()
	f.mu.Unlock()
	if cleared {
		f.notify()
	}
}

// steady is called when a watch has lasted for a while.
func (f *follower) steady() {
	f.mu.Lock()
	f.short = 0
	f.mu.Unlock()
	f.notify()
}

// event processes one event of a watch.
func (f *follower) event(at kinds.Resource, kind string, r raw) error {
	var o object
	switch watch.EventType(kind) {
	case watch.Added, watch.Modified:
		o = f.decode(at, r)
		o.sum = r.sum(at)
	case watch.Deleted, watch.Bookmark:
		o = broken(r)
	case watch.Error:
		var status metav1.Status
		if err := readStatus(r, &status); err != nil {
			return fmt.Errorf("read error of watch: %w", err)
		}
		return apierrors.FromObject(&status)
	default:
		return fmt.Errorf("read event: its type is %.20q", kind)
	}
	f.mu.Lock()
	holed, was := len(f.ledger.faults) > 0, f.ledger.faults[o.name]
	switch watch.EventType(kind) {
	case watch.Added, watch.Modified:
		f.apply(f.ledger.put(o))
	case watch.Deleted:
		f.apply(f.ledger.remove(o.name))
	}
	if o.version != "" {
		f.version = o.version
	}
	f.logFault(o.name, was, f.ledger.faults[o.name])
	holed = holed || len(f.ledger.faults) > 0
	f.mu.Unlock()
	if holed {
		f.notify()
	}
	return nil
}
