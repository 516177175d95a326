package state

import (
	"net/netip"
	"slices"
)

// Families reports which address families are in use here: those of the node's pods, of their
// networks, of services and of farms.
func (s *State) Families() (ipv4, ipv6 bool) {
	both := func(a netip.Addr) bool {
		ipv4, ipv6 = ipv4 || a.Is4(), ipv6 || a.Is6()
		return ipv4 && ipv6
	}
	var networks []netip.Prefix
	if s.Services != nil {
		networks = slices.Concat(s.Services.Settings.ServiceCIDRs, s.Services.Settings.ClusterCIDRs)
		for a := range s.Services.ClusterIPs { // all services have one of each of their families
			if both(a) {
				break
			}
		}
	}
	if s.Policy != nil {
		networks = slices.Concat(networks, s.Policy.PodCIDRs)
		for a := range s.Policy.Workloads {
			if both(a) {
				break
			}
		}
	}
	for _, p := range networks {
		both(p.Addr())
	}
	if s.Farms != nil {
		for _, f := range s.Farms.Farms {
			for _, a := range f.Addresses {
				ipv4, ipv6 = ipv4 || a.IPv4, ipv6 || a.IPv6
			}
		}
	}
	return ipv4, ipv6
}
