package config

import (
	"cmp"
	"slices"

	"sluice.dev/sluice/internal/lib/cow"
)

// document is all that is configured, with the indexes that make the cost of a change its own. It
// is a value that never changes once it is that of a Source: a change works on a copy.
type document struct {
	farms     cow.Map[string, *farm]
	addresses cow.Map[string, *address]
	policies  cow.Map[string, *policy]
	made      uint64 // objects so far, which orders them

	farmsAt cow.Map[string, set] // by address
	farmsOf cow.Map[string, set] // by policy
	addrsOf cow.Map[string, set] // by policy
	loggers cow.Map[string, int] // farms that have a policy log
	marks   marks
	fronts  fronts
}

type set = cow.Map[string, struct{}]

// include puts a member into the set of a key, or takes it out.
func include(sets *cow.Map[string, set], key, member string, in bool) {
	s := sets.Get(key)
	if in {
		s.Set(member, struct{}{})
	} else {
		s.Delete(member)
	}
	if s.Len() == 0 {
		sets.Delete(key)
	} else {
		sets.Set(key, s)
	}
}

// index enters a farm, nil: none, in the indexes, or takes it out.
func (d *document) index(f *farm, in bool) {
	if f == nil {
		return
	}
	for _, a := range f.addresses {
		include(&d.farmsAt, a, f.name, in)
	}
	for _, p := range f.policies {
		include(&d.farmsOf, p, f.name, in)
		switch n := d.loggers.Get(p); {
		case !f.logs():
		case in:
			d.loggers.Set(p, n+1)
		case n == 1:
			d.loggers.Delete(p)
		default:
			d.loggers.Set(p, n-1)
		}
	}
	for _, b := range f.backends {
		d.marks.count(b.mark, in)
	}
}

// indexAddress does the same for an address.
func (d *document) indexAddress(a *address, in bool) {
	if a == nil {
		return
	}
	for _, p := range a.policies {
		include(&d.addrsOf, p, a.name, in)
	}
}

// used is how many farms and addresses use a policy.
func (d *document) used(policy string) int {
	return d.farmsOf.Get(policy).Len() + d.addrsOf.Get(policy).Len()
}

// sole returns the one farm that uses a policy; empty: there are several, or none.
func (d *document) sole(policy string) (farm string) {
	if users := d.farmsOf.Get(policy); users.Len() == 1 {
		for farm = range users.All() {
		}
	}
	return farm
}

// logged reports whether a farm has a policy log what it drops.
func (d *document) logged(policy string) bool { return d.loggers.Get(policy) > 0 }

// ordered returns objects as they were made.
func ordered[O named[O]](objects cow.Map[string, O]) (all []O) {
	for _, o := range objects.All() {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b O) int { return cmp.Compare(a.id().order, b.id().order) })
	return all
}

// mostMark is the greatest mark that a backend gets by itself.
const mostMark = 0xfff

// marks counts the backends of each mark up to mostMark.
type marks struct {
	used cow.Map[uint32, int]
	low  uint32 // no mark below it is free
}

// count counts a backend with a mark, 0: without, or one that is gone.
func (m *marks) count(mark uint32, in bool) {
	switch n := m.used.Get(mark); {
	case mark == 0 || mark > mostMark:
	case in:
		m.used.Set(mark, n+1)
	case n > 1:
		m.used.Set(mark, n-1)
	default:
		m.used.Delete(mark)
		m.low = min(m.low, mark)
	}
}

// free returns the lowest mark that no backend has, and counts it; 0: there is none.
func (m *marks) free() uint32 {
	for m.low = max(m.low, 1); m.low <= mostMark; m.low++ {
		if m.used.Get(m.low) == 0 {
			m.used.Set(m.low, 1)
			return m.low
		}
	}
	return 0
}
