package compile_test

import (
	"fmt"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/store"
)

// The settings have the addresses that interfaces masquerade with: of tunnels, what they are to
// have before they are there, and what they have as long as they are.
func TestSNAT(t *testing.T) {
	addr := func(device, prefix string, source bool) model.HostAddress {
		return model.HostAddress{Device: device, Prefix: netip.MustParsePrefix(prefix), MTU: 1500, Source: source}
	}
	eth0 := []model.HostAddress{addr("eth0", "192.0.2.1/24", true), addr("eth0", "192.0.2.9/24", false), addr("eth0", "2001:db8::1/64", true)}
	tunnel := append(eth0, addr("sluice.vxlan", "10.244.1.0/32", true))
	pool := func(mode model.Encapsulate) *model.IPPool {
		return &model.IPPool{Name: "pods", CIDR: netip.MustParsePrefix("10.244.0.0/16"), VXLAN: mode}
	}
	s, c := store.New(), compile.New(compile.Config{Config: services.Config{Node: "a", Fabric: true}})
	s.SetSynced()
	node := func(name, ip, pods string) *model.Node {
		return &model.Node{Name: name, IPs: []netip.Addr{netip.MustParseAddr(ip)}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(pods)}}
	}
	s.Apply([]store.Event{
		{Kind: model.NodeKind, Name: model.Name{Name: "a"}, Object: node("a", "192.0.2.1", "10.244.1.0/24")},
		{Kind: model.NodeKind, Name: model.Name{Name: "b"}, Object: node("b", "192.0.2.2", "10.244.2.0/24")},
	})
	const plain = "[{eth0 192.0.2.1} {eth0 2001:db8::1}]"
	const both = "[{eth0 192.0.2.1} {eth0 2001:db8::1} {sluice.vxlan 10.244.1.0}]"
	for _, step := range []struct {
		name     string
		underlay []model.HostAddress
		pool     *model.IPPool
		want     string
	}{
		{"native", eth0, pool(model.Never), plain},
		{"a tunnel is wanted", nil, pool(model.Always), both},
		{"it is there", tunnel, nil, both},
		{"it is not wanted any more", nil, pool(model.Never), both},
		{"it is gone", eth0, nil, plain},
		{"another address", eth0[2:], nil, "[{eth0 2001:db8::1}]"},
	} {
		before := c.State().Services.Settings
		if step.underlay != nil {
			c.SetUnderlay(step.underlay)
		}
		if step.pool != nil {
			s.Apply([]store.Event{{Kind: model.IPPoolKind, Name: model.Name{Name: "pods"}, Object: step.pool}})
		}
		d := c.Update(s, s.Take())
		if got := fmt.Sprint(c.State().Services.Settings.SNAT); got != step.want {
			t.Errorf("%s: %s, want %s", step.name, got, step.want)
		}
		if changed := d.Services.Settings != nil; changed == before.Equal(c.State().Services.Settings) {
			t.Errorf("%s: the settings change: %v", step.name, changed)
		}
	}
}
