package nftables

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// policy plans a change of policy, at the cost of what is named in it.
func (c *tableChange) policy(before *state.Policy, d state.PolicyDelta) {
	p := c.d.ruleset
	device := func(s *nft.Set) func(int, func(*nft.Element)) {
		return func(i int, yield func(*nft.Element)) { p.DeviceElement(s, i, yield) }
	}
	changeMembers(c, before.PodDevices, d.PodDevices, device(p.Policy.PodDevices))
	changeMembers(c, before.HostDevices, d.HostDevices, device(p.Policy.HostDevices))
	if len(d.PodDevices)+len(d.Workloads) > 0 {
		changeMembers(c, ruleset.CheckedDevices(before), checkedDelta(before, d), device(p.Policy.Checked))
	}
	if d.PodCIDRs != nil {
		c.lists(p.PodLists(before.PodCIDRs), p.PodLists(*d.PodCIDRs))
	}
	for id, members := range d.Groups {
		changeMembers(c, before.Groups[id], members, func(a netip.Addr, yield func(*nft.Element)) { p.MemberElement(id, a, yield) })
	}
	for id, ports := range d.NamedPorts {
		changeMembers(c, before.NamedPorts[id], ports, func(n state.NamedPort, yield func(*nft.Element)) { p.NamedElement(id, n, yield) })
	}
	for id, ports := range d.PortSets {
		c.Replace(elementsOf(id, before.PortSets[id], p.PortElements), elementsOf(id, ports, p.PortElements))
	}
	for id, l := range d.Lists {
		c.list(id, before.Lists[id], l)
	}
	c.judges(before, d)
	c.judgeAgain(before, d)
}

// judgeAgain has packets of the connections judged again that the change may be about.
func (c *tableChange) judgeAgain(before *state.Policy, d state.PolicyDelta) {
	if c.d.keepEstablished || c.d.Building {
		return
	}
	about := d.MayForbid(before)
	c.d.ruleset.AgainElements(about.All || c.d.again+len(about.Addresses) > driver.MostAgain, slices.Collect(maps.Keys(about.Addresses)), func(e *nft.Element) {
		c.Batch.Hint(e)
		c.again++
	})
}

// Answering implements driver.Answerer.
func (d *Driver) Answering(ctx context.Context, yield func(from, to netip.AddrPort)) error {
	d.reader.mu.Lock()
	defer d.reader.mu.Unlock()
	for _, fp := range d.ruleset.Families {
		err := d.reader.sock.ReadSet(ctx, ruleset.TableName, fp.Policy.Answering, func(e nft.Element) { yield(fp.Answered(&e)) })
		if err != nil && !errors.Is(err, nft.ErrInterrupted) && !errors.Is(err, unix.ENOENT) { // what is left out is of the next reading
			return err
		}
	}
	return nil
}

// Calm implements driver.Rejudger.
func (d *Driver) Calm(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.again == 0 {
		return nil
	}
	b := nft.NewBatch(ruleset.TableName)
	for _, s := range d.ruleset.AgainSets() {
		b.FlushSet(s)
	}
	if _, err := d.Commit(b); err != nil && !errors.Is(err, unix.ENOENT) { // without the table they are gone
		return err
	}
	d.again = 0
	return nil
}

// elementsOf binds the elements of a value under its key; nil has none.
func elementsOf[K comparable, V any](k K, v *V, elements func(K, *V, func(*nft.Element))) func(func(*nft.Element)) {
	if v == nil {
		return nil
	}
	return func(yield func(*nft.Element)) { elements(k, v, yield) }
}

// checkedDelta is the change of the interfaces that lead to pods.
func checkedDelta(before *state.Policy, d state.PolicyDelta) map[int]bool {
	after := state.Policy{PodDevices: maps.Clone(before.PodDevices), Workloads: maps.Clone(before.Workloads)}
	after.Apply(state.PolicyDelta{PodDevices: d.PodDevices, Workloads: d.Workloads})
	delta := map[int]bool{}
	for i := range ruleset.CheckedDevices(before) {
		delta[i] = false
	}
	for i := range ruleset.CheckedDevices(&after) {
		delta[i] = true
	}
	return delta
}

