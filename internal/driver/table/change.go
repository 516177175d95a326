package table

import (
	"context"
	"slices"

	"sluice.dev/sluice/internal/kernel/nft"
)

// Change gathers the operations that lead from one content of a table to another.
type Change struct {
	Table *Table
	Batch *nft.Batch
	Sums  []Sum      // of the sets afterwards
	Refs  *ChainRefs // afterwards; the table's own as long as it is the same
	// NewSets are sets that take the place of those with their numbers.
	NewSets []*nft.Set
	// Later are sets whose elements go in the last step.
	Later []*nft.Set
	// Led: an element of a map has another verdict than before.
	Led bool
	old map[setKey]nft.Element // scratch
}

type setKey struct {
	set uint32
	nft.ElementKey
}

// Change begins a change of what the table holds now.
func (t *Table) Change() *Change {
	c := &Change{Table: t, Batch: t.Batch(), Sums: slices.Clone(t.Sums), Refs: t.Refs, old: map[setKey]nft.Element{}}
	c.Batch.AtOnce, c.Batch.Closed, c.Batch.Counted = t.Building, t.Building, t.Counted
	return c
}

// Anew begins a change in which everything is named that the table is to hold.
func (t *Table) Anew() *Change {
	return &Change{Table: t, Batch: t.Batch(), Sums: make([]Sum, len(t.Sets)+1), Refs: NewChainRefs(), old: map[setKey]nft.Element{}}
}

// Add and Remove plan an element that comes, and one that goes.
func (c *Change) Add(e *nft.Element) {
	c.Batch.Add(e)
	c.Sums[e.Set.ID].Add(e)
}

func (c *Change) Remove(e *nft.Element) {
	if slices.Contains(c.Later, e.Set) {
		c.Batch.DeleteLast(e)
	} else {
		c.Batch.Delete(e)
	}
	c.Sums[e.Set.ID].Remove(e)
}

// Replace plans the difference between two lists of elements; nil has none.
func (c *Change) Replace(before, after func(yield func(*nft.Element))) {
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
				c.Batch.Replace(&old, e)
				c.Led = c.Led || e.Set.Verdict
				c.Sums[e.Set.ID].Remove(&old)
				c.Sums[e.Set.ID].Add(e)
				return
			}
			c.Add(e)
		})
	}
	for _, e := range c.old {
		c.Remove(&e)
	}
}

// Use counts a use of a chain that is added if it is not there, and Release takes one back.
func (c *Change) Use(name string, write func() *DynamicChain) { c.OwnRefs().Use(name, write) }

func (c *Change) Release(name string, _ func() *DynamicChain) { c.OwnRefs().Release(name) }

// OwnRefs are references that are the change's own.
func (c *Change) OwnRefs() *ChainRefs {
	if c.Refs == c.Table.Refs {
		c.Refs = c.Refs.Clone()
	}
	return c.Refs
}

// WithDevices has base chains go with their interfaces: those that the kernel has not taken along
// are deleted.
func (c *Change) WithDevices(ctx context.Context, names []string) {
	if len(names) == 0 {
		return
	}
	there := map[string]bool{}
	err := c.Table.Sock.ReadChains(ctx, c.Table.Name, func(name string, _ *nft.Hook) { there[name] = true })
	for _, name := range names {
		c.OwnRefs().Forget(name)
		if err == nil && !there[name] {
			c.Table.Refs.Forget(name)
		}
	}
}

// Close plans the chains that come and go, and writes down the sums that changed. It returns the
// chains that go.
func (c *Change) Close() (gone []string) {
	if c.Refs != c.Table.Refs {
		gone = c.Refs.ChangeFrom(c.Table.Refs, c.Batch)
	}
	for _, s := range c.Table.Sets {
		now := s
		for _, next := range c.NewSets {
			if next.ID == s.ID {
				now = next
			}
		}
		if now == s && c.Sums[s.ID] == c.Table.Sums[s.ID] {
			continue // as for nearly all sets: no texts need to be made and compared
		}
		if before, after := noteOf(s, c.Table.Sums[s.ID]), noteOf(now, c.Sums[s.ID]); before != after {
			c.Table.WriteNote(c.Batch, s.ID, before, after)
		}
	}
	return gone
}

// Done has the table hold what the change leads to.
func (c *Change) Done() {
	c.Table.Sums, c.Table.Refs = c.Sums, c.Refs
	c.Refs.ForgetRules()
}
