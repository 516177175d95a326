// Package store holds the current objects of all sources with the indexes that
// the compiler needs, and the set of keys that changed since it last looked.
//
// Sources write with Apply. The agent waits on Changed, calls Take for what is
// dirty, and compiles it inside one Read, during which nothing changes. An
// object that is applied between Take and Read is seen in its newest version
// and is dirty once more afterwards, so nothing is lost and a second look finds nothing.
//
// The cost of an event is that of the keys it touches, whatever the number of
// objects in the store.
package store

import (
	"cmp"
	"iter"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/lib/sorted"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
)

// Event is one object's current version, or its absence.
type Event struct {
	Kind   model.Kind
	Name   model.Name
	Object any // a pointer to the kind's model type; nil: the object is gone
}

// Dirty names what has to be compiled again.
type Dirty struct {
	// Services are those that changed, came or went themselves, and those
	// whose endpoints may have changed.
	Services map[model.Name]struct{}
	// Objects of all other kinds that changed, came or went. A kind is missing while there are none
	// of it.
	Objects map[model.Kind]map[model.Name]struct{}

	// What it took to get there, for metrics: the number of changed Services, of
	// changed EndpointSlices and Pods, and when the first of all these changes came.
	ServiceChanges, EndpointChanges int
	Since                           time.Time
	// Generation is the store's: all that it was told up to that is in here, or was in an earlier
	// Dirty.
	Generation uint64
	// Triggers are when what changed EndpointSlices tell of happened, where they say it.
	Triggers []Trigger
}

// Trigger is when something happened that endpoints of one address family tell of.
type Trigger struct {
	Service model.Name
	Is4     bool
	At      time.Time
}

// Len is the number of named keys.
func (d Dirty) Len() int {
	n := len(d.Services)
	for _, names := range d.Objects {
		n += len(names)
	}
	return n
}

// Refs yields the objects of some kinds that are among Objects.
func (d Dirty) Refs(kinds []model.Kind) iter.Seq[model.Ref] {
	return func(yield func(model.Ref) bool) {
		for _, kind := range kinds {
			for name := range d.Objects[kind] {
				if !yield(model.Ref{Kind: kind, Name: name}) {
					return
				}
			}
		}
	}
}

// Store is safe for concurrent use. The objects it hands out are shared and immutable.
type Store struct {
	mu         sync.RWMutex
	view       View
	dirty      Dirty
	generation uint64
	synced     bool
	whole      bool // see SetWhole
	changed    wake.Signal

	// See refer.go.
	named     map[model.Ref]int  // how many objects name one
	gone      map[model.Ref]bool // of those: that were deleted and stay
	waiting   map[model.Ref]waiting
	waitedFor map[model.Ref]int // by how many of these

	// Of pods that have attachments: these, and the pods as sources declare them; nil: not yet.
	attachments map[model.Name][]*model.Attachment
	declared    map[model.Name]*model.Pod
}

// New returns an empty store that is not synced.
func New() *Store {
	return &Store{
		view: newView(), dirty: newDirty(), changed: wake.New(),
		named: map[model.Ref]int{}, gone: map[model.Ref]bool{}, waiting: map[model.Ref]waiting{}, waitedFor: map[model.Ref]int{},
		attachments: map[model.Name][]*model.Attachment{}, declared: map[model.Name]*model.Pod{},
	}
}

func newDirty() Dirty {
	return Dirty{Services: map[model.Name]struct{}{}, Objects: map[model.Kind]map[model.Name]struct{}{}}
}

// Apply brings the objects up to date, all events in one step. An event that
// tells nothing new dirties nothing. Each Object must be of its Kind's type.
func (s *Store) Apply(events []Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation++
	for _, e := range events {
		s.apply(e)
	}
	if s.dirty.Len() > 0 {
		if s.dirty.Since.IsZero() {
			s.dirty.Since = time.Now()
		}
		s.changed.Set()
	}
}

