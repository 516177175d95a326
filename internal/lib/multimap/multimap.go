// Package multimap adds to and takes from maps whose values are sets.
package multimap

// Add puts a value into the set of a key.
func Add[S ~map[T]struct{}, K, T comparable](x map[K]S, key K, t T) {
	set := x[key]
	if set == nil {
		set = S{}
		x[key] = set
	}
	set[t] = struct{}{}
}

// Remove takes a value out of the set of a key, which goes with its last value.
func Remove[S ~map[T]struct{}, K, T comparable](x map[K]S, key K, t T) {
	set := x[key]
	delete(set, t)
	if len(set) == 0 {
		delete(x, key)
	}
}
