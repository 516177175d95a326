package upkeep

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/state"
)

// This file is about connections that have an address of the node's in place of their client's. Of
// one that is masqueraded, the kernel deletes the entry when the address goes.

// sourcesNow are the addresses that the kernel gives connections of services.
func (d *Driver) sourcesNow() (list []state.SNAT) {
	d.Held(func(s *state.State) {
		if s.Services != nil {
			list = s.Services.Settings.SNAT
		}
	})
	return list
}

// lost are the addresses that were given and are not any more. That of a tunnel is among the node's
// pods' addresses, and answers to it arrive by whatever way these do.
func lost(before, after []state.SNAT) (gone []netip.Addr) {
	for _, s := range before {
		still := func(o state.SNAT) bool { return o.Addr == s.Addr }
		if !state.IsTunnel(s.Device) && !slices.ContainsFunc(after, still) {
			gone = append(gone, s.Addr)
		}
	}
	return gone
}

// sentFrom reports whether a connection was given one of the addresses.
func sentFrom(f conntrack.Flow, addrs []netip.Addr) bool {
	return f.Reply.Dst.Addr() != f.Orig.Src.Addr() && slices.Contains(addrs, f.Reply.Dst.Addr())
}
