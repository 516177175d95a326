package store

import (
	"slices"

	"sluice.dev/sluice/internal/model"
)

// NodeNames returns the names of all nodes, sorted.
func (v *View) NodeNames() []string {
	names := make([]string, 0, len(v.objects[model.NodeKind]))
	for name := range v.objects[model.NodeKind] {
		names = append(names, name.Name)
	}
	slices.Sort(names)
	return names
}

// AddressLists returns the number of entries of each address list, by its name.
func (v *View) AddressLists() map[string]int {
	n := map[string]int{}
	for name, set := range v.objects[model.AddressList] {
		n[name.Name] = len(set.(*model.NetworkSet).Nets)
	}
	return n
}
