package speaker_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/peertest"
)

// internal has FRR's configuration of neighbour i be of the node's own AS.
func internal(i int, conf string) string {
	return strings.ReplaceAll(conf, fmt.Sprintf("router bgp %d", 64600+i), "router bgp 64512")
}

// frrRoute is what FRR knows of a route.
type frrRoute struct {
	Paths []struct {
		LocPrf    int
		Community struct{ List []string }
		Large     struct{ List []string } `json:"largeCommunity"`
		Nexthops  []struct{ IP string }
		AsPath    struct{ String string } `json:"aspath"`
	}
}

// at returns what FRR knows of a route once that is as it should be.
func at(t *testing.T, f *peertest.FRR, route string, is func(*frrRoute) bool) {
	t.Helper()
	family := "ipv4"
	if strings.Contains(route, ":") {
		family = "ipv6"
	}
	eventually(t, route+" at FRR", func() (string, error) { return f.Run("show bgp " + family + " unicast " + route + " json") }, func(out string) bool {
		r := &frrRoute{}
		return json.Unmarshal([]byte(out), r) == nil && is(r)
	})
}

func with(communities, large []string) func(*frrRoute) bool {
	return func(r *frrRoute) bool {
		return len(r.Paths) == 1 && slices.Equal(r.Paths[0].Community.List, communities) && slices.Equal(r.Paths[0].Large.List, large)
	}
}

func none(r *frrRoute) bool { return len(r.Paths) == 0 }

// Each peer gets what those announcements that name it, or nobody, say together.
func TestAnnouncements(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	a, b := w.frr(1, frrConf(1, nil)), w.frr(2, internal(2, frrConf(2, nil)))
	s := w.speaker()
	inside := peer(2)
	inside.AS = 64512
	const all, some, only = "198.51.100.0/24", "198.51.101.0/24", "2001:db8:100::/48"
	route := func(a ...bgp.Announcement) *bgp.Route { return &bgp.Route{Announcements: a} }
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"a": peer(1), "b": inside}, Routes: map[netip.Prefix]*bgp.Route{
		prefix(all): route(bgp.Announcement{Communities: []string{"64500:1", "large:64500:1:2"}, LocalPref: 200},
			bgp.Announcement{Peers: []string{"b"}, Communities: []string{"64500:2"}, LocalPref: 300}),
		prefix(some): route(bgp.Announcement{Peers: []string{"a"}, Communities: []string{"no-export"}},
			bgp.Announcement{Peers: []string{"a", "nobody"}, Communities: []string{"64500:7"}}),
		prefix(only):              route(bgp.Announcement{Peers: []string{"b"}}),
		prefix("198.51.102.0/24"): route(bgp.Announcement{}),
	}})
	s.up("a", "b")
	at(t, a, all, with([]string{"64500:1"}, []string{"64500:1:2"}))
	at(t, b, all, with([]string{"64500:1", "64500:2"}, []string{"64500:1:2"}))
	at(t, b, all, func(r *frrRoute) bool { return r.Paths[0].LocPrf == 300 && r.Paths[0].Nexthops[0].IP == node4(2) })
	at(t, a, some, with([]string{"64500:7", "noExport"}, nil))
	at(t, b, only, func(r *frrRoute) bool {
		return with(nil, nil)(r) && r.Paths[0].LocPrf == 100 && r.Paths[0].Nexthops[0].IP == node6(2)
	})
	at(t, b, "198.51.102.0/24", with(nil, nil))
	at(t, a, only, none)
	at(t, b, some, none)

	// Changes take effect on the sessions that there are, and a bad one harms itself alone.
	s.order(&bgp.Order{Routes: map[netip.Prefix]*bgp.Route{
		prefix(all):               route(bgp.Announcement{Peers: []string{"a"}, Communities: []string{"64500:9"}}),
		prefix(some):              route(bgp.Announcement{Peers: []string{"b"}}),
		prefix(only):              route(bgp.Announcement{}),
		prefix("198.51.102.0/24"): route(bgp.Announcement{Communities: []string{"64500:x"}}),
	}})
	at(t, a, all, with([]string{"64500:9"}, nil))
	at(t, b, all, none)
	at(t, a, some, none)
	at(t, b, some, with(nil, nil))
	at(t, a, only, with(nil, nil))
	at(t, b, "198.51.102.0/24", none)
	s.await("the fault", func(x *said) bool {
		return strings.Contains(x.fault, "198.51.102.0/24") && strings.Contains(x.fault, "64500:x is no community")
	})
	s.order(&bgp.Order{Routes: routes("198.51.102.0/24")})
	at(t, b, "198.51.102.0/24", with(nil, nil))
	s.await("no fault, and the same sessions", func(x *said) bool {
		return x.fault == "" && x.peers["a"].Why == "" && x.peers["b"].Why == ""
	})
}

