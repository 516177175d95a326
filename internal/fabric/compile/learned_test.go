package compile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// learn makes routes of lines: "10.9.0.0/16 192.0.2.9", or without a next hop, one that is gone.
func learn(lines ...string) map[netip.Prefix]*bgp.Learned {
	routes := map[netip.Prefix]*bgp.Learned{}
	for _, line := range lines {
		words := strings.Fields(line)
		to := netip.MustParsePrefix(words[0])
		if routes[to] = nil; len(words) > 1 {
			routes[to] = &bgp.Learned{Peer: "tor", NextHop: netip.MustParseAddr(words[1])}
		}
	}
	return routes
}

// resolve has 198.51.100.0/25 reached by a gateway, and 198.51.100.128/25 on a link that has no
// subnet.
func resolve(to netip.Addr) (via netip.Addr, device string) {
	switch {
	case netip.MustParsePrefix("198.51.100.0/25").Contains(to):
		return netip.MustParseAddr("192.0.2.254"), "eth0"
	case netip.MustParsePrefix("198.51.100.128/25").Contains(to):
		return netip.Addr{}, "ppp0"
	}
	if to == netip.MustParseAddr("203.0.115.7") {
		return netip.Addr{}, "veth7"
	}
	return netip.Addr{}, ""
}

func TestLearned(t *testing.T) {
	const own, near, far = "own 192.0.2.1 fd00:2::1 10.244.1.0/24", "near 192.0.2.2 10.244.2.0/24", "far 198.51.100.3 10.244.3.0/24"
	const ownRoute = "10.244.1.0/24: nowhere\n"
	for name, c := range map[string]struct {
		nodes, pools, routes []string
		key                  byte
		served               string
		want                 string
		issues               []string
	}{
		"by a subnet, a gateway, a link": {
			nodes: []string{own}, pools: []string{"v4 10.244.0.0/16"}, routes: []string{"10.9.0.0/16 192.0.2.9", "10.8.0.0/16 198.51.100.9", "10.7.0.0/16 198.51.100.200", "fd00:9::/48 fd00:2::9"},
			want: "10.244.1.0/24: nowhere\n10.7.0.0/16: ppp0 198.51.100.200\n10.8.0.0/16: eth0 192.0.2.254\n10.9.0.0/16: eth0 192.0.2.9\nfd00:9::/48: eth0 fd00:2::9",
		},
		"the way to a node's pods across subnets": {
			nodes: []string{own, near, far}, pools: []string{"v4 10.244.0.0/16"}, routes: []string{"10.244.2.0/24 192.0.2.9", "10.244.3.0/24 192.0.2.9"},
			want: ownRoute + "10.244.2.0/24: eth0 192.0.2.2\n10.244.3.0/24: eth0 192.0.2.9",
		},
		"a next hop that is not reached": {
			nodes: []string{own, far}, pools: []string{"v4 10.244.0.0/16"}, routes: []string{"10.244.3.0/24 203.0.114.1", "10.9.0.0/16 203.0.114.1", "10.8.0.0/16 fd00:2::9", "10.7.0.0/16 127.0.0.9"},
			want: ownRoute[:len(ownRoute)-1],
			issues: []string{
				"Node far: it is on no subnet of this node, and IPPool v4 has no tunnel",
				"peer tor: its route to 10.7.0.0/16 is not followed: the next hop 127.0.0.9 is no IPv4 address to send to",
				"peer tor: its route to 10.8.0.0/16 is not followed: the next hop fd00:2::9 is no IPv4 address to send to",
				"peer tor: its routes to 10.9.0.0/16, 10.244.3.0/24 are not followed: this node has no route to the next hop 203.0.114.1",
			},
		},
		"what would cut the node off": {
			nodes: []string{own, far}, pools: []string{"v4 10.244.0.0/16"},
			routes: []string{
				"0.0.0.0/0 192.0.2.9", "::/0 fd00:2::9", "192.0.2.0/24 192.0.2.9", "192.0.2.7/32 192.0.2.9", "10.244.0.0/16 192.0.2.9", "10.244.1.128/25 192.0.2.9", "10.244.1.0/24 192.0.2.9",
				"192.88.99.0/24 192.0.2.9", "127.0.0.0/16 192.0.2.9", "169.254.169.254/32 192.0.2.9", "fe80::/64 fd00:2::9", "224.1.0.0/16 192.0.2.9", "192.88.98.0/24 192.0.2.9",
			},
			want: "10.244.1.0/24: nowhere\n192.88.98.0/24: eth0 192.0.2.9",
			issues: []string{
				"Node far: it is on no subnet",
				"peer tor: its route to 0.0.0.0/0 is not followed: it holds 192.0.2.0/24, the subnet of this node on eth0; have the peer not announce it, or reject it by a BGPFilter",
				"peer tor: its route to 10.244.0.0/16 is not followed: it holds 10.244.1.0/24, pods of this node",
				"peer tor: its route to 10.244.1.128/25 is not followed: it lies in 10.244.1.0/24, pods of this node",
				"peer tor: its route to 127.0.0.0/16 is not followed: it lies in 127.0.0.0/8, loopback",
				"peer tor: its route to 169.254.169.254/32 is not followed: it lies in 169.254.0.0/16, link-local",
				"peer tor: its route to 192.88.99.0/24 is not followed: it holds 192.88.99.1/32, the API server",
				"peer tor: its route to 224.1.0.0/16 is not followed: it lies in 224.0.0.0/4, multicast",
				"peer tor: its route to ::/0 is not followed: it holds fd00:2::/64, the subnet of this node on eth0",
				"peer tor: its route to fe80::/64 is not followed: it lies in fe80::/10, link-local",
				"peer tor: its routes to 192.0.2.0/24, 192.0.2.7/32 are not followed: each lies in 192.0.2.0/24, the subnet of this node on eth0",
			},
		},
		"what is of other nodes' pods": {
			nodes: []string{own, near, far, "late 192.0.2.5 10.244.3.0/25 created=x", "class-e 198.51.100.6 240.1.1.0/24"}, pools: []string{"v4 10.244.0.0/16", "e 240.0.0.0/4"},
			routes: []string{
				"10.244.2.128/25 192.0.2.9", "10.244.3.7/32 192.0.2.9", "10.244.3.0/25 192.0.2.5", "10.244.3.0/24 192.0.2.9", "10.244.0.0/20 192.0.2.9", "240.1.1.0/24 192.0.2.9",
				"10.9.0.0/16 10.244.2.7", "10.8.0.0/16 10.244.1.7", "10.7.0.0/16 203.0.115.7",
			},
			want: ownRoute + "10.244.2.0/24: eth0 192.0.2.2\n10.244.3.0/24: eth0 192.0.2.9\n10.244.3.0/25: eth0 192.0.2.5\n240.1.1.0/24: eth0 192.0.2.9",
			issues: []string{
				"Node far: its pod CIDR 10.244.3.0/24 holds what other nodes have before it, 10.244.3.0/25 of Node late",
				"peer tor: its route to 10.244.0.0/20 is not followed: it holds 10.244.1.0/24, pods of this node",
				"peer tor: its route to 10.244.2.128/25 is not followed: it lies in 10.244.2.0/24, pods of Node near; have the peer not announce it, or reject it by a BGPFilter",
				"peer tor: its route to 10.244.3.7/32 is not followed: it lies in 10.244.3.0/25, pods of Node late",
				"peer tor: its route to 10.7.0.0/16 is not followed: the next hop 203.0.115.7 is a pod of this node",
				"peer tor: its route to 10.8.0.0/16 is not followed: the next hop 10.244.1.7 is a pod of Node own",
				"peer tor: its route to 10.9.0.0/16 is not followed: the next hop 10.244.2.7 is a pod of Node near",
			},
		},
		"pods that a node claims and does not have": {
			nodes: []string{own, "far 198.51.100.3 10.244.3.0/24 created=x", "late 192.0.2.5 10.244.3.0/25 created=xx"}, pools: []string{"v4 10.244.0.0/16"},
			routes: []string{"10.244.3.0/25 192.0.2.5", "10.244.3.0/24 192.0.2.9"},
			want:   ownRoute + "10.244.3.0/24: eth0 192.0.2.9",
			issues: []string{
				"Node late: its pod CIDR 10.244.3.0/25 lies in 10.244.3.0/24 of Node far, which was there first",
				"peer tor: its route to 10.244.3.0/25 is not followed: it lies in 10.244.3.0/24, pods of Node far",
			},
		},
		"what no router forwards to": {
			nodes: []string{own}, pools: []string{"v4 10.244.0.0/16"},
			routes: []string{"0.1.0.0/16 192.0.2.9", "240.0.0.0/4 192.0.2.9", "255.255.255.255/32 192.0.2.9", "::/128 fd00:2::9", "::1/128 fd00:2::9", "::ffff:0:0/104 fd00:2::9", "ff05::/16 fd00:2::9",
				"10.6.0.0/16 240.0.0.1", "10.7.0.0/16 0.0.0.9", "10.8.0.0/16 255.255.255.255", "241.0.0.0/8 192.0.2.9"},
			want: ownRoute[:len(ownRoute)-1],
			issues: []string{
				"peer tor: its route to 0.1.0.0/16 is not followed: it lies in 0.0.0.0/8, reserved",
				"peer tor: its route to 10.6.0.0/16 is not followed: the next hop 240.0.0.1 is no IPv4 address to send to",
				"peer tor: its route to 10.7.0.0/16 is not followed: the next hop 0.0.0.9 is no IPv4 address to send to",
				"peer tor: its route to 10.8.0.0/16 is not followed: the next hop 255.255.255.255 is no IPv4 address to send to",
				"peer tor: its route to 240.0.0.0/4 is not followed: it holds 255.255.255.255/32, broadcast",
				"peer tor: its route to 241.0.0.0/8 is not followed: it has a part of 240.0.0.0/4, which is reserved",
				"peer tor: its route to 255.255.255.255/32 is not followed: it lies in 255.255.255.255/32, broadcast",
				"peer tor: its route to ::/128 is not followed: it lies in ::/128, unspecified",
				"peer tor: its route to ::1/128 is not followed: it lies in ::1/128, loopback",
				"peer tor: its route to ::ffff:0.0.0.0/104 is not followed: it lies in ::ffff:0.0.0.0/96, IPv4-mapped",
				"peer tor: its route to ff05::/16 is not followed: it lies in ff00::/8, multicast",
			},
		},
		"IPIP: nodes by the tunnel, others as they are": {
			nodes: []string{own, near, far}, pools: []string{"v4 10.244.0.0/16 ipip=Always"}, routes: []string{"10.244.9.0/26 192.0.2.2", "10.244.9.64/26 198.51.100.3", "10.244.9.128/26 192.0.2.9", "10.9.0.0/16 198.51.100.3"},
			want: ownRoute + "10.244.2.0/24: sluice.ipip 192.0.2.2\n10.244.3.0/24: sluice.ipip 198.51.100.3\n10.244.9.0/26: sluice.ipip 192.0.2.2\n10.244.9.128/26: eth0 192.0.2.9\n" +
				"10.244.9.64/26: sluice.ipip 198.51.100.3\n10.9.0.0/16: eth0 192.0.2.254\nsluice.ipip: IPIP local 192.0.2.1 address 10.244.1.0 mtu 1480",
		},
		"IPIP across subnets": {
			nodes: []string{own, near, far}, pools: []string{"v4 10.244.0.0/16 ipip=CrossSubnet"}, routes: []string{"10.244.9.0/26 192.0.2.2", "10.244.9.64/26 198.51.100.3"},
			want: ownRoute + "10.244.2.0/24: eth0 192.0.2.2\n10.244.3.0/24: sluice.ipip 198.51.100.3\n10.244.9.0/26: eth0 192.0.2.2\n10.244.9.64/26: sluice.ipip 198.51.100.3\n" +
				"sluice.ipip: IPIP local 192.0.2.1 address 10.244.1.0 mtu 1480",
		},
		"IPIP to what holds the node": {
			nodes: []string{own, far}, pools: []string{"v4 0.0.0.0/0 ipip=Always"}, routes: []string{"198.51.100.0/24 198.51.100.3"},
			want:   ownRoute + "10.244.3.0/24: sluice.ipip 198.51.100.3\nsluice.ipip: IPIP local 192.0.2.1 address 10.244.1.0 mtu 1480",
			issues: []string{"peer tor: its route to 198.51.100.0/24 is not followed: it holds 198.51.100.3, which is the address of a node, and IPPool v4 has packets travel by IPIP"},
		},
		"VXLAN": {
			nodes: []string{own, near}, pools: []string{"v4 10.244.0.0/16 vxlan=CrossSubnet", "w 10.245.0.0/16 vxlan=Always"}, routes: []string{"10.244.9.0/26 192.0.2.2", "10.245.9.0/26 192.0.2.2", "10.244.2.0/24 192.0.2.2"},
			want: ownRoute + "10.244.2.0/24: eth0 192.0.2.2\n10.244.9.0/26: eth0 192.0.2.2\nsluice.vxlan: VXLAN local 192.0.2.1 address 10.244.1.0 mtu 1450",
			issues: []string{
				"peer tor: its route to 10.245.9.0/26 is not followed: IPPool w has packets travel by VXLAN, for which Node near or a block has to say that it has such pods",
			},
		},
		"nodes that encrypt": {
			key: 'o', nodes: []string{own + " key=o", near + " key=n"}, pools: []string{"v4 10.244.0.0/16"}, routes: []string{"10.244.9.0/26 192.0.2.2", "10.244.2.0/24 192.0.2.2"},
			want: ownRoute + "10.244.2.0/24: sluice.wg\npeer n near: 192.0.2.2:51820 [10.244.2.0/24 192.0.2.2/32]\nsluice.wg: WireGuard local 192.0.2.1 address 10.244.1.0 mtu 1440",
			issues: []string{
				"peer tor: its route to 10.244.9.0/26 is not followed: what goes to Node near is encrypted, and neither",
			},
		},
		"what each node serves by itself, and what comes back": {
			nodes: []string{own}, pools: []string{"v4 10.244.0.0/16"}, served: "10.96.0.0/12", routes: []string{"10.96.0.0/12 192.0.2.2", "10.96.0.9/32 192.0.2.2", "10.9.0.0/16 192.0.2.1"},
			want: ownRoute[:len(ownRoute)-1],
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newCluster(Config{Node: "own", Key: model.PublicKey{c.key}, Resolve: resolve}, underlay...)
			x.c.SetLinks(model.Links{Links: []model.Link{{Name: "eth0", Host: true}, {Name: "veth7", Pod: true}}})
			x.c.SetAPIServers([]netip.Addr{netip.MustParseAddr("192.88.99.1")})
			if c.served != "" {
				x.c.SetServed([]netip.Prefix{netip.MustParsePrefix(c.served)})
			}
			x.c.SetLearned(learn(c.routes...))
			var events []store.Event
			for _, line := range c.nodes {
				events = append(events, nodeEvent(t, line))
			}
			for _, line := range c.pools {
				events = append(events, poolEvent(line))
			}
			x.update(events...)
			if got := text(x.c.Fabric()); got != c.want {
				t.Errorf("fabric\n%s\nwant\n%s", got, c.want)
			}
			var issues []string
			for _, i := range x.c.Issues() {
				issues = append(issues, i.String())
			}
			if !slices.EqualFunc(issues, c.issues, strings.HasPrefix) {
				t.Errorf("issues %s, want %q", strings.Join(issues, "\n"), c.issues)
			}
		})
	}
}

