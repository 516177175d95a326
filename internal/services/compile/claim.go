package compile

import (
	"cmp"
	"slices"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/lib/sorted"
	"sluice.dev/sluice/internal/model"
)

// claims decide which service gets what several want: an address and port, or the port of health
// checks.
type claims[K comparable, T any] struct {
	services map[model.Name]*service
	now      map[K]*T // what those want that have the keys
	changes  diff.Map[K, T]
	// contested holds, for each key that several services claim, what each of them wants there.
	contested map[K]*contest[T]
	owner     func(*T) model.Name
	own       func(*T) bool // it comes before those that have chosen the key themselves
}

// contest has the services that claim the same, in order: however many they are, one more or less
// costs little.
type contest[T any] struct {
	by    map[model.Name]*claimant[T]
	order []*claimant[T] // the first has it
}

// claimant is a service that claims something.
type claimant[T any] struct {
	svc   *model.Service
	wants *T
	own   bool // it comes before those that have chosen it themselves
}

// set records what a service wants; nil: nothing.
func (x *contest[T]) set(name model.Name, next *claimant[T]) {
	if old := x.by[name]; old != nil {
		x.order = sorted.Set(x.order, old, false, compareClaimants)
		delete(x.by, name)
	}
	if next != nil {
		x.order, x.by[name] = sorted.Set(x.order, next, true, compareClaimants), next
	}
}

func compareClaimants[T any](a, b *claimant[T]) int {
	return cmp.Or(one(b.own)-one(a.own), a.svc.Birth().Compare(b.svc.Birth()))
}

// oldest is the one that would have it if no age but that of services counted.
func (x *contest[T]) oldest() *claimant[T] {
	first := x.order[0]
	if i := slices.IndexFunc(x.order, func(c *claimant[T]) bool { return !c.own }); i > 0 && x.order[i].svc.Birth().Compare(first.svc.Birth()) < 0 {
		return x.order[i]
	}
	return first
}

// settle records what the service wants at key, nil for nothing, and gives the key to the first of
// those who claim it: one whose cluster IP it is, before those that have chosen the address
// themselves.
func (c *claims[K, T]) settle(key K, name model.Name, wants *T) {
	rivals := c.contested[key]
	if rivals == nil {
		has := c.now[key]
		if wants == nil || has == nil || c.owner(has) == name {
			c.changes.Set(key, wants)
			return
		}
		rivals = &contest[T]{by: map[model.Name]*claimant[T]{}}
		c.contested[key] = rivals
		rivals.set(c.owner(has), c.claimant(has))
	}
	if wants == nil {
		rivals.set(name, nil)
	} else {
		rivals.set(name, c.claimant(wants))
	}
	c.changes.Set(key, rivals.order[0].wants)
	if len(rivals.order) == 1 {
		delete(c.contested, key)
	}
}

func (c *claims[K, T]) claimant(wants *T) *claimant[T] {
	return &claimant[T]{c.services[c.owner(wants)].svc, wants, c.own(wants)}
}

// lesser is the health check until the frontends of next are settled: it promises no more local
// endpoints than the old one.
func lesser(old, next *HealthCheck) *HealthCheck {
	if next == nil {
		return nil
	}
	h, had := *next, 0
	if old != nil {
		had = old.LocalEndpoints
	}
	h.LocalEndpoints = min(h.LocalEndpoints, had)
	return &h
}

// settleHealth records that the service wants its health check to be next, no longer old.
func (c *Compiler) settleHealth(name model.Name, old, next *HealthCheck) {
	if old != nil && (next == nil || next.Port != old.Port) {
		c.health.settle(old.Port, name, nil)
	}
	if next != nil {
		c.health.settle(next.Port, name, next)
	}
}
