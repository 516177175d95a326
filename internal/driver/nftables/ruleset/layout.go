package ruleset

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// layout assigns each backend to a slot of the frontend's size class; empty
// slots hold the zero AddrPort. Slot 0 is never empty.
//
// It is a function of the set of backends alone: linear probing in which the smaller
// hash wins a contested slot, whose outcome does not depend on the order of insertion
// (Amble and Knuth, Ordered hash tables, 1974). So a restarted agent arrives at the slots that
// it finds in the kernel, and a change of one backend moves few others
// as long as the class stays.
func layout(backends []netip.AddrPort) []netip.AddrPort {
	if len(backends) == 0 {
		return nil
	}
	size := class(len(backends))
	slots := make([]netip.AddrPort, size)
	if size == 1 {
		slots[0] = backends[0]
		return slots
	}
	hashed := make([]hashedBackend, 0, size)
	for _, b := range backends[:min(len(backends), size)] {
		hashed = append(hashed, hashedBackend{hashBackend(b), b})
	}
	slices.SortFunc(hashed, func(a, b hashedBackend) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), a.addr.Compare(b.addr))
	})
	// The smallest hash takes slot 0, the others probe the rest. As they come in the
	// order of their hashes, none is ever displaced.
	slots[0] = hashed[0].addr
	rest := uint64(size - 1)
	for _, h := range hashed[1:] {
		i := (h.hash >> 8) % rest
		for slots[1+i].IsValid() {
			i = (i + 1) % rest
		}
		slots[1+i] = h.addr
	}
	return slots
}

type hashedBackend struct {
	hash uint64
	addr netip.AddrPort
}

func hashBackend(b netip.AddrPort) uint64 {
	var buf [18]byte
	a := b.Addr().As16()
	copy(buf[:], a[:])
	binary.BigEndian.PutUint16(buf[16:], b.Port())
	return xxhash.Sum64(buf[:])
}

// sizeClasses holds the size classes: pick chains exist for these sizes and no
// others. A step is a half or a third, so that at least two slots in three are filled.
var sizeClasses = makeSizeClasses(1 << 16)

func makeSizeClasses(largest int) []int {
	l := []int{1, 2, 3}
	for n := 4; n <= largest; n *= 2 {
		l = append(l, n)
		if n < largest {
			l = append(l, n+n/2)
		}
	}
	return l
}

// smallClass is the largest of the small size classes.
const smallClass = 64

// class is the smallest size class that holds n backends, n ≥ 1. It depends on
// n alone, not on what was before: an agent that restarts comes to the same
// verdict. More backends than the largest class holds are the compiler's to refuse.
func class(n int) int {
	for _, size := range sizeClasses {
		if size >= n {
			return size
		}
	}
	return sizeClasses[len(sizeClasses)-1]
}

// tries is how often a pick chain of the class draws before it takes slot 0: so
// often that, with the fewest backends that the class can have, slot 0 gets at
// most a fiftieth more than its share. Every rule counts: the kernel walks them all
// for each frontend when a verdict changes.
func tries(size int) int {
	i := slices.Index(sizeClasses, size)
	fewest := 1
	if i > 0 {
		fewest = sizeClasses[i-1] + 1
	}
	t, missed := 1, 1-float64(fewest)/float64(size)
	for p := missed; p*float64(fewest) > 0.02; p *= missed {
		t++
	}
	return t
}
