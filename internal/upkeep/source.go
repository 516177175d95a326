package upkeep

import (
	"context"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/conntrack"
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

// cutLost deletes, in the background, the entries of connections that have an address which the
// node does not have any more: the next packet of a flow gets another one, where answers would not
// find the way back.
func (d *Driver) cutLost(gone []netip.Addr) {
	if len(gone) == 0 {
		return
	}
	d.background.Go(func() {
		ctx, cancel := context.WithTimeout(d.life, sweepTime)
		defer cancel()
		has, err := d.links.Addresses()
		for _, a := range has {
			gone = slices.DeleteFunc(gone, func(g netip.Addr) bool { return g == a.Prefix.Addr() })
		}
		n := 0
		if err == nil && len(gone) > 0 {
			n, err = d.ct.Sweep(ctx, func(f conntrack.Flow) bool { return sentFrom(f, gone) })
		}
		if err != nil && d.life.Err() == nil {
			d.log.Warn("could not cut connections that have an address which the node has lost; they may hang until they time out", "addresses", gone, "error", err)
		} else if n > 0 {
			d.log.Info("cut connections that have an address which the node has lost", "addresses", gone, "connections", n)
		}
	})
}

// sentFrom reports whether a connection was given one of the addresses.
func sentFrom(f conntrack.Flow, addrs []netip.Addr) bool {
	return f.Reply.Dst.Addr() != f.Orig.Src.Addr() && slices.Contains(addrs, f.Reply.Dst.Addr())
}
