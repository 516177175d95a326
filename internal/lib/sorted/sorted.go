// Package sorted keeps lists in order.
package sorted

import "slices"

// Set has a list, in the order of compare, hold an element or not hold it, and returns the list. It
// changes the list in place.
func Set[T any](list []T, element T, there bool, compare func(a, b T) int) []T {
	i, has := slices.BinarySearchFunc(list, element, compare)
	switch {
	case there && !has:
		return slices.Insert(list, i, element)
	case !there && has:
		return slices.Delete(list, i, i+1)
	}
	return list
}