// The fault of a node that is not reached goes while its route is learned, and comes back.
func TestLearnedRouteComesAndGoes(t *testing.T) {
	x := newCluster(Config{Node: "own", BGP: true}, underlay...)
	x.update(nodeEvent(t, "own 192.0.2.1 10.244.1.0/24"), nodeEvent(t, "far 198.51.100.3 10.244.3.0/24"), poolEvent("v4 10.244.0.0/16"))
	to := netip.MustParsePrefix("10.244.3.0/24")
	if issues := x.c.Issues(); len(issues) != 1 || !strings.Contains(issues[0].String(), "no BGP peer announces its pods of 10.244.3.0/24") {
		t.Fatal(issues)
	}
	x.c.SetLearned(learn("10.244.3.0/24 192.0.2.9"))
	if d := x.update(); len(d.Routes) != 1 || *d.Routes[to] != (state.Route{Node: "tor", Device: "eth0", Via: netip.MustParseAddr("192.0.2.9")}) || len(x.c.Issues()) > 0 {
		t.Errorf("%+v, %v", d.Routes, x.c.Issues())
	}
	want := BlockView{CIDR: to, Node: "far", Mode: "native by BGP", Via: "192.0.2.9", Device: "eth0", MTU: 1500}
	if v := x.c.View(); !slices.Contains(v.Blocks, want) {
		t.Errorf("%+v", v.Blocks)
	}
	x.c.SetLearned(learn("10.244.3.0/24"))
	if d := x.update(); len(d.Routes) != 1 || d.Routes[to] != nil || len(x.c.Issues()) != 1 {
		t.Errorf("%+v, %v", d.Routes, x.c.Issues())
	}
	// A node that moves to the subnet is reached as its Node says, and the learned route waits.
	x.c.SetLearned(learn("10.244.3.0/24 192.0.2.9"))
	x.update(nodeEvent(t, "far 192.0.2.3 10.244.3.0/24"))
	if r, why := x.c.Fabric().Routes[to], x.c.NotFollowed(to); r.Node != "far" || why != "Nodes and blocks say the way" {
		t.Errorf("%+v, %q", r, why)
	}
	x.update(gone(model.NodeKind, "far"))
	if r, why := x.c.Fabric().Routes[to], x.c.NotFollowed(to); r.Node != "tor" || why != "" {
		t.Errorf("%+v, %q", r, why)
	}
}

