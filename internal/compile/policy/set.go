package policy

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// The sets that rules refer to. Each has a name that says all that is in it, or
// where that comes from; rules that ask for the same share it. Who refers to a set holds it;
// one that nobody holds at the end of an update is gone.

// group holds the addresses of what one selector selects.
type group struct {
	dynamic[netip.Addr]
	refs     int
	selector model.Selector
	made     bool            // it follows what the selector selects; otherwise it is new, or being emptied
	classes  classSet        // that the selector selects
	selected int             // the sum of their sizes; before it is made, about what that will be, and of those left if it drains
	left     itemSet         // whose addresses are not members yet, or still are if it is not made
	lists    map[*item]*list // of the network sets among them
	stale    bool            // its network sets changed, or what programs say of them
	since    time.Time       // when nobody held it any more, if it drains
}

// namedPorts holds the ports to which pods give a name. All rules that ask for the name share it, so that
// what these sets come to is bounded by the pods' ports.
type namedPorts struct {
	dynamic[state.NamedPort]
	refs int
	of   namedPort
}

// list holds the networks of a network set, or those that rules name.
type list struct {
	handle
	refs    int
	content *state.List
	ref     state.ListRef // without ID
}

// ranges holds port ranges.
type ranges struct {
	handle
	refs    int
	content state.Ports // without ID
}

func groupKey(s model.Selector) string { return "group " + s.String() }

// holdGroup holds the group of a selector that selects about so much.
func (c *Compiler) holdGroup(s model.Selector, size int) *group {
	key := groupKey(s)
	g := c.groups[key]
	if g == nil {
		g = &group{selector: s, classes: classSet{}, selected: size}
		g.key = key
		c.groups[key] = g
		c.ids.add(&g.handle)
		c.total += size
	}
	if _, drains := c.draining[g]; drains {
		delete(c.draining, g)
		c.unmake(g) // it does not know what came meanwhile
	}
	g.refs++
	c.touchedGroups[g] = struct{}{}
	return g
}

// make has the group follow what its selector selects, and finds what it selects now. It returns how many classes it looked at.
func (c *Compiler) make(g *group) int {
	found, looked := c.find(g.selector)
	c.selectors.add(g.selector, g)
	c.total -= g.selected
	members := g.left
	g.made, g.selected, g.left = true, 0, itemSet{}
	for _, cl := range found {
		c.chosen(g, cl)
		g.selected += cl.size
		for it := range cl.items {
			if _, member := members[it]; !member {
				g.left[it] = struct{}{}
			}
			c.list(g, it)
		}
	}
	c.total += g.selected
	return looked
}

// chosen notes that the group's selector selects a class.
func (c *Compiler) chosen(g *group, cl *class) {
	if _, known := g.classes[cl]; !known {
		g.classes[cl] = struct{}{}
		cl.groups = append(cl.groups, g)
	}
}

// list has the group hold the list of a network set.
func (c *Compiler) list(g *group, it *item) {
	if it.set == nil || g.lists[it] != nil {
		return
	}
	if g.lists == nil {
		g.lists = map[*item]*list{}
	}
	g.lists[it] = c.holdSet(it.set)
	g.stale, c.stale = true, true
}

// move adds addresses that are left, or removes them if the group is not made, as far as there is room for.
func (c *Compiler) move(g *group, room int) (spent int) {
	for it := range g.left {
		if spent >= room {
			break
		}
		delete(g.left, it)
		for _, a := range it.addrs {
			if g.made {
				g.members.Add(a)
			} else {
				g.members.Remove(a)
			}
		}
		if !g.made {
			c.resize(g, -it.size())
		}
		spent += it.size()
	}
	c.touchedGroups[g] = struct{}{}
	return spent
}

func (c *Compiler) releaseGroup(g *group) {
	g.refs--
	c.touchedGroups[g] = struct{}{}
}

// holds reports whether the addresses of an item that it selects are members.
func (g *group) holds(it *item) bool {
	_, left := g.left[it]
	return g.made != left
}

// join makes a new item of a class that the group's selector selects a member.
func (c *Compiler) join(g *group, it *item) {
	c.resize(g, it.size())
	for _, a := range it.addrs {
		g.members.Add(a)
	}
	c.list(g, it)
	c.touchedGroups[g] = struct{}{}
}

// resize counts what comes to a group, or leaves it.
func (c *Compiler) resize(g *group, by int) {
	g.selected += by
	c.total += by
	c.moves += max(by, -by)
}

// sweepGroups has the groups drained that nobody holds.
func (c *Compiler) sweepGroups() {
	for g := range c.touchedGroups {
		if _, already := c.draining[g]; already || g.refs > 0 || g.id == 0 {
			continue
		}
		c.draining[g] = struct{}{}
		if g.made {
			c.selectors.remove(g.selector, g)
		}
		g.since = c.since
	}
}

// unmake ends that the group follows what its selector selects. It returns how many items' addresses are left in it.
func (c *Compiler) unmake(g *group) int {
	if !g.made {
		return 0
	}
	members := itemSet{}
	for cl := range g.classes {
		for it := range cl.items {
			if g.holds(it) {
				members[it] = struct{}{}
			} else {
				c.resize(g, -it.size())
			}
		}
	}
	g.made, g.left = false, members
	return len(members)
}

