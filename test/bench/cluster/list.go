package cluster

import (
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"

	"sluice.dev/sluice/test/bench/inject"
)

// A block list's addresses are scattered over 32.0.0.0/3 and have an even first byte. Addresses
// that it does not hold lie between them and have an odd one, so that no lookup can tell the two
// apart early.
var (
	listBase  = netip.MustParseAddr("32.0.0.0")
	otherBase = netip.MustParseAddr("33.0.0.0")
)

// listBits are those that differ between the addresses of a list.
const listBits = 0x1effffff

// Unlisted are datagrams from random addresses that no list holds.
var Unlisted = inject.Origin{Base: otherBase, Scatter: listBits, UDP: true}

// Addresses is a list of n random single addresses, sorted. It is the same every time.
func Addresses(n int) []netip.Prefix {
	return newList(rand.New(rand.NewPCG(1, uint64(n))), n, func(int) int { return 32 })
}

// shortest is the widest network of a list of networks: with single addresses that makes twenty
// lengths.
const shortest = 13

// Networks is a list of n random networks, sorted, as public block lists have them: two thirds or
// so are single addresses, the others of each length from 13 bits on, the wide ones few. It is the
// same every time.
func Networks(n int) []netip.Prefix {
	return newList(rand.New(rand.NewPCG(2, uint64(n))), n, func(have int) int {
		for bits := shortest; bits < 32; bits++ {
			have -= min(n/56, 1<<(bits-8))
			if have < 0 {
				return bits
			}
		}
		return 32
	})
}

// newList draws n networks; length says how long the next prefix is, by how many there are.
func newList(random *rand.Rand, n int, length func(have int) int) []netip.Prefix {
	seen := make(map[netip.Prefix]bool, n)
	list := make([]netip.Prefix, 0, n)
	for len(list) < n {
		a := nth(netip.PrefixFrom(listBase, 3), int(random.Uint32()&listBits))
		p := netip.PrefixFrom(a, length(len(list))).Masked()
		if !seen[p] {
			seen[p] = true
			list = append(list, p)
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return list
}

// Entry is how people write a network: a single address without its length.
func Entry(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// WriteEntries writes a list as a text file has it, one entry a line.
func WriteEntries(w io.Writer, list []netip.Prefix) error {
	var b []byte
	for _, p := range list {
		b = append(append(b, Entry(p)...), '\n')
	}
	_, err := w.Write(b)
	return err
}
