package compile_test

import (
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/store"
)

// TestElsewhereTriesEachHostEndpoint shows that each host endpoint of another node is taken to
// cover an uplink, and one uplink to have none, whatever they name.
func TestElsewhereTriesEachHostEndpoint(t *testing.T) {
	s := store.New()
	for name, h := range map[string]model.HostEndpoint{
		"a": {Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		"b": {Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
		"c": {Interface: "uplink"},
	} {
		h.Name, h.Node = name, "other"
		s.Apply([]store.Event{{Kind: model.HostEndpointKind, Name: model.Name{Name: name}, Object: &h}})
	}
	s.SetSynced()
	there := compile.New(compile.Config{Config: services.Config{Node: "here"}, Policy: true}).Elsewhere("other")(s)
	var found []string
	for _, uplink := range there.Uplinks {
		if h := there.State.Policy.Hosts[uplink]; h != nil {
			found = append(found, h.Name)
		} else {
			found = append(found, "none")
		}
	}
	if slices.Sort(found); !slices.Equal(found, []string{"a", "b", "c", "none"}) {
		t.Errorf("the uplinks have the host endpoints %v", found)
	}
}

// What leaves another node with that node's address is known, and its ways to pods are not
// compiled.
func TestElsewhereMasquerades(t *testing.T) {
	s := store.New()
	pods := &model.IPPool{Name: "pods", CIDR: netip.MustParsePrefix("10.244.0.0/16"), NATOutgoing: true}
	s.Apply([]store.Event{{Kind: model.IPPoolKind, Name: model.Name{Name: pods.Name}, Object: pods}})
	s.SetSynced()
	there := compile.New(compile.Config{Config: services.Config{Node: "here", Fabric: true}}).Elsewhere("other")(s)
	if got := there.State.Services.Settings.OutgoingCIDRs; !slices.Equal(got, []netip.Prefix{pods.CIDR}) {
		t.Errorf("%v are masqueraded", got)
	}
	if there.State.Fabric != nil {
		t.Error("the ways to pods are compiled")
	}
}
