package store

import (
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// NodeNames returns the names of all nodes, sorted.
func (v *View) NodeNames() []string { return slices.Sorted(maps.Keys(v.nodes)) }

// AddressLists returns the number of entries of each address list, by its name.
func (v *View) AddressLists() map[string]int {
	n := map[string]int{}
	for key, set := range v.networkSets {
		if key.Kind == model.AddressList {
			n[key.Name.Name] = len(set.Nets)
		}
	}
	return n
}