// The first rule that holds decides, in both directions, and a changed one takes effect without a
// new session.
func TestRules(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	theirs := []string{"10.20.0.0/16", "10.20.1.0/24", "10.20.1.128/25", "10.30.0.0/16", "2001:db8:20::/48", "2001:db8:30::/48"}
	ours := []string{"10.40.0.0/16", "10.40.1.0/24", "10.50.0.0/16", "2001:db8:40::/48", "2001:db8:50::/48"}
	f := w.frr(1, frrConf(1, theirs))
	s := w.speaker()
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"tor": peer(1)}, Routes: routes(ours...)})
	s.up("tor")
	for _, c := range []struct {
		name         string
		in, out      []bgp.Rule
		learned, got []string
	}{
		{"nothing", nil, nil, theirs, ours},
		{"reject all", []bgp.Rule{{}}, []bgp.Rule{{}}, nil, nil},
		{"within", []bgp.Rule{{Prefix: prefix("10.20.0.0/16")}}, []bgp.Rule{{Prefix: prefix("10.40.0.0/16")}},
			[]string{"10.30.0.0/16", "2001:db8:20::/48", "2001:db8:30::/48"}, []string{"10.50.0.0/16", "2001:db8:40::/48", "2001:db8:50::/48"}},
		{"lengths", []bgp.Rule{{Prefix: prefix("10.20.0.0/16"), Min: 24, Max: 24}}, []bgp.Rule{{Prefix: prefix("10.40.0.0/16"), Min: 20}},
			[]string{"10.20.0.0/16", "10.20.1.128/25", "10.30.0.0/16", "2001:db8:20::/48", "2001:db8:30::/48"},
			[]string{"10.40.0.0/16", "10.50.0.0/16", "2001:db8:40::/48", "2001:db8:50::/48"}},
		{"equal", []bgp.Rule{{Prefix: prefix("10.20.0.0/16"), Match: model.BGPEqual}}, []bgp.Rule{{Prefix: prefix("10.40.0.0/16"), Match: model.BGPNotEqual}},
			theirs[1:], []string{"10.40.0.0/16", "2001:db8:40::/48", "2001:db8:50::/48"}},
		{"not within, of one family", []bgp.Rule{{Prefix: prefix("2001:db8:20::/48"), Match: model.BGPNotIn}}, []bgp.Rule{{Prefix: prefix("10.40.0.0/16"), Match: model.BGPNotIn}},
			theirs[:5], []string{"10.40.0.0/16", "10.40.1.0/24", "2001:db8:40::/48", "2001:db8:50::/48"}},
		{"accept, then reject all of a family", []bgp.Rule{{Accept: true, Prefix: prefix("10.20.1.0/24")}, {Family: 4}},
			[]bgp.Rule{{Accept: true, Prefix: prefix("2001:db8:40::/32")}, {Family: 6}},
			[]string{"10.20.1.0/24", "10.20.1.128/25", "2001:db8:20::/48", "2001:db8:30::/48"}, ours},
		{"all of a family, by its prefix", []bgp.Rule{{Prefix: prefix("0.0.0.0/0")}}, []bgp.Rule{{Prefix: prefix("::/0"), Min: 1}},
			theirs[4:], ours[:3]},
		{"learned alone", []bgp.Rule{{Learned: true, Family: 6}}, []bgp.Rule{{Learned: true}}, theirs[:4], ours},
		{"nothing again", nil, nil, theirs, ours},
	} {
		p := peer(1)
		p.Import, p.Export = c.in, c.out
		s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"tor": p}})
		s.await(c.name+": learned", func(x *said) bool {
			return same(slices.Collect(maps.Keys(x.learned)), c.learned) && x.peers["tor"].Accepted == len(c.learned) && x.peers["tor"].Advertised == len(c.got)
		})
		eventually(t, c.name+": at FRR", func() (string, error) {
			four, err := f.Run("show bgp ipv4 unicast neighbors " + node4(1) + " received-routes json")
			if err != nil {
				return "", err
			}
			six, err := f.Run("show bgp ipv6 unicast neighbors " + node4(1) + " received-routes json")
			return four + six, err
		}, func(out string) bool {
			for _, r := range ours {
				if strings.Contains(out, `"`+r+`"`) != slices.Contains(c.got, r) {
					return false
				}
			}
			return true
		})
	}
	s.await("the same session", func(x *said) bool { return x.peers["tor"].Why == "" && x.fault == "" })
}

