package compile

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// What is masqueraded, and as whom, is a matter of the settings: drivers masquerade what comes from
// none of ClusterCIDRs to a cluster IP, what is external, and what leaves the pod network.

// settings are the node's, and what no service depends on.
func (e *environment) settings() state.Settings {
	s := e.node.settings
	s.OutgoingCIDRs, s.PoolCIDRs, s.SNAT = e.outgoing, e.pools, e.snat
	s.Tunnels, s.Untracked = e.tunnels, e.untracked
	return s
}

// settings follow the configuration, and the node where that says nothing.
func settings(cfg Config, podCIDRs []netip.Prefix) state.Settings {
	s := state.Settings{
		ServiceCIDRs:  masked(cfg.ServiceCIDRs),
		ClusterCIDRs:  masked(cfg.ClusterCIDRs),
		MasqueradeAll: cfg.MasqueradeAll,
	}
	if len(s.ClusterCIDRs) == 0 && !cfg.ClusterUnknown {
		s.ClusterCIDRs = podCIDRs
	}
	for _, is4 := range []bool{true, false} {
		cluster := ofFamily(s.ClusterCIDRs, is4)
		own := ofFamily(podCIDRs, is4)
		if len(own) == 0 || !covered(own, cluster) {
			own = cluster
		}
		s.LocalCIDRs = append(s.LocalCIDRs, own...)
	}
	return s
}

// outgoing returns the prefixes of the pools with natOutgoing, and of all pools; nothing if no pool
// has it. A pool that is disabled counts as the others do: users exclude addresses by one.
func outgoing(cfg Config, pools []*model.IPPool) (masquerade, all []netip.Prefix) {
	if !cfg.Fabric {
		return nil, nil
	}
	if cfg.NATOutgoing {
		masquerade, all = slices.Clone(cfg.ClusterCIDRs), slices.Clone(cfg.ClusterCIDRs)
	}
	for _, p := range pools {
		all = append(all, p.CIDR)
		if p.NATOutgoing {
			masquerade = append(masquerade, p.CIDR)
		}
	}
	if len(masquerade) == 0 {
		return nil, nil
	}
	return masked(masquerade), masked(all)
}

// snat returns the addresses that the kernel would masquerade with. Those of tunnels are the wanted
// ones: they are in the ruleset before the first connection can take the tunnel. While a tunnel
// that is not wanted any more is there, connections that take it still have its address.
func snat(underlay []model.HostAddress, tunnels map[string]*state.Tunnel) []state.SNAT {
	list := []state.SNAT{}
	for name, t := range tunnels {
		for _, a := range []netip.Addr{t.Address, t.Address6} {
			if a.IsValid() {
				list = append(list, state.SNAT{Device: name, Addr: a})
			}
		}
	}
	for _, a := range underlay {
		if a.Source && tunnels[a.Device] == nil {
			list = append(list, state.SNAT{Device: a.Device, Addr: a.Prefix.Addr()})
		}
	}
	slices.SortFunc(list, state.SNAT.Compare)
	return list
}
