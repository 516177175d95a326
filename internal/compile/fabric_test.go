package compile_test

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/store"
)

// What changes in the ways to other nodes' pods is in the delta, with the tunnels' addresses in the
// settings of the same one.
func TestDeltaHasFabric(t *testing.T) {
	node := func(name, addr, pods string) store.Event {
		n := &model.Node{Name: name, IPs: []netip.Addr{netip.MustParseAddr(addr)}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(pods)}}
		return store.Event{Kind: model.NodeKind, Name: model.Name{Name: name}, Object: n}
	}
	pods := &model.IPPool{Name: "pods", CIDR: netip.MustParsePrefix("10.244.0.0/16"), VXLAN: model.Always, NATOutgoing: true}
	s := store.New()
	s.Apply([]store.Event{
		node("a", "192.0.2.1", "10.244.1.0/24"), node("b", "192.0.2.2", "10.244.2.0/24"),
		{Kind: model.IPPoolKind, Name: model.Name{Name: pods.Name}, Object: pods},
	})
	s.SetSynced()
	c := compile.New(compile.Config{Config: services.Config{Node: "a", Fabric: true}, BGP: true})
	underlay := model.HostAddress{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Device: "eth0", MTU: 1500}
	c.SetUnderlay([]model.HostAddress{underlay})
	if d := c.Update(s, s.Take()); len(d.Fabric.Tunnels) != 1 || len(d.Fabric.Routes) != 2 || len(d.Fabric.VTEPs) != 1 {
		t.Errorf("at the start: %+v", d.Fabric)
	}
	if d := c.Update(s, s.Take()); d.Fabric.Len() > 0 {
		t.Errorf("nothing changed, but %+v", d.Fabric)
	}
	underlay.MTU = 1400
	c.SetUnderlay([]model.HostAddress{underlay})
	if d := c.Update(s, s.Take()); len(d.Fabric.Tunnels) != 1 {
		t.Errorf("the underlay's MTU changed, but %+v", d.Fabric)
	}
}
