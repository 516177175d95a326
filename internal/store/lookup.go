package store

import (
	"maps"
	"slices"
)

// NodeNames returns the names of all nodes, sorted.
func (v *View) NodeNames() []string { return slices.Sorted(maps.Keys(v.nodes)) }
