package program

import "slices"

// ladder holds the size classes: pick chains exist for these sizes and no
// others. A step is a half or a third, so that at least two slots in three are filled.
var ladder = makeLadder(1 << 16)

func makeLadder(largest int) []int {
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
// program. More backends than the largest class holds are the compiler's to refuse.
func class(n int) int {
	for _, size := range ladder {
		if size >= n {
			return size
		}
	}
	return ladder[len(ladder)-1]
}

// tries is how often a pick chain of the class draws before it takes slot 0: so
// often that, with the fewest backends that the class can have, slot 0 gets at
// most a fiftieth more than its share. Every rule counts: the kernel walks them all
// for each frontend when a verdict changes.
func tries(size int) int {
	i := slices.Index(ladder, size)
	fewest := 1
	if i > 0 {
		fewest = ladder[i-1] + 1
	}
	t, missed := 1, 1-float64(fewest)/float64(size)
	for p := missed; p*float64(fewest) > 0.02; p *= missed {
		t++
	}
	return t
}
