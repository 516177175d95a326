package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/program"
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
		d.prog.SettingsChains(*now, c.use)
		d.prog.SettingsChains(before, c.release)
		c.lists(d.prog.SettingsLists(before), d.prog.SettingsLists(*now))
		c.replace(of(before, d.prog.DeviceElements), of(*now, d.prog.DeviceElements))
	}
	changeMembers(c, d.state.Services.ClusterIPs, delta.Services.ClusterIPs, d.prog.ClusterIPElement)
	changeMembers(c, d.state.Services.OtherIPs, delta.Services.OtherIPs, d.prog.OtherIPElement)
	changeMembers(c, d.state.Services.Hairpins, delta.Services.Hairpins, d.prog.HairpinElement)
	changeMembers(c, d.state.Services.Peers, delta.Services.Peers, d.prog.PeerElement)
	for k, f := range delta.Services.Frontends {
		c.frontend(k, d.state.Services.Frontends[k], f)
	}
	if d.prog.HasPolicy() && delta.Policy.Len() > 0 {
		c.policy(d.state.Policy, delta.Policy)
	}
	p := c.plan(partsOf(delta), func() {
		d.state.Apply(delta)
		d.prog.ForgetWritten(d.state.Policy)
	})
	p.refused = func(ctx context.Context, sent uint32, refusal error) error {
		if err := d.rollBack(ctx, p.of, sent, refusal); !d.refused(err) {
			return err
		}
		return d.admit(ctx, delta)
	}
	return p
}

// change gathers the operations that lead from one state to another.
type change struct {
	d         *Driver
	batch     *nft.Batch
	sums      []sum              // of the sets afterwards
	chainRefs *program.ChainRefs // afterwards; the driver's own as long as it is the same
	newSets   []*nft.Set         // of deny lists, if they are others afterwards
	oldSets   []*nft.Set         // and what goes for that
	// unremember is set if a frontend with affinity lost a backend for some client.
	affinityLost bool
	again        int                    // elements that have packets judged again
	later        []*nft.Set             // in which elements go in the last step
	old          map[setKey]nft.Element // scratch
}

type setKey struct {
	set uint32
	nft.ElementKey
}

func (d *Driver) newChange() *change {
	c := &change{d: d, batch: nft.NewBatch(d.table), sums: slices.Clone(d.sums), chainRefs: d.chainRefs, old: map[setKey]nft.Element{}}
	c.batch.AtOnce, c.batch.Closed, c.batch.Counted = d.building, d.building, d.counted
	return c
}

func (c *change) add(e *nft.Element) {
	c.batch.Add(e)
	c.sums[e.Set.ID].add(e)
}

func (c *change) remove(e *nft.Element) {
	if slices.Contains(c.later, e.Set) {
		c.batch.DeleteLast(e)
	} else {
		c.batch.Delete(e)
	}
	c.sums[e.Set.ID].remove(e)
}

// replace plans the difference between two lists of elements.
func (c *change) replace(before, after func(yield func(*nft.Element))) {
	clear(c.old)
	if before != nil {
		before(func(e *nft.Element) { c.old[setKey{e.Set.ID, e.ElementKey}] = *e })
	}
	if after != nil {
		after(func(e *nft.Element) {
			key := setKey{e.Set.ID, e.ElementKey}
			old, ok := c.old[key]
			if ok {
				delete(c.old, key)
				if old.SameValue(e) {
					return
				}
				c.batch.Replace(&old, e)
				c.sums[e.Set.ID].remove(&old)
				c.sums[e.Set.ID].add(e)
				return
			}
			c.add(e)
		})
	}
	for _, e := range c.old {
		c.remove(&e)
	}
}

// lists plans the difference between lists of networks, and between the rules that look them up.
func (c *change) lists(before, after nft.Lists) {
	c.replace(before.Elements, after.Elements)
	if slices.ContainsFunc(c.d.prog.Networks, c.batch.Changed) {
		c.batch.Stepwise = !c.batch.AtOnce // an address may be in one network before, and in another one after
		c.batch.ChangeRules(c.d.prog.ListChains(before), c.d.prog.ListChains(after))
	}
}

// changeMembers plans what really changes of a set of values.
func changeMembers[K comparable](c *change, have map[K]struct{}, want map[K]bool, elements func(K, func(*nft.Element))) {
	for k, in := range want {
		if _, is := have[k]; in == is {
			continue
		}
		if in {
			elements(k, c.add)
		} else {
			elements(k, c.remove)
		}
	}
}

func (c *change) frontend(k state.FrontendKey, before, after *state.Frontend) {
	c.d.prog.FrontendChains(k, after, c.use)
	c.d.prog.FrontendChains(k, before, c.release)
	c.later = c.d.prog.Later(k, before, after)
	c.replace(elementsOf(k, before, c.d.prog.FrontendElements), elementsOf(k, after, c.d.prog.FrontendElements))
	if before == nil || after == nil || !slices.Equal(before.SourceRanges, after.SourceRanges) {
		c.replace(elementsOf(k, before, c.d.prog.SourceElements), elementsOf(k, after, c.d.prog.SourceElements))
	}
	c.later = nil
	c.affinityLost = c.affinityLost || losesAffinity(before, after)
}

// use counts a use of chains that are added if they are not there.
func (c *change) use(name string, write func() *program.DynamicChain) {
	c.ownChainRefs().Use(name, write)
}

func (c *change) release(name string, _ func() *program.DynamicChain) { c.ownChainRefs().Release(name) }

func (c *change) ownChainRefs() *program.ChainRefs {
	if c.chainRefs == c.d.chainRefs {
		c.chainRefs = c.d.chainRefs.Clone()
	}
	return c.chainRefs
}

// plan closes the transaction.
func (c *change) plan(of parts, done func()) *plan {
	if c.chainRefs != c.d.chainRefs {
		c.chainRefs.ChangeFrom(c.d.chainRefs, c.batch)
	}
	for _, s := range c.oldSets {
		c.batch.DeleteSet(&c.batch.After, s.Name)
	}
	c.noteSums()
	return &plan{d: c.d, of: of, batch: c.batch, done: func() {
		done()
		c.d.prog.SetDenied(c.newSets)
		c.d.sums, c.d.chainRefs = c.sums, c.chainRefs
		c.d.chainRefs.ForgetRules()
		c.d.adopted |= of
		c.d.again += c.again
		if c.affinityLost {
			c.d.forget.Ask(struct{}{})
		}
	}}
}

// noteSums writes down the sums that changed.
func (c *change) noteSums() {
	for _, s := range c.d.prog.Sets {
		now := s
		for _, next := range c.newSets {
			if next.ID == s.ID {
				now = next
			}
		}
		if now == s && c.sums[s.ID] == c.d.sums[s.ID] {
			continue // as for nearly all sets: no texts need to be made and compared
		}
		if before, after := sumNote(s, c.d.sums[s.ID]), sumNote(now, c.sums[s.ID]); before != after {
			c.d.prog.WriteNote(c.batch, s.ID, before, after)
		}
	}
}

// sumNote is the note on a set; a set that was never filled has none.
func sumNote(s *nft.Set, sum sum) string {
	if sum.count == 0 && sum.digest == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %d elements, digest %016x", s.Name, sum.count, sum.digest)
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

// sum stands for a set's content: the number of its elements and the exclusive or of
// their digests.
type sum struct {
	count  int
	digest uint64
}

func (s *sum) add(e *nft.Element)    { s.count++; s.digest ^= e.Digest() }
func (s *sum) remove(e *nft.Element) { s.count--; s.digest ^= e.Digest() }
