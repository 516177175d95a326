package compile

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// The view has every pod CIDR once, with the way there, and those that are not reached.
func TestView(t *testing.T) {
	c := newCluster(Config{Node: "a", Pools: []*model.IPPool{poolOf("flag ::/0")}},
		model.HostAddress{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Device: "eth0", MTU: 1500},
		model.HostAddress{Prefix: netip.MustParsePrefix("2001:db8::1/64"), Device: "eth0", MTU: 1500})
	c.update(poolEvent("pods 10.244.0.0/16 vxlan=CrossSubnet"),
		nodeEvent(t, "a 192.0.2.1 2001:db8::1 10.244.1.0/24 fd00:1::/64"),
		nodeEvent(t, "b 192.0.2.2 2001:db8::2 10.244.2.0/24 fd00:2::/64"),
		nodeEvent(t, "c 198.51.100.3 10.244.3.0/24 fd00:3::/64"),
		nodeEvent(t, "d 192.0.2.4 10.99.4.0/24"))
	v := c.c.View()
	var got strings.Builder
	for _, u := range v.Underlay {
		fmt.Fprintln(&got, u.Prefix, u.Device, u.MTU)
	}
	for _, p := range v.Pools {
		fmt.Fprintln(&got, p.Name, p.CIDR, p.Mode, p.Blocks)
	}
	for _, x := range v.Tunnels {
		fmt.Fprintln(&got, x.Device, x.Kind, x.Address, x.Local, x.MTU, x.Nodes)
	}
	for _, b := range v.Blocks {
		fmt.Fprintf(&got, "%s %s %q %s %s %d\n", b.Node, b.CIDR, b.Mode, b.Via, b.Device, b.MTU)
	}
	const want = `192.0.2.1/24 eth0 1500
2001:db8::1/64 eth0 1500
pods 10.244.0.0/16 VXLAN across subnets 3
flag ::/0 native 3
sluice.vxlan VXLAN 10.244.1.0 192.0.2.1 1450 1
a 10.244.1.0/24 "here"   0
a fd00:1::/64 "here"   0
b 10.244.2.0/24 "native" 192.0.2.2 eth0 1500
b fd00:2::/64 "native" 2001:db8::2 eth0 1500
c 10.244.3.0/24 "VXLAN" 198.51.100.3 sluice.vxlan 1450
c fd00:3::/64 ""   0
d 10.99.4.0/24 ""   0
`
	if got.String() != want {
		t.Errorf("the view is\n%swant\n%s", got.String(), want)
	}
	if issues := c.c.Issues(); len(issues) != 2 {
		t.Errorf("two are not reached, and these say why: %v", issues)
	}
}

// What is encrypted is so for both families, and travels to the one address of the other node.
func TestViewOfWireGuard(t *testing.T) {
	c := newCluster(Config{Node: "a", Key: model.PublicKey{'o'}, Pools: []*model.IPPool{poolOf("flag 0.0.0.0/0"), poolOf("flag ::/0")}}, underlay[1:3]...)
	c.update(nodeEvent(t, "a 192.0.2.1 fd00:2::1 10.244.1.0/24 key=o"), nodeEvent(t, "b 192.0.2.2 fd00:2::2 10.244.2.0/24 fd00:10:2::/64 key=b"))
	v := c.c.View()
	for _, b := range v.Blocks {
		if b.Node == "b" && (b.Mode != "WireGuard" || b.Via != "192.0.2.2" || b.Device != state.DeviceWG || b.MTU != 1440) {
			t.Errorf("%+v", b)
		}
	}
	if len(v.Blocks) != 3 || len(v.Tunnels) != 1 || v.Tunnels[0].Nodes != 1 || v.Tunnels[0].Kind != "WireGuard" {
		t.Errorf("%+v", v)
	}
}
