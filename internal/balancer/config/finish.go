package config

import (
	"cmp"
	"slices"
)

// finish completes a change with what follows from it, and checks all that it touches. After an
// error it is given up.
func (c *change) finish() error {
	c.reindex()
	c.dropOrphans()
	c.follow()
	farms, addresses := c.farmEdits.sorted(), c.addrEdits.sorted()
	for _, e := range farms {
		if err := c.finishFarm(e.was, e.now); err != nil {
			return err
		}
	}
	for _, e := range addresses {
		if err := c.finishAddress(e.now); err != nil {
			return err
		}
	}
	for _, e := range c.listEdits.sorted() {
		if err := c.finishPolicy(e.now); err != nil {
			return err
		}
	}
	if err := c.claim(farms, addresses); err != nil {
		return err
	}
	c.giveMarks(farms)
	return nil
}

// reindex brings the indexes up to date, except for the one of ports, which has what farms come to.
func (c *change) reindex() {
	for _, e := range c.farmEdits.edits {
		if !e.was.sameIndex(e.now) {
			c.index(e.was, false)
			c.index(e.now, true)
		}
	}
	for _, e := range c.addrEdits.edits {
		c.indexAddress(e.was, false)
		c.indexAddress(e.now, true)
	}
}

// dropOrphans removes addresses that farms have left, and that no farm has now.
func (c *change) dropOrphans() {
	for _, e := range c.farmEdits.edits {
		if e.was == nil {
			continue
		}
		for _, name := range e.was.addresses {
			if a := c.addresses.Get(name); a != nil && c.farmsAt.Get(name).Len() == 0 {
				c.indexAddress(a, false)
				c.addrEdits.put(name, nil)
			}
		}
	}
}

// follow has the change take in what it touches indirectly: the farms of a changed address, the
// users of a list that changes its sense, addresses with lists of their own that a farm begins or
// ceases to use, and lists whose users change.
func (c *change) follow() {
	for name := range c.addrEdits.edits {
		for user := range c.farmsAt.Get(name).All() {
			c.farmEdits.edit(user)
		}
	}
	for name, e := range c.listEdits.edits {
		if e.was == nil || e.now == nil || e.was.allow == e.now.allow {
			continue
		}
		for user := range c.farmsOf.Get(name).All() {
			c.farmEdits.edit(user)
		}
		for user := range c.addrsOf.Get(name).All() {
			c.addrEdits.edit(user)
		}
	}
	for _, e := range c.farmEdits.edits {
		c.followUse(e.was)
		c.followUse(e.now)
	}
}

// followUse takes in what depends on its use by a farm; nil: none.
func (c *change) followUse(f *farm) {
	if f == nil {
		return
	}
	for _, name := range f.addresses {
		if a := c.addresses.Get(name); a != nil && len(a.policies) > 0 {
			c.addrEdits.edit(name)
		}
	}
	for _, name := range f.policies {
		if p := c.policies.Get(name); p != nil && p.base != nil && (p.base.Log != c.logged(name) || p.sole != c.sole(name)) {
			c.listEdits.edit(name)
		}
	}
}

// claim brings the index of ports up to date. It is an error if two farms serve one.
func (c *change) claim(farms []edit[*farm], addresses []edit[*address]) error {
	same := true
	for _, e := range c.farmEdits.edits {
		same = same && sameFronts(claimed(e.was), claimed(e.now))
	}
	for _, e := range c.addrEdits.edits {
		same = same && sameFronts(servedAlone(e.was), servedAlone(e.now))
	}
	if same {
		return nil
	}
	for _, e := range c.farmEdits.edits {
		c.fronts.remove(claimed(e.was))
	}
	for _, e := range c.addrEdits.edits {
		c.fronts.remove(servedAlone(e.was))
	}
	for _, e := range farms {
		if at := c.fronts.add(claimed(e.now)); at != nil {
			return at.failure("farms[" + e.now.name + "]")
		}
	}
	for _, e := range addresses {
		if at := c.fronts.add(servedAlone(e.now)); at != nil {
			return at.failure("addresses[" + e.now.name + "]")
		}
	}
	return nil
}

// giveMarks gives a mark to backends that have none, in the order in which farms were made.
func (c *change) giveMarks(farms []edit[*farm]) {
	slices.SortFunc(farms, func(a, b edit[*farm]) int { return cmp.Compare(a.now.order, b.now.order) })
	for _, e := range farms {
		for i, b := range e.now.backends {
			if b.Mark == 0 {
				e.now.backends[i] = b.clone() // the farm before may have it too
				e.now.backends[i].Mark = c.marks.free()
			}
		}
	}
}