// No Node takes the API away, which is followed when it moves.
func TestPodsWithTheAddressOfTheAPI(t *testing.T) {
	x := newCluster(Config{Node: "own"}, underlay...)
	x.c.SetAPIServers([]netip.Addr{netip.MustParseAddr("198.51.100.9")})
	x.update(nodeEvent(t, "own 192.0.2.1 10.244.1.0/24"), nodeEvent(t, "b 192.0.2.2 198.51.100.9/32"), poolEvent("all 0.0.0.0/0"))
	const fault = "Node b: its pod CIDR 198.51.100.9/32 holds 198.51.100.9, the API server: its pods there are not reached; give it another"
	if got, issues := text(x.c.Fabric()), fmt.Sprint(x.c.Issues()); got != "10.244.1.0/24: nowhere" || issues != "["+fault+"]" {
		t.Errorf("%s, %s", got, issues)
	}
	x.c.SetAPIServers([]netip.Addr{netip.MustParseAddr("198.51.100.10")})
	if x.update(); nodeOf(x, netip.MustParseAddr("198.51.100.9")) != "b" || len(x.c.Issues()) > 0 {
		t.Error(text(x.c.Fabric()), x.c.Issues())
	}
}

// When the kernel's routes change, those learned routes follow whose next hops do.
func TestNextHopMoves(t *testing.T) {
	by, asked := "eth0", 0
	x := newCluster(Config{Node: "own", Resolve: func(to netip.Addr) (netip.Addr, string) {
		asked++
		if to == netip.MustParseAddr("198.51.100.9") {
			return netip.MustParseAddr("192.0.2.254"), by
		}
		return netip.MustParseAddr("192.0.2.253"), "eth0"
	}}, underlay...)
	x.c.SetLearned(learn("10.8.0.0/16 198.51.100.9", "10.9.0.0/16 198.51.100.9", "10.10.0.0/16 198.51.100.10"))
	x.update(nodeEvent(t, "own 192.0.2.1 10.244.1.0/24"), poolEvent("v4 10.244.0.0/16"))
	if asked != 2 {
		t.Errorf("asked %d times for two next hops", asked)
	}
	by = "eth1"
	x.c.SetLinks(model.Links{})
	if d := x.update(); len(d.Routes) != 2 || d.Routes[netip.MustParsePrefix("10.9.0.0/16")].Device != "eth1" {
		t.Errorf("%+v", d.Routes)
	}
	by = ""
	x.c.SetLinks(model.Links{})
	if d := x.update(); len(d.Routes) != 2 || d.Routes[netip.MustParsePrefix("10.9.0.0/16")] != nil || len(x.c.Issues()) != 1 {
		t.Errorf("%+v, %v", d.Routes, x.c.Issues())
	}
}

