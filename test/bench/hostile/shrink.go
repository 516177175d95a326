package hostile

import (
	"bytes"
	"encoding/json"
	"slices"

	"sluice.dev/sluice/test/bench/cluster"
)

// Fewer returns the fewest files that it can find for which fails is still true.
func Fewer(files []cluster.File, fails func([]cluster.File) bool) []cluster.File {
	return fewer(files, func(some []cluster.File) bool { return len(some) > 0 && fails(some) })
}

// fewer is Fewer for any list.
func fewer[T any](all []T, fails func([]T) bool) []T {
	for part := (len(all) + 1) / 2; part > 0; {
		some := all
		for from := 0; from < len(some); {
			without := slices.Delete(slices.Clone(some), from, min(from+part, len(some)))
			if fails(without) {
				some = without
			} else {
				from += part
			}
		}
		if len(some) == len(all) || part > 1 {
			part /= 2
		}
		part, all = min(part, len(some)), some
	}
	return all
}

// Less removes as much from a file's object as it can find with fails still true.
func Less(f cluster.File, fails func(cluster.File) bool) cluster.File {
	var root object
	read := json.NewDecoder(bytes.NewReader(f.JSON))
	read.UseNumber() // to keep numbers as they are
	if err := read.Decode(&root); err != nil {
		panic(err) // it was made of JSON
	}
	s := &shrinker{file: f, root: root, fails: fails}
	for before := 0; before != len(s.file.JSON); {
		before = len(s.file.JSON)
		for _, part := range []string{"metadata", "spec", "status", "endpoints", "ports"} {
			s.value(root[part], func(v any) { root[part] = v })
		}
	}
	return s.file
}

// shrinker removes parts from an object, one after the other.
type shrinker struct {
	file  cluster.File // the smallest so far
	root  object
	fails func(cluster.File) bool
}

// holds reports whether the present object still fails.
func (s *shrinker) holds() bool {
	f := file(s.file.Name, s.root)
	if len(f.JSON) >= len(s.file.JSON) || !s.fails(f) {
		return false
	}
	s.file = f
	return true
}

// needed are the fields that every object must have.
var needed = []string{"name", "namespace"}

func (s *shrinker) value(v any, set func(any)) {
	switch v := v.(type) {
	case object:
		keys := make([]string, 0, len(v))
		for k := range v {
			if !slices.Contains(needed, k) {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		was := v
		keep := fewer(keys, func(some []string) bool {
			next := object{}
			for k, item := range was {
				if slices.Contains(needed, k) || slices.Contains(some, k) {
					next[k] = item
				}
			}
			set(next)
			if !s.holds() {
				set(was)
				return false
			}
			was = next
			return true
		})
		for _, k := range keep {
			s.value(was[k], func(item any) { was[k] = item })
		}
	case []any:
		was := v
		fewer(v, func(some []any) bool {
			set(some)
			if !s.holds() {
				set(was)
				return false
			}
			was = some
			return true
		})
		for i := range was {
			s.value(was[i], func(item any) { was[i] = item })
		}
	}
}