// list sends the difference of two lists alone, however long they are.
func (c *tableChange) list(id state.SetID, before, after *state.List) {
	var none state.List
	e := new(nft.Element)
	diffPrefixes(cmp.Or(before, &none).Prefixes, cmp.Or(after, &none).Prefixes,
		func(p netip.Prefix) { c.Remove(c.d.ruleset.ListElement(e, id, p)) },
		func(p netip.Prefix) { c.Add(c.d.ruleset.ListElement(e, id, p)) })
}

// judges plans what leads packets to rules, and the rules' chains.
func (c *tableChange) judges(before *state.Policy, d state.PolicyDelta) {
	p := c.d.ruleset
	after := before.Rules
	if len(d.Rules) > 0 {
		changed := state.Policy{Rules: maps.Clone(after)}
		changed.Apply(state.PolicyDelta{Rules: d.Rules})
		after = changed.Rules
	}
	changeEnds(c, before.Workloads, d.Workloads, before.Rules, after, p.WorkloadChains, p.WorkloadElements)
	changeEnds(c, before.Hosts, d.Hosts, before.Rules, after, p.HostChains, p.HostElements)
	if d.Denied != nil {
		c.deny(before.Denied, *d.Denied)
	}
}

// changeEnds plans a change of workloads, or of hosts.
func changeEnds[K comparable, V any](c *tableChange, have, want map[K]*V, before, after ruleset.RulesByID,
	chains func(K, *V, ruleset.RulesByID, ruleset.ChainFunc), elements func(K, *V, ruleset.RulesByID, func(*nft.Element))) {
	with := func(rules ruleset.RulesByID) func(K, *V, func(*nft.Element)) {
		return func(k K, v *V, yield func(*nft.Element)) { elements(k, v, rules, yield) }
	}
	for k, v := range want {
		old := have[k]
		// What is used anew counts before what is used no more, so that what stays is never seen to
		// go.
		if v != nil {
			chains(k, v, after, c.Use)
		}
		if old != nil {
			chains(k, old, before, c.Release)
		}
		c.Replace(elementsOf(k, old, with(before)), elementsOf(k, v, with(after)))
	}
}

// denyEntriesGo plans that the chains of deny lists go with their interfaces.
func (c *tableChange) denyEntriesGo(devices []state.Device) {
	var names []string
	for _, device := range devices {
		names = append(names, ruleset.DenyEntryName(device))
	}
	c.WithDevices(c.d.life, names)
}

// deny plans a change of deny lists: the difference of their content, and where a set has another
// size now, all of it.
func (c *tableChange) deny(before, after state.Denied) {
	p := c.d.ruleset
	was, now := ruleset.DeniedPrefixes(before), ruleset.DeniedPrefixes(after)
	sets, next := p.DeniedSets(), p.DeniedSetsFor(now)
	e := new(nft.Element)
	moves := func(c netip.Prefix) bool {
		return c.IsSingleIP() && sets[ruleset.FamilyIndex(c)] != next[ruleset.FamilyIndex(c)]
	}
	diffPrefixes(was, now, func(x netip.Prefix) {
		if !moves(x) {
			c.Remove(p.DeniedElement(sets, e, x))
		}
	}, func(x netip.Prefix) {
		if !moves(x) {
			c.Add(p.DeniedElement(next, e, x))
		}
	})
	p.DenyEntries(after, c.Use)
	p.DenyEntries(before, c.Release)
	c.denyEntriesGo(slices.DeleteFunc(slices.Clone(before.Devices), func(d state.Device) bool { return slices.Contains(after.Devices, d) }))
	if rules := p.DenyChainFor(after, next); !rules.SameRules(p.DenyChainFor(before, sets)) {
		c.Batch.TurnRules(rules)
		c.Batch.Stepwise = !c.Batch.AtOnce
	}
	for i := range sets {
		if sets[i] != next[i] {
			c.Batch.AddSet(next[i])
			c.NewSets, c.oldSets = append(c.NewSets, next[i]), append(c.oldSets, sets[i])
			c.Sums[next[i].ID] = table.Sum{}
		}
	}
	if c.NewSets == nil {
		return
	}
	for _, x := range now {
		if moves(x) {
			c.Add(p.DeniedElement(next, e, x))
		}
	}
}
