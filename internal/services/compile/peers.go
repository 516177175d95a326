package compile

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// followPeers has the addresses of other nodes, from which tunnels take packets, follow one node:
// all that it has, as those of one that changes its mode come before it is known here which it
// sends from.
func (e *environment) followPeers(before, now *model.Node) {
	for _, a := range nodeAddresses(now) {
		e.peers.Add(a)
	}
	for _, a := range nodeAddresses(before) {
		e.peers.Remove(a)
	}
}

// nodeAddresses are a node's; some may be there twice. Nil has none.
func nodeAddresses(n *model.Node) (all []netip.Addr) {
	if n == nil {
		return nil
	}
	all = slices.Clone(n.IPs)
	if n.Fabric != nil {
		all = append(all, n.Fabric.IPv4, n.Fabric.IPv6)
	}
	for i, a := range all {
		all[i] = a.Unmap()
	}
	return slices.DeleteFunc(all, func(a netip.Addr) bool { return !a.IsValid() || model.Unusable(a) != "" })
}

// tunnelEnds are where packets from other nodes' tunnels are taken.
func tunnelEnds(tunnels map[string]*state.Tunnel) (ends []state.TunnelEnd) {
	for _, t := range tunnels {
		switch t.Encapsulation {
		case state.VXLAN:
			ends = append(ends, state.TunnelEnd{Addr: t.Local, Port: t.Port})
		case state.IPIP:
			ends = append(ends, state.TunnelEnd{Addr: t.Local})
		}
	}
	slices.SortFunc(ends, state.TunnelEnd.Compare)
	return ends
}
