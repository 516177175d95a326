package compile

import (
	"cmp"
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// sliceElements is about how many elements of services one Step changes: what a kernel takes in some tenths of a second.
const sliceElements = 1 << 16

// Step is Update in slices: of services that come to many elements it brings up to date as many as a kernel takes within some tenths
// of a second, the small ones first, so that no change of one waits for those of many. Others wait for the next Step
// or Update, and stay as they were meanwhile; more reports whether any do. Each Step that a service waits halves what it counts for, so that
// all have their turn.
func (c *Compiler) Step(s *store.Store, d store.Dirty) (delta state.Delta, more bool) {
	s.Read(func(v *store.View) { delta = c.update(v, d, true) })
	return delta, len(c.waiting) > 0
}

// slice takes the next services of those that wait and are dirty.
func (c *Compiler) slice(v *store.View, dirty map[model.Name]struct{}) map[model.Name]struct{} {
	type candidate struct {
		name       model.Name
		cost, rank int
	}
	all, total := make([]candidate, 0, len(dirty)+len(c.waiting)), 0
	add := func(name model.Name, steps int) {
		cost := c.cost(v, name)
		all, total = append(all, candidate{name, cost, cost >> min(steps, 62)}), total+cost
	}
	for name, steps := range c.waiting {
		add(name, steps)
	}
	for name := range dirty {
		if _, waits := c.waiting[name]; !waits {
			add(name, 0)
		}
	}
	if total > c.sliceElements {
		slices.SortFunc(all, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.cost, b.cost), a.name.Compare(b.name))
		})
	}
	// One that does not fit ends the slice: what is behind it counts for more, or has waited less.
	next, taken := make(map[model.Name]struct{}, len(all)), 0
	for _, one := range all {
		if taken += one.cost; taken > c.sliceElements && len(next) > 0 {
			c.waiting[one.name]++
			continue
		}
		next[one.name] = struct{}{}
		delete(c.waiting, one.name)
	}
	return next
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
	return n + min(addrs*(len(svc.Ports)*(1+len(svc.SourceRanges))+endpoints), maxElements)
}

// union adds the services that wait to others, and has none wait any more.
func (c *Compiler) union(services map[model.Name]struct{}) map[model.Name]struct{} {
	if len(c.waiting) == 0 {
		return services
	}
	services = maps.Clone(services)
	for name := range c.waiting {
		services[name] = struct{}{}
	}
	clear(c.waiting)
	return services
}
