package config

import (
	"cmp"
	"slices"
)

// commit puts the change in force. On an error, which is a clash with what others serve, nothing
// is.
func (c *change) commit() error {
	if err := c.claim(); err != nil {
		return err
	}
	c.swap(false)
	return nil
}

// undo takes back what commit did, if nothing was committed since.
func (c *change) undo() {
	for _, e := range c.farmEdits.edits {
		c.fronts.remove(claimed(e.now))
	}
	for _, e := range c.addrEdits.edits {
		c.fronts.remove(servedAlone(e.now))
	}
	for _, e := range c.farmEdits.edits {
		c.fronts.add(claimed(e.was))
	}
	for _, e := range c.addrEdits.edits {
		c.fronts.add(servedAlone(e.was))
	}
	c.swap(true)
}

// claim brings the index of ports up to date.
func (c *change) claim() error {
	for _, e := range c.farmEdits.edits {
		c.fronts.remove(claimed(e.was))
	}
	for _, e := range c.addrEdits.edits {
		c.fronts.remove(servedAlone(e.was))
	}
	var done []func()
	fail := func(at *clash, path string) error {
		for _, undo := range done {
			undo()
		}
		for _, e := range c.farmEdits.edits {
			c.fronts.add(claimed(e.was))
		}
		for _, e := range c.addrEdits.edits {
			c.fronts.add(servedAlone(e.was))
		}
		return at.failure(path)
	}
	for _, name := range sortedEdits(&c.farmEdits) {
		f := claimed(c.farmEdits.edits[name].now)
		if at := c.fronts.add(f); at != nil {
			return fail(at, "farms["+name+"]")
		}
		done = append(done, func() { c.fronts.remove(f) })
	}
	for _, name := range sortedEdits(&c.addrEdits) {
		f := servedAlone(c.addrEdits.edits[name].now)
		if at := c.fronts.add(f); at != nil {
			return fail(at, "addresses["+name+"]")
		}
		done = append(done, func() { c.fronts.remove(f) })
	}
	return nil
}

// swap puts the versions after the change in place of those before, or back.
func (c *change) swap(back bool) {
	turn(c.farms, c.farmEdits.edits, back, func(was, now *farm) {
		c.unlink(was)
		c.link(now)
	})
	turn(c.addresses, c.addrEdits.edits, back, func(was, now *address) {
		c.unlinkAddress(was)
		c.linkAddress(now)
	})
	turn(c.policies, c.listEdits.edits, back, func(_, _ *policy) {})
	c.turnMarks(back)
}

func turn[T any](objects map[string]*T, edits map[string]*edit[T], back bool, changed func(was, now *T)) {
	for name, e := range edits {
		was, now := e.was, e.now
		if back {
			was, now = now, was
		}
		changed(was, now)
		if now == nil {
			delete(objects, name)
		} else {
			objects[name] = now
		}
	}
}

// turnMarks counts the marks of backends, and gives one to those that have none, in the order in
// which farms were made.
func (c *change) turnMarks(back bool) {
	var fresh []*farm
	for _, e := range c.farmEdits.edits {
		was, now := e.was, e.now
		if back {
			was, now = now, was
		}
		if was != nil {
			for _, b := range was.backends {
				c.marks.release(b.mark)
			}
		}
		if now != nil {
			fresh = append(fresh, now)
			for _, b := range now.backends {
				c.marks.take(b.mark)
			}
		}
	}
	if back {
		return
	}
	slices.SortFunc(fresh, func(a, b *farm) int { return cmp.Compare(a.order, b.order) })
	for _, f := range fresh {
		for i, b := range f.backends {
			if b.mark == 0 {
				f.backends[i] = b.clone() // the farm before may have it too
				f.backends[i].mark = c.marks.free()
			}
		}
	}
}
