package sets

import (
	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/state"
)

// dynamic is a set of the state whose members come and go one by one.
type dynamic[M comparable] struct {
	handle
	members diff.Set[M]
}

// set counts a reason for a member, or takes one back.
func (d *dynamic[M]) set(m M, in bool) {
	if in {
		d.members.Add(m)
	} else {
		d.members.Remove(m)
	}
}

// memberTable is diff.Map for dynamic sets.
type memberTable[M comparable] struct {
	now map[state.SetID]map[M]struct{}
	was map[state.SetID]map[M]bool
}

func newMemberTable[M comparable](now map[state.SetID]map[M]struct{}) memberTable[M] {
	return memberTable[M]{now: now, was: map[state.SetID]map[M]bool{}}
}

// retract takes back what was published under an id that the set has no more. It comes before any
// publish of the same update.
func (t *memberTable[M]) retract(d *dynamic[M]) {
	touched := d.members.Touched()
	for e := range d.members.Members() {
		if was, is := touched[e]; !is || was {
			t.touch(d.published, e, true)
		}
	}
	for e, was := range touched {
		if was {
			t.touch(d.published, e, true)
		}
	}
	delete(t.now, d.published)
}

// publish writes the set under its id.
func (t *memberTable[M]) publish(d *dynamic[M]) {
	if d.published == 0 {
		for e := range d.members.Members() {
			t.touch(d.id, e, false)
		}
	} else {
		for e, was := range d.members.Touched() {
			t.touch(d.id, e, was)
		}
	}
	d.members.Publish()
	if now := d.members.Members(); len(now) == 0 {
		delete(t.now, d.id)
	} else {
		t.now[d.id] = now
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
		if diff.Settle(m, t.now[id]); len(m) == 0 {
			delete(d, id)
		}
	}
	t.was = map[state.SetID]map[M]bool{}
	return d
}
