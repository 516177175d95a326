package nftables

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/driver/nftables/nft"
	"sluice.dev/sluice/internal/state"
)

// This file is about deny lists, which every packet that arrives is looked up in. Exact addresses
// have a set of their own, with nothing but the address as the key and of a size that the kernel is told
// beforehand: it makes a plain table of that then, which is faster to fill and to look up than one that grows. A
// list that outgrows its set gets another one, in the same transaction.

// smallestDenied is the size of the set for the shortest lists.
const smallestDenied = 1024

// deniedSize is the size of the set for so many addresses: a power of two.
func deniedSize(n int) uint32 {
	if n <= smallestDenied {
		return smallestDenied
	}
	return 1 << bits.Len(uint(n-1))
}

func newDeniedSet(f nft.Family, addresses int) *nft.Set {
	size := deniedSize(addresses)
	return &nft.Set{Name: fmt.Sprintf("%s-denied-%d", f.Name, size), Size: size, Key: []nft.Field{f.Saddr},
		Comment: "addresses on deny lists; networks are in " + f.Name + "-members, with numbers up to 128"}
}

// deniedSets are the sets of addresses, of IPv4 and IPv6.
func (p *program) deniedSets() [2]*nft.Set {
	return [2]*nft.Set{p.fam[0].policy.denied, p.fam[1].policy.denied}
}

// deniedSetsFor are those that the addresses need: those that are there, where their size is right.
func (p *program) deniedSetsFor(prefixes []netip.Prefix) [2]*nft.Set {
	var count [2]int
	for _, c := range prefixes {
		if c.IsSingleIP() {
			count[familyIndex(c)]++
		}
	}
	sets := p.deniedSets()
	for i, n := range count {
		if sets[i].Size != deniedSize(n) {
			id := sets[i].ID
			sets[i] = newDeniedSet(p.fam[i].ip, n)
			sets[i].ID = id
		}
	}
	return sets
}

// setDenied makes sets the program's own.
func (p *program) setDenied(sets []*nft.Set) {
	for _, s := range sets {
		for _, fp := range p.fam {
			if fp.policy.denied.ID == s.ID {
				fp.policy.denied = s
			}
		}
		p.sets[s.ID-1] = s
	}
}

// resized reports whether the set is one whose size, and name, go with what it holds.
func (p *program) resized(s *nft.Set) bool {
	return p.policy != nil && (s == p.fam[0].policy.denied || s == p.fam[1].policy.denied)
}

func familyIndex(c netip.Prefix) int {
	if c.Addr().Is4() {
		return 0
	}
	return 1
}

// deniedElement writes into e, as lists are long. The number of no list is free for the networks that deny lists hold.
func (p *program) deniedElement(sets [2]*nft.Set, e *nft.Element, c netip.Prefix) *nft.Element {
	if !c.IsSingleIP() {
		return p.listElement(e, 0, c)
	}
	i := familyIndex(c)
	*e = nft.Element{Set: sets[i]}
	e.Append(p.fam[i].ip.Addr(c.Addr())...)
	return e
}

// deniedPrefixes are those of all deny lists, sorted and unique.
func deniedPrefixes(d state.Denied) []netip.Prefix {
	if len(d.Lists) == 1 {
		return d.Lists[0].Prefixes
	}
	var all []netip.Prefix
	for _, l := range d.Lists {
		all = append(all, l.Prefixes...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// deniedRulings yields the chains that drop what comes from the denied addresses, where it arrives. Every packet pays
// for them, so there is no chain in between, and no rule for what is in no list.
func (p *program) deniedRulings(d state.Denied, sets [2]*nft.Set, yield useChain) {
	var rules []nft.Rule
	lengths := prefixLengths(deniedPrefixes(d))
	for i, fp := range p.fam {
		f := fp.ip
		for bits := f.Bits; bits >= 0; bits-- {
			switch {
			case !lengths[i][bits]:
			case bits == f.Bits:
				rules = append(rules, nft.NewRule("").Family(f).In([]nft.Field{f.Saddr}, sets[i]).Goto(dropChain(state.DropDenyList)))
			default:
				rules = append(rules, nft.NewRule("").Family(f).Lookup(uint32(listID(0, uint8(bits))), fp.policy.members, false, nft.Masked(f.Saddr, bits)).Goto(dropChain(state.DropDenyList)))
			}
		}
	}
	if len(rules) == 0 {
		return
	}
	for _, device := range d.Devices {
		at := nft.Chain{
			// An interface that is made anew under its name is another one: the old one took its hook along.
			Name:    fmt.Sprintf("deny-%d-%s-%s", device.Index, digestName(device.Name), digestRules(rules)),
			Hook:    nft.IngressHook(device.Name, -500),
			Comment: truncate("deny lists at " + device.Name),
			Rules:   rules,
		}
		yield(at.Name, func() *ruling { return &ruling{Chain: at} })
	}
}

// prefixLengths are the lengths that occur, by family.
func prefixLengths(prefixes []netip.Prefix) (lengths [2][129]bool) {
	for _, c := range prefixes {
		lengths[familyIndex(c)][c.Bits()] = true
	}
	return lengths
}

// deny plans a change of deny lists: the difference of their content, and where a set has another size now, all of it.
func (c *change) deny(before, after state.Denied) {
	p := c.d.prog
	was, now := deniedPrefixes(before), deniedPrefixes(after)
	sets, next := p.deniedSets(), p.deniedSetsFor(now)
	e := new(nft.Element)
	moves := func(c netip.Prefix) bool { return c.IsSingleIP() && sets[familyIndex(c)] != next[familyIndex(c)] }
	diffPrefixes(was, now, func(x netip.Prefix) {
		if !moves(x) {
			c.remove(p.deniedElement(sets, e, x))
		}
	}, func(x netip.Prefix) {
		if !moves(x) {
			c.add(p.deniedElement(next, e, x))
		}
	})
	p.deniedRulings(after, next, c.use)
	p.deniedRulings(before, sets, c.release)
	for i := range sets {
		if sets[i] != next[i] {
			c.batch.AddSet(next[i])
			c.sets, c.gone = append(c.sets, next[i]), append(c.gone, sets[i])
			c.sums[next[i].ID] = sum{}
		}
	}
	if c.sets == nil {
		return
	}
	for _, x := range now {
		if moves(x) {
			c.add(p.deniedElement(next, e, x))
		}
	}
}
