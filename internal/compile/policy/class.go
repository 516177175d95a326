package policy

import (
	"maps"
	"slices"
)

// class is all items with the same labels. Selectors can't tell them from each other, so each is held against one of them alone.
type class struct {
	labels
	key    string
	items  itemSet
	size   int      // the sum of their sizes
	groups []*group // that select them
}

// classSet is a set of classes.
type classSet map[*class]struct{}

// itemSet is a set of items.
type itemSet map[*item]struct{}

// enter makes an item known.
func (c *Compiler) enter(it *item) {
	key := it.labels.text()
	cl := c.classes[key]
	if cl == nil {
		cl = &class{labels: *it.labels, key: key, items: itemSet{}}
		c.classes[key] = cl
		c.index.add(cl)
		looked := 0
		for g := range c.selectors.candidates(&cl.labels) {
			if looked++; g.selector.Matches(&cl.labels) {
				c.chosen(g, cl)
			}
		}
		c.room -= looked / matchingCost
	}
	it.class, it.labels = cl, &cl.labels
	cl.items[it] = struct{}{}
	cl.size += it.size()
	for _, g := range cl.groups {
		if g.made {
			c.join(g, it)
		}
	}
	c.tally(cl, it.size())
	c.room -= 1 + len(cl.groups)*it.size()
}

// leave takes an item from all that has it.
func (c *Compiler) leave(it *item) {
	cl := it.class
	for _, g := range cl.groups {
		if g.holds(it) {
			for _, a := range it.addrs {
				g.members.Remove(a)
			}
		}
		if _, left := g.left[it]; g.made || left {
			c.resize(g, -it.size())
		}
		delete(g.left, it)
		if l := g.lists[it]; l != nil {
			delete(g.lists, it)
			c.releaseList(l)
			g.stale, c.stale = true, true
		}
		c.touchedGroups[g] = struct{}{}
	}
	c.tally(cl, -it.size())
	c.room -= len(cl.groups) * it.size()
	delete(cl.items, it)
	cl.size -= it.size()
	if len(cl.items) > 0 {
		return
	}
	for _, g := range cl.groups {
		delete(g.classes, cl)
	}
	delete(c.classes, cl.key)
	c.index.remove(cl)
}

// tally counts a change of a class into the tallies of the selectors that select it.
func (c *Compiler) tally(cl *class, by int) {
	if len(c.tallies) == 0 {
		return
	}
	hit, known := c.tallied[cl]
	if !known {
		some, looked := map[*tally]struct{}{}, 0
		for t := range c.tallies.candidates(&cl.labels) {
			if looked++; t.selector.Matches(&cl.labels) {
				some[t] = struct{}{}
			}
		}
		hit = slices.Collect(maps.Keys(some))
		c.tallied[cl] = hit
		c.room -= looked / matchingCost
	}
	for _, t := range hit {
		t.count += by
	}
	c.moves += len(hit) * max(by, -by)
}
