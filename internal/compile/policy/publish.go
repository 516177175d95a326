package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/compile/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// sweep ends what nobody uses any more, but for groups.
func (c *Compiler) sweep() {
	for n := range c.touchedNamed {
		if n.refs == 0 {
			delete(c.named, n.of)
			c.ids.remove(&n.handle)
		}
	}
	for l := range c.touchedLists {
		if l.refs == 0 {
			delete(c.lists, l.key)
			c.ids.remove(&l.handle)
		}
	}
	for r := range c.touchedRanges {
		if r.refs == 0 {
			delete(c.ranges, r.key)
			c.ids.remove(&r.handle)
		}
	}
}

// publishSets writes what changed of sets. What has another id now, or none, is taken
// back before anything is written: its id may be another's.
func (c *Compiler) publishSets() {
	if c.ids.moved {
		c.touchAll()
	}
	for g := range c.touchedGroups {
		c.groupTable.retract(&g.dynamic)
	}
	for n := range c.touchedNamed {
		c.namedTable.retract(&n.dynamic)
	}
	for l := range c.touchedLists {
		retract(&c.listTable, &l.handle)
	}
	for r := range c.touchedRanges {
		retract(&c.portTable, &r.handle)
	}
	for g := range c.touchedGroups {
		c.groupTable.publish(&g.dynamic)
		g.stale = false
	}
	for n := range c.touchedNamed {
		c.namedTable.publish(&n.dynamic)
	}
	for l := range c.touchedLists {
		publish(&c.listTable, &l.handle, l.content)
	}
	for r := range c.touchedRanges {
		content := r.content
		content.ID = r.id
		publish(&c.portTable, &r.handle, &content)
	}
	clear(c.touchedGroups)
	clear(c.touchedNamed)
	clear(c.touchedLists)
	clear(c.touchedRanges)
	c.ids.moved, c.stale = false, false
}

func retract[V any](t *diff.Map[state.SetID, V], h *handle) {
	if h.published != 0 && h.published != h.id {
		t.Set(h.published, nil)
		h.published = 0
	}
}

func publish[V any](t *diff.Map[state.SetID, V], h *handle, content *V) {
	if h.id != 0 {
		t.Set(h.id, content)
		h.published = h.id
	}
}

func (c *Compiler) touchAll() {
	for _, g := range c.groups {
		c.touchedGroups[g] = struct{}{}
	}
	for _, n := range c.named {
		c.touchedNamed[n] = struct{}{}
	}
	for _, l := range c.lists {
		c.touchedLists[l] = struct{}{}
	}
	for _, r := range c.ranges {
		c.touchedRanges[r] = struct{}{}
	}
}

// flush returns what differs from before the Update.
func (c *Compiler) flush(podCIDRs []netip.Prefix) state.PolicyDelta {
	d := state.PolicyDelta{
		Programs: c.programs.Flush(), Workloads: c.workloads.Flush(), Hosts: c.hostTable.Flush(),
		Groups: c.groupTable.flush(), NamedPorts: c.namedTable.flush(),
		PortSets: c.portTable.Flush(), Lists: c.listTable.Flush(),
	}
	d.PodDevices, d.HostDevices = c.publishDevices()
	if denied := c.deniedNow(); !equalDenied(denied, c.policy.Denied) {
		c.policy.Denied, d.Denied = denied, &denied
	}
	if c.open {
		podCIDRs = nil
	}
	if !slices.Equal(podCIDRs, c.policy.PodCIDRs) {
		c.policy.PodCIDRs, d.PodCIDRs = podCIDRs, &podCIDRs
	}
	return d
}

func listKey(name string) model.NetworkSetKey {
	return model.NetworkSetKey{Kind: model.AddressList, Name: model.Name{Name: name}}
}

// deniedNow returns what is denied on arrival, and where.
func (c *Compiler) deniedNow() state.Denied {
	var d state.Denied
	for _, name := range c.cfg.DenyLists {
		if it := c.sets[listKey(name)]; it != nil {
			d.Lists = append(d.Lists, c.deniedList(it.set))
		}
	}
	for _, l := range c.links.Links.Links {
		if slices.Contains(c.cfg.DenyDevices, l.Name) {
			d.Devices = append(d.Devices, state.Device{Index: l.Index, Name: l.Name})
		}
	}
	slices.SortFunc(d.Devices, func(a, b state.Device) int { return cmp.Compare(a.Name, b.Name) })
	return d
}

// deniedList returns the list of the set; the one that is published already, if its content is the same.
func (c *Compiler) deniedList(set *model.NetworkSet) *state.List {
	l := &state.List{Name: set.Key.String(), Prefixes: set.Nets}
	for _, old := range c.policy.Denied.Lists {
		if old.Name == l.Name && equalPrefixes(old.Prefixes, l.Prefixes) {
			return old
		}
	}
	return l
}

// equalPrefixes looks at the elements, of which there may be millions, only if the slices are two.
func equalPrefixes(a, b []netip.Prefix) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

func equalDenied(a, b state.Denied) bool {
	return slices.Equal(a.Devices, b.Devices) && slices.Equal(a.Lists, b.Lists)
}

func equalLists(a, b *state.List) bool {
	return a.Name == b.Name && equalPrefixes(a.Prefixes, b.Prefixes)
}

func equalPorts(a, b *state.Ports) bool {
	return a.ID == b.ID && slices.Equal(a.Ranges, b.Ranges)
}
