package nft

import (
	"net/netip"
	"slices"
)

// EachInterval yields those of the prefixes that are of the family as the two ends of an interval
// each. Prefixes inside others are left out, as intervals may not overlap.
func EachInterval(f Family, s *Set, prefixes []netip.Prefix, yield func(*Element)) {
	for _, c := range disjoint(prefixes) {
		if c.Addr().BitLen() != f.Bits {
			continue
		}
		e := Element{Set: s}
		e.Append(f.Addr(c.Masked().Addr())...)
		yield(&e)
		// An interval without an end goes up to the last address.
		if next := LastAddr(c).Next(); next.IsValid() {
			e := Element{Set: s}
			e.Append(f.Addr(next)...)
			e.IntervalEnd = true
			yield(&e)
		}
	}
}

// disjoint are the prefixes without those that lie in others, in order.
func disjoint(prefixes []netip.Prefix) []netip.Prefix {
	sorted := slices.SortedFunc(slices.Values(prefixes), netip.Prefix.Compare) // one that holds others comes before them
	kept := sorted[:0]
	for _, c := range sorted {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(c) {
			kept = append(kept, c)
		}
	}
	return kept
}

// LastAddr is the last address of a prefix.
func LastAddr(c netip.Prefix) netip.Addr {
	b := c.Masked().Addr().AsSlice()
	for i := c.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
