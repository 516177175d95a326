package compile

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"sluice.dev/sluice/internal/state"
)

// member is a backend that a table has slots for.
type member struct {
	index  int16  // in the farm's list
	weight int    // its share, or its slots
	key    string // what its places are hashed from
}

// mostSlots bounds the tables of schedulers whose slots are the weights themselves.
const mostSlots = 1024

// mostInRanges is the same for farms that are found by ranges: their slots are in sets of ranges,
// which kernels change in a time that grows with the square of what is changed at once.
const mostInRanges = 64

// shares has the weights be numbers of slots: the smallest in the same proportion, or, where they
// come to more than most, in nearly that. Each member has a slot.
func shares(members []member, most int) []member {
	out := slices.Clone(members)
	divisor, sum := 0, 0
	for _, m := range out {
		divisor, sum = gcd(m.weight, divisor), sum+m.weight
	}
	for i := range out {
		out[i].weight /= max(divisor, 1)
	}
	if sum /= max(divisor, 1); sum <= most {
		return out
	}
	for i := range out {
		out[i].weight = max(1, int(int64(out[i].weight)*int64(most)/int64(sum)))
	}
	return out
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// drawn is the table of schedulers that draw a slot, and another one where it is empty: the slots
// of those that serve come in turns, so that a counter spreads connections evenly. With less than
// half of the slots in use, the table has none that are empty.
func drawn(all, up []member) []int16 {
	table := interleave(all)
	if used := vacate(table, up); 2*used < len(table) {
		return slices.DeleteFunc(table, func(s int16) bool { return s == state.Empty })
	}
	if table[0] == state.Empty { // the last resort of a draw
		first := slices.IndexFunc(table, func(s int16) bool { return s != state.Empty })
		table[0], table[first] = table[first], table[0]
	}
	return table
}

// interleave spreads the slots of each member over the table: in each round those come that are
// furthest behind their share.
func interleave(members []member) []int16 {
	total := 0
	for _, m := range members {
		total += m.weight
	}
	credit := make([]int, len(members))
	table := make([]int16, 0, total)
	for range total {
		best := 0
		for i, m := range members {
			if credit[i] += m.weight; credit[i] > credit[best] {
				best = i
			}
		}
		credit[best] -= total
		table = append(table, members[best].index)
	}
	return table
}

// common has a table of few slots have state.CommonSlots, if it can. Drivers scale hashes to the
// number of slots, so that each slot becomes several beside each other and no flow moves.
func common(table []int16) []int16 {
	if state.CommonSlots%len(table) != 0 {
		return table
	}
	var out []int16
	for _, s := range table {
		out = append(out, slices.Repeat([]int16{s}, state.CommonSlots/len(table))...)
	}
	return out
}

// hashed is the table of schedulers that hash: the slots of a member that does not serve go to
// those that do, each to the one that scores highest for it, in proportion to the weights of none
// (rendezvous hashing, Thaler and Ravishankar, 1996). All others stay.
func hashed(table []int16, up []member) []int16 {
	vacate(table, up)
	for slot, s := range table {
		if s == state.Empty {
			best := slices.MaxFunc(up, func(a, b member) int { return cmp.Compare(score(a, slot), score(b, slot)) })
			table[slot] = best.index
		}
	}
	return table
}

// vacate empties the slots of a table that are of none of the members, and returns how many others
// there are.
func vacate(table []int16, members []member) (used int) {
	serves := map[int16]bool{}
	for _, m := range members {
		serves[m.index] = true
	}
	for i, s := range table {
		if serves[s] {
			used++
		} else {
			table[i] = state.Empty
		}
	}
	return used
}

func score(m member, slot int) uint64 { return xxhash.Sum64String(m.key + " " + strconv.Itoa(slot)) }

// maglevSizes are primes. A table has at least a hundred slots for each backend, so that shares
// differ by a hundredth at the most.
var maglevSizes = []int{251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65537}

func maglevSize(backends int, ranges bool) int {
	each := 100
	if ranges { // see mostInRanges
		each = 4
	}
	for _, size := range maglevSizes {
		if size >= each*backends {
			return size
		}
	}
	return maglevSizes[len(maglevSizes)-1]
}

// maglev is the table of section 3.4 of the Maglev paper. The slots of members that do not serve go
// to those that do, in the same way: all others stay.
func maglev(size int, all, up []member) []int16 {
	table := slices.Repeat([]int16{state.Empty}, size)
	fill(table, size, shares(all, size))
	fill(table, size-vacate(table, up), shares(up, size))
	return table
}

// fill gives the empty slots of a table, of which so many are left, to members: each proposes slots
// in an order of its own, in turns, and takes the first that is free. A member of weight w has w
// turns in a round.
func fill(table []int16, left int, members []member) {
	members = slices.SortedFunc(slices.Values(members), func(a, b member) int { return cmp.Compare(a.key, b.key) })
	size := uint64(len(table))
	next, skip := make([]uint64, len(members)), make([]uint64, len(members))
	for i, m := range members {
		h := xxhash.Sum64String(m.key)
		next[i], skip[i] = h%size, 1+(h>>32)%(size-1)
	}
	for left > 0 {
		for i, m := range members {
			for range min(m.weight, left) {
				for table[next[i]] != state.Empty {
					next[i] = (next[i] + skip[i]) % size
				}
				table[next[i]] = m.index
				left--
			}
		}
	}
}
