package compile

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// peers are the addresses of other nodes, from which tunnels take packets: all that a node has, as
// those of one that changes its mode come before it is known here which it sends from.
type peers struct {
	own string
	of  map[string][]netip.Addr
	set diff.Set[netip.Addr]
}

func newPeers(own string, now map[netip.Addr]struct{}) *peers {
	return &peers{own: own, of: map[string][]netip.Addr{}, set: diff.NewSet(now)}
}

// update follows the nodes that are dirty.
func (p *peers) update(v *store.View, d store.Dirty) {
	for name := range d.Objects[model.NodeKind] {
		if name.Name == p.own {
			continue
		}
		before, now := p.of[name.Name], nodeAddresses(v.Node(name.Name))
		if p.of[name.Name] = now; now == nil {
			delete(p.of, name.Name)
		}
		for _, a := range now {
			p.set.Add(a)
		}
		for _, a := range before {
			p.set.Remove(a)
		}
	}
}

// nodeAddresses are a node's, each once; nil: it is not there, or has none.
func nodeAddresses(n *model.Node) (all []netip.Addr) {
	if n == nil {
		return nil
	}
	has := map[netip.Addr]bool{}
	add := func(a netip.Addr) {
		if a = a.Unmap(); a.IsValid() && model.Unusable(a) == "" && !has[a] {
			all, has[a] = append(all, a), true
		}
	}
	for _, a := range n.IPs {
		add(a)
	}
	if n.Fabric != nil {
		add(n.Fabric.IPv4)
		add(n.Fabric.IPv6)
	}
	return all
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
