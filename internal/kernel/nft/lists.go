package nft

import (
	"maps"
	"net/netip"
	"slices"
)

// This file is about lists of networks, such as those of pods. A list is a hash set of networks
// under their lengths, and where it is asked for stands a rule for each length that occurs in it.
// The kernel's sets of intervals miss addresses while one is written anew, before Linux 7.0
// (docs/decisions/0039-no-look-up-may-miss.md).

// NewList returns the set of a list of networks of the family, without a number.
func NewList(f Family, name, comment string) *Set {
	return &Set{Name: f.Name + "-" + name, Key: []Field{Number, f.Saddr}, Typeof: true, Early: true, Comment: "length . network: " + comment}
}

// Lists are the networks of lists. One that is not named is empty.
type Lists map[*Set][]netip.Prefix

// Put sets a list to those of the prefixes that are of its family and lie in no other one.
func (l Lists) Put(f Family, list *Set, prefixes []netip.Prefix) {
	var kept []netip.Prefix
	for _, c := range slices.SortedFunc(slices.Values(prefixes), netip.Prefix.Compare) { // one that holds others comes before them
		if c.Addr().BitLen() == f.Bits && (len(kept) == 0 || !kept[len(kept)-1].Overlaps(c)) {
			kept = append(kept, c.Masked())
		}
	}
	l[list] = kept
}

// Elements yields what the lists hold.
func (l Lists) Elements(yield func(*Element)) {
	for _, s := range slices.SortedFunc(maps.Keys(l), func(a, b *Set) int { return int(a.ID) - int(b.ID) }) {
		for _, c := range l[s] {
			e := Element{Set: s}
			e.AppendUint32(uint32(c.Bits()))
			e.Append(c.Addr().AsSlice()...)
			yield(&e)
		}
	}
}

// Rules are one for each length that occurs in the list: what then makes of r, which goes on if the
// field is in a network of that length.
func (l Lists) Rules(r Rule, list *Set, f Field, then func(Rule) Rule) (rules []Rule) {
	var lengths [129]bool
	for _, c := range l[list] {
		lengths[c.Bits()] = true
	}
	for bits, occurs := range lengths {
		if occurs {
			rules = append(rules, then(r.Lookup(uint32(bits), list, false, Masked(f, bits))))
		}
	}
	return rules
}
