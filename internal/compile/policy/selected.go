package policy

import (
	"fmt"
	"math"

	"sluice.dev/sluice/internal/model"
)

// maxSelected bounds the sizes of all that the selectors of a policy select in one direction: each selector takes a set of its own, so
// that without a bound the sets come to the number of selectors times that of pods.
const maxSelected = 1 << 20

// tooManySelected says why a policy that was read is not applied.
func tooManySelected(limit int) string {
	return fmt.Sprintf("its selectors select more than %d addresses in one direction, each selector counted by itself and a network set as one; it allows nothing until then: use fewer selectors, or ones that select less", limit)
}

// tally counts what a selector selects, and keeps none of it.
type tally struct {
	selector model.Selector
	count    int // the sum of the sizes
}

// count counts what the selectors of the part select. If that is more than they may, it returns tallies of as many of them as select
// more; otherwise what it found, by the keys of groups. It need not look where there is little to select, or there are few selectors.
func (c *Compiler) count(p *part) (found map[string][]*item, tallies []*tally) {
	n := 0
	for t := range p.terms {
		if !t.selector.IsZero() {
			n++
		}
	}
	if n*c.size <= c.maxSelected {
		return nil, nil
	}
	sum, known, found := 0, map[string]struct{}{}, map[string][]*item{}
	for t := range p.terms {
		key := groupKey(t.selector)
		if _, again := known[key]; again || t.selector.IsZero() {
			continue
		}
		known[key] = struct{}{}
		one := &tally{selector: t.selector}
		if g := c.groups[key]; g != nil {
			one.count = g.selected
		} else {
			found[key], one.count = c.find(t.selector)
		}
		tallies = append(tallies, one)
		if sum += one.count; sum > c.maxSelected {
			return nil, tallies
		}
	}
	return found, nil
}

// find returns the items that the selector selects, and the sum of their sizes.
func (c *Compiler) find(s model.Selector) (found []*item, size int) {
	known := itemSet{}
	for it := range c.items.candidates(s) {
		if _, again := known[it]; !again && s.Matches(&it.labels) {
			known[it] = struct{}{}
			found = append(found, it)
			size += it.size()
		}
	}
	return found, size
}

// tally counts an item into the tallies of the selectors that select it, or out of them.
func (c *Compiler) tally(it *item, by int) {
	hit := map[*tally]struct{}{}
	for t := range c.tallies.candidates(&it.labels) {
		if t.selector.Matches(&it.labels) {
			hit[t] = struct{}{}
		}
	}
	for t := range hit {
		t.count += by * it.size()
		c.moves += it.size()
	}
}

// selected is what the selectors of the part select, by size; of a refused one, those that have tallies.
func (p *part) selected() (n int) {
	for _, g := range p.groups {
		n += g.selected
	}
	for _, t := range p.tallies {
		n += t.count
	}
	return n
}

// weigh refuses the parts whose selectors select too much now, and fills those that are refused and fit again. It is called for
// each object, rather than once for an update, so that what one update brings cannot fill groups far beyond the limit.
func (c *Compiler) weigh() {
	if c.moves < c.due {
		return
	}
	c.due = math.MaxInt
	for p := range c.parts {
		if refused := p.tallies != nil; refused != (p.selected() > c.maxSelected) {
			old := *p
			c.fill(p)
			c.releaseSets(&old)
			c.stale = true
		}
		c.schedule(p)
	}
	c.sweepGroups()
}

// schedule has parts weighed when this one may cross the limit: no sooner than after as much came and went as it is away from it.
func (c *Compiler) schedule(p *part) {
	n := p.selected()
	c.due = min(c.due, c.moves+max(c.maxSelected+1-n, n-c.maxSelected))
}
