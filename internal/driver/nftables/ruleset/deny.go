package ruleset

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// This file is about deny lists, which every packet that arrives is looked up in. Exact addresses
// have a set of their own, with nothing but the address as the key and of a size that the kernel is
// told beforehand: it makes a plain table of that then, which is faster to fill and to look up than
// one that grows. A list that outgrows its set gets another one, in the same transaction.

// DeniedSets are the sets of addresses, of IPv4 and IPv6.
func (rs *Ruleset) DeniedSets() [2]*nft.Set {
	return [2]*nft.Set{rs.Families[0].Policy.denied, rs.Families[1].Policy.denied}
}

// DenySets are all that the rules of deny lists look up.
func (rs *Ruleset) DenySets() []*nft.Set {
	var all []*nft.Set
	for _, fp := range rs.Families {
		all = append(all, fp.Policy.denied, fp.Policy.members)
	}
	return all
}

// DeniedSetsFor are the sets that the addresses need: the present ones where their size is right.
func (rs *Ruleset) DeniedSetsFor(prefixes []netip.Prefix) [2]*nft.Set {
	var count [2]int
	for _, c := range prefixes {
		if c.IsSingleIP() {
			count[FamilyIndex(c)]++
		}
	}
	sets := rs.DeniedSets()
	for i, n := range count {
		if sets[i].Size != deniedSize(n) {
			id := sets[i].ID
			sets[i] = newDeniedSet(rs.Families[i].IP, n)
			sets[i].ID = id
		}
	}
	return sets
}

// SetDenied replaces the sets of denied addresses by those of the same number.
func (rs *Ruleset) SetDenied(sets []*nft.Set) {
	for _, s := range sets {
		for _, fp := range rs.Families {
			if fp.Policy.denied.ID == s.ID {
				fp.Policy.denied = s
			}
		}
		rs.Sets[s.ID-1] = s
	}
}

// resized reports whether the set is one whose size and name depend on its content.
func (rs *Ruleset) resized(s *nft.Set) bool {
	return rs.Policy != nil && (s == rs.Families[0].Policy.denied || s == rs.Families[1].Policy.denied)
}

// FamilyIndex is the place of the family of a prefix in arrays of two.
func FamilyIndex(c netip.Prefix) int {
	if c.Addr().Is4() {
		return 0
	}
	return 1
}

// DeniedElement is what a prefix of a deny list becomes. It is written into e, as lists are long.
// Networks have the number zero, which no list has.
func (rs *Ruleset) DeniedElement(sets [2]*nft.Set, e *nft.Element, c netip.Prefix) *nft.Element {
	if !c.IsSingleIP() {
		return rs.ListElement(e, 0, c)
	}
	i := FamilyIndex(c)
	*e = nft.Element{Set: sets[i]}
	e.Append(rs.Families[i].IP.Addr(c.Addr())...)
	return e
}

// DeniedPrefixes are those of all deny lists, sorted and unique.
func DeniedPrefixes(d state.Denied) []netip.Prefix {
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

// DenyChain is DenyChainFor the present sets.
func (rs *Ruleset) DenyChain(d state.Denied) nft.Chain { return rs.DenyChainFor(d, rs.DeniedSets()) }

// prefixLengths are the lengths that occur, by family.
func prefixLengths(d state.Denied) (lengths [2][129]bool) {
	for _, l := range d.Lists {
		for _, c := range l.Prefixes {
			lengths[FamilyIndex(c)][c.Bits()] = true
		}
	}
	return lengths
}