// However Nodes, pools, routes and the underlay come, the fabric is that of the current ones, and
// deltas lead to it.
func TestLearnedIsOfTheCurrentRoutes(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 12))
		pick := func(options ...string) string { return options[r.IntN(len(options))] }
		cfg := Config{Node: "own", Key: model.PublicKey{byte(seed % 2)}, Resolve: resolve}
		x := newCluster(cfg, underlay...)
		held, objects, routes := state.NewFabric(), map[model.Ref]store.Event{}, map[netip.Prefix]*bgp.Learned{}
		var served []netip.Prefix
		for range 30 {
			var events []store.Event
			for range r.IntN(3) {
				name := pick("own", "a", "b", "c")
				e := nodeEvent(t, name+" "+pick("192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1", "10.244.3.9")+" "+pick("10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24", "10.244.0.0/16")+" created="+pick("x", "xx")+" "+pick("", "key=a"))
				switch r.IntN(5) {
				case 0:
					e = poolEvent(pick("p", "q") + " " + pick("10.244.0.0/16", "10.244.0.0/23", "198.51.0.0/16") + " " + pick("vxlan=Always", "ipip=CrossSubnet", "ipip=Always", ""))
				case 1:
					e = gone(model.IPPoolKind, pick("p", "q"))
				case 2:
					if name != "own" {
						e = gone(model.NodeKind, name)
					}
				}
				objects[model.Ref{Kind: e.Kind, Name: e.Name}] = e
				events = append(events, e)
			}
			for range r.IntN(4) {
				delta := learn(pick("10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24", "10.244.3.64/26", "10.9.0.0/16", "192.0.2.128/25", "198.51.100.0/24", "198.51.0.0/16", "241.0.0.0/8", "10.244.2.1/32") + " " + pick("", "192.0.2.2", "192.0.2.9", "198.51.100.1", "203.0.114.1", "10.244.3.9"))
				maps.Copy(routes, delta)
				x.c.SetLearned(delta)
			}
			switch r.IntN(12) {
			case 0:
				x.c.SetUnderlay(underlay[:r.IntN(len(underlay)+1)])
			case 1:
				served = []netip.Prefix{netip.MustParsePrefix(pick("10.9.0.0/16", "10.96.0.0/12"))}
				x.c.SetServed(served)
			}
			held.Apply(x.update(events...))
			anew := newCluster(cfg, x.c.underlay...)
			anew.c.SetServed(served)
			maps.DeleteFunc(routes, func(_ netip.Prefix, l *bgp.Learned) bool { return l == nil })
			anew.c.SetLearned(routes)
			anew.update(slices.Collect(maps.Values(objects))...)
			if got, want := text(x.c.Fabric()), text(anew.c.Fabric()); got != want || text(held) != want {
				t.Fatalf("seed %d: fabric\n%s\nby deltas\n%s\nwant\n%s", seed, got, text(held), want)
			}
			if got, want := fmt.Sprint(x.c.Issues()), fmt.Sprint(anew.c.Issues()); got != want {
				t.Fatalf("seed %d: issues %s, want %s", seed, got, want)
			}
			if got, want := fmt.Sprint(x.c.View()), fmt.Sprint(anew.c.View()); got != want {
				t.Fatalf("seed %d: view %s, want %s", seed, got, want)
			}
		}
	}
}

