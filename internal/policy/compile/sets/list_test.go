package sets

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// What is left of networks holds the addresses that are in one of them and in no exception, and no
// others.
func TestWithout(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	prefix := func(v6 bool) netip.Prefix {
		if v6 {
			return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 15: byte(r.UintN(256))}), 116+r.IntN(13)).Masked()
		}
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(r.UintN(256))}), 20+r.IntN(13)).Masked()
	}
	holds := func(list []netip.Prefix, a netip.Addr) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for range 500 {
		var nets, except []netip.Prefix
		for range 1 + r.IntN(3) {
			nets = append(nets, prefix(r.IntN(2) == 0))
		}
		for range r.IntN(6) {
			except = append(except, prefix(r.IntN(2) == 0))
		}
		left := without(nets, except)
		for i := range 256 {
			for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.AddrFrom4([4]byte{10, 0, 4, byte(i)}), netip.AddrFrom16([16]byte{0xfd, 15: byte(i)})} {
				if want := holds(nets, a) && !holds(except, a); holds(left, a) != want {
					t.Fatalf("%v without %v are %v: %s is in it: %v", nets, except, left, a, !want)
				}
			}
		}
	}
}
