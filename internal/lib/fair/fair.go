// Package fair decides who may have something of which there is not enough for all that ask, so
// that nobody goes without for those who ask for more.
package fair

import (
	"cmp"
	"iter"
	"slices"
)

// Bound is a limit: what is over Most is refused until it comes to no more than Again, so that what
// is at the limit does not come and go with every little.
type Bound struct{ Most, Again int }

// Limit is what holds for what is refused, or is not.
func (b Bound) Limit(refused bool) int {
	if refused {
		return b.Again
	}
	return b.Most
}

// Turns sorts those who ask by the order in which they may have what they ask for: each counts for
// that and for what the lesser ones of its namespace ask for, and the least comes first. So a
// namespace that asks for much with many small ones loses the larger of these, and no other's. What
// several ask for under one key counts once in a namespace. Compare tells those apart that ask for
// the same.
func Turns[T any](all []T, namespace func(T) string, asked func(T) iter.Seq2[string, int], compare func(a, b T) int) []T {
	type turn struct {
		who  T
		size int // by itself
		sum  int
	}
	byNamespace := map[string][]turn{}
	for _, who := range all {
		t := turn{who: who}
		for _, size := range asked(who) {
			t.size += size
		}
		byNamespace[namespace(who)] = append(byNamespace[namespace(who)], t)
	}
	turns := make([]turn, 0, len(all))
	for _, list := range byNamespace {
		slices.SortFunc(list, func(a, b turn) int { return cmp.Or(cmp.Compare(a.size, b.size), compare(a.who, b.who)) })
		known, sum := map[string]struct{}{}, 0
		for i := range list {
			for key, size := range asked(list[i].who) {
				if _, again := known[key]; !again {
					known[key] = struct{}{}
					sum += size
				}
			}
			list[i].sum = sum
		}
		turns = append(turns, list...)
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Or(cmp.Compare(a.sum, b.sum), compare(a.who, b.who)) })
	sorted := make([]T, len(turns))
	for i := range turns {
		sorted[i] = turns[i].who
	}
	return sorted
}
