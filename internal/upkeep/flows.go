package upkeep

import (
	"context"
	"net/netip"

	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/state"
)

// Flows counts the entries of connection tracking that lead from each of the frontends to each
// backend, whether it still is one or not; those of connections that have just ended are among
// them. Safe for concurrent use.
func (d *Driver) Flows(ctx context.Context, frontends []state.FrontendKey) (map[state.FrontendKey]map[netip.AddrPort]int, error) {
	filters, counts := make([]conntrack.Filter, 0, len(frontends)), map[state.FrontendKey]map[netip.AddrPort]int{}
	for _, k := range frontends {
		filters = append(filters, conntrack.Filter{Protocol: k.Protocol, Frontend: netip.AddrPortFrom(k.Addr, k.Port)})
		counts[k] = map[netip.AddrPort]int{}
	}
	err := d.ct.Each(ctx, filters, func(f *conntrack.Flow) {
		counts[state.FrontendKey{Addr: f.Orig.Dst.Addr(), Protocol: f.Protocol, Port: f.Orig.Dst.Port()}][f.Reply.Src]++
	})
	return counts, err
}
