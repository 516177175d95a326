package nftables

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// chainRefs are the chains beside the program's own, by name.
type chainRefs map[string]chainRef

type chainRef struct {
	uses, rules int
	was         int // uses before the change; 0: there is no such chain yet
	make        func() nft.Chain
	// idle: it is a base chain without rules, which nothing uses. It stays, as the kernel drops all
	// packets that wait in queues of the namespace when one is deleted.
	idle bool
}

// use counts a use of a chain, or takes uses back.
func (r chainRefs) use(name string, n int, make func() nft.Chain) {
	c := r[name]
	c.uses += n
	if c.make == nil {
		c.make = make
	}
	r[name] = c
}

// settle has a change be done.
func (r chainRefs) settle() chainRefs {
	settled := make(chainRefs, len(r))
	for name, c := range r {
		if c.uses > 0 || c.idle {
			settled[name] = chainRef{uses: c.uses, rules: c.rules, was: max(c.uses, 1), idle: c.idle}
		}
	}
	return settled
}

// change is worked out into a transaction.
type change struct {
	t       *table
	p       *program
	numbers *numbers
	batch   *nft.Batch
	refs    chainRefs
	claims  *claiming
	lists   listChange
	covers  []int               // interfaces with chains, afterwards
	served  map[string]bool     // chains of interfaces where farms are served
	hooks   map[string]nft.Hook // that an adoption found
	led     bool                // packets are led elsewhere, and look up other elements there
	// fresh are all farms where the whole table is made anew; otherwise nil.
	fresh *state.Farms
	// beside plans the same in a table that serves while the one of another program makes way.
	beside *change
}

// elementKey is an element's place in the table.
type elementKey struct {
	set *nft.Set
	nft.ElementKey
}

// replace plans that farms follow others, nil of which are none. All old ones are withdrawn before
// a new one comes, as it may have the place of another.
func (c *change) replace(old, now map[string]*state.Farm) {
	had := map[elementKey]nft.Element{}
	withdrawn := content{c.p, c.numbers, c.lists.before, func(e *nft.Element) { had[elementKey{e.Set, e.ElementKey}] = *e },
		func(name string, make func() nft.Chain) { c.refs.use(name, -1, make) }}
	for _, f := range old {
		withdrawn.farm(f)
		c.p.claims(f, c.claims.withdraw)
	}
	wanted := content{c.p, c.numbers, c.lists.after, func(e *nft.Element) { c.put(had, e) },
		func(name string, make func() nft.Chain) { c.refs.use(name, 1, make) }}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		wanted.farm(now[name])
		c.p.claims(now[name], c.claims.claim)
	}
	for _, e := range had {
		c.batch.Delete(&e)
	}
}

// put plans an element, where the kernel does not have it already.
func (c *change) put(had map[elementKey]nft.Element, e *nft.Element) {
	k := elementKey{e.Set, e.ElementKey}
	old, there := had[k]
	delete(had, k)
	if there && old.SameValue(e) {
		return
	}
	if !there {
		c.batch.Add(e)
		return
	}
	c.batch.Replace(&old, e)
	c.led = c.led || e.Set.Verdict
}

// chains plans the chains that came into use, and goes without those that nobody uses any more.
// Base chains of both sorts stay, with rules or without.
func (c *change) chains() {
	var created []nft.Chain
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(c.refs)) {
		r := c.refs[name]
		switch {
		case r.uses > 0 && r.was == 0:
			chain := nft.LookAgain(c.p.mayMiss, r.make())[0]
			r.rules = len(chain.Rules)
			c.refs[name] = r
			created = append(created, chain)
		case r.uses > 0 && r.idle:
			c.turn(name, nft.LookAgain(c.p.mayMiss, r.make())[0])
		case r.uses == 0 && r.was > 0 && !r.idle && c.stays(name, r):
			c.turn(name, nft.Chain{Name: name})
		case r.uses == 0 && r.was > 0 && !r.idle:
			gone = append(gone, name)
		}
	}
	c.create(created)
	for _, name := range gone { // all rules first, as they refer to chains
		c.batch.DeleteRules(&c.batch.After, name)
	}
	for _, name := range gone {
		c.batch.DeleteChain(&c.batch.After, name)
		for _, h := range helpersOf(name) {
			c.batch.DeleteHelper(&c.batch.After, h.Name)
		}
	}
	c.batch.Stepwise = c.batch.Stepwise || len(created)+len(gone) > 0 || c.led
}

// stays reports whether a chain that nothing uses is a base chain that goes on being there.
func (c *change) stays(name string, r chainRef) bool {
	if strings.HasPrefix(name, devicePrefix) {
		return c.served[name]
	}
	_, hooked := c.hooks[name]
	return (hooked || r.make != nil && r.make().Hook != nil) && !strings.HasPrefix(name, tunnelPrefix)
}

// turn has the rules of a base chain be others.
func (c *change) turn(name string, chain nft.Chain) {
	r := c.refs[name]
	r.rules, r.idle = len(chain.Rules), len(chain.Rules) == 0
	c.refs[name] = r
	c.batch.TurnRules(chain)
	c.batch.Stepwise = true
}

func (c *change) create(chains []nft.Chain) {
	for _, chain := range chains {
		c.batch.AddChain(chain)
		c.batch.AddHelpers(chain)
	}
	for _, chain := range chains {
		c.batch.AddRules(chain)
	}
}

// create creates the table with the program.
func (p *program) create(b *nft.Batch, flags uint32) {
	b.AddTable(flags, tableComment)
	for _, s := range p.sets {
		b.AddSet(s)
	}
}

// build plans the whole table, where there is none.
func (c *change) build(want *state.Farms) {
	c.batch.Fresh = true
	c.p.create(c.batch, 0)
	c.allLists(want.Lists, func(e *nft.Element, _ bool) { c.batch.Add(e) })
	c.replace(nil, want.Farms)
	c.claimed()
	c.cover(nil, c.devices(want.Devices))
	for to := range want.Tunnels {
		c.tunnel(to, true)
	}
	c.chains()
	c.batch.Stepwise = false
	c.noteLists(false, 0)
	c.batch.Note(nil, c.p.noteElement(c.p.note()))
}

// compare plans what differs between the table and what is wanted.
func (c *change) compare(want *state.Farms, have *found) {
	c.findChains(have)
	left := have.elements
	elements := content{c.p, c.numbers, c.lists.after, func(e *nft.Element) { c.put(left, e) },
		func(name string, make func() nft.Chain) { c.refs.use(name, 1, make) }}
	for _, name := range slices.Sorted(maps.Keys(want.Farms)) {
		elements.farm(want.Farms[name])
		c.p.claims(want.Farms[name], c.claims.claim)
	}
	c.claims.settled(left, c.put)
	c.cover(left, c.devices(want.Devices))
	for to := range want.Tunnels {
		c.tunnel(to, true)
	}
	for _, e := range left {
		c.batch.Delete(&e)
	}
	c.chains()
}

// findChains notes which chains there are.
func (c *change) findChains(have *found) {
	for name := range have.Chains {
		r := c.refs[name]
		_, hooked := have.Hooks[name]
		r.was, r.rules, r.idle = 1, have.Rules[name], hooked && have.Rules[name] == 0
		c.refs[name] = r
	}
	c.hooks = have.Hooks
}

// version counts the layouts of the chains that come and go.
const version = 3

// note identifies the program: a digest of the messages that create it.
func (p *program) note() string {
	var a nft.Attrs
	for _, s := range p.sets {
		s.Write(&a, TableName)
	}
	return fmt.Sprintf("program %d %016x", version, xxhash.Sum64(a.B))
}
