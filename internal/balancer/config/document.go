package config

import (
	"cmp"
	"maps"
	"slices"

	"sluice.dev/sluice/internal/lib/multimap"
)

// document is all that is configured, with the indexes that make the cost of a change its own. It
// is guarded by Source.mu.
type document struct {
	farms     map[string]*farm
	addresses map[string]*address
	policies  map[string]*policy
	made      uint64 // objects so far, which orders them

	farmsAt map[string]set // by address
	farmsOf map[string]set // by policy
	addrsOf map[string]set // by policy
	loggers map[string]int // farms that have a policy log
	marks   marks
	fronts  fronts
}

type set = map[string]struct{}

func newDocument() *document {
	return &document{
		farms: map[string]*farm{}, addresses: map[string]*address{}, policies: map[string]*policy{},
		farmsAt: map[string]set{}, farmsOf: map[string]set{}, addrsOf: map[string]set{},
		loggers: map[string]int{}, fronts: fronts{},
	}
}

// link enters a farm in the indexes.
func (d *document) link(f *farm) {
	if f == nil {
		return
	}
	for _, a := range f.addresses {
		multimap.Add(d.farmsAt, a, f.name)
	}
	for _, p := range f.policies {
		multimap.Add(d.farmsOf, p, f.name)
		if f.logs() {
			d.loggers[p]++
		}
	}
}

// unlink takes a farm out of the indexes.
func (d *document) unlink(f *farm) {
	if f == nil {
		return
	}
	for _, a := range f.addresses {
		multimap.Remove(d.farmsAt, a, f.name)
	}
	for _, p := range f.policies {
		multimap.Remove(d.farmsOf, p, f.name)
		if f.logs() {
			if d.loggers[p]--; d.loggers[p] == 0 {
				delete(d.loggers, p)
			}
		}
	}
}

func (d *document) linkAddress(a *address) {
	if a != nil {
		for _, p := range a.policies {
			multimap.Add(d.addrsOf, p, a.name)
		}
	}
}

func (d *document) unlinkAddress(a *address) {
	if a != nil {
		for _, p := range a.policies {
			multimap.Remove(d.addrsOf, p, a.name)
		}
	}
}

// used is how many farms and addresses use a policy.
func (d *document) used(policy string) int { return len(d.farmsOf[policy]) + len(d.addrsOf[policy]) }

// ordered returns objects as they were made.
func ordered[T any](objects map[string]*T, order func(*T) uint64) []*T {
	all := slices.Collect(maps.Values(objects))
	slices.SortFunc(all, func(a, b *T) int { return cmp.Compare(order(a), order(b)) })
	return all
}

func farmOrder(f *farm) uint64       { return f.order }
func addressOrder(a *address) uint64 { return a.order }
func policyOrder(p *policy) uint64   { return p.order }

// mostMark is the greatest mark that a backend gets by itself.
const mostMark = 0xfff

// marks counts the backends of each mark up to mostMark.
type marks struct {
	used [mostMark + 1]int
	low  int // no mark below it is free
}

func (m *marks) take(mark uint32) {
	if mark > 0 && mark <= mostMark {
		m.used[mark]++
	}
}

func (m *marks) release(mark uint32) {
	if mark == 0 || mark > mostMark {
		return
	}
	if m.used[mark]--; m.used[mark] == 0 {
		m.low = min(m.low, int(mark))
	}
}

// free returns the lowest mark that no backend has, and takes it; 0: there is none.
func (m *marks) free() uint32 {
	for m.low = max(m.low, 1); m.low <= mostMark; m.low++ {
		if m.used[m.low] == 0 {
			m.used[m.low] = 1
			return uint32(m.low)
		}
	}
	return 0
}
