package table

import (
	"maps"
	"slices"

	"sluice.dev/sluice/internal/kernel/nft"
)

// DynamicChain is a chain that comes and goes with the objects, and what its rules refer to.
type DynamicChain struct {
	nft.Chain
	Counters []string        // named counters that its rules use
	Next     []*DynamicChain // chains beside the constant ones
	Marks    bool            // it uses the packet's mark
}

// Tree is the chain, and all that its rules lead to.
func (c *DynamicChain) Tree() []*DynamicChain {
	all := []*DynamicChain{c}
	for _, next := range c.Next {
		all = append(all, next.Tree()...)
	}
	return all
}

// ChainRefs counts the references to the chains and counters that come and go with the objects,
// beside the constant part of the ruleset. Each lasts as long as something refers to it. A base
// chain lasts longer: it stays, without rules, as the kernel drops all packets that wait in queues
// of the namespace when one is deleted.
type ChainRefs struct {
	Chains   map[string]refCounted
	Counters map[string]int // references, by name
}

// refCounted is a chain with the number of references to it: of map elements, base chains and other
// chains.
type refCounted struct {
	*DynamicChain     // without its rules, once the kernel has them
	Rules         int // how many it has
	Refs          int
}

// NewChainRefs returns one without references.
func NewChainRefs() *ChainRefs { return &ChainRefs{map[string]refCounted{}, map[string]int{}} }

// Clone returns a copy that can be changed; the chains are shared.
func (r *ChainRefs) Clone() *ChainRefs {
	return &ChainRefs{maps.Clone(r.Chains), maps.Clone(r.Counters)}
}

// Only returns the part with the chains of interest, as if nothing else had ever been used.
func (r *ChainRefs) Only(is func(chain string) bool) *ChainRefs {
	part := NewChainRefs()
	for name, e := range r.Chains {
		if !is(name) {
			continue
		}
		part.Chains[name] = e
		for _, counter := range e.Counters {
			part.Counters[counter]++
		}
	}
	return part
}

// Use adds a reference to the chain of that name. With the first one, write returns it, and it
// refers to chains in its turn.
func (r *ChainRefs) Use(name string, write func() *DynamicChain) {
	e := r.Chains[name]
	if e.Refs == 0 {
		e.DynamicChain = write()
		e.Rules = len(e.DynamicChain.Rules)
		for _, counter := range e.Counters {
			r.Counters[counter]++
		}
		for _, next := range e.Next {
			r.Use(next.Name, func() *DynamicChain { return next })
		}
	}
	e.Refs++
	r.Chains[name] = e
}

// Release takes back a reference to the chain. With the last one, the chain and its own references
// go.
func (r *ChainRefs) Release(name string) {
	e := r.Chains[name]
	if e.Refs--; e.Refs > 0 {
		r.Chains[name] = e
		return
	}
	delete(r.Chains, name)
	if e.Hook != nil {
		r.Idle(name, *e.Hook)
	}
	for _, counter := range e.Counters {
		if r.Counters[counter]--; r.Counters[counter] == 0 {
			delete(r.Counters, counter)
		}
	}
	for _, next := range e.Next {
		r.Release(next.Name)
	}
}

// Put has a base chain be there with its rules, though nothing refers to it.
func (r *ChainRefs) Put(c nft.Chain) {
	r.Chains[c.Name] = refCounted{DynamicChain: &DynamicChain{Chain: c}, Rules: len(c.Rules)}
}

// Idle has a base chain be there without rules.
func (r *ChainRefs) Idle(name string, h nft.Hook) { r.Put(nft.Chain{Name: name, Hook: &h}) }

// Forget takes out a base chain, whatever refers to it.
func (r *ChainRefs) Forget(name string) { delete(r.Chains, name) }

// Keep adds chains of which nothing is known but the number of their rules.
func (r *ChainRefs) Keep(names []string, rules map[string]int) {
	for _, name := range names {
		r.Chains[name] = refCounted{Refs: 1, Rules: rules[name], DynamicChain: &DynamicChain{Chain: nft.Chain{Name: name}}}
	}
}

// ForgetRules drops the rules of all chains, once the kernel has them; base chains have few.
func (r *ChainRefs) ForgetRules() {
	for _, e := range r.Chains {
		if e.Hook == nil {
			e.DynamicChain.Rules = nil
		}
	}
}

// RuleCount is the number of rules in all chains.
func (r *ChainRefs) RuleCount() (n int) {
	for _, e := range r.Chains {
		n += e.Rules
	}
	return n
}

// Entries are the base chains.
func (r *ChainRefs) Entries() (all []nft.Chain) {
	for _, e := range r.Chains {
		if e.Hook != nil {
			all = append(all, e.Chain)
		}
	}
	return all
}

// Create adds the counters and chains that were not referred to before.
func (r *ChainRefs) Create(b *nft.Batch, before *ChainRefs) {
	for _, name := range slices.Sorted(maps.Keys(r.Counters)) {
		if before.Counters[name] == 0 {
			b.AddCounter(name)
		}
	}
	var added []nft.Chain
	for _, name := range slices.Sorted(maps.Keys(r.Chains)) {
		if _, there := before.Chains[name]; !there {
			added = append(added, r.Chains[name].Chain)
		}
	}
	// Chains before rules, as those refer to chains.
	for _, c := range added {
		b.AddChain(c)
		b.AddHelpers(c)
	}
	for _, c := range added {
		b.AddRules(c)
	}
}

// deleteChains removes the chains and then the counters, which nothing else uses any more.
func deleteChains(b *nft.Batch, chains, counters []string) {
	slices.Sort(chains)
	slices.Sort(counters)
	for _, name := range chains {
		b.DeleteRules(&b.After, name)
	}
	for _, name := range chains {
		b.DeleteChain(&b.After, name)
	}
	for _, name := range counters {
		b.DeleteCounter(name)
	}
}

// ChangeFrom plans the difference between what was referred to before and what is now, and returns
// the chains that go.
func (r *ChainRefs) ChangeFrom(before *ChainRefs, b *nft.Batch) (gone []string) {
	gone = Missing(before.Chains, r.Chains)
	b.Stepwise = b.Stepwise || !b.AtOnce && len(Missing(r.Chains, before.Chains))+len(gone) > 0
	for name, e := range r.Chains {
		if old, there := before.Chains[name]; there && e.turned(old) {
			b.TurnRules(e.Chain)
			b.Stepwise = !b.AtOnce
		}
	}
	r.Create(b, before)
	deleteChains(b, gone, Missing(before.Counters, r.Counters))
	return gone
}

// turned reports whether a chain has other rules than before: a base chain that came into use, is
// used no more, or leads to other chains.
func (c refCounted) turned(old refCounted) bool {
	known := len(old.Chain.Rules) == old.Rules
	return c.Rules != old.Rules || c.Hook != nil && known && !c.SameRules(old.Chain)
}

// Missing are the keys of one map that another has not.
func Missing[V, W any](from map[string]V, in map[string]W) (names []string) {
	for name := range from {
		if _, ok := in[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}
