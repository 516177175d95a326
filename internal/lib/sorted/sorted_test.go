package sorted

import (
	"cmp"
	"slices"
	"testing"
)

// A list stays sorted, and has no element twice, whatever is set.
func TestSet(t *testing.T) {
	var list []int
	set := func(n int, there bool, want ...int) {
		t.Helper()
		if list = Set(list, n, there, cmp.Compare); !slices.Equal(list, want) {
			t.Errorf("%v, want %v", list, want)
		}
	}
	set(2, false)
	set(2, true, 2)
	set(3, true, 2, 3)
	set(1, true, 1, 2, 3)
	set(2, true, 1, 2, 3)
	set(2, false, 1, 3)
	set(2, false, 1, 3)
	set(1, false, 3)
	set(3, false)
}
