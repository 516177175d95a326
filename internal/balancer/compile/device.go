package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
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

// device returns the interface by which packets are sent to a backend, 0: none. Where no interface
// leads to it directly, it is a tunnel's.
func (c *Compiler) device(a netip.Addr) (index int) {
	index = Device(c.links, a)
	if index == 0 && c.Refused(a) == "" {
		index, _ = state.FarmTunnel(a)
	}
	return index
}

// Refused says why packets are not sent in IPIP to an address that no interface leads to directly;
// "": they are.
func (c *Compiler) Refused(a netip.Addr) string {
	switch {
	case slices.Contains(c.links.Local, a) || a.IsLoopback():
		return "is this machine itself, which dsr does not send to"
	case !a.Is4():
		return "is not on a network of this machine, which dsr needs for IPv6"
	case c.ipip == nil:
		return ""
	}
	if err := c.ipip(); err != nil {
		return fmt.Sprintf("is not on a network of this machine, and dsr cannot send to others: modprobe sit (%v)", err)
	}
	return ""
}

// Device returns the interface by which an address is reached directly, 0: none: that of the
// longest prefix which has it.
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
	for _, name := range slices.Sorted(maps.Keys(c.unreached)) {
		f := c.now.Farms[name]
		for i, device := range f.Devices {
			if b := f.Backends[i]; device == 0 {
				list = append(list, f.Ref().Issue(fmt.Sprintf("backend %s (%s) %s", b.Name, b.Addr, c.Refused(b.Addr))))
			}
		}
	}
	return list
}
