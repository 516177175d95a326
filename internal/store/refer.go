package store

import (
	"cmp"
	"fmt"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// Objects name others: a policy its tier, a pod its service account. One that is missing, by
// mistake or as it comes in another order, must not shut what worked, nor open what was shut:
//
//   - One that is deleted while others name it stays as it was, until it comes again or nobody
//     names it any more. A Service stays for the policies that name it and is served no longer.
//   - A version of a policy whose tier is missing waits for it, and one of a BGPPeer for its
//     filters. The version before stays, or none. A version of a policy that is in force waits for
//     the Services that it names. A new policy does not: without it, its pods would be open.
//
// Selectors name nothing: they select what there is.

// Names calls f with each object that o names and without which it could not hold as it did.
func Names(o any, f func(model.Ref)) {
	switch o := o.(type) {
	case *model.Policy:
		if model.BuiltInTier(o.Tier) == nil {
			f(model.Ref{Kind: model.TierKind, Name: model.Name{Name: o.Tier}})
		}
		for service := range o.Services {
			f(model.Ref{Kind: model.ServiceKind, Name: service})
		}
	case *model.Pod:
		if o == nil {
			return
		}
		f(model.Ref{Kind: model.NamespaceKind, Name: model.Name{Name: o.Name.Namespace}})
		f(model.Ref{Kind: model.ServiceAccountKind, Name: model.Name{Namespace: o.Name.Namespace, Name: o.ServiceAccount}})
	case *model.BGPPeer:
		for _, name := range o.Filters {
			f(model.Ref{Kind: model.BGPFilterKind, Name: model.Name{Name: name}})
		}
	}
}

// refer counts what next names in place of old; either may be nil. What is gone goes for good with
// the last that names it.
func (s *Store) refer(old, next any) {
	Names(next, func(ref model.Ref) { s.named[ref]++ })
	Names(old, func(ref model.Ref) {
		if s.named[ref]--; s.named[ref] > 0 {
			return
		}
		delete(s.named, ref)
		if s.gone[ref] {
			s.apply(Event{Kind: ref.Kind, Name: ref.Name})
		}
	})
}

// keep reports whether an object that was deleted stays, as others name it.
func (s *Store) keep(ref model.Ref) bool {
	if s.named[ref] == 0 {
		delete(s.gone, ref)
		return false
	}
	s.gone[ref] = true
	return true
}

// waiting is a version of an object that waits for another.
type waiting struct {
	object any
	ref    model.Ref // the other
	early  bool      // it was so before all was read that there was at the start: see SetWhole
}

// awaited says of an object that it waits for one of a kind. A Tier that cannot be read is there,
// and a BGPFilter is not.
var awaited = map[model.Kind]string{
	model.TierKind:      "spec.tier: there is no %s, for which it waits: make the Tier, or name one that exists",
	model.ServiceKind:   "its rules name %s, which does not exist and for which this version waits: make the Service, or name one that exists",
	model.BGPFilterKind: "spec.filters: there is no %s that can be read, for which it waits: make or mend it, or name one that exists",
}

// awaits returns what is missing of what the next version of an object names and has to wait for:
// of several the first.
func (s *Store) awaits(of model.Ref, next any) (missing model.Ref, waits bool) {
	if p, ok := next.(*model.Policy); ok && p.Refused != "" {
		return missing, false
	}
	last, _ := s.view.Object(of).(*model.Policy)
	Names(next, func(ref model.Ref) {
		there := s.view.Object(ref) != nil && !s.gone[ref]
		if ref.Kind == model.ServiceKind {
			there = last == nil || last.Refused != "" || s.view.NamedService(ref.Name) != nil
		}
		if awaited[ref.Kind] != "" && !there && (!waits || ref.Compare(missing) < 0) {
			missing, waits = ref, true
		}
	})
	return missing, waits
}

// waits follows what waits of the object that is called ref and now is next, and reports whether
// next has to. What is the same as before is in force already.
func (s *Store) waits(ref model.Ref, next any, same bool) bool {
	was, again := s.waiting[ref]
	if again {
		delete(s.waiting, ref)
		if s.waitedFor[was.ref]--; s.waitedFor[was.ref] == 0 {
			delete(s.waitedFor, was.ref)
		}
	}
	missing, waits := s.awaits(ref, next)
	if same || !waits {
		return false
	}
	s.waiting[ref] = waiting{next, missing, !s.whole || again && was.early}
	s.waitedFor[missing]++
	return true
}

// release has what waited for an object take effect. What one of them names does not go with the
// version before of another.
func (s *Store) release(came model.Ref) {
	if s.waitedFor[came] == 0 {
		return
	}
	list := map[model.Ref]any{}
	for ref, w := range s.waiting {
		if w.ref == came {
			list[ref] = w.object
			s.refer(nil, w.object)
		}
	}
	for ref, o := range list {
		s.apply(Event{Kind: ref.Kind, Name: ref.Name, Object: o})
	}
	for _, o := range list {
		s.refer(o, nil)
	}
}

// Missing returns an issue for each object that is gone and stays, for each that waits for one, and
// for each Service that policies name and that does not exist. What goes together with its pods is
// none.
func (s *Store) Missing() []model.Issue {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var list []model.Issue
	left := s.left()
	for ref := range s.gone {
		if left[ref] {
			continue
		}
		stays, inForce := "stays as it was because others name it", model.InForceLast
		if ref.Kind == model.ServiceKind {
			stays, inForce = "is served no longer, but stays as it was for the policies that name it", ""
		}
		i := ref.Issue(fmt.Sprintf("it is deleted, and %s (%d): make it again, or delete them", stays, s.named[ref]))
		i.InForce = inForce
		list = append(list, i)
	}
	for ref := range s.named {
		if ref.Kind == model.ServiceKind && s.view.NamedService(ref.Name) == nil {
			i := ref.Issue("it does not exist, and policies name it: by it their rules match nothing; make the Service, or name one that exists")
			i.Everywhere = true
			list = append(list, i)
		}
	}
	for ref, w := range s.waiting {
		i := ref.Issue(fmt.Sprintf(awaited[w.ref.Kind], w.ref))
		i.Everywhere, i.InForce = true, model.InForceNothing
		switch last := s.view.Object(ref).(type) {
		case *model.Policy:
			i.InForce = cmp.Or(last.StandIn(), model.InForceLast)
		case *model.BGPPeer:
			i.InForce = model.InForceLast
		}
		list = append(list, i)
	}
	slices.SortFunc(list, model.Issue.Compare)
	return list
}

// Awaited returns an object that is waited for; false: none is.
func (s *Store) Awaited() (model.Ref, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, w := range s.waiting {
		return w.ref, true
	}
	return model.Ref{}, false
}

// left returns what is gone and named by pods alone that are leaving, too.
func (s *Store) left() map[model.Ref]bool {
	left := map[model.Ref]bool{}
	for ref := range s.gone {
		if ref.Kind == model.ServiceAccountKind || ref.Kind == model.NamespaceKind {
			left[ref] = true
		}
	}
	if len(left) == 0 {
		return nil
	}
	for _, p := range s.view.pods {
		if !p.Terminating && !p.Finished {
			Names(p, func(ref model.Ref) { delete(left, ref) })
		}
	}
	return left
}

// Waiting is a version of a policy that waits, and what it waits for.
type Waiting struct {
	*model.Policy
	For model.Ref
}

// WaitingPolicies returns the versions of policies that wait, sorted.
func (s *Store) WaitingPolicies() []Waiting {
	return s.waitingPolicies(func(*model.Policy, waiting) bool { return true })
}

// waitingPolicies are those that hold.
func (s *Store) waitingPolicies(holds func(*model.Policy, waiting) bool) (list []Waiting) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, w := range s.waiting {
		if p, is := w.object.(*model.Policy); is && holds(p, w) {
			list = append(list, Waiting{p, w.ref})
		}
	}
	slices.SortFunc(list, func(a, b Waiting) int { return a.Key.Compare(b.Key) })
	return list
}

// SetWhole records that all was read that there was at the start: an earlier agent carried out
// nothing of what comes now.
func (s *Store) SetWhole() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.whole = true
}

// Awaiting returns the policies that have waited since before all was read that there was at the
// start: an earlier agent may have carried them out.
func (s *Store) Awaiting() []Waiting {
	return s.waitingPolicies(func(p *model.Policy, w waiting) bool { return w.early && s.view.Object(p.Key) == nil })
}