// same compares without regard to the order.
func same(got []netip.Prefix, want []string) bool {
	var all []string
	for _, p := range got {
		all = append(all, p.String())
	}
	slices.Sort(all)
	return slices.Equal(all, slices.Sorted(slices.Values(want)))
}

// A reflector passes routes on between its clients, with their next hops; a node that is none does
// not. Routes that are not to be passed on are not.
func TestReflector(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	one := w.frr(1, internal(1, frrConf(1, []string{"192.0.2.0/24", "10.60.0.0/16", "2001:db8:1::/48"})))
	two := w.bird(2, birdConf(2, 64512, "192.0.3.0/24", "2001:db8:2::/48"))
	three := w.frr(3, internal(3, frrConf(3, nil)))
	s := w.speaker()
	set := settings()
	set.PassOn = []netip.Prefix{prefix("192.0.0.0/16"), prefix("2001:db8::/32")}
	peers := map[string]*bgp.Peer{"one": peer(1), "two": peer(2), "three": peer(3)}
	for _, p := range peers {
		p.AS = 64512
	}
	peers["one"].Cluster, peers["two"].Cluster = addr("10.0.0.99"), addr("10.0.0.99")
	s.order(&bgp.Order{Settings: set, Peers: peers, Routes: routes("198.51.100.0/24")})
	s.up("one", "two", "three")
	s.await("learned", func(x *said) bool { return len(x.learned) == 5 })
	at(t, one, "192.0.3.0/24", func(r *frrRoute) bool { return len(r.Paths) == 1 && r.Paths[0].Nexthops[0].IP == peer4(2) })
	at(t, one, "2001:db8:2::/48", func(r *frrRoute) bool { return len(r.Paths) == 1 })
	at(t, three, "192.0.2.0/24", func(r *frrRoute) bool { return len(r.Paths) == 1 }) // clients' routes go to all
	out := eventually(t, "reflected to BIRD", func() (string, error) { return two.Run("show route all 192.0.2.0/24") }, contains("192.0.2.0/24"))
	if !strings.Contains(out, "BGP.originator_id: "+peer4(1)) || !strings.Contains(out, "BGP.cluster_list: 10.0.0.99") {
		t.Errorf("BIRD has not the reflector's attributes: %s", out)
	}
	eventually(t, "own route at BIRD", func() (string, error) { return two.Run("show route") }, contains("198.51.100.0/24"))
	if out, err := two.Run("show route"); err != nil || strings.Contains(out, "10.60.0.0/16") {
		t.Errorf("a route that is not to be passed on is: %s %v", out, err)
	}

	// No reflector any more: routes of the own AS stay where they are.
	for name, p := range peers {
		q := *p
		q.Cluster = netip.Addr{}
		peers[name] = &q
	}
	s.order(&bgp.Order{Peers: peers})
	s.up("one", "two", "three")
	at(t, one, "198.51.100.0/24", func(r *frrRoute) bool { return len(r.Paths) == 1 })
	at(t, one, "192.0.3.0/24", none)
	at(t, three, "192.0.2.0/24", none)
}

