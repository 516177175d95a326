package state_test

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Each part of a state tells of the families that it uses, and a part that is not there of none.
func TestFamilies(t *testing.T) {
	t.Parallel()
	a4, a6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for name, add := range map[string]func(*state.State, netip.Addr){
		"service": func(s *state.State, a netip.Addr) { s.Services.ClusterIPs[a] = struct{}{} },
		"service CIDR": func(s *state.State, a netip.Addr) {
			s.Services.Settings.ServiceCIDRs = append(s.Services.Settings.ServiceCIDRs, netip.PrefixFrom(a, 8))
		},
		"cluster CIDR": func(s *state.State, a netip.Addr) {
			s.Services.Settings.ClusterCIDRs = append(s.Services.Settings.ClusterCIDRs, netip.PrefixFrom(a, 8))
		},
		"pod CIDR": func(s *state.State, a netip.Addr) {
			s.Policy.PodCIDRs = append(s.Policy.PodCIDRs, netip.PrefixFrom(a, 8))
		},
		"pod": func(s *state.State, a netip.Addr) { s.Policy.Workloads[a] = &state.Workload{} },
		"farm": func(s *state.State, a netip.Addr) {
			s.Farms.Farms[a.String()] = &state.Farm{Farm: &model.Farm{Addresses: []model.FarmAddress{{IPv4: a.Is4(), IPv6: a.Is6()}}}}
		},
	} {
		for _, addrs := range [][]netip.Addr{nil, {a4}, {a6}, {a4, a6}} {
			s := &state.State{Services: state.NewServices(), Policy: state.NewPolicy(), Farms: state.NewFarms()}
			var want4, want6 bool
			for _, a := range addrs {
				add(s, a)
				want4, want6 = want4 || a.Is4(), want6 || a.Is6()
			}
			if is4, is6 := s.Families(); is4 != want4 || is6 != want6 {
				t.Errorf("%s %v: %v, %v", name, addrs, is4, is6)
			}
		}
	}
	if is4, is6 := (&state.State{}).Families(); is4 || is6 {
		t.Error("an empty state uses a family")
	}
}
