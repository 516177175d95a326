package drivertest

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// TunnelPort shows that a node answers a pod whose datagrams come to it from the port of VXLAN, as
// they do when masquerading chose that one: packets between nodes' tunnels are not tracked, and
// these answers are, though a node sends them to that port.
func TunnelPort(t *testing.T, open Open) {
	node, far := world.NewHost(t, "node"), world.NewHost(t, "far")
	pod := world.NewPod(node, "pod", "10.244.1.5", "fd00:10:244:1::5")
	node.Join("eth0", far, "eth0")
	node.Address("eth0", "192.0.2.1/24", "fd00:2::1/64")
	far.Address("eth0", "192.0.2.2/24", "fd00:2::2/64")
	node.Forward()
	node.Exec("nft", "add table inet other; add chain inet other out { type nat hook postrouting priority 90; }; add rule inet other out oifname eth0 udp dport 53 masquerade to :4789")

	var d driver.Driver
	node.In(func() (err error) { d, err = open(); return err })
	t.Cleanup(func() { _ = d.Close() })
	addr := netip.MustParseAddr
	s := &state.State{Services: state.NewServices()}
	s.Services.Settings.Tunnels = []state.TunnelEnd{{Addr: addr("192.0.2.1")}, {Addr: addr("192.0.2.1"), Port: 4789}, {Addr: addr("fd00:2::1"), Port: 4789}}
	s.Services.Settings.Untracked = true
	s.Services.Peers = map[netip.Addr]struct{}{addr("192.0.2.2"): {}, addr("fd00:2::2"): {}}
	plan, err := d.Adopt(t.Context(), s, driver.Keep{})
	if err == nil {
		err = plan.Apply(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"192.0.2.2", "fd00:2::2"} {
		at := netip.AddrPortFrom(addr(server), 53).String()
		far.ServeUDP("far", at)
		if a, err := pod.Ask("udp", "", at, world.Patience); err != nil || a.Client.Port() != 4789 {
			t.Errorf("%s: asked from port %d, %v", at, a.Client.Port(), err)
		}
	}
}
