package farm

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// arrival are the interfaces that packets from clients may arrive by.
func arrival(l model.Links) (indexes []int) {
	for _, link := range l.Links {
		if slices.ContainsFunc(link.Addresses, func(a netip.Addr) bool { return !a.IsLoopback() }) {
			indexes = append(indexes, link.Index)
		}
	}
	return indexes
}

// device returns the interface by which an address is reached directly, 0: none: that of the
// longest prefix which has it.
func (c *Compiler) device(a netip.Addr) (index int) { return Device(c.links, a) }

// Device returns the interface by which an address is reached directly, 0: none.
func Device(l model.Links, a netip.Addr) (index int) {
	bits := -1
	if slices.Contains(l.Local, a) {
		return 0
	}
	for _, r := range l.Routes {
		if r.Prefix.Contains(a) && r.Prefix.Bits() > bits {
			index, bits = r.Link, r.Prefix.Bits()
		}
	}
	return index
}

// Issues says which backends get nothing though they could, sorted by farm.
func (c *Compiler) Issues() (list []model.Issue) {
	for _, name := range slices.Sorted(maps.Keys(c.distant)) {
		f := c.now.Farms[name]
		for i, device := range f.Devices {
			if b := f.Backends[i]; device == 0 {
				list = append(list, f.Ref().Issue(fmt.Sprintf("backend %s (%s) is not on a network of this machine, which dsr needs", b.Name, b.Addr)))
			}
		}
	}
	return list
}
