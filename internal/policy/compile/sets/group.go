package sets

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
)

// Groups are the sets of the addresses that selectors of rules select.
//
// A group is filled and emptied in slices. It begins as a name alone, then follows what its
// selector selects, while items that were there before are added bit by bit. Once nobody holds it,
// it drains: it follows nothing any more, and its addresses are removed bit by bit.
type Groups struct {
	shared[string, Group, *Group]
	objects   *objects.Objects
	lists     *lists
	draining  map[*Group]struct{}         // that nobody holds any more
	selectors objects.Filing[*Group]      // of those that follow theirs
	byClass   map[*objects.Class][]*Group // whose selectors select the class
	table     memberTable[netip.Addr]
	total     int  // what the selectors of all groups select
	moves     int  // sizes of all that came to groups and went
	stale     bool // some groups are
}

// Group holds the addresses of what one selector selects.
type Group struct {
	dynamic[netip.Addr]
	selector model.Selector
	follows  bool                    // what the selector selects; otherwise it is new, or drains
	classes  objects.ClassSet        // that the selector selects
	Selected int                     // the sum of their sizes; an estimate if it is new, what is pending if it drains
	pending  objects.ItemSet         // that are not members yet; if it drains: that still are
	lists    map[*objects.Item]*list // of the network sets among them
	stale    bool                    // its network sets changed, or what rules say of them
	since    time.Time               // when nobody held it any more, if it drains
}

func groupKey(s model.Selector) string { return "group " + s.String() }

// hold holds the group of a selector that selects about so much.
func (gs *Groups) hold(s model.Selector, size int) *Group {
	g, created := gs.shared.hold(groupKey(s))
	if created {
		g.selector, g.Selected, g.classes = s, size, objects.ClassSet{}
		gs.total += size
	}
	if _, drains := gs.draining[g]; drains {
		delete(gs.draining, g)
		gs.unfollow(g) // it does not know what came meanwhile
	}
	return g
}

// holds reports whether the addresses of an item that the selector selects are members.
func (g *Group) holds(it *objects.Item) bool {
	_, pending := g.pending[it]
	return g.follows != pending
}

// follow has the group follow what its selector selects, and finds what that is now. It returns how
// many classes it looked at.
func (gs *Groups) follow(g *Group) int {
	found, looked := gs.objects.Find(g.selector)
	gs.selectors.Add(g.selector, g)
	gs.total -= g.Selected
	members := g.pending
	g.follows, g.Selected, g.pending = true, 0, objects.ItemSet{}
	for _, cl := range found {
		gs.note(g, cl)
		g.Selected += cl.Size
		for it := range cl.Items {
			if _, member := members[it]; !member {
				g.pending[it] = struct{}{}
			}
			gs.list(g, it)
		}
	}
	gs.total += g.Selected
	return looked
}

// unfollow has the group follow nothing any more. It returns how many items' addresses are left.
func (gs *Groups) unfollow(g *Group) int {
	if !g.follows {
		return 0
	}
	members := objects.ItemSet{}
	for cl := range g.classes {
		for it := range cl.Items {
			if g.holds(it) {
				members[it] = struct{}{}
			} else {
				gs.resize(g, -it.Size())
			}
		}
	}
	g.follows, g.pending = false, members
	return len(members)
}

// Fill goes on with a group that somebody holds as far as there is room for: it comes to follow
// what its selector selects, or gets some of that. It returns about how many elements a kernel
// takes in that time, and whether the group is filled.
func (gs *Groups) Fill(g *Group, room int) (spent int, done bool) {
	switch {
	case !g.follows:
		return 1 + gs.follow(g)/objects.MatchingCost, false
	case len(g.pending) > 0:
		return gs.move(g, room), false
	}
	return 0, true
}

// Has reports whether there is a group under a key; held: and somebody holds it.
func (gs *Groups) Has(key string, held bool) bool {
	g := gs.all[key]
	return g != nil && (!held || g.refs > 0)
}

// move adds pending addresses, or removes them if the group drains, as far as there is room for.
func (gs *Groups) move(g *Group, room int) (spent int) {
	for it := range g.pending {
		if spent >= room {
			break
		}
		delete(g.pending, it)
		for _, a := range it.Addrs {
			g.set(a, g.follows)
		}
		if !g.follows {
			gs.resize(g, -it.Size())
		}
		spent += it.Size()
	}
	gs.touch(g)
	return spent
}

