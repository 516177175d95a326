// Package sets compiles rules of policies to sets of addresses and ports, and keeps these in step
// with the objects that they come from.
//
// It owns every set that rules refer to: groups of what selectors select, ports by name, lists of
// networks, port ranges, endpoints of Services. Each has a name that says all that is in it, or
// where that comes from, and an id that depends on the names in use alone; rules that ask for the
// same share it. Rules hold their sets until they are released. A set that nobody holds at the end
// of an update is gone, except for groups, which are filled and emptied in slices: see Groups.
//
// Nothing here decides how much may be selected: Total and Moves say how much is, for package
// admission, and Tallies count it for rules that have no groups.
package sets

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Sets are all that rules refer to. They are not safe for concurrent use.
//
// An update begins with Begin, then follows changes of objects, builds, fills and releases rules,
// and ends with Sweep, Publish and Flush, in this order.
type Sets struct {
	Groups   *Groups
	Tallies  *Tallies
	Services *Services

	ids    *ids
	named  *portNames
	lists  *lists
	ranges *portRanges
}

// New returns sets that write to a policy, each under one of so many ids, of which there must be
// more than sets. They follow all objects by Follow.
func New(p *state.Policy, space uint32, all *objects.Objects) *Sets {
	ids := newIDs(space)
	equalLists := func(a, b *state.List) bool { return a.Name == b.Name && EqualPrefixes(a.Prefixes, b.Prefixes) }
	equalPorts := func(a, b *state.Ports) bool { return a.ID == b.ID && slices.Equal(a.Ranges, b.Ranges) }
	lists := &lists{newShared[string, list](ids), diff.NewMap(p.Lists, equalLists)}
	groups := &Groups{
		shared: newShared[string, Group](ids), objects: all, lists: lists,
		draining: map[*Group]struct{}{}, selectors: objects.Filing[*Group]{}, byClass: map[*objects.Class][]*Group{}, table: newMemberTable(p.Groups),
	}
	named := &portNames{newShared[namedPort, namedPorts](ids), map[string]objects.ItemSet{}, newMemberTable(p.NamedPorts)}
	return &Sets{
		ids: ids, lists: lists, Groups: groups, named: named,
		Services: &Services{
			Each: maxEndpoints, Together: maxEndpointsTogether, known: map[model.Name]*service{},
			addrs: newShared[model.Name, serviceAddrs](ids), ports: named,
		},
		ranges:  &portRanges{newShared[string, ranges](ids), diff.NewMap(p.PortSets, equalPorts)},
		Tallies: newTallies(all, groups),
	}
}

// Begin opens an update: until its Flush, Services are read from the view. Those of which rules
// have sets are followed at once. It returns the cost in elements.
func (s *Sets) Begin(v *store.View, d store.Dirty) (cost int) {
	s.Services.view = v
	return s.Services.follow(d.Services)
}

// Follow has sets and counts follow a change of an object. It returns the cost in elements.
func (s *Sets) Follow(ch objects.ItemChange) (cost int) {
	if ch.Class != nil {
		cost = s.Groups.addClass(ch.Class)
	}
	if next := ch.Next; next != nil {
		if next.Set != nil {
			s.lists.refill(next.Set)
		}
		cost += 1 + s.Groups.add(next)
		s.named.set(next, true)
	}
	if old := ch.Old; old != nil {
		cost += s.Groups.remove(old, ch.Ended)
		s.named.set(old, false)
	}
	return cost + s.Tallies.follow(ch)
}

// Total is what the selectors of all groups select.
func (s *Sets) Total() int { return s.Groups.total }

// Moves are the sizes of all that came to groups and tallies and went.
func (s *Sets) Moves() int { return s.Groups.moves + s.Tallies.moves }

// Sweep ends the sets that nobody holds any more, except for groups, and decides which Services are
// refused.
func (s *Sets) Sweep() {
	s.Services.sweep()
	s.lists.sweep()
	s.ranges.sweep()
	s.Services.judge()
}

// Stale reports whether rules are to be resolved anew: all, or some, of which Rules.Stale says so.
func (s *Sets) Stale() (some, all bool) {
	return s.ids.moved || s.Groups.stale || s.Services.stale, s.ids.moved
}

// Stale reports whether a group of the rules has other lists, or a Service was refused, or was not,
// when they were resolved.
func (rs *Rules) Stale() bool {
	if slices.ContainsFunc(rs.Groups, func(g *Group) bool { return g.stale }) {
		return true
	}
	for svc := range rs.services {
		if svc.stale {
			return true
		}
	}
	return false
}

// Publish writes what changed of sets under their ids. What has another id now, or none, is
// retracted before anything is written: its id may be another's.
func (s *Sets) Publish() {
	s.Groups.retract(func(g *Group) { s.Groups.table.retract(&g.dynamic) })
	s.Services.addrs.retract(func(a *serviceAddrs) { s.Groups.table.retract(&a.dynamic) })
	s.named.retract(func(n *namedPorts) { s.named.table.retract(&n.dynamic) })
	s.lists.retract(func(l *list) { s.lists.table.Set(l.published, nil) })
	s.ranges.retract(func(r *ranges) { s.ranges.table.Set(r.published, nil) })

	s.Groups.publish()
	s.Services.publish(&s.Groups.table)
	s.named.publish(func(n *namedPorts) { s.named.table.publish(&n.dynamic) })
	s.lists.publish(func(l *list) { s.lists.table.Set(l.id, l.content) })
	s.ranges.publish(func(r *ranges) { s.ranges.table.Set(r.id, &state.Ports{ID: r.id, Ranges: r.list}) })
	s.ids.moved = false
}

// Flush ends an update, and adds to d what differs from before.
func (s *Sets) Flush(d *state.PolicyDelta) {
	s.Services.view = nil
	d.Groups, d.NamedPorts = s.Groups.table.flush(), s.named.table.flush()
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

// retract retracts what has another id now, or none.
func (x *shared[K, T, S]) retract(retract func(S)) {
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
}

// publish writes what changed.
func (x *shared[K, T, S]) publish(write func(S)) {
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