// drain goes on with the groups that nobody holds, for about so many elements, and ends those of which nothing is left.
func (c *Compiler) drain(room int) {
	left, gone := classSet{}, false
	for g := range c.draining {
		room -= c.unmake(g) / matchingCost
		if room -= c.move(g, room); len(g.left) == 0 {
			c.dropGroup(g)
			gone = true
			maps.Copy(left, g.classes)
		}
		if room <= 0 {
			break
		}
	}
	for cl := range left { // once, however many of its groups went
		cl.groups = slices.DeleteFunc(cl.groups, func(g *group) bool { return g.id == 0 })
	}
	if c.crowded && gone && len(c.draining) == 0 {
		c.weighSoon()
	}
}

// dropGroup ends a group that has drained. Its classes still list it.
func (c *Compiler) dropGroup(g *group) {
	for _, l := range g.lists {
		c.releaseList(l)
	}
	c.resize(g, -g.selected)
	delete(c.draining, g)
	delete(c.groups, g.key)
	c.ids.remove(&g.handle)
}

// holdNamed holds the ports of a name.
func (c *Compiler) holdNamed(of namedPort) *namedPorts {
	n := c.named[of]
	if n == nil {
		n = &namedPorts{of: of}
		n.key = fmt.Sprintf("port %s %q here: %t", of.protocol, of.name, of.local)
		c.named[of] = n
		c.ids.add(&n.handle)
		for it := range c.index.byPort[of.name] {
			if of.local && !it.local {
				continue
			}
			for _, p := range it.portsNamed(of.name) {
				for _, a := range it.addrs {
					if p.Port != 0 && (of.protocol == 0 || of.protocol == p.Protocol) {
						n.members.Add(state.NamedPort{Addr: a, Protocol: p.Protocol, Port: p.Port})
					}
				}
			}
		}
	}
	n.refs++
	c.touchedNamed[n] = struct{}{}
	return n
}

func (c *Compiler) releaseNamed(n *namedPorts) {
	n.refs--
	c.touchedNamed[n] = struct{}{}
}

// name puts the ports that the item names into the sets, or takes them out.
func (c *Compiler) name(it *item, in bool) {
	for name, at := range it.portNames {
		if in {
			insert(c.index.byPort, name, it)
		} else {
			discard(c.index.byPort, name, it)
		}
		for _, protocol := range []model.Protocol{0, at.Protocol} {
			for _, local := range []bool{false, true} {
				n := c.named[namedPort{name, protocol, local}]
				switch {
				case n == nil || local && !it.local:
					continue
				case in:
					n.members.Add(at)
				default:
					n.members.Remove(at)
				}
				c.touchedNamed[n] = struct{}{}
			}
		}
	}
}

// holdSet holds the list of a network set.
func (c *Compiler) holdSet(set *model.NetworkSet) *list {
	l := c.holdList("set " + set.Key.String())
	if l.content == nil {
		l.fill(set.Key.String(), set.Nets)
	}
	return l
}

// holdNets holds a list of networks that a rule names.
func (c *Compiler) holdNets(nets []netip.Prefix) *list {
	nets = sorted(nets)
	text := abridged(nets, netip.Prefix.String)
	l := c.holdList("nets " + text)
	if l.content == nil {
		l.fill(text, nets)
	}
	return l
}

func (c *Compiler) holdList(key string) *list {
	l := c.lists[key]
	if l == nil {
		l = &list{handle: handle{key: key}}
		c.lists[key] = l
		c.ids.add(&l.handle)
	}
	l.refs++
	c.touchedLists[l] = struct{}{}
	return l
}

func (c *Compiler) releaseList(l *list) {
	l.refs--
	c.touchedLists[l] = struct{}{}
}

// refill gives the list of a network set its new content, if anyone holds it.
func (c *Compiler) refill(set *model.NetworkSet) {
	if l := c.lists["set "+set.Key.String()]; l != nil {
		l.fill(set.Key.String(), set.Nets)
		c.touchedLists[l] = struct{}{}
	}
}

func (l *list) fill(name string, nets []netip.Prefix) {
	l.content = &state.List{Name: name, Prefixes: nets}
	var four, six [129]bool
	for _, p := range nets {
		if p.Addr().Is4() {
			four[p.Bits()] = true
		} else {
			six[p.Bits()] = true
		}
	}
	l.ref = state.ListRef{IPv4: lengths(&four), IPv6: lengths(&six)}
}

func lengths(in *[129]bool) []uint8 {
	var list []uint8
	for n, there := range in {
		if there {
			list = append(list, uint8(n))
		}
	}
	return list
}

// reference returns what a rule says of the list.
func (l *list) reference() state.ListRef {
	ref := l.ref
	ref.ID = l.id
	return ref
}

func (c *Compiler) holdRanges(list []state.PortRange) *ranges {
	key := "ports " + abridged(list, rangeText)
	r := c.ranges[key]
	if r == nil {
		r = &ranges{handle: handle{key: key}, content: state.Ports{Ranges: list}}
		c.ranges[key] = r
		c.ids.add(&r.handle)
	}
	r.refs++
	c.touchedRanges[r] = struct{}{}
	return r
}

func (c *Compiler) releaseRanges(r *ranges) {
	r.refs--
	c.touchedRanges[r] = struct{}{}
}

// sorted returns the valid prefixes masked, sorted and unique.
func sorted(nets []netip.Prefix) []netip.Prefix {
	list := make([]netip.Prefix, 0, len(nets))
	for _, p := range nets {
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		if p.IsValid() {
			list = append(list, p.Masked())
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

// abridged names a list by all that is in it; a long one by how it begins, its length and a digest, so
// that what a name costs does not grow with the list.
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
