package speaker_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/bgp"
)

// over6 has FRR's configuration of neighbour i be for a session over IPv6.
func over6(i int, conf string) string {
	return strings.ReplaceAll(strings.ReplaceAll(conf, node4(i), node6(i)), "router-id "+node6(i), "router-id "+peer4(i))
}

// Both families go over a session of IPv6 as well, each with a next hop of its own family. Without
// one of IPv4, routes of IPv4 have one of IPv6 for a peer that takes them (RFC 8950).
func TestOverIPv6(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	f := w.frr(1, over6(1, frrConf(1, []string{"192.0.2.0/24", "2001:db8:1::/48"}, "neighbor "+node4(1)+" capability extended-nexthop")))
	s := w.speaker()
	p := peer(1)
	p.Address = addr(peer6(1))
	order := &bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"tor": p}, Routes: routes("198.51.100.0/24", "2001:db8:100::/48")}
	s.order(order)
	s.up("tor")
	s.await("learned", func(x *said) bool { return len(x.learned) == 2 })
	at(t, f, "198.51.100.0/24", func(r *frrRoute) bool { return len(r.Paths) == 1 && r.Paths[0].Nexthops[0].IP == node4(1) })
	at(t, f, "2001:db8:100::/48", func(r *frrRoute) bool { return len(r.Paths) == 1 && r.Paths[0].Nexthops[0].IP == node6(1) })
	s.end()
	w.ns.IP("address del " + node4(1) + "/24 dev eth1")
	s = w.speaker()
	s.order(order)
	s.up("tor")
	at(t, f, "198.51.100.0/24", func(r *frrRoute) bool { return len(r.Paths) == 1 && r.Paths[0].Nexthops[0].IP == node6(1) })
	s.well()
}

// Without an own address of IPv6 on the link, routes of IPv6 are not announced over IPv4, and that
// is said; they are once there is one.
func TestMissingNextHop(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	f := w.frr(1, frrConf(1, nil))
	w.ns.IP("address del " + node6(1) + "/64 dev eth1")
	s := w.speaker()
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"tor": peer(1)}, Routes: routes("198.51.100.0/24", "2001:db8:100::/48")})
	s.up("tor")
	s.says("peer tor (10.7.1.2): IPv6 routes are not announced to it: eth1, which has the session's address 10.7.1.1, has no IPv6 address")
	at(t, f, "198.51.100.0/24", func(r *frrRoute) bool { return len(r.Paths) == 1 })
	at(t, f, "2001:db8:100::/48", none)
	w.ns.Address("eth1", node6(1)+"/64")
	at(t, f, "2001:db8:100::/48", func(r *frrRoute) bool { return len(r.Paths) == 1 && r.Paths[0].Nexthops[0].IP == node6(1) })
	s.well()
}

// A peer that knows AS numbers of two octets alone sees those of four, by AS4_PATH (RFC 6793), and
// its paths are read as they are.
// https://github.com/osrg/gobgp/issues/3292
func TestPeerOfTwoOctets(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	conf := strings.NewReplacer("as 64512;", "external;\n  enable as4 off;", "where source = RTS_STATIC", "filter { if source != RTS_STATIC then reject; bgp_path.prepend(200); accept; }").Replace(
		birdConf(1, 64601, "192.0.2.0/24", "2001:db8:1::/48"))
	b := w.bird(1, conf)
	s := w.speaker()
	set := settings()
	set.AS = 4200000001
	s.order(&bgp.Order{Settings: set, Peers: map[string]*bgp.Peer{"old": peer(1)}, Routes: routes("198.51.100.0/24", "2001:db8:100::/48")})
	s.up("old")
	s.await("learned", func(x *said) bool {
		four, six := x.learned[prefix("192.0.2.0/24")], x.learned[prefix("2001:db8:1::/48")]
		return four != nil && six != nil && slices.Equal(four.Path, []uint32{64601, 200}) && slices.Equal(six.Path, four.Path)
	})
	for p := range routes("198.51.100.0/24", "2001:db8:100::/48") {
		eventually(t, "route at BIRD", func() (string, error) { return b.Run("show route all " + p.String()) }, contains("BGP.as_path: 4200000001"))
	}
}

// What else a peer says of the session: own AS, port, source, waiting, TTL security, routers on the
// way, hold time, and the own AS in the path.
func TestSessionSettings(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	n := func(i int) string { return node4(i) }
	w.neighbor(1)
	w.neighbor(3)
	// 1: over loopback addresses with another port and own AS; 2: waiting, with TTL security; 3:
	// the node's own AS in the path.
	w.ns.Address("lo", "10.8.0.1/32", "fd08::1/128")
	w.neighbor(1).Address("lo", "10.8.0.2/32")
	w.ns.IP("route add 10.8.0.2 via " + peer4(1))
	w.neighbor(1).IP("route add 10.8.0.1 via "+node4(1), "route add fd08::1 via "+node6(1))
	one := w.frr(1, strings.NewReplacer(n(1), "10.8.0.1", "remote-as 64512", "remote-as 64777").Replace(frrConf(1, nil,
		"neighbor "+n(1)+" update-source 10.8.0.2", "neighbor "+n(1)+" ebgp-multihop 2", "neighbor "+n(1)+" passive", "neighbor "+n(1)+" port 1790")))
	two := w.frr(2, frrConf(2, nil, "neighbor "+n(2)+" ttl-security hops 1", "neighbor "+n(2)+" timers 1 3"))
	three := w.frr(3, frrConf(3, []string{"192.0.2.0/24"})+`
  neighbor `+n(3)+` route-map own out
 exit-address-family
 address-family ipv4 unicast
  neighbor `+n(3)+` route-map own out
 exit-address-family
exit
route-map own permit 10
 set as-path prepend 64512
`)
	s := w.speaker()
	a, b, c := peer(1), peer(2), peer(3)
	a.Address, a.Source, a.Hops, a.LocalAS = addr("10.8.0.2"), addr("10.8.0.1"), 1, 64777
	b.Passive, b.Security, b.Hold = true, 1, 30*time.Second
	c.AllowOwnAS = 1
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"a": a, "b": b, "c": c}, Routes: routes("198.51.100.0/24", "2001:db8:100::/48")})
	s.up("a", "b", "c")
	s.await("the own AS is allowed", func(x *said) bool { return x.learned[prefix("192.0.2.0/24")] != nil })
	at(t, one, "198.51.100.0/24", func(r *frrRoute) bool {
		return len(r.Paths) == 1 && r.Paths[0].Nexthops[0].IP == "10.8.0.1" && r.Paths[0].AsPath.String == "64777"
	})
	at(t, one, "2001:db8:100::/48", func(r *frrRoute) bool { return len(r.Paths) == 1 && r.Paths[0].Nexthops[0].IP == "fd08::1" })
	at(t, two, "198.51.100.0/24", func(r *frrRoute) bool { return len(r.Paths) == 1 })
	at(t, three, "198.51.100.0/24", func(r *frrRoute) bool { return len(r.Paths) == 1 })

	d := *c
	d.AllowOwnAS = 0
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"c": &d}})
	s.await("the own AS is not allowed", func(x *said) bool {
		return x.peers["c"].State == bgp.Established && x.peers["c"].Received > 0 && len(x.learned) == 0
	})

	// A peer that falls silent is given up after the hold time.
	w.neighbor(2).IP("link set eth0 down")
	s.why("b", "hold timer expired")
}
