package ruleset

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// The lengths that a packet is looked up under are those that ranges are written under, each once.
func TestSourceLengths(t *testing.T) {
	t.Parallel()
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		lengths := sourceLengths(f)
		if len(lengths) != f.Bits/sourceStep {
			t.Errorf("%s: %d lengths: %v", f.Name, len(lengths), lengths)
		}
		for bits := range f.Bits + 1 {
			n := sourceLength(bits)
			if !slices.Contains(lengths, n) || n < bits || n-bits > sourceStep {
				t.Errorf("%s: /%d is written as /%d, of %v", f.Name, bits, n, lengths)
			}
		}
	}
}

// An address is found under one of the lengths exactly if a range holds it, whatever the ranges; no
// two of them share an element.
func TestSourcesAreWhatTheRangesHold(t *testing.T) {
	t.Parallel()
	rs := New(Options{})
	r := rand.New(rand.NewPCG(5, 6))
	for round := range 2000 {
		fp := rs.Families[round%2]
		random := func() netip.Addr {
			b := make([]byte, fp.IP.Bits/8)
			binary.BigEndian.PutUint16(b, uint16(r.Uint32())&0x0f03)
			binary.BigEndian.PutUint16(b[len(b)-2:], uint16(r.Uint32())&0xc0f0)
			a, _ := netip.AddrFromSlice(b)
			return a
		}
		var ranges []netip.Prefix
		for range 1 + r.IntN(6) {
			c := netip.PrefixFrom(random(), r.IntN(fp.IP.Bits+1)).Masked()
			if !slices.ContainsFunc(ranges, c.Overlaps) {
				ranges = append(ranges, c)
			}
		}
		k := state.FrontendKey{Addr: random(), Protocol: model.TCP, Port: 80}
		elements := map[nft.ElementKey]bool{}
		for _, c := range ranges {
			rs.rangeElements(k, c, func(e *nft.Element) {
				if elements[e.ElementKey] {
					t.Fatalf("%v: %v occurs twice", ranges, e)
				}
				if got, ok := rs.Frontend(e); !ok || got != k {
					t.Fatalf("%v is said to be of %v, not of %v", e, got, k)
				}
				elements[e.ElementKey] = true
			})
		}
		for range 20 {
			a, found := random(), false
			for _, bits := range sourceLengths(fp.IP) {
				var e nft.Element
				e.AppendUint32(uint32(bits))
				e.AppendDestination(fp.IP, k.Addr, uint8(k.Protocol), k.Port)
				e.Append(fp.IP.Addr(netip.PrefixFrom(a, bits).Masked().Addr())...)
				found = found || elements[e.ElementKey]
			}
			if want := slices.ContainsFunc(ranges, func(c netip.Prefix) bool { return c.Contains(a) }); found != want {
				t.Fatalf("%v: %v is found: %v, want %v", ranges, a, found, want)
			}
		}
	}
}
