package compile

import (
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
)

// tallies count what selectors select whose groups are not there.
type tallies struct {
	objects   *objects.Objects
	groups    *groups
	all       map[string]*tally           // by the keys of their groups
	byClass   map[*objects.Class][]*tally // that select the class, as long as no tally comes or goes
	selectors objects.Filing[*tally]
	moves     int // sizes of all that came to tallies and went
}

func newTallies(all *objects.Objects, groups *groups) *tallies {
	return &tallies{
		objects: all, groups: groups,
		all: map[string]*tally{}, byClass: map[*objects.Class][]*tally{}, selectors: objects.Filing[*tally]{},
	}
}

// tally counts what a selector selects, and keeps none of it. Parts that ask for the same share it.
type tally struct {
	key      string // of its group
	refs     int
	selector model.Selector
	count    int // the sum of the sizes
}

// hold counts what a selector selects, unless that is known. It returns how many classes it was
// held against.
func (ts *tallies) hold(s model.Selector) (t *tally, looked int) {
	key := groupKey(s)
	if t = ts.all[key]; t == nil {
		t = &tally{key: key, selector: s}
		if g := ts.groups.all[key]; g != nil && g.follows {
			t.count = g.selected
		} else {
			var found []*objects.Class
			found, looked = ts.objects.Find(s)
			for _, cl := range found {
				t.count += cl.Size
			}
		}
		ts.all[key] = t
		ts.selectors.Add(s, t)
		clear(ts.byClass)
	}
	t.refs++
	return t, looked
}

func (ts *tallies) release(t *tally) {
	if t.refs--; t.refs == 0 {
		delete(ts.all, t.key)
		ts.selectors.Remove(t.selector, t)
		clear(ts.byClass)
	}
}

// follow counts what comes and what goes. It returns the cost in elements.
func (ts *tallies) follow(ch objects.Change) (cost int) {
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
func (ts *tallies) count(cl *objects.Class, by int) (cost int) {
	if len(ts.selectors) == 0 {
		return 0
	}
	hit, known := ts.byClass[cl]
	if !known {
		some, looked := map[*tally]struct{}{}, 0
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
		t.count += by
	}
	ts.moves += len(hit) * max(by, -by)
	return cost
}
