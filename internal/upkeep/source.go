package upkeep

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/state"
)

// This file is about connections that have an address of the node in place of their client's. The
// kernel itself deletes the entries of masqueraded ones when the address goes.

// sourcesNow are the addresses that the kernel gives connections of services.
func (d *Driver) sourcesNow() (list []state.SNAT) {
	d.Held(func(s *state.State) {
		if s.Services != nil {
			list = s.Services.Settings.SNAT
		}
	})
	return list
}

// lost are the addresses that connections were given before, and are not given any more. A tunnel's
// address is in the node's range of pods, so answers to it arrive as those to pods do.
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
