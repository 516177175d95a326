package ruleset

import (
	"net/netip"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// This file is about loadBalancerSourceRanges. They are in a hash set, with their lengths: from a
// set of intervals the kernel removes ranges in quadratic time. A packet is looked up once for each
// length, so there are few lengths: a range of another length is written as several networks of the
// next longer one.

// sourceStep is the distance between lengths. With 4, a range is eight networks at the most, and a
// miss 8 look-ups in IPv4, 32 in IPv6.
const sourceStep = 4

// sourceLength is the length under which a range is written.
func sourceLength(bits int) int { return max(sourceStep, (bits+sourceStep-1)/sourceStep*sourceStep) }

// sourceLengths are all lengths, the most frequent ones first.
func sourceLengths(f nft.Family) (lengths []int) {
	for _, step := range []int{16, 8, 4} {
		for bits := f.Bits; bits > 0; bits -= step {
			if step == 16 || bits%(2*step) != 0 {
				lengths = append(lengths, bits)
			}
		}
	}
	return lengths
}

// SourceElements yields the source ranges of a frontend.
func (rs *Ruleset) SourceElements(k state.FrontendKey, f *state.Frontend, yield func(*nft.Element)) {
	for _, c := range f.SourceRanges {
		rs.rangeElements(k, c, yield)
	}
}

// rangeElements yields a range of sources that may reach the frontend.
func (rs *Ruleset) rangeElements(k state.FrontendKey, c netip.Prefix, yield func(*nft.Element)) {
	fp := rs.Family(k.Addr.Is4())
	if !fp.holds(c.Addr()) {
		return
	}
	bits := sourceLength(c.Bits())
	addr := fp.IP.Addr(c.Addr())
	last := addr[(bits-1)/8] // what varies is within one byte
	for n := range 1 << (bits - c.Bits()) {
		addr[(bits-1)/8] = last | byte(n)<<((8-bits%8)%8)
		e := nft.Element{Set: fp.Sources}
		e.AppendUint32(uint32(bits))
		e.AppendDestination(fp.IP, k.Addr, uint8(k.Protocol), k.Port)
		e.Append(addr...)
		yield(&e)
	}
}
