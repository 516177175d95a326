// Package diff has the maps and sets in which a compiler writes the desired state. They tell what
// differs since they were flushed last, at the cost of what was touched: a value that went and came
// back is no difference. Nothing in here is safe for concurrent use.
package diff

// Map writes to a map of the state.
type Map[K comparable, V any] struct {
	now   map[K]*V
	was   map[K]*V // what touched keys held at the last flush
	equal func(a, b *V) bool
}

// NewMap returns a Map that writes to now. Values, which are not nil, differ unless equal.
func NewMap[K comparable, V any](now map[K]*V, equal func(a, b *V) bool) Map[K, V] {
	return Map[K, V]{now: now, was: map[K]*V{}, equal: equal}
}

// Expect makes room for so many keys to be touched.
func (m *Map[K, V]) Expect(keys int) {
	if len(m.was) == 0 {
		m.was = make(map[K]*V, keys)
	}
}

// Set puts v under k, or removes k where v is nil.
func (m *Map[K, V]) Set(k K, v *V) {
	old := m.now[k]
	if old == v {
		return
	}
	if _, touched := m.was[k]; !touched {
		m.was[k] = old
	}
	if v == nil {
		delete(m.now, k)
	} else {
		m.now[k] = v
	}
}

// Flush returns what differs from the last flush: new values, and nil for keys that are gone. It
// returns nil if nothing was touched.
func (m *Map[K, V]) Flush() map[K]*V {
	if len(m.was) == 0 {
		return nil
	}
	d := m.was
	for k, old := range d {
		now := m.now[k]
		if now == old || now != nil && old != nil && m.equal(now, old) {
			delete(d, k)
		} else {
			d[k] = now
		}
	}
	m.was = map[K]*V{}
	return d
}

// Values reports whether two values are the same: it is for NewMap.
func Values[V comparable](a, b *V) bool { return *a == *b }

// Set counts how many reasons there are for each of its members. The zero Set is empty, and tells
// no differences before it is published.
type Set[M comparable] struct {
	set  map[M]struct{}
	more map[M]int  // reasons beyond the first; most members have none
	was  map[M]bool // touched since the set was published last: whether it was in it
	// published: the set has been. Before, there is nothing that it differs from.
	published bool
}

// NewSet returns a published Set that writes to set, which is empty.
func NewSet[M comparable](set map[M]struct{}) Set[M] {
	return Set[M]{set: set, published: true}
}

// Add counts a reason for a member.
func (s *Set[M]) Add(m M) {
	if _, in := s.set[m]; in {
		if s.more == nil {
			s.more = map[M]int{}
		}
		s.more[m]++
		return
	}
	if s.set == nil {
		s.set = map[M]struct{}{}
	}
	s.touch(m, false)
	s.set[m] = struct{}{}
}

// Remove takes a reason for a member back, which there is.
func (s *Set[M]) Remove(m M) {
	switch s.more[m] {
	case 0:
		s.touch(m, true)
		delete(s.set, m)
	case 1:
		delete(s.more, m)
	default:
		s.more[m]--
	}
}

func (s *Set[M]) touch(m M, in bool) {
	if !s.published {
		return
	}
	if s.was == nil {
		s.was = map[M]bool{}
	}
	if _, touched := s.was[m]; !touched {
		s.was[m] = in
	}
}

// Members are those that the set has. The caller must not change the map.
func (s *Set[M]) Members() map[M]struct{} { return s.set }

// Touched are the members that came or went since the set was published, with whether they were in
// it then: some may be so again. The caller must not change the map.
func (s *Set[M]) Touched() map[M]bool { return s.was }

// Publish has differences count from now on.
func (s *Set[M]) Publish() { s.was, s.published = nil, true }

// Flush publishes the set and returns the members that came (true) or went (false) since it was
// last published.
func (s *Set[M]) Flush() map[M]bool {
	d := s.was
	s.Publish()
	Settle(d, s.set)
	return d
}

// Settle makes of what was touched what differs now, in place: members that came (true) or went
// (false).
func Settle[M comparable](touched map[M]bool, now map[M]struct{}) {
	for m, was := range touched {
		if _, in := now[m]; in == was {
			delete(touched, m)
		} else {
			touched[m] = in
		}
	}
}
