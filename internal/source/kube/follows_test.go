package kube

import (
	"slices"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

// A source asks the API for what its agent needs, and for nothing that it may have no right to.
func TestFollows(t *testing.T) {
	t.Parallel()
	base := []model.Kind{model.ServiceKind, model.EndpointSliceKind, model.NodeKind}
	fabric := []model.Kind{model.IPPoolKind, model.BlockAffinityKind}
	bgp := []model.Kind{model.BGPConfigurationKind, model.BGPPeerKind, model.BGPFilterKind}
	addresses := []model.Kind{
		model.NamespaceKind, model.IPAddressPoolKind, model.L2AdvertisementKind, model.BGPAdvertisementKind, model.MetalLBPeerKind, model.CommunityKind, model.BFDProfileKind,
	}
	for _, c := range []struct {
		config Config
		more   []model.Kind
	}{
		{Config{}, nil},
		{Config{Fabric: true}, fabric},
		{Config{Fabric: true, BGP: true}, slices.Concat(fabric, bgp)},
		{Config{Addresses: true}, addresses},
		{Config{Fabric: true, BGP: true, Addresses: true}, slices.Concat(fabric, bgp, addresses)},
	} {
		var got []model.Kind
		for i := range kinds.All {
			if c.config.follows(&kinds.All[i]) {
				got = append(got, kinds.All[i].Kind)
			}
		}
		want := slices.Concat(base, c.more)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%+v: follows %v, want %v", c.config, got, want)
		}
	}
}
