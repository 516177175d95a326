package nftables

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.adopted.hold(partsOf(delta)) {
		return nil, errors.New("update before everything was adopted that the change is about")
	}
	next := d.aside.clone()
	p := d.planUpdate(next.retryNamed(delta, d.state))
	p.aside = next
	return p, nil
}

// planUpdate plans a change, as one transaction or what stands for one.
func (d *Driver) planUpdate(delta state.Delta) *plan {
	c := d.newChange()
	if now := delta.Services.Settings; now != nil {
		before := d.state.Services.Settings
		of := func(s state.Settings, elements func(state.Settings, func(*nft.Element))) func(func(*nft.Element)) {
			return func(yield func(*nft.Element)) { elements(s, yield) }
		}
		d.ruleset.SettingsChains(*now, c.Use)
		d.ruleset.SettingsChains(before, c.Release)
		c.lists(d.ruleset.SettingsLists(before), d.ruleset.SettingsLists(*now))
		c.Replace(of(before, d.ruleset.DeviceElements), of(*now, d.ruleset.DeviceElements))
	}
	changeMembers(c, d.state.Services.ClusterIPs, delta.Services.ClusterIPs, d.ruleset.ClusterIPElement)
	changeMembers(c, d.state.Services.OtherIPs, delta.Services.OtherIPs, d.ruleset.OtherIPElement)
	changeMembers(c, d.state.Services.Hairpins, delta.Services.Hairpins, d.ruleset.HairpinElement)
	changeMembers(c, d.state.Services.Peers, delta.Services.Peers, d.ruleset.PeerElement)
	for k, f := range delta.Services.Frontends {
		c.frontend(k, d.state.Services.Frontends[k], f)
	}
	if d.ruleset.HasPolicy() && delta.Policy.Len() > 0 {
		c.policy(d.state.Policy, delta.Policy)
	}
	p := c.plan(partsOf(delta), func() {
		d.state.Apply(delta)
		d.ruleset.ForgetWritten(d.state.Policy)
	})
	p.refused = func(ctx context.Context, sent uint32, refusal error) error {
		if err := d.rollBack(ctx, p.of, sent, refusal); !d.refused(err) {
			return err
		}
		return d.admit(ctx, delta)
	}
	return p
}

// tableChange gathers the operations that lead from one state to another.
type tableChange struct {
	*table.Change
	d       *Driver
	oldSets []*nft.Set // of deny lists, if they are others afterwards
	// affinityLost is set if a frontend with affinity lost a backend for some client.
	affinityLost bool
	again        int // elements that have packets judged again
}

func (d *Driver) newChange() *tableChange { return &tableChange{Change: d.Table.Change(), d: d} }

// lists plans the difference between lists of networks, and between the rules that look them up.
func (c *tableChange) lists(before, after nft.Lists) {
	c.Replace(before.Elements, after.Elements)
	if slices.ContainsFunc(c.d.ruleset.Networks, c.Batch.Changed) {
		c.Batch.Stepwise = !c.Batch.AtOnce // an address may be in one network before, and in another one after
		c.Batch.ChangeRules(c.d.ruleset.ListChains(before), c.d.ruleset.ListChains(after))
	}
}

// changeMembers plans what really changes of a set of values.
func changeMembers[K comparable](c *tableChange, have map[K]struct{}, want map[K]bool, elements func(K, func(*nft.Element))) {
	for k, in := range want {
		if _, is := have[k]; in == is {
			continue
		}
		if in {
			elements(k, c.Add)
		} else {
			elements(k, c.Remove)
		}
	}
}

func (c *tableChange) frontend(k state.FrontendKey, before, after *state.Frontend) {
	c.d.ruleset.FrontendChains(k, after, c.Use)
	c.d.ruleset.FrontendChains(k, before, c.Release)
	c.Later = c.d.ruleset.Later(k, before, after)
	c.Replace(elementsOf(k, before, c.d.ruleset.FrontendElements), elementsOf(k, after, c.d.ruleset.FrontendElements))
	if before == nil || after == nil || !slices.Equal(before.SourceRanges, after.SourceRanges) {
		c.Replace(elementsOf(k, before, c.d.ruleset.SourceElements), elementsOf(k, after, c.d.ruleset.SourceElements))
	}
	c.Later = nil
	c.affinityLost = c.affinityLost || losesAffinity(before, after)
}

// plan closes the transaction.
func (c *tableChange) plan(of parts, done func()) *plan {
	c.Close()
	for _, s := range c.oldSets {
		c.Batch.DeleteSet(&c.Batch.After, s.Name)
	}
	return &plan{d: c.d, of: of, batch: c.Batch, done: func() {
		done()
		c.d.ruleset.SetDenied(c.NewSets)
		c.Done()
		c.d.adopted |= of
		c.d.again += c.again
		if c.affinityLost {
			c.d.forget.Ask(struct{}{})
		}
	}}
}

// diffPrefixes yields what two sorted lists do not share.
func diffPrefixes(before, after []netip.Prefix, removed, added func(netip.Prefix)) {
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && before[0].Compare(after[0]) < 0:
			removed(before[0])
			before = before[1:]
		case len(before) == 0 || before[0] != after[0]:
			added(after[0])
			after = after[1:]
		default:
			before, after = before[1:], after[1:]
		}
	}
}