// A route that was learned from one AS is passed on to another one with this node as its next hop,
// or with its own if it is to be kept; unless whoever announced it does not want that, or the
// settings.
func TestPassOn(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.frr(1, frrConf(1, []string{"192.0.2.0/24", "192.0.3.0/24", "10.60.0.0/16", "2001:db8:1::/48"})+`
  neighbor `+node4(1)+` route-map quiet out
 exit-address-family
 address-family ipv4 unicast
  neighbor `+node4(1)+` route-map quiet out
 exit-address-family
exit
ip prefix-list three permit 192.0.3.0/24
route-map quiet permit 10
 match ip address prefix-list three
 set community no-export
exit
route-map quiet permit 20
`)
	two := w.frr(2, frrConf(2, nil))
	s := w.speaker()
	set := settings()
	s.order(&bgp.Order{Settings: set, Peers: map[string]*bgp.Peer{"one": peer(1), "two": peer(2)}, Routes: routes("198.51.100.0/24")})
	s.up("one", "two")
	s.await("learned", func(x *said) bool { return len(x.learned) == 4 })
	at(t, two, "198.51.100.0/24", func(r *frrRoute) bool { return len(r.Paths) == 1 })
	at(t, two, "192.0.2.0/24", none)

	on := *set
	on.PassOn = []netip.Prefix{prefix("192.0.0.0/16"), prefix("2001:db8::/32")}
	s.order(&bgp.Order{Settings: &on})
	hop := func(want string) func(*frrRoute) bool {
		return func(r *frrRoute) bool {
			return len(r.Paths) == 1 && r.Paths[0].Nexthops[0].IP == want && r.Paths[0].AsPath.String == "64512 64601"
		}
	}
	at(t, two, "192.0.2.0/24", hop(node4(2)))
	at(t, two, "2001:db8:1::/48", hop(node6(2)))
	at(t, two, "10.60.0.0/16", none)
	at(t, two, "192.0.3.0/24", none)

	keep := peer(2)
	keep.KeepNextHop = true
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"two": keep}})
	at(t, two, "192.0.2.0/24", hop(peer4(1)))
	at(t, two, "2001:db8:1::/48", hop(peer6(1)))
	s.order(&bgp.Order{Settings: set})
	at(t, two, "192.0.2.0/24", none)
	s.await("the same sessions", func(x *said) bool { return x.peers["one"].Why == "" && x.peers["two"].Why == "" })
}

// birdConf is BIRD's configuration as neighbour i, which announces some prefixes.
func birdConf(i int, as uint32, prefixes ...string) string {
	var four, six strings.Builder
	for _, p := range prefixes {
		to := &four
		if strings.Contains(p, ":") {
			to = &six
		}
		fmt.Fprintf(to, "  route %s blackhole;\n", p)
	}
	return fmt.Sprintf(`
router id %[1]s;
protocol device {}
protocol static s4 { ipv4;
%[4]s}
protocol static s6 { ipv6;
%[5]s}
protocol bgp node {
  local as %[3]d;
  neighbor %[2]s as 64512;
  connect retry time 2;
  graceful restart on;
  ipv4 { import all; export where source = RTS_STATIC; next hop self; };
  ipv6 { import all; export where source = RTS_STATIC; next hop self; };
}
`, peer4(i), node4(i), as, four.String(), six.String())
}