// A peer that announces very much that is not followed is one issue.
func TestManyRefused(t *testing.T) {
	x := newCluster(Config{Node: "own"}, underlay...)
	x.update(nodeEvent(t, "own 192.0.2.1 10.244.1.0/24"), poolEvent("v4 10.244.0.0/16"))
	routes := map[netip.Prefix]*bgp.Learned{}
	maps.Copy(routes, manyLearned(1000, "198.51.100.1"))
	x.c.SetLearned(routes)
	x.update()
	issues := x.c.Issues()
	if len(issues) != 1 || !strings.HasPrefix(issues[0].String(), "peer tor: its routes to 10.0.0.0/24, 10.0.1.0/24, 10.0.2.0/24 and 997 more are not followed: this node has no route") {
		t.Errorf("%v", issues)
	}
}

func manyLearned(count int, by string) map[netip.Prefix]*bgp.Learned {
	routes := map[netip.Prefix]*bgp.Learned{}
	for i := range count {
		routes[netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255))] = &bgp.Learned{Peer: "tor", NextHop: netip.MustParseAddr(by)}
	}
	return routes
}

// 10,000 routes come at once, and go.
func BenchmarkManyLearned(b *testing.B) {
	x := newCluster(Config{Node: "own"}, underlay...)
	x.update(nodeEvent(b, "own 192.0.2.1 172.30.1.0/24"), poolEvent("v4 172.30.0.0/16"))
	routes, none := manyLearned(10000, "192.0.2.9"), map[netip.Prefix]*bgp.Learned{}
	for p := range routes {
		none[p] = nil
	}
	for b.Loop() {
		for _, change := range []map[netip.Prefix]*bgp.Learned{routes, none} {
			x.c.SetLearned(change)
			if d := x.update(); len(d.Routes) != len(routes) {
				b.Fatal(len(d.Routes))
			}
		}
	}
}

