package compile

import (
	"cmp"
	"math"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// sliceElements is about how many elements of services one Step changes: what a kernel takes in a tenth of a second or two.
const sliceElements = 1 << 15

// compilingCost is how many elements are compiled in the time in which one is programmed.
const compilingCost = 4

// all is room for whatever there is.
const all = math.MaxInt

// Step is Update in slices: of services that come to many elements it brings up to date as much as a kernel takes within a tenth
// of a second or two, the small ones first, so that no change of one waits for those of many. What is left waits for the next Step
// or Update, and stays as it was meanwhile; more reports whether anything is. Each Step that a service waits halves what it counts for, so that
// all have their turn.
func (c *Compiler) Step(s *store.Store, d store.Dirty) (delta state.Delta, more bool) {
	s.Read(func(v *store.View) { delta = c.update(v, d, true) })
	return delta, len(c.waiting) > 0
}

// wait is that of a service for its turn.
type wait struct {
	steps int // that it has waited
	left  int // elements that are to be settled of it, which is compiled; 0: it is not
}

// take goes through the services that wait and are dirty until a slice is full.
func (c *Compiler) take(v *store.View, dirty map[model.Name]struct{}) {
	type candidate struct {
		name       model.Name
		cost, rank int
	}
	list, total := make([]candidate, 0, len(dirty)+len(c.waiting)), 0
	add := func(name model.Name, w wait) {
		cost := w.left
		if cost == 0 {
			cost = c.cost(v, name)
		}
		list, total = append(list, candidate{name, cost, cost >> min(w.steps, 62)}), total+cost
	}
	for name := range dirty {
		add(name, wait{steps: c.waiting[name].steps})
	}
	for name, w := range c.waiting {
		if _, anew := dirty[name]; !anew {
			add(name, w)
		}
	}
	if total > c.sliceElements {
		slices.SortFunc(list, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.cost, b.cost), a.name.Compare(b.name))
		})
	}
	room := c.sliceElements
	for _, one := range list {
		w := c.waiting[one.name]
		if _, anew := dirty[one.name]; anew {
			w.left = 0
		}
		// One that does not fit ends the slice, as those behind it count for more or have waited less; alone it is cut.
		if room < c.sliceElements && one.cost > room {
			room = 0
			w.steps++
			c.waiting[one.name] = w
			continue
		}
		spent := 0
		if w.left == 0 {
			spent, w.left = c.service(v, one.name, room)
		} else {
			spent, w.left = c.proceed(one.name, room)
		}
		if room -= spent; w.left > 0 {
			c.waiting[one.name] = w
		} else {
			delete(c.waiting, one.name)
		}
	}
}

// cost is about how many elements change with a service: those that it has, and those that it comes to.
func (c *Compiler) cost(v *store.View, name model.Name) int {
	n := 1
	if old := c.services[name]; old != nil {
		n += old.elements
	}
	svc := v.Service(name)
	if svc == nil {
		return n
	}
	endpoints := 0
	for _, slice := range v.Slices(name) {
		endpoints += len(slice.Endpoints) * len(slice.Ports)
	}
	addrs := len(svc.ClusterIPs) + len(svc.ExternalIPs) + len(svc.LoadBalancerIPs)
	if slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool { return p.NodePort != 0 }) {
		addrs++
	}
	return n + min(addrs*(len(svc.Ports)*(frontendElements+len(svc.SourceRanges))+endpoints), maxElements)
}

// proceed has the state follow what a compiled service claims, for about so many elements and at least one claim. It returns how many that were, and
// how many are left.
func (c *Compiler) proceed(name model.Name, room int) (spent, left int) {
	s := c.services[name]
	was, now := s.stands(), make([]claim, 0, len(s.claims))
	settle := func(key state.FrontendKey, old, next *claim) {
		cost := 0
		if old != nil && (next == nil || next.frontend != old.frontend) {
			cost += weight(old.frontend)
		}
		if next != nil && (old == nil || next.frontend != old.frontend) {
			cost += weight(next.frontend)
		}
		if cost > 0 && spent > 0 && spent+cost > room {
			if left += cost; old != nil {
				now = append(now, *old)
			}
			return
		}
		if spent += cost; next == nil {
			c.settle(key, name, nil)
			return
		}
		c.settle(key, name, next.frontend)
		now = append(now, *next)
	}
	i, j := 0, 0
	for i < len(was) || j < len(s.claims) {
		order := 0
		switch {
		case i == len(was):
			order = 1
		case j == len(s.claims):
			order = -1
		default:
			order = was[i].key.Compare(s.claims[j].key)
		}
		switch {
		case order < 0:
			settle(was[i].key, &was[i], nil)
			i++
		case order > 0:
			settle(s.claims[j].key, nil, &s.claims[j])
			j++
		default:
			settle(was[i].key, &was[i], &s.claims[j])
			i, j = i+1, j+1
		}
	}
	if left > 0 {
		s.standing = now
		return spent, left
	}
	for _, f := range s.former {
		c.release(f)
	}
	s.settled, s.standing, s.former = true, nil, nil
	if s.gone {
		delete(c.services, name)
	}
	return spent, 0
}

// weight is about how many elements a frontend is in the kernel.
func weight(f *state.Frontend) int {
	return frontendElements + (len(f.Backends)+len(f.Local))*(1+one(f.Affinity > 0)) + rangeNetworks*len(f.SourceRanges)
}
