package policy

import (
	"cmp"
	"fmt"
	"iter"
	"math"

	"sluice.dev/sluice/internal/compile/fair"
	"sluice.dev/sluice/internal/model"
)

// Each selector takes a set of its own, so that without bounds the sets come to the number of selectors times that of pods.
var (
	maxSelected = fair.Bound{Most: 1 << 20, Again: 7 << 17} // by the selectors of a policy in one direction
	maxTogether = fair.Bound{Most: 1 << 22, Again: 7 << 19} // by those of all policies that apply to anything here
)

// tooManySelected says why a policy that was read is not applied.
func tooManySelected(limit int) string {
	return fmt.Sprintf("its selectors select more than %d addresses in one direction, each selector counted by itself and a network set as one; it allows nothing until then: use fewer selectors, or ones that select less", limit)
}

// tooManyTogether says the same of one that is too much with others.
func tooManyTogether(namespace string, limit int) string {
	who := "the policies of its namespace are among those that select most"
	if namespace == "" {
		who = "it is among those that select most"
	}
	return fmt.Sprintf("the selectors of all policies that apply here select more than %d addresses, each selector counted once, and %s; it allows nothing until then: use fewer selectors, or ones that select less", limit, who)
}

// tally counts what a selector selects, and keeps none of it. Parts that ask for the same share it.
type tally struct {
	key      string // of its group
	refs     int
	selector model.Selector
	count    int // the sum of the sizes
}

// holdTally counts what a selector selects, unless that is known. It returns how many classes it was held against.
func (c *Compiler) holdTally(s model.Selector) (t *tally, looked int) {
	key := groupKey(s)
	if t = c.counted[key]; t == nil {
		t = &tally{key: key, selector: s}
		if g := c.groups[key]; g != nil && g.made {
			t.count = g.selected
		} else {
			var found []*class
			found, looked = c.find(s)
			for _, cl := range found {
				t.count += cl.size
			}
		}
		c.counted[key] = t
		c.tallies.add(s, t)
		clear(c.tallied)
	}
	t.refs++
	return t, looked
}

func (c *Compiler) releaseTally(t *tally) {
	if t.refs--; t.refs == 0 {
		delete(c.counted, t.key)
		c.tallies.remove(t.selector, t)
		clear(c.tallied)
	}
}

// find returns the classes that the selector selects, and how many it was held against.
func (c *Compiler) find(s model.Selector) (found []*class, looked int) {
	known := classSet{}
	for cl := range c.index.candidates(s) {
		looked++
		if _, again := known[cl]; !again && s.Matches(&cl.labels) {
			known[cl] = struct{}{}
			found = append(found, cl)
		}
	}
	return found, looked
}

// selections yields the selectors of the part, by the keys of their groups, with how much they select: of one that is
// refused by itself, of as many as were counted.
func (p *part) selections(yield func(key string, size int) bool) {
	if p.progress != filling && p.progress != filled {
		for _, t := range p.tallies {
			if !yield(t.key, t.count) {
				return
			}
		}
		return
	}
	for _, g := range p.groups {
		if !yield(g.key, g.selected) {
			return
		}
	}
}

// selected is what the selectors of the part select.
func (p *part) selected() (n int) {
	for _, size := range p.selections {
		n += size
	}
	return n
}

// beyond is how much of what the part selects is not in sets yet; or in such as others wait for to go.
func (c *Compiler) beyond(p *part) (n int) {
	for key, size := range p.selections {
		if g := c.groups[key]; g == nil || c.crowded && g.refs == 0 {
			n += size
		}
	}
	return n
}

// weigh refuses the parts whose selectors select too much now, and takes up those that are refused and fit again. It is called for
// each object, rather than once for an update, so that what one update brings cannot fill groups far beyond the limit.
//
// Where all are too much together, those go without whose turn comes last: see fair.Turns.
func (c *Compiler) weigh() {
	if c.moves < c.due {
		return
	}
	c.due = math.MaxInt
	known, total, crowded := map[string]struct{}{}, 0, false
	var again []*part
	for _, p := range c.inTurn() {
		n, more := p.selected(), 0
		for key, size := range p.selections {
			if _, shared := known[key]; !shared {
				more += size
			}
		}
		refused := p.progress.refused()
		switch {
		case n > c.maxSelected.Limit(p.progress == tooMany):
			c.refuse(p, tooMany)
			c.weighAfter(n - c.maxSelected.Again)
			continue
		case p.progress == tooMany:
			c.restart(p) // as not all of its selectors were counted
			continue
		case total+more > c.maxTogether.Limit(refused && !p.early):
			c.refuse(p, tooMuch)
			crowded = true
			continue
		case refused:
			again = append(again, p)
		}
		c.weighAfter(c.maxSelected.Most + 1 - n)
		for key := range p.selections {
			known[key] = struct{}{}
		}
		total += more
	}
	if c.sweepGroups(); c.whole {
		c.drain(all)
	}
	for _, p := range again {
		if c.total+c.beyond(p) <= c.maxTogether.Most {
			c.restart(p)
		} else {
			crowded = true // until others have gone
		}
	}
	if c.crowded = crowded; crowded {
		c.weighAfter(1)
	}
	c.weighAfter(c.maxTogether.Most + 1 - c.total)
}

// weighAfter has parts weighed when so much has come or gone, but not for every little.
func (c *Compiler) weighAfter(moves int) {
	c.due = min(c.due, c.moves+max(moves, min(c.maxSelected.Most>>6, c.maxTogether.Most>>8), 1))
}

// weighSoon has parts weighed in any case.
func (c *Compiler) weighSoon() { c.due = c.moves }

// inTurn returns the parts whose selectors were counted, in the order in which they may have their sets.
func (c *Compiler) inTurn() []*part {
	var counted []*part
	for p := range c.parts {
		if p.progress >= filling {
			counted = append(counted, p)
		}
	}
	return fair.Turns(counted,
		(*part).namespace,
		func(p *part) iter.Seq2[string, int] { return p.selections },
		func(a, b *part) int {
			return cmp.Or(comparePolicies(a.of, b.of), cmp.Compare(a.of.serial, b.of.serial), cmp.Compare(a.index, b.index))
		})
}