func (s *Store) apply(e Event) {
	switch e.Kind {
	case model.ServiceKind:
		s.applyService(e.Name, object[model.Service](e))
	case model.EndpointSliceKind:
		s.applySlice(e.Name, object[model.EndpointSlice](e))
	case model.PodKind:
		s.declarePod(e.Name, object[model.Pod](e))
	case model.AttachmentKind:
		s.applyAttachment(e)
	default:
		s.applyObject(e)
	}
}

// applyObject takes an object of a kind that has no index of its own.
func (s *Store) applyObject(e Event) {
	s.replaceObject(e)
	if e.Object != nil && awaited[e.Kind] != "" {
		s.release(model.Ref{Kind: e.Kind, Name: e.Name})
	}
}

func (s *Store) replaceObject(e Event) {
	objects := s.view.objects[e.Kind]
	old, ref := objects[e.Name], model.Ref{Kind: e.Kind, Name: e.Name}
	delete(s.gone, ref)
	same := old == e.Object || old != nil && e.Object != nil && equal(old, e.Object)
	if s.waits(ref, e.Object, same) || same {
		return
	}
	switch {
	case e.Object == nil && s.keep(ref):
		return
	case e.Object == nil:
		delete(objects, e.Name)
	default:
		if objects == nil {
			objects = map[model.Name]any{}
			s.view.objects[e.Kind] = objects
		}
		objects[e.Name] = e.Object
	}
	multimap.Add(s.dirty.Objects, e.Kind, e.Name)
	s.refer(old, e.Object)
}

func (s *Store) applyService(name model.Name, next *model.Service) {
	ref, former := model.Ref{Kind: model.ServiceKind, Name: name}, s.view.former[name]
	old, changed := replace(s.view.services, name, next, func(a, b *model.Service) bool { return equal(a, b) })
	if !changed && former == nil {
		return
	}
	delete(s.gone, ref)
	if next == nil && s.keep(ref) {
		if old == nil {
			return
		}
		s.view.former[name] = old
	} else {
		delete(s.view.former, name)
		if last := cmp.Or(old, former); last != nil {
			s.view.selectors.remove(last)
		}
	}
	if next != nil {
		s.view.selectors.add(next)
	}
	s.dirty.Services[name] = struct{}{}
	s.dirty.ServiceChanges++
	if next != nil {
		s.release(ref)
	}
}

func (s *Store) applySlice(name model.Name, next *model.EndpointSlice) {
	old, changed := replace(s.view.slices, name, next, equalSlices)
	if !changed {
		return
	}
	s.dirty.EndpointChanges++
	s.triggered(old, next)
	if old != nil && (next == nil || next.Service != old.Service) {
		s.relist(name, old.Service, nil)
	}
	if next != nil {
		s.relist(name, next.Service, next)
	}
}

// triggered notes when the change happened that next tells of. A slice that is gone says nothing
// of when it went, and one that never had an endpoint is of no known family.
func (s *Store) triggered(old, next *model.EndpointSlice) {
	if next == nil || next.Triggered.IsZero() {
		return
	}
	for _, slice := range []*model.EndpointSlice{next, old} {
		if slice != nil && len(slice.Endpoints) > 0 {
			s.dirty.Triggers = append(s.dirty.Triggers, Trigger{model.Name{Namespace: next.Name.Namespace, Name: next.Service}, slice.Endpoints[0].Addr.Is4(), next.Triggered})
			return
		}
	}
}

// relist makes the slices listed for a service hold next in place of the one
// called name. The list is replaced, as readers may hold the old one.
func (s *Store) relist(name model.Name, service string, next *model.EndpointSlice) {
	owner := model.Name{Namespace: name.Namespace, Name: service}
	if s.view.NamedService(owner) != nil {
		s.dirty.Services[owner] = struct{}{}
	}
	list := slices.DeleteFunc(slices.Clone(s.view.byService[owner]), func(e *model.EndpointSlice) bool { return e.Name == name })
	if next != nil {
		list = sorted.Set(list, next, true, func(a, b *model.EndpointSlice) int { return a.Name.Compare(b.Name) })
	}
	if len(list) == 0 {
		delete(s.view.byService, owner)
		return
	}
	s.view.byService[owner] = list
}

