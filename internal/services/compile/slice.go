package compile

import (
	"cmp"
	"math"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// compilingCost is how many elements are compiled in the time in which one is programmed.
const compilingCost = 4

// All is room for whatever there is.
const All = math.MaxInt

// wait is that of a service for its turn.
type wait struct {
	since time.Time // when the first of the changes came that it waits for
	left  int       // elements that are to be settled of it, which is compiled; 0: it is not
	next  *wait     // nil, or it is to be compiled anew after that
}

// Waiting returns how many services Update has left for later, and since when the first of them
// waits.
func (c *Compiler) Waiting() (n int, since time.Time) {
	first := true
	for _, w := range c.waiting {
		if first || w.since.Before(since) {
			first, since = false, w.since
		}
	}
	return len(c.waiting), since
}

// Waits reports whether Update has left the service for later.
func (c *Compiler) Waits(service model.Name) bool {
	_, waits := c.waiting[service]
	return waits
}

// update brings all services up to date that are dirty or wait.
func (c *Compiler) update(v *store.View, dirty map[model.Name]struct{}) {
	for name := range dirty {
		c.set(v, name, All)
		delete(c.waiting, name)
	}
	for name := range c.waiting {
		c.set(v, name, All)
	}
	clear(c.waiting)
	for c.limits.reweigh {
		for _, name := range c.limits.weigh(c.all) {
			c.set(v, name, All)
		}
	}
}

// step brings one slice of the services that are dirty or wait up to date.
func (c *Compiler) step(v *store.View, dirty map[model.Name]struct{}, since time.Time, room int) {
	for name := range dirty {
		c.wait(name, since)
	}
	c.take(v, room)
	for _, name := range c.limits.weigh(c.all) {
		c.wait(name, since)
	}
}

// take goes on with the services that wait as far as there is room for: the small ones first, then
// the one that has waited longest.
func (c *Compiler) take(v *store.View, room int) {
	type candidate struct {
		name model.Name
		cost int
	}
	list, total := make([]candidate, 0, len(c.waiting)), 0
	for name, w := range c.waiting {
		cost := w.left
		if cost == 0 {
			cost = c.cost(v, name)
		}
		list, total = append(list, candidate{name, cost}), total+cost
	}
	if total > room {
		slices.SortFunc(list, func(a, b candidate) int { return cmp.Or(a.cost-b.cost, a.name.Compare(b.name)) })
	}
	least := room / 2
	for len(list) > 0 && list[0].cost <= room {
		room -= c.advance(v, list[0].name, room)
		list = list[1:]
	}
	if len(list) > 0 {
		oldest := slices.MinFunc(list, func(a, b candidate) int { return c.waiting[a.name].since.Compare(c.waiting[b.name].since) })
		c.advance(v, oldest.name, max(room, least))
	}
}

// wait has a service compiled anew, for what changed at that time.
func (c *Compiler) wait(name model.Name, since time.Time) {
	w, waits := c.waiting[name]
	switch {
	case !waits:
		w.since = since
	case w.left > 0 && w.next == nil:
		w.next = &wait{since: since}
	}
	c.waiting[name] = w
}

// advance compiles a service that waits, or goes on with it, as far as there is room for.
func (c *Compiler) advance(v *store.View, name model.Name, room int) (spent int) {
	w := c.waiting[name]
	if w.left == 0 {
		spent, w.left = c.set(v, name, room)
	} else {
		spent, w.left = c.proceed(name, room)
	}
	switch {
	case w.left > 0:
		c.waiting[name] = w
	case w.next != nil:
		c.waiting[name] = *w.next
	default:
		delete(c.waiting, name)
	}
	return spent
}

// cost is about how many elements change with a service: those that it has, and those that it comes
// to.
func (c *Compiler) cost(v *store.View, name model.Name) int {
	n := 1
	if old := c.all[name]; old != nil {
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
	if len(v.Slices(name)) == 0 {
		endpoints = len(v.Selected(svc)) * len(svc.Ports)
	}
	addrs := len(svc.ClusterIPs) + len(svc.ExternalIPs) + len(svc.LoadBalancerIPs)
	if slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool { return p.NodePort != 0 }) {
		addrs++
	}
	return n + min(addrs*(len(svc.Ports)*(frontendElements+len(svc.SourceRanges))+endpoints), maxElements)
}

// proceed has the state follow what a compiled service claims, for about so many elements and at
// least one claim. It returns how many that were, and how many are left.
func (c *Compiler) proceed(name model.Name, room int) (spent, left int) {
	s := c.all[name]
	was, now := s.stands(), make([]frontendClaim, 0, len(s.claims))
	settle := func(key state.FrontendKey, old, next *frontendClaim) {
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
			c.frontends.settle(key, name, nil)
			return
		}
		c.frontends.settle(key, name, next.frontend)
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
	for f := s.former; f != nil; f = f.former {
		c.count(f, -1)
	}
	c.settleHealth(name, s.health, s.health)
	s.settled, s.standing, s.former = true, nil, nil
	if s.gone {
		delete(c.all, name)
	}
	return spent, 0
}

// weight is about how many elements a frontend is in the kernel.
func weight(f *state.Frontend) int {
	return frontendElements + (len(f.Backends)+len(f.Local))*(1+one(f.Affinity > 0)) + rangeNetworks*len(f.SourceRanges)
}
