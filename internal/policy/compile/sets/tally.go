package sets

import (
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
)

// Tallies count what selectors select whose groups are not there.
type Tallies struct {
	objects   *objects.Objects
	groups    *Groups
	all       map[string]*Tally           // by the keys of their groups
	byClass   map[*objects.Class][]*Tally // that select the class, as long as no tally comes or goes
	selectors objects.Filing[*Tally]
	moves     int // sizes of all that came to tallies and went
}

func newTallies(all *objects.Objects, groups *Groups) *Tallies {
	return &Tallies{
		objects: all, groups: groups,
		all: map[string]*Tally{}, byClass: map[*objects.Class][]*Tally{}, selectors: objects.Filing[*Tally]{},
	}
}

// Tally counts what a selector selects, and keeps none of it. Parts that ask for the same share it.
type Tally struct {
	Key      string // of its group
	Count    int    // the sum of the sizes
	refs     int
	selector model.Selector
}

// Hold counts what a selector selects from now on, until it is released. It returns how many
// classes it was held against.
func (ts *Tallies) Hold(s model.Selector) (t *Tally, looked int) {
	key := groupKey(s)
	if t = ts.all[key]; t == nil {
		t = &Tally{Key: key, selector: s}
		if g := ts.groups.all[key]; g != nil && g.follows && g.refs > 0 { // one that drains knows of no new class
			t.Count = g.Selected
		} else {
			var found []*objects.Class
			found, looked = ts.objects.Find(s)
			for _, cl := range found {
				t.Count += cl.Size
			}
		}
		ts.all[key] = t
		ts.selectors.Add(s, t)
		clear(ts.byClass)
	}
	t.refs++
	return t, looked
}

// Release takes back a Hold.
func (ts *Tallies) Release(t *Tally) {
	if t.refs--; t.refs == 0 {
		delete(ts.all, t.Key)
		ts.selectors.Remove(t.selector, t)
		clear(ts.byClass)
	}
}

// follow counts what comes and what goes. It returns the cost in elements.
func (ts *Tallies) follow(ch objects.ItemChange) (cost int) {
	if ch.Next != nil {
		cost = ts.count(ch.Next.Class, ch.Next.Size())
	}
	if ch.Old != nil {
		cost += ts.count(ch.Old.Class, -ch.Old.Size())
	}
	if ch.Ended {
		delete(ts.byClass, ch.Old.Class)
	}
	return cost
}

// count counts a change of a class into the tallies of the selectors that select it. It returns the
// cost in elements.
func (ts *Tallies) count(cl *objects.Class, by int) (cost int) {
	if len(ts.selectors) == 0 {
		return 0
	}
	hit, known := ts.byClass[cl]
	if !known {
		some, looked := map[*Tally]struct{}{}, 0
		for t := range ts.selectors.Candidates(&cl.Labels) {
			if looked++; t.selector.Matches(&cl.Labels) {
				some[t] = struct{}{}
			}
		}
		hit = slices.Collect(maps.Keys(some))
		ts.byClass[cl] = hit
		cost = looked / objects.MatchingCost
	}
	for _, t := range hit {
		t.Count += by
	}
	ts.moves += len(hit) * max(by, -by)
	return cost
}