// declarePod takes what a source says of a pod. Where its attachments say more, both count.
func (s *Store) declarePod(name model.Name, next *model.Pod) {
	list := s.attachments[name]
	if len(list) > 0 {
		s.declared[name] = next
	}
	s.applyPod(name, next.Attached(list))
}

// applyAttachment takes an attachment, and its pod with it.
func (s *Store) applyAttachment(e Event) {
	old, next := get[model.Attachment](&s.view, model.Ref{Kind: e.Kind, Name: e.Name}), object[model.Attachment](e)
	s.applyObject(e)
	for _, at := range []*model.Attachment{old, next} {
		if at != nil {
			s.reattach(at.Pod)
		}
	}
}

// reattach follows a change of a pod's attachments.
func (s *Store) reattach(pod model.Name) {
	declared, known := s.declared[pod]
	if !known {
		declared = s.view.pods[pod]
	}
	list := slices.DeleteFunc(s.view.Attachments(), func(at *model.Attachment) bool { return at.Pod != pod })
	if len(list) > 0 {
		s.attachments[pod], s.declared[pod] = list, declared
	} else {
		delete(s.attachments, pod)
		delete(s.declared, pod)
	}
	s.applyPod(pod, declared.Attached(list))
}

func (s *Store) applyPod(name model.Name, next *model.Pod) {
	old, changed := replace(s.view.pods, name, next, equalPods)
	if !changed {
		return
	}
	s.dirty.EndpointChanges++
	multimap.Add(s.dirty.Objects, model.PodKind, name)
	for _, pod := range []*model.Pod{old, next} {
		if pod == nil {
			continue
		}
		for svc := range s.view.selectors.matching(pod) {
			s.dirty.Services[svc.Name] = struct{}{}
		}
	}
	if old != nil {
		s.view.labels.remove(old)
		s.view.addrs.remove(old)
	}
	if next != nil {
		s.view.labels.add(next)
		s.view.addrs.add(next)
	}
	if old == nil || next == nil || old.ServiceAccount != next.ServiceAccount {
		s.refer(old, next)
	}
}

// SetSynced records that the source has delivered all that existed when it started.
func (s *Store) SetSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = true
	s.changed.Set()
}

// Synced reports whether SetSynced was called.
func (s *Store) Synced() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.synced
}

// Changed receives a value after something became dirty or the store became
// synced; several changes may share one value. There is one receiver.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Take returns what became dirty since the last Take, which the caller then owns.
func (s *Store) Take() Dirty {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.dirty
	d.Generation = s.generation
	s.dirty = newDirty()
	return d
}

// Generation counts what the store was told: each Apply begins another one.
func (s *Store) Generation() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.generation
}

// Read calls f with the current objects, which stay as they are until f
// returns. The View must not be kept, and f must not call methods of the Store.
func (s *Store) Read(f func(v *View)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f(&s.view)
}

// object returns the event's object as a *T; nil means gone.
func object[T any](e Event) *T {
	if e.Object == nil {
		return nil
	}
	return e.Object.(*T)
}

// replace puts next under k, or removes k where next is nil, unless that
// changes nothing; the old object stays where the new one is equal to it.
func replace[K comparable, V any](m map[K]*V, k K, next *V, equal func(a, b *V) bool) (old *V, changed bool) {
	old = m[k]
	if old == next || old != nil && next != nil && equal(old, next) {
		return old, false
	}
	if next == nil {
		delete(m, k)
	} else {
		m[k] = next
	}
	return old, true
}
