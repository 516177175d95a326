package nftables

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// tableChange is worked out into a transaction.
type tableChange struct {
	*table.Change
	t       *farmTable
	rs      *ruleset
	numbers *numbers
	before  *table.ChainRefs // chains that there are
	claims  *claimChange
	lists   listChange
	covers  []int    // interfaces with chains, afterwards
	leaving []string // chains that go with their interfaces
	adopts  bool     // it is compared with what the kernel holds
	// fresh are all farms where the whole table is made anew; otherwise nil.
	fresh    *state.Farms
	replaces string // why it takes the place of the one that there is; "": it does not
	done     func() // notes what the kernel holds afterwards
}

func (t *farmTable) begin(c *table.Change, before *table.ChainRefs, held elementClaims, lists listChange, n *numbers) *tableChange {
	return &tableChange{Change: c, t: t, rs: t.ruleset, numbers: n, before: before, claims: begin(held), lists: lists}
}

// use and release count the uses of a chain.
func (c *tableChange) use(name string, make func() nft.Chain) {
	c.Use(name, func() *table.DynamicChain {
		return &table.DynamicChain{Chain: nft.LookAgain(c.rs.MayMiss, make())[0]}
	})
}

func (c *tableChange) release(name string, _ func() nft.Chain) { c.Release(name, nil) }

// replace plans that farms follow others, nil of which are none. All old ones are withdrawn before
// a new one comes, as it may have the virtual address of another.
func (c *tableChange) replace(old, now map[string]*state.Farm) {
	c.Replace(func(yield func(*nft.Element)) {
		withdrawn := content{c.rs, c.numbers, c.lists.before, yield, c.release}
		for _, f := range old {
			withdrawn.farm(f)
			c.rs.claims(f, c.claims.withdraw)
		}
	}, func(yield func(*nft.Element)) { c.farms(now, yield, c.use) })
}

// farms yields what farms become, and has them want elements that others may want, too.
func (c *tableChange) farms(now map[string]*state.Farm, element func(*nft.Element), chain func(string, func() nft.Chain)) {
	wanted := content{c.rs, c.numbers, c.lists.after, element, chain}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		wanted.farm(now[name])
		c.rs.claims(now[name], c.claims.claim)
	}
}

// all names everything that the table is to hold, except for the elements.
func (c *tableChange) all(want *state.Farms) {
	if c.rs.hasLists() {
		for name, l := range want.Lists {
			c.list(name, l)
		}
	}
	c.farms(want.Farms, func(*nft.Element) {}, c.use)
	for to := range want.Tunnels {
		c.tunnel(to, true)
	}
	c.devices(want.Devices)
}

// elements are those that the table is to hold.
func (c *tableChange) elements(want *state.Farms) func(yield func(*nft.Element)) {
	return func(yield func(*nft.Element)) {
		if c.rs.hasLists() {
			for name, l := range want.Lists {
				c.members(name, l.Ranges)(yield)
			}
		}
		c.farms(want.Farms, yield, func(string, func() nft.Chain) {})
		for _, all := range c.claims.next {
			yield(&all[0].element)
		}
		c.coverElements(c.covers)(yield)
	}
}

// create plans a table that there is not yet.
func (c *tableChange) create(flags uint32, want *state.Farms) {
	c.Batch.AddTable(flags, tableComment)
	for _, s := range c.rs.Sets {
		c.Batch.AddSet(s)
	}
	c.elements(want)(c.Add)
	c.Refs.Create(c.Batch, c.before)
}

// stays reports whether a base chain that nothing uses stays, without rules: not one of an
// interface, which goes with that.
func stays(entry string) bool {
	return !strings.HasPrefix(entry, tunnelPrefix) && !strings.HasPrefix(entry, devicePrefix)
}

// leave goes without what chains that go refer to, and has the change be made in steps where
// packets look up other elements than before.
func (c *tableChange) leave(gone []string) {
	for _, name := range gone {
		for _, h := range helpersOf(name) {
			c.Batch.DeleteHelper(&c.Batch.After, h.Name)
		}
	}
	c.Batch.Stepwise = c.Batch.Stepwise || c.Led
}

// version counts the layouts of the chains that come and go, and of what the table says of itself.
const version = 6

// note identifies the ruleset: a digest of the messages that create its sets.
func (rs *ruleset) note() string {
	var a attr.Attrs
	for _, s := range rs.Sets {
		s.Write(&a, TableName)
	}
	return fmt.Sprintf("program %d %016x", version, xxhash.Sum64(a.B))
}
