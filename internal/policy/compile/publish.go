package compile

import (
	"cmp"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/state"
)

// flush returns what differs from before the Update.
func (c *Compiler) flush(podCIDRs []netip.Prefix) state.PolicyDelta {
	d := state.PolicyDelta{
		Rules: c.ruleLists.table.Flush(), Workloads: c.endpoints.workloads.Flush(), Hosts: c.endpoints.hosts.table.Flush(),
	}
	c.sets.Flush(&d)
	d.PodDevices = c.links.follow(c.policy.PodDevices, func(l *model.Link) bool { return l.Pod && !c.open })
	d.HostDevices = c.links.follow(c.policy.HostDevices, func(l *model.Link) bool { return l.Host || c.open })
	denied, was := c.deniedNow(), c.policy.Denied
	if !slices.Equal(denied.Devices, was.Devices) || !slices.Equal(denied.Lists, was.Lists) {
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
		if it := c.objects.Sets[listKey(name)]; it != nil {
			d.Lists = append(d.Lists, c.deniedList(it.Set))
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

// deniedList returns the list of the set; the one that is published already, if its content is the
// same.
func (c *Compiler) deniedList(set *model.NetworkSet) *state.List {
	l := &state.List{Name: set.Key.String(), Prefixes: set.Nets}
	for _, old := range c.policy.Denied.Lists {
		if old.Name == l.Name && sets.EqualPrefixes(old.Prefixes, l.Prefixes) {
			return old
		}
	}
	return l
}
