package compile_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Tunnels take packets from all addresses of other nodes, as long as one node has them.
func TestPeers(t *testing.T) {
	s, c := store.New(), compile.New(compile.Config{Config: services.Config{Node: "a", Fabric: true}})
	s.SetSynced()
	type nodes map[string]string
	for _, step := range []struct {
		now         nodes
		want, delta string
	}{
		{nodes{"a": "192.0.2.1", "b": "192.0.2.2 2001:db8::2", "c": "192.0.2.3"}, "[192.0.2.2 192.0.2.3 2001:db8::2]", "map[192.0.2.2:true 192.0.2.3:true 2001:db8::2:true]"},
		{nodes{"b": "192.0.2.3 2001:db8::2"}, "[192.0.2.3 2001:db8::2]", "map[192.0.2.2:false]"},
		{nodes{"a": "192.0.2.9"}, "[192.0.2.3 2001:db8::2]", "map[]"},
		{nodes{"c": ""}, "[192.0.2.3 2001:db8::2]", "map[]"},
		{nodes{"b": ""}, "[]", "map[192.0.2.3:false 2001:db8::2:false]"},
	} {
		var events []store.Event
		for name, addrs := range step.now {
			e := store.Event{Kind: model.NodeKind, Name: model.Name{Name: name}}
			if addrs != "" {
				n := &model.Node{Name: name}
				for _, a := range strings.Fields(addrs) {
					n.IPs = append(n.IPs, netip.MustParseAddr(a))
				}
				e.Object = n
			}
			events = append(events, e)
		}
		s.Apply(events)
		d := c.Update(s, s.Take())
		have := slices.SortedFunc(maps.Keys(c.State().Services.Peers), netip.Addr.Compare)
		if got, delta := fmt.Sprint(have), fmt.Sprint(d.Services.Peers); got != step.want || delta != step.delta {
			t.Errorf("%v: %s by %s, want %s by %s", step.now, got, delta, step.want, step.delta)
		}
	}
}

// The settings have the ends of the tunnels that pools ask for.
func TestTunnelEnds(t *testing.T) {
	s, c := store.New(), compile.New(compile.Config{Config: services.Config{Node: "a", Fabric: true}})
	s.SetSynced()
	c.SetUnderlay([]model.HostAddress{{Device: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/24"), MTU: 1500}})
	s.Apply([]store.Event{
		{Kind: model.NodeKind, Name: model.Name{Name: "a"}, Object: &model.Node{Name: "a", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}},
		{Kind: model.IPPoolKind, Name: model.Name{Name: "pods"}, Object: &model.IPPool{Name: "pods", CIDR: netip.MustParsePrefix("10.244.0.0/16"), VXLAN: model.Always}},
		{Kind: model.IPPoolKind, Name: model.Name{Name: "more"}, Object: &model.IPPool{Name: "more", CIDR: netip.MustParsePrefix("10.245.0.0/16"), IPIP: model.Always}},
	})
	c.Update(s, s.Take())
	addr := netip.MustParseAddr("192.0.2.1")
	if want := []state.TunnelEnd{{Addr: addr}, {Addr: addr, Port: 4789}}; !slices.Equal(c.State().Services.Settings.Tunnels, want) {
		t.Errorf("%v, want %v", c.State().Services.Settings.Tunnels, want)
	}
	for _, tunnel := range c.State().Fabric.Tunnels {
		if tunnel.Encapsulation == state.VXLAN && tunnel.VNI != state.VNI {
			t.Errorf("VNI %d, and the ruleset asks for %d", tunnel.VNI, state.VNI)
		}
	}
}

// Where a host endpoint judges packets of tunnels, they stay tracked.
func TestUntracked(t *testing.T) {
	s, c := store.New(), compile.New(compile.Config{Config: services.Config{Node: "a", Fabric: true}, Policy: true})
	s.SetSynced()
	c.SetUnderlay([]model.HostAddress{{Device: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/24"), MTU: 1500}})
	c.SetLinks(model.Links{Links: []model.Link{{Index: 2, Name: "eth0", Host: true}}})
	node := store.Event{Kind: model.NodeKind, Name: model.Name{Name: "a"}, Object: &model.Node{Name: "a", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}}
	pool := store.Event{Kind: model.IPPoolKind, Name: model.Name{Name: "pods"}, Object: &model.IPPool{Name: "pods", CIDR: netip.MustParsePrefix("10.244.0.0/16"), VXLAN: model.Always}}
	host := store.Event{Kind: model.HostEndpointKind, Name: model.Name{Name: "h"}, Object: &model.HostEndpoint{Name: "h", Node: "a", Interface: "eth0"}}
	gone := host
	gone.Object = nil
	for i, step := range []struct {
		event store.Event
		want  bool
	}{{node, false}, {pool, true}, {host, false}, {gone, true}} {
		s.Apply([]store.Event{step.event})
		c.Update(s, s.Take())
		if got := c.State().Services.Settings.Untracked; got != step.want {
			t.Errorf("step %d: untracked %v", i, got)
		}
	}
}
