package nftables

// localSlots is where the slots of backends for outside clients of
// externalTrafficPolicy Local begin; below are those for everybody else.
const localSlots = 1 << 17

// ladder holds the size classes: pick chains exist for these sizes and no
// others. A step is a half or a third, so that from four on at least two slots in three are
// filled.
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

// tries is how often a pick chain of the class draws before it takes slot 0.
// Classes up to four are always full. At two thirds, eight misses in a row come
// once in 6,500 draws.
func tries(size int) int {
	if size <= 4 {
		return 1
	}
	return 8
}
