package policy

import "sluice.dev/sluice/internal/state"

// table writes to a map of the state and remembers what its keys held before
// this update, so that a value which went and came back is no change.
type table[K comparable, V any] struct {
	now   map[K]*V
	was   map[K]*V
	equal func(a, b *V) bool
}

func newTable[K comparable, V any](now map[K]*V, equal func(a, b *V) bool) table[K, V] {
	return table[K, V]{now: now, was: map[K]*V{}, equal: equal}
}

// set puts v under k, or removes k where v is nil.
func (t *table[K, V]) set(k K, v *V) {
	old := t.now[k]
	if old == v {
		return
	}
	if _, touched := t.was[k]; !touched {
		t.was[k] = old
	}
	if v == nil {
		delete(t.now, k)
	} else {
		t.now[k] = v
	}
}

// flush returns what differs from before the update.
func (t *table[K, V]) flush() map[K]*V {
	if len(t.was) == 0 {
		return nil
	}
	d := t.was
	for k, old := range d {
		now := t.now[k]
		if now == old || now != nil && old != nil && t.equal(now, old) {
			delete(d, k)
		} else {
			d[k] = now
		}
	}
	t.was = map[K]*V{}
	return d
}

func equalValues[V comparable](a, b *V) bool { return *a == *b }

// members counts what puts each member into a set.
type members[M comparable] struct {
	set  map[M]struct{}
	more map[M]int  // reasons beyond the first; most members have none
	was  map[M]bool // touched since the set was published last: whether it was in it
	// published: the set has been. Before, there is nothing that it differs from.
	published bool
}

func (m *members[M]) add(e M) {
	if _, in := m.set[e]; in {
		if m.more == nil {
			m.more = map[M]int{}
		}
		m.more[e]++
		return
	}
	if m.set == nil {
		m.set = map[M]struct{}{}
	}
	m.touch(e, false)
	m.set[e] = struct{}{}
}

func (m *members[M]) remove(e M) {
	switch m.more[e] {
	case 0:
		m.touch(e, true)
		delete(m.set, e)
	case 1:
		delete(m.more, e)
	default:
		m.more[e]--
	}
}

func (m *members[M]) touch(e M, in bool) {
	if !m.published {
		return
	}
	if m.was == nil {
		m.was = map[M]bool{}
	}
	if _, touched := m.was[e]; !touched {
		m.was[e] = in
	}
}

// dynamic is a set of the state whose members come and go one by one.
type dynamic[M comparable] struct {
	handle
	members members[M]
}

// memberTable is table for dynamic sets.
type memberTable[M comparable] struct {
	now map[state.SetID]map[M]struct{}
	was map[state.SetID]map[M]bool
}

func newMemberTable[M comparable](now map[state.SetID]map[M]struct{}) memberTable[M] {
	return memberTable[M]{now: now, was: map[state.SetID]map[M]bool{}}
}

// retract takes back what was published under an id that the set has no more. It
// comes before any publish of the same update.
func (t *memberTable[M]) retract(d *dynamic[M]) {
	if d.published == 0 || d.published == d.id {
		return
	}
	for e := range d.members.set {
		if was, touched := d.members.was[e]; !touched || was {
			t.touch(d.published, e, true)
		}
	}
	for e, was := range d.members.was {
		if was {
			t.touch(d.published, e, true)
		}
	}
	delete(t.now, d.published)
	d.published = 0
}

// publish writes the set under its id.
func (t *memberTable[M]) publish(d *dynamic[M]) {
	if d.id == 0 {
		return
	}
	if d.published == 0 {
		for e := range d.members.set {
			t.touch(d.id, e, false)
		}
	} else {
		for e, was := range d.members.was {
			t.touch(d.id, e, was)
		}
	}
	d.members.was, d.members.published = nil, true
	d.published = d.id
	if len(d.members.set) == 0 {
		delete(t.now, d.id)
	} else {
		t.now[d.id] = d.members.set
	}
}

func (t *memberTable[M]) touch(id state.SetID, e M, in bool) {
	m := t.was[id]
	if m == nil {
		m = map[M]bool{}
		t.was[id] = m
	}
	if _, touched := m[e]; !touched {
		m[e] = in
	}
}

// flush returns the members that came (true) or went (false).
func (t *memberTable[M]) flush() map[state.SetID]map[M]bool {
	if len(t.was) == 0 {
		return nil
	}
	d := t.was
	for id, m := range d {
		for e, was := range m {
			if _, in := t.now[id][e]; in == was {
				delete(m, e)
			} else {
				m[e] = in
			}
		}
		if len(m) == 0 {
			delete(d, id)
		}
	}
	t.was = map[state.SetID]map[M]bool{}
	return d
}
