package config

import (
	"cmp"
	"slices"
)

// finish completes a change with what follows from it, and checks all that it touches. After an
// error it is given up.
func (r *revision) finish() error {
	r.reindex()
	r.dropOrphans()
	r.follow()
	farms, addresses := r.farmEdits.sorted(), r.addrEdits.sorted()
	for _, e := range farms {
		if err := r.finishFarm(e.was, e.now); err != nil {
			return err
		}
	}
	for _, e := range addresses {
		if err := r.finishAddress(e.now); err != nil {
			return err
		}
	}
	for _, e := range r.listEdits.sorted() {
		if err := r.finishPolicy(e.now); err != nil {
			return err
		}
	}
	if err := r.claim(farms, addresses); err != nil {
		return err
	}
	r.giveMarks(farms)
	return nil
}

// reindex brings the indexes up to date, except for the one of ports, which has what farms come to.
func (r *revision) reindex() {
	for _, e := range r.farmEdits.edits {
		if !e.was.sameIndex(e.now) {
			r.index(e.was, false)
			r.index(e.now, true)
		}
	}
	for _, e := range r.addrEdits.edits {
		r.indexAddress(e.was, false)
		r.indexAddress(e.now, true)
	}
}

// dropOrphans removes addresses that farms have left, and that no farm has now.
func (r *revision) dropOrphans() {
	for _, e := range r.farmEdits.edits {
		if e.was == nil {
			continue
		}
		for _, name := range e.was.addresses {
			if a := r.addresses.Get(name); a != nil && r.farmsAt.Get(name).Len() == 0 {
				r.indexAddress(a, false)
				r.addrEdits.put(name, nil)
			}
		}
	}
}

// follow has the change take in what it touches indirectly: the farms of a changed address, the
// users of a list that changes its sense, addresses with lists of their own that a farm begins or
// ceases to use, and lists whose users change.
func (r *revision) follow() {
	for name := range r.addrEdits.edits {
		for user := range r.farmsAt.Get(name).All() {
			r.farmEdits.edit(user)
		}
	}
	for name, e := range r.listEdits.edits {
		if e.was == nil || e.now == nil || e.was.allow == e.now.allow {
			continue
		}
		for user := range r.farmsOf.Get(name).All() {
			r.farmEdits.edit(user)
		}
		for user := range r.addrsOf.Get(name).All() {
			r.addrEdits.edit(user)
		}
	}
	for _, e := range r.farmEdits.edits {
		r.followUse(e.was)
		r.followUse(e.now)
	}
}

// followUse takes in what depends on its use by a farm; nil: none.
func (r *revision) followUse(f *farm) {
	if f == nil {
		return
	}
	for _, name := range f.addresses {
		if a := r.addresses.Get(name); a != nil && len(a.policies) > 0 {
			r.addrEdits.edit(name)
		}
	}
	for _, name := range f.policies {
		if p := r.policies.Get(name); p != nil && p.base != nil && (p.base.Log != r.logged(name) || p.sole != r.sole(name)) {
			r.listEdits.edit(name)
		}
	}
}

// claim brings the index of ports up to date. It is an error if two farms serve one.
func (r *revision) claim(farms []edit[*farm], addresses []edit[*address]) error {
	same := true
	for _, e := range r.farmEdits.edits {
		same = same && sameFronts(claimed(e.was), claimed(e.now))
	}
	for _, e := range r.addrEdits.edits {
		same = same && sameFronts(servedAlone(e.was), servedAlone(e.now))
	}
	if same {
		return nil
	}
	for _, e := range r.farmEdits.edits {
		r.fronts.remove(claimed(e.was))
	}
	for _, e := range r.addrEdits.edits {
		r.fronts.remove(servedAlone(e.was))
	}
	for _, e := range farms {
		if at := r.fronts.add(claimed(e.now)); at != nil {
			return at.failure("farms[" + e.now.name + "]")
		}
	}
	for _, e := range addresses {
		if at := r.fronts.add(servedAlone(e.now)); at != nil {
			return at.failure("addresses[" + e.now.name + "]")
		}
	}
	return nil
}

// giveMarks gives a mark to backends that have none, in the order in which farms were made.
func (r *revision) giveMarks(farms []edit[*farm]) {
	slices.SortFunc(farms, func(a, b edit[*farm]) int { return cmp.Compare(a.now.order, b.now.order) })
	for _, e := range farms {
		for i, b := range e.now.backends {
			if b.Mark == 0 {
				e.now.backends[i] = b.clone() // the farm before may have it too
				e.now.backends[i].Mark = r.marks.free()
			}
		}
	}
}
