package compile

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/state"
)

// sets are all that rules refer to. Each set has a name that says all that is in it, or where that
// comes from; rules that ask for the same share it. Who refers to a set holds it; a set that nobody
// holds at the end of an update is gone, but for groups, which are emptied in slices.
type sets struct {
	ids      *ids
	groups   *groups
	named    *portNames
	lists    *lists
	ranges   *portRanges
	services *services
	tallies  *tallies
}

func newSets(p *state.Policy, space uint32, all *objects.Objects) *sets {
	ids := newIDs(space)
	equalLists := func(a, b *state.List) bool { return a.Name == b.Name && equalPrefixes(a.Prefixes, b.Prefixes) }
	equalPorts := func(a, b *state.Ports) bool { return a.ID == b.ID && slices.Equal(a.Ranges, b.Ranges) }
	lists := &lists{newShared[string, list](ids), diff.NewMap(p.Lists, equalLists)}
	groups := &groups{
		shared: newShared[string, group](ids), objects: all, lists: lists,
		draining: map[*group]struct{}{}, selectors: objects.Filing[*group]{}, byClass: map[*objects.Class][]*group{}, table: newMemberTable(p.Groups),
	}
	named := &portNames{newShared[namedPort, namedPorts](ids), map[string]objects.ItemSet{}, newMemberTable(p.NamedPorts)}
	return &sets{
		ids: ids, lists: lists, groups: groups, named: named,
		services: &services{
			each: maxEndpoints, together: maxEndpointsTogether, known: map[model.Name]*service{},
			addrs: newShared[model.Name, serviceAddrs](ids), table: &groups.table, ports: named,
		},
		ranges:  &portRanges{newShared[string, ranges](ids), diff.NewMap(p.PortSets, equalPorts)},
		tallies: newTallies(all, groups),
	}
}

// follow has sets and counts follow a change of an object. It returns the cost in elements.
func (s *sets) follow(ch objects.Change) (cost int) {
	if ch.Class != nil {
		cost = s.groups.addClass(ch.Class)
	}
	if next := ch.Next; next != nil {
		if next.Set != nil {
			s.lists.refill(next.Set)
		}
		cost += 1 + s.groups.add(next)
		s.named.set(next, true)
	}
	if old := ch.Old; old != nil {
		cost += s.groups.remove(old, ch.Ended)
		s.named.set(old, false)
	}
	return cost + s.tallies.follow(ch)
}

// Total implements admission.Usage.
func (s *sets) Total() int { return s.groups.total }

// Moves implements admission.Usage.
func (s *sets) Moves() int { return s.groups.moves + s.tallies.moves }

// sweep ends the sets that nobody holds any more, but for groups, and decides which Services are
// refused.
func (s *sets) sweep() {
	s.services.sweep()
	s.lists.sweep()
	s.ranges.sweep()
	s.services.judge()
}

// stale reports whether rules are to be resolved anew: all, or those of which stale says so.
func (s *sets) stale() (some, all bool) {
	return s.ids.moved || s.groups.stale || s.services.stale, s.ids.moved
}

// stale reports whether a group of the rules has other lists, or a Service was refused, or was not, when
// they were resolved.
func (rs *Rules) stale() bool {
	if slices.ContainsFunc(rs.groups, func(g *group) bool { return g.stale }) {
		return true
	}
	for svc := range rs.services {
		if svc.stale {
			return true
		}
	}
	return false
}

// publish writes what changed of sets under their ids.
func (s *sets) publish() {
	s.groups.publish()
	s.services.publish()
	s.named.publish(
		func(n *namedPorts) { s.named.table.retract(&n.dynamic) },
		func(n *namedPorts) { s.named.table.publish(&n.dynamic) })
	s.lists.publish(
		func(l *list) { s.lists.table.Set(l.published, nil) },
		func(l *list) { s.lists.table.Set(l.id, l.content) })
	s.ranges.publish(
		func(r *ranges) { s.ranges.table.Set(r.published, nil) },
		func(r *ranges) { s.ranges.table.Set(r.id, &state.Ports{ID: r.id, Ranges: r.list}) })
	s.ids.moved = false
}

// flush adds what differs from the last flush.
func (s *sets) flush(d *state.PolicyDelta) {
	d.Groups, d.NamedPorts = s.groups.table.flush(), s.named.table.flush()
	d.PortSets, d.Lists = s.ranges.table.Flush(), s.lists.table.Flush()
}

// shared are the sets of one kind that are held, by what they are found under.
type shared[K comparable, T any, S set[K, T]] struct {
	ids     *ids
	all     map[K]S
	touched map[S]struct{} // held, released or changed since they were published
}

// set is a pointer to a set.
type set[K comparable, T any] interface {
	*T
	base() *handle
	name(K) // sets the name, of a new set
	under() K
}

func newShared[K comparable, T any, S set[K, T]](ids *ids) shared[K, T, S] {
	return shared[K, T, S]{ids: ids, all: map[K]S{}, touched: map[S]struct{}{}}
}

// hold returns the set, and whether it is new.
func (x *shared[K, T, S]) hold(key K) (s S, created bool) {
	s, known := x.all[key]
	if !known {
		s = new(T)
		s.name(key)
		x.all[key] = s
		x.ids.add(s.base())
	}
	s.base().refs++
	x.touch(s)
	return s, !known
}

func (x *shared[K, T, S]) release(s S) {
	s.base().refs--
	x.touch(s)
}

func (x *shared[K, T, S]) touch(s S) { x.touched[s] = struct{}{} }

// drop ends a set.
func (x *shared[K, T, S]) drop(s S) {
	delete(x.all, s.under())
	x.ids.remove(s.base())
}

// sweep ends the sets that nobody holds any more.
func (x *shared[K, T, S]) sweep() {
	for s := range x.touched {
		if s.base().refs == 0 {
			x.drop(s)
		}
	}
}

// publish writes what changed. What has another id now, or none, is retracted before anything is
// written: its id may be another's.
func (x *shared[K, T, S]) publish(retract, write func(S)) {
	if x.ids.moved {
		for _, s := range x.all {
			x.touch(s)
		}
	}
	for s := range x.touched {
		if h := s.base(); h.published != 0 && h.published != h.id {
			retract(s)
			h.published = 0
		}
	}
	for s := range x.touched {
		if h := s.base(); h.id != 0 {
			write(s)
			h.published = h.id
		}
	}
	clear(x.touched)
}

// abridged names a list by all that is in it; a long one by how it begins, its length and a digest,
// so that what a name costs does not grow with the list.
func abridged[T any](list []T, text func(T) string) string {
	const shown = 8
	var b strings.Builder
	for i, v := range list[:min(len(list), shown)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(text(v))
	}
	if len(list) > shown {
		h := sha256.New() // what is hashed is for tenants to choose
		for _, v := range list {
			h.Write([]byte(text(v) + " "))
		}
		fmt.Fprintf(&b, " and %d more (%x)", len(list)-shown, h.Sum(nil)[:16])
	}
	return b.String()
}