// addClass notes which groups' selectors select a new class. It returns the cost in elements.
func (gs *Groups) addClass(cl *objects.Class) (cost int) {
	looked := 0
	for g := range gs.selectors.Candidates(&cl.Labels) {
		if looked++; g.selector.Matches(&cl.Labels) {
			gs.note(g, cl)
		}
	}
	return looked / objects.MatchingCost
}

// note notes that the group's selector selects a class.
func (gs *Groups) note(g *Group, cl *objects.Class) {
	if _, known := g.classes[cl]; !known {
		g.classes[cl] = struct{}{}
		gs.byClass[cl] = append(gs.byClass[cl], g)
	}
}

// add makes a new item a member of the groups that follow its class. It returns the cost in
// elements.
func (gs *Groups) add(it *objects.Item) (cost int) {
	list := gs.byClass[it.Class]
	for _, g := range list {
		if !g.follows {
			continue
		}
		gs.resize(g, it.Size())
		for _, a := range it.Addrs {
			g.members.Add(a)
		}
		gs.list(g, it)
		gs.touch(g)
	}
	return len(list) * it.Size()
}

// remove takes an item out of all groups that have it; last: its class ended with it. It returns
// the cost in elements.
func (gs *Groups) remove(it *objects.Item, last bool) (cost int) {
	list := gs.byClass[it.Class]
	for _, g := range list {
		if g.holds(it) {
			for _, a := range it.Addrs {
				g.members.Remove(a)
			}
		}
		if _, pending := g.pending[it]; g.follows || pending {
			gs.resize(g, -it.Size())
		}
		delete(g.pending, it)
		if l := g.lists[it]; l != nil {
			delete(g.lists, it)
			gs.lists.release(l)
			g.stale, gs.stale = true, true
		}
		if last {
			delete(g.classes, it.Class)
		}
		gs.touch(g)
	}
	if last {
		delete(gs.byClass, it.Class)
	}
	return len(list) * it.Size()
}

// list has the group hold the list of a network set.
func (gs *Groups) list(g *Group, it *objects.Item) {
	if it.Set == nil || g.lists[it] != nil {
		return
	}
	if g.lists == nil {
		g.lists = map[*objects.Item]*list{}
	}
	g.lists[it] = gs.lists.holdSet(it.Set)
	g.stale, gs.stale = true, true
}

// resize counts what comes to a group, or leaves it.
func (gs *Groups) resize(g *Group, by int) {
	g.Selected += by
	gs.total += by
	gs.moves += max(by, -by)
}

// Sweep has the groups drained that nobody holds.
func (gs *Groups) Sweep(now time.Time) {
	for g := range gs.touched {
		if _, already := gs.draining[g]; already || g.refs > 0 || g.id == 0 {
			continue
		}
		gs.draining[g] = struct{}{}
		if g.follows {
			gs.selectors.Remove(g.selector, g)
		}
		g.since = now
	}
}

// Drain goes on with the groups that nobody holds, for about so many elements, and ends those of
// which nothing is left. It reports whether the last of them went.
func (gs *Groups) Drain(room int) (done bool) {
	left, gone := objects.ClassSet{}, false
	for g := range gs.draining {
		room -= gs.unfollow(g) / objects.MatchingCost
		if room -= gs.move(g, room); len(g.pending) == 0 {
			gs.drop(g)
			gone = true
			maps.Copy(left, g.classes)
		}
		if room <= 0 {
			break
		}
	}
	for cl := range left { // once, however many of its groups went
		if gs.byClass[cl] = slices.DeleteFunc(gs.byClass[cl], func(g *Group) bool { return g.id == 0 }); len(gs.byClass[cl]) == 0 {
			delete(gs.byClass, cl)
		}
	}
	return gone && len(gs.draining) == 0
}

// Draining yields since when each group drains that does.
func (gs *Groups) Draining(yield func(time.Time) bool) {
	for g := range gs.draining {
		if !yield(g.since) {
			return
		}
	}
}

// drop ends a group that has drained. Its classes still list it.
func (gs *Groups) drop(g *Group) {
	for _, l := range g.lists {
		gs.lists.release(l)
	}
	gs.resize(g, -g.Selected)
	delete(gs.draining, g)
	gs.shared.drop(g)
}

func (gs *Groups) publish() {
	gs.shared.publish(func(g *Group) {
		gs.table.publish(&g.dynamic)
		g.stale = false
	})
	gs.stale = false
}
