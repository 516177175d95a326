package nft

import (
	"cmp"
	"fmt"

	"golang.org/x/sys/unix"
)

// MayMiss reports whether this kernel may miss a key of a map that is deleted and added in one
// transaction, that is: whose value changes (fixed by b2f742c8 of Linux 6.17, 6.16.8 and 6.12.48).
// A look-up that began before the transaction took effect finds the old element gone, and does not
// see the new one yet. One that begins then does, so rules of such kernels look up maps again where
// they found nothing. Maps of ranges show no new element before all of the transaction is carried
// out: for those, others stand in, see Batch.Replace.
func MayMiss() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return true
	}
	return misses(unix.ByteSliceToString(u.Release[:]))
}

// misses reports whether the kernel of a release does.
func misses(release string) bool {
	var major, minor, patch int
	if n, _ := fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch); n < 2 {
		return true
	}
	switch is := func(n int) bool { return major == 6 && minor == n }; {
	case is(12):
		return patch < 48
	case is(16):
		return patch < 8
	}
	return cmp.Or(cmp.Compare(major, 6), cmp.Compare(minor, 17)) < 0
}

// LookAgain has rules that end with what a map holds stand twice in their chains, the second time
// for the map that stands in. Chains for kernels that miss no key stay as they are.
func LookAgain(mayMiss bool, chains ...Chain) []Chain {
	if !mayMiss {
		return chains
	}
	for i, c := range chains {
		chains[i].Rules = nil
		for _, r := range c.Rules {
			chains[i].Rules = append(chains[i].Rules, r)
			switch {
			case r.standIn != nil:
				chains[i].Rules = append(chains[i].Rules, *r.standIn)
			case r.ends:
				chains[i].Rules = append(chains[i].Rules, r)
			}
		}
	}
	return chains
}
