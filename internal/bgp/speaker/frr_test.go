package speaker_test

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/bgp"
)

// A session with FRR carries routes of both families both ways.
func TestFRR(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	f := w.frr(1, frrConf(1, []string{"192.0.2.0/24", "2001:db8:1::/48"}))
	s := w.speaker()
	s.order(&bgp.Order{
		Settings: settings(), Peers: map[string]*bgp.Peer{"tor": peer(1)},
		Routes: routes("198.51.100.0/24", "2001:db8:100::/48"),
	})
	s.up("tor")
	s.await("learned routes", func(x *said) bool {
		four, six := x.learned[prefix("192.0.2.0/24")], x.learned[prefix("2001:db8:1::/48")]
		return len(x.learned) == 2 && four != nil && four.NextHop == addr(peer4(1)) && four.Peer == "tor" && len(four.Path) == 1 && four.Path[0] == 64601 &&
			six != nil && six.NextHop == addr(peer6(1))
	})
	eventually(t, "IPv4 route at FRR", func() (string, error) { return f.Run("show bgp ipv4 unicast 198.51.100.0/24") }, contains(node4(1)))
	eventually(t, "IPv6 route at FRR", func() (string, error) { return f.Run("show bgp ipv6 unicast 2001:db8:100::/48") }, contains(node6(1)))
	s.await("counts and settling", func(x *said) bool {
		p := x.peers["tor"] // FRR sends our own routes back
		return x.settled && p.Received == 4 && p.Accepted == 2 && p.Advertised == 2 && x.fault == ""
	})

	// A route more, and one less, on both sides.
	s.order(&bgp.Order{Routes: routes("203.0.113.0/24")})
	eventually(t, "one more at FRR", func() (string, error) { return f.Run("show bgp ipv4 unicast") }, contains("203.0.113.0/24"))
	s.order(&bgp.Order{Routes: map[netip.Prefix]*bgp.Route{prefix("198.51.100.0/24"): nil}})
	eventually(t, "one less at FRR", func() (string, error) { return f.Run("show bgp ipv4 unicast") }, lacks("198.51.100.0/24"))
	if _, err := f.Run("configure terminal", "router bgp 64601", "address-family ipv4 unicast", "no network 192.0.2.0/24"); err != nil {
		t.Fatal(err)
	}
	s.await("one less learned", func(x *said) bool { return len(x.learned) == 1 && x.learned[prefix("192.0.2.0/24")] == nil })
}