func BenchmarkOneLearned(b *testing.B) {
	x := newCluster(Config{Node: "own"}, underlay...)
	x.c.SetLearned(manyLearned(10000, "192.0.2.9"))
	x.update(nodeEvent(b, "own 192.0.2.1 172.30.1.0/24"), poolEvent("v4 172.30.0.0/16"))
	for b.Loop() {
		x.c.SetLearned(learn("10.1.1.0/24"))
		x.update()
		x.c.SetLearned(learn("10.1.1.0/24 192.0.2.9"))
		if d := x.update(); d.Len() != 1 {
			b.Fatal(d.Len())
		}
	}
}

// However many CIDRs of other nodes come at once, learned routes into them are no longer followed.
func TestManyNodesTakeTheirPodsBack(t *testing.T) {
	x := newCluster(Config{Node: "own", BGP: true}, underlay...)
	x.update(nodeEvent(t, "own 192.0.2.1 10.244.1.0/24"), poolEvent("v4 10.0.0.0/8"))
	to := netip.MustParsePrefix("10.7.5.0/25")
	x.c.SetLearned(learn("10.7.5.0/25 192.0.2.9"))
	if x.update(); x.c.Fabric().Routes[to] == nil {
		t.Fatal(x.c.NotFollowed(to))
	}
	var events []store.Event
	for i := range 2 * many {
		events = append(events, nodeEvent(t, fmt.Sprintf("n%d 192.0.2.%d 10.7.%d.0/24", i, 10+i, i)))
	}
	x.update(events...)
	if why := x.c.NotFollowed(to); x.c.Fabric().Routes[to] != nil || !strings.Contains(why, "pods of Node n5;") {
		t.Errorf("%v, %q", x.c.Fabric().Routes[to], why)
	}
}

