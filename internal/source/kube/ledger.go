package kube

import (
	"errors"
	"maps"

	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/store"
)

// ledger records what has been delivered of one kind, by the API's names, and the faults. The store
// holds the same values.
type ledger struct {
	kind    model.Kind
	entries map[model.Name]entry
	faults  map[model.Name]fault
	usable  int // number of entries with a value
	copies  int // number of objects of the last list that were passed over
}

// fault says what is wrong with an object, and what is in force in its place. The zero value is
// none.
type fault struct{ reason, inForce string }

// entry is one object.
type entry struct {
	value any         // as delivered; nil if there never was a good version
	known *model.Name // its name in the store, if that differs from the API's
	sum   uint64      // hash of the text, if value is all of it; otherwise 0
}

func newLedger(kind model.Kind, room int) *ledger {
	return &ledger{kind: kind, entries: make(map[model.Name]entry, room), faults: make(map[model.Name]fault)}
}

// errNameless means that not even the object's name can be read.
var errNameless = errors.New("it has no name")

// enter replaces what before has of an object by its newest version; before may be l itself.
func (l *ledger) enter(o object, before *ledger) {
	if o.copy {
		l.copies++
		return
	}
	if o.name.Name == "" && o.err == nil {
		o.err = errNameless
	}
	if o.err == nil {
		delete(l.faults, o.name)
	}
	if o.name.Name == "" {
		l.faults[o.name] = fault{o.err.Error(), model.InForceNothing}
		return
	}
	old := before.entries[o.name]
	next := entry{source.Newest(old.value, o.value), o.known, o.sum}
	if next.value == old.value {
		next.known = old.known
	}
	if o.err != nil {
		next.sum = 0
		reason, inForce := source.Fault(next.value, o.value, o.err)
		l.faults[o.name] = fault{reason, inForce}
	}
	l.set(o.name, next)
}

// repeat takes an object over from before, if its text is the same and it had no fault.
func (l *ledger) repeat(name model.Name, sum uint64, before *ledger) bool {
	e, ok := before.entries[name]
	if !ok || e.sum != sum || sum == 0 {
		return false
	}
	l.set(name, e)
	return true
}

func (l *ledger) set(name model.Name, e entry) {
	if l.entries[name].value != nil {
		l.usable--
	}
	if e.value != nil {
		l.usable++
	}
	l.entries[name] = e
}

// put enters an object and returns the events for the store.
func (l *ledger) put(o object) []store.Event {
	if o.copy {
		return nil
	}
	was := l.entries[o.name]
	l.enter(o, l)
	return l.change(nil, o.name, was, l.entries[o.name])
}

// remove removes an object and returns the events for the store.
func (l *ledger) remove(name model.Name) []store.Event {
	was := l.entries[name]
	l.set(name, entry{})
	delete(l.entries, name)
	delete(l.faults, name)
	return l.change(nil, name, was, entry{})
}

// change appends the events of an object that changes from was to is.
func (l *ledger) change(events []store.Event, name model.Name, was, is entry) []store.Event {
	if was.value != nil && (is.value == nil || !ptr.Equal(was.known, is.known)) {
		events = append(events, store.Event{Kind: l.kind, Name: was.name(name)})
	}
	if is.value != nil && is.value != was.value {
		events = append(events, store.Event{Kind: l.kind, Name: is.name(name), Object: is.value})
	}
	return events
}

// name returns the store's name of the object that the API calls api.
func (e entry) name(api model.Name) model.Name {
	return ptr.Deref(e.known, api)
}

// since returns the events that turn before into l.
func (l *ledger) since(before *ledger) []store.Event {
	var events []store.Event
	if len(before.entries) == 0 {
		events = make([]store.Event, 0, len(l.entries))
	}
	renamed := false
	for name, is := range l.entries {
		events = l.change(events, name, before.entries[name], is)
		renamed = renamed || is.known != nil
	}
	for name, was := range before.entries {
		if _, stays := l.entries[name]; !stays {
			events = l.change(events, name, was, entry{})
			renamed = renamed || was.known != nil
		}
	}
	if renamed {
		return single(events)
	}
	return events
}

// single leaves one event for each object. If two of the API's objects are one in the store, a new
// version from one outweighs the removal of the other.
func single(events []store.Event) []store.Event {
	latest := make(map[model.Name]store.Event, len(events))
	for _, e := range events {
		if e.Object != nil || latest[e.Name].Object == nil {
			latest[e.Name] = e
		}
	}
	if len(latest) == len(events) {
		return events
	}
	events = events[:0]
	for e := range maps.Values(latest) {
		events = append(events, e)
	}
	return events
}

// holes returns the objects of which there never was a good version, with the reasons.
func (l *ledger) holes() map[model.Name]string {
	holes := make(map[model.Name]string)
	for name, fault := range l.faults {
		if l.entries[name].value == nil {
			holes[name] = fault.reason
		}
	}
	return holes
}