// The ways to other nodes end at the addresses of their tunnels: what Calico has set apart, or the
// first of the pods. Without a tunnel they end at the node, or at the router that a peer names;
// each is there once, and a tunnel whose end cannot be asked is not.
func TestFarEnds(t *testing.T) {
	for _, c := range []struct {
		pool   string
		learn  []string
		events []store.Event
		want   []string
	}{
		{"vxlan=Always", nil, nil, []string{
			"far sluice.vxlan 198.51.100.3 10.244.3.0 UDP 4789 (VXLAN)", "near sluice.vxlan 192.0.2.2 10.244.9.9 UDP 4789 (VXLAN)",
		}},
		{"ipip=Always", nil, nil, []string{
			"far sluice.ipip 198.51.100.3 10.244.3.0 protocol 4 (IPIP)", "near sluice.ipip 192.0.2.2 10.244.2.0 protocol 4 (IPIP)",
		}},
		{"vxlan=CrossSubnet", nil, nil, []string{"far sluice.vxlan 198.51.100.3 10.244.3.0 UDP 4789 (VXLAN)", "near eth0 192.0.2.2 192.0.2.2 "}},
		{"", []string{"10.244.3.0/24 192.0.2.9", "10.244.3.0/25 192.0.2.9", "10.9.0.0/16 192.0.2.2", "10.8.0.0/16 198.51.100.9"}, nil, []string{
			"near eth0 192.0.2.2 192.0.2.2 ", "tor eth0 192.0.2.254 198.51.100.9 ", "tor eth0 192.0.2.9 192.0.2.9 ",
		}},
		{"ipip=Always", []string{"10.244.7.0/24 192.0.2.2", "10.244.8.0/24 198.51.100.3"}, nil, []string{
			"far sluice.ipip 198.51.100.3 10.244.3.0 protocol 4 (IPIP)", "near sluice.ipip 192.0.2.2 10.244.2.0 protocol 4 (IPIP)",
		}},
		// Calico gives addresses out of far's block, and has set none apart for its tunnel.
		{"ipip=Always", []string{"10.244.8.0/24 198.51.100.3"}, []store.Event{blockEvent("b 10.244.6.0/26 far")}, []string{
			"near sluice.ipip 192.0.2.2 10.244.2.0 protocol 4 (IPIP)",
		}},
	} {
		x := newCluster(Config{Node: "own", BGP: true, Resolve: resolve}, underlay...)
		x.c.SetLearned(learn(c.learn...))
		x.update(append([]store.Event{nodeEvent(t, "own 192.0.2.1 10.244.1.0/24"), nodeEvent(t, "near 192.0.2.2 10.244.2.0/24 vxlan=10.244.9.9"),
			nodeEvent(t, "far 198.51.100.3 10.244.3.0/24"), poolEvent("v4 10.244.0.0/16 " + c.pool)}, c.events...)...)
		var got []string
		for _, e := range x.c.FarEnds() {
			got = append(got, fmt.Sprintf("%s %s %s %s %s", e.Node, e.Device, e.Remote, e.To, e.Carrier))
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%s, %v:\n%s\nwant:\n%s", c.pool, c.learn, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}
