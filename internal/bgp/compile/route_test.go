package compile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// service makes a Service with a cluster IP, changed.
func service(name, ip string, change ...func(*model.Service)) *model.Service {
	s := &model.Service{Name: model.Name{Namespace: "shop", Name: name}, Created: time.Unix(1, 0), Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}}}
	if ip != "" {
		s.ClusterIPs = append(s.ClusterIPs, addr(ip))
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func local(s *model.Service) { s.ExternalLocal = true }

func external(ip string) func(*model.Service) {
	return func(s *model.Service) { s.ExternalIPs = append(s.ExternalIPs, addr(ip)) }
}

// given has a Service have a load balancer's address.
func given(ip, label string) func(*model.Service) {
	return func(s *model.Service) {
		if len(s.ClusterIPs) == 0 {
			s.ClusterIPs = append(s.ClusterIPs, addr("172.30.0.1"))
		}
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, addr(ip))
		s.LoadBalancer = &model.LoadBalancer{Wanted: true, Ingress: s.LoadBalancerIPs, Labels: map[string]string{"tier": label}, SharingKey: "all"}
	}
}

// ready makes the slice of a Service with an endpoint on each of some nodes; those after "-" are
// not ready.
func ready(service string, nodes ...string) *model.EndpointSlice {
	s := &model.EndpointSlice{Name: model.Name{Namespace: "shop", Name: service + "-1"}, Service: service}
	for _, n := range nodes {
		name := strings.TrimPrefix(n, "-")
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: addr("10.244.1.9"), Node: name, Ready: name == n, Serving: true})
	}
	return s
}

func addresses(name, first, last string) *model.IPAddressPool {
	return &model.IPAddressPool{Name: model.Name{Namespace: "lb", Name: name}, Ranges: []model.AddressRange{{First: addr(first), Last: addr(last)}}, Services: model.Everything()}
}

// advertisement makes a BGPAdvertisement of all pools, changed.
func advertisement(name string, change ...func(*model.BGPAdvertisement)) *model.BGPAdvertisement {
	a := &model.BGPAdvertisement{Name: model.Name{Namespace: "lb", Name: name}, Advertised: model.Advertised{Nodes: model.Everything(), Services: model.Everything()}, Length4: 32, Length6: 128}
	for _, c := range change {
		c(a)
	}
	return a
}

func TestRoutes(t *testing.T) {
	const own = "own 192.0.2.5 fd00::5 10.244.1.0/24 fd00:10:1::/64"
	ranges := config(func(c *model.BGPConfiguration) {
		c.ClusterIPs, c.ExternalIPs, c.LoadBalancerIPs = prefixes("10.96.0.0/12"), prefixes("198.51.100.0/24", "198.51.101.9/32"), prefixes("203.0.113.0/24", "203.0.114.9/32")
	})
	const whole = "10.96.0.0/12|198.51.100.0/24|203.0.113.0/24"
	block := func(name, cidr, node string) *model.BlockAffinity {
		return &model.BlockAffinity{Name: name, CIDR: prefix(cidr), Node: node}
	}
	lb := addresses("p", "192.0.9.0", "192.0.9.63")
	for name, c := range map[string]struct {
		objects []model.Object // beside the own node
		want    string         // separated by "|"
		faults  []string
	}{
		"pods":            {objects: []model.Object{pool("v4", "10.244.0.0/16"), pool("v6", "fd00:10::/32")}, want: "10.244.1.0/24|fd00:10:1::/64"},
		"pods of no pool": {objects: []model.Object{pool("v4", "10.244.0.0/16")}, want: "10.244.1.0/24"},
		"pods of a pool that is not announced": {
			objects: []model.Object{&model.IPPool{Name: "x", CIDR: prefix("10.244.0.0/16"), DisableBGPExport: true}, pool("v6", "fd00:10::/32")}, want: "fd00:10:1::/64",
		},
		"the smallest pool counts": {
			objects: []model.Object{&model.IPPool{Name: "x", CIDR: prefix("10.0.0.0/8"), DisableBGPExport: true}, pool("v4", "10.244.0.0/16")}, want: "10.244.1.0/24",
		},
		"blocks": {
			objects: []model.Object{nodeOf("own 192.0.2.5 10.244.1.0/24"), pool("v4", "10.244.0.0/16"), block("a", "10.244.7.0/26", "own"), block("b", "10.244.8.0/26", "other"), block("c", "10.244.1.64/26", "own")},
			want:    "10.244.1.0/24|10.244.7.0/26",
		},
		"communities": {
			objects: []model.Object{pool("v4", "10.244.0.0/16"), pool("v6", "fd00:10::/32"), config(func(c *model.BGPConfiguration) {
				c.Communities = map[string]string{"big": "large:1:2:3"}
				c.Advertisements = []model.PrefixAdvertisement{{CIDR: prefix("10.244.0.0/16"), Communities: []string{"big", "64500:1"}}, {CIDR: prefix("10.0.0.0/8"), Communities: []string{"64500:1", "64500:2", "none"}}}
			})},
			want:   "10.244.1.0/24 {with 64500:1, 64500:2, large:1:2:3}|fd00:10:1::/64",
			faults: []string{`BGPConfiguration default: spec.prefixAdvertisements[1]: "none" is none of spec.communities; it is left out; in force: the rest of it`},
		},
		"communities of the node": {
			objects: []model.Object{
				pool("v4", "10.244.0.0/16"), config(func(c *model.BGPConfiguration) {
					c.Communities = map[string]string{"big": "large:1:2:3"}
					c.Advertisements = []model.PrefixAdvertisement{{CIDR: prefix("10.244.0.0/16"), Communities: []string{"64500:1"}}}
				}),
				&model.BGPConfiguration{Name: "node.own", Advertisements: []model.PrefixAdvertisement{{CIDR: prefix("10.244.0.0/16"), Communities: []string{"big"}}}},
			},
			want: "10.244.1.0/24 {with large:1:2:3}",
		},
		"ranges of services": {objects: []model.Object{ranges, service("a", "10.96.0.1", external("198.51.100.1"), given("203.0.113.1", ""))}, want: whole},
		"with policy Local, where a ready endpoint is": {
			objects: []model.Object{ranges, service("a", "10.96.0.1", local, external("198.51.100.1"), external("192.0.2.77"), given("203.0.113.1", "")), ready("a", "other", "own")},
			want:    "10.96.0.0/12|10.96.0.1/32|198.51.100.0/24|198.51.100.1/32|203.0.113.0/24|203.0.113.1/32",
		},
		"with policy Local, no endpoint is ready here": { // projectcalico/calico#13246
			objects: []model.Object{ranges, service("a", "10.96.0.1", local, external("198.51.100.1")), ready("a", "other", "-own")}, want: whole,
		},
		"an endpoint of the other family": {
			objects: []model.Object{config(func(c *model.BGPConfiguration) { c.ExternalIPs = prefixes("fd00:9::/64") }), service("a", "10.96.0.1", local, external("fd00:9::1")), ready("a", "own")}, want: "fd00:9::/64",
		},
		"single addresses, while a Service has them": {
			objects: []model.Object{ranges, service("a", "10.96.0.1", external("198.51.101.9")), service("b", "10.96.0.2", local, given("203.0.114.9", ""))}, want: "10.96.0.0/12|198.51.100.0/24|198.51.101.9/32|203.0.113.0/24",
		},
		"load balancers one by one": {
			objects: []model.Object{
				config(func(c *model.BGPConfiguration) {
					c.LoadBalancerIPs, c.EachLoadBalancerIP = prefixes("203.0.113.0/24"), true
				}),
				service("a", "", given("203.0.113.1", "")), service("b", "", local, given("203.0.113.2", "")), service("c", "", local, given("203.0.113.3", "")), ready("c", "own"),
			},
			want: "203.0.113.1/32|203.0.113.3/32",
		},
		"a Service that is not proxied": {objects: []model.Object{ranges, service("a", "10.96.0.1", local, func(s *model.Service) { s.Unproxied = model.Headless }), ready("a", "own")}, want: whole},
		"a node that is excluded": {
			objects: []model.Object{nodeOf("own 192.0.2.5 10.244.1.0/24 " + excludeLabel + "=true"), pool("v4", "10.244.0.0/16"), ranges, service("a", "10.96.0.1", local, given("192.0.9.1", "")), ready("a", "own"), lb, advertisement("x")},
			want:    "10.244.1.0/24",
		},

		"MetalLB's addresses, to its peers": {
			objects: []model.Object{lb, advertisement("x", func(a *model.BGPAdvertisement) { a.LocalPref = 200 }), service("a", "", given("192.0.9.1", "")), metalLB("m"), metalLB("n", func(p *model.MetalLBPeer) { p.Address = addr("192.0.2.2") }), tor("t", func(p *model.BGPPeer) { p.Address = addr("192.0.2.3") })},
			want:    "192.0.9.1/32 {to BGPPeer lb/m, BGPPeer lb/n pref 200}",
		},
		"to all, where MetalLB has none": {objects: []model.Object{lb, advertisement("x"), service("a", "", given("192.0.9.1", "")), tor("t")}, want: "192.0.9.1/32"},
		"to some": {
			objects: []model.Object{lb, advertisement("x", func(a *model.BGPAdvertisement) { a.Peers = []string{"n", "o"} }), service("a", "", given("192.0.9.1", "")), metalLB("m"), metalLB("n", func(p *model.MetalLBPeer) { p.Address = addr("192.0.2.2") })},
			want:    "192.0.9.1/32 {to BGPPeer lb/n}",
			faults:  []string{"BGPAdvertisement lb/x: spec.peers: there is no BGPPeer o in its namespace"},
		},
		"to peers of other nodes":  {objects: []model.Object{lb, advertisement("x"), service("a", "", given("192.0.9.1", "")), metalLB("m", func(p *model.MetalLBPeer) { p.Nodes = model.Equal("name", "a") })}},
		"an external IP in a pool": {objects: []model.Object{lb, advertisement("x"), service("a", "10.96.0.1", external("192.0.9.2"))}, want: "192.0.9.2/32"},
		"aggregated": {
			objects: []model.Object{
				lb, advertisement("x", func(a *model.BGPAdvertisement) { a.Length4, a.Communities = 26, []string{"64500:9"} }), advertisement("y"),
				service("a", "", given("192.0.9.1", "")), service("b", "", given("192.0.9.2", "")), tor("t"),
			},
			want: "192.0.9.0/26 {with 64500:9}|192.0.9.1/32|192.0.9.2/32",
		},
		"with aliases": {
			objects: []model.Object{
				lb, advertisement("x", func(a *model.BGPAdvertisement) { a.Communities = []string{"vpn", "64500:1", "large:1:2:3"} }), service("a", "", given("192.0.9.1", "")), tor("t"),
				&model.Community{Name: model.Name{Namespace: "lb", Name: "c"}, Aliases: map[string]string{"vpn": "64500:7"}},
			},
			want: "192.0.9.1/32 {with 64500:1, 64500:7, large:1:2:3}",
		},
		"with an alias that is not there": {
			objects: []model.Object{
				lb, advertisement("x", func(a *model.BGPAdvertisement) { a.Communities = []string{"vpn"} }), service("a", "", given("192.0.9.1", "")), tor("t"),
				&model.Community{Name: model.Name{Namespace: "other", Name: "c"}, Aliases: map[string]string{"vpn": "64500:7"}},
			},
			faults: []string{"BGPAdvertisement lb/x: spec.communities: no Community in its namespace that can be read has the name vpn, for which it waits: make or mend one, or name one that exists; in force: nothing of it"},
		},
		"selected pools, nodes and services": {
			objects: []model.Object{
				lb, addresses("q", "192.0.8.0", "192.0.8.9"), tor("t"),
				advertisement("pool", func(a *model.BGPAdvertisement) { a.Pools = []string{"q"} }),
				advertisement("node", func(a *model.BGPAdvertisement) { a.Nodes, a.LocalPref = model.Equal("name", "a"), 1 }),
				advertisement("service", func(a *model.BGPAdvertisement) { a.Services, a.LocalPref = model.Equal("tier", "gold"), 2 }),
				advertisement("elsewhere", func(a *model.BGPAdvertisement) { a.Name.Namespace, a.LocalPref = "other", 3 }),
				service("a", "", given("192.0.9.1", "gold")), service("b", "", given("192.0.9.2", "")), service("c", "", given("192.0.8.1", "")),
			},
			want: "192.0.8.1/32|192.0.9.1/32 {pref 2}",
		},
		"policy Local": {
			objects: []model.Object{
				lb, advertisement("x"), tor("t"), service("a", "", local, given("192.0.9.1", "")), ready("a", "own"), service("b", "", local, given("192.0.9.2", "")), ready("b", "-own", "a"),
			},
			want: "192.0.9.1/32",
		},
		"a shared address, where one has an endpoint": {
			objects: []model.Object{
				lb, advertisement("x"), tor("t"), service("a", "", given("192.0.9.1", ""), local, func(s *model.Service) { s.Ports[0].Port = 81 }), ready("a", "-own"),
				service("b", "", given("192.0.9.1", ""), local), ready("b", "own"),
			},
			want: "192.0.9.1/32",
		},
		"a node that is about to go": {objects: []model.Object{nodeOf("own 192.0.2.5 leaving"), lb, advertisement("x"), tor("t"), service("a", "", given("192.0.9.1", ""))}},
		"one address by both": {
			objects: []model.Object{
				config(func(c *model.BGPConfiguration) {
					c.LoadBalancerIPs, c.EachLoadBalancerIP = prefixes("192.0.9.0/24"), true
				}), lb, advertisement("x", func(a *model.BGPAdvertisement) { a.LocalPref = 7 }),
				tor("t"), service("a", "", given("192.0.9.1", "")),
			},
			want: "192.0.9.1/32 {pref 7}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.set(append([]model.Object{nodeOf(own)}, c.objects...)...)
			got := slices.DeleteFunc(w.told(), func(line string) bool { return strings.HasPrefix(line, "BGPPeer") })
			if strings.Join(got, "|") != c.want {
				t.Errorf("told %q, want %s", got, c.want)
			}
			for _, a := range w.services.Given() {
				announced := strings.Contains(c.want, "192.0.9.0/26") || strings.Contains(c.want, a.String())
				if _, is := w.By(a); is != announced {
					t.Errorf("%s is announced: %v", a, !announced)
				}
			}
			faults := w.faults()
			if !slices.Equal(faults, c.faults) {
				t.Errorf("faults %q, want %q", faults, c.faults)
			}
		})
	}
}

// Peers of MetalLB's get what BGPAdvertisements may announce alone, and each node serves that.
func TestMetalLBPeersGetAddressesAlone(t *testing.T) {
	w := newWorld(t)
	w.set(nodeOf("own 192.0.2.5 10.244.1.0/24"), pool("v4", "10.244.0.0/16"), metalLB("m"), addresses("p", "192.0.9.4", "192.0.9.9"), addresses("q", "fd00:9::", "fd00:9::ff"),
		config(func(c *model.BGPConfiguration) { c.ClusterIPs = prefixes("10.96.0.0/12") }),
		advertisement("x"), advertisement("y", func(a *model.BGPAdvertisement) { a.Pools, a.Length4, a.Length6 = []string{"p", "q"}, 30, 64 }))
	const want = "(+192.0.9.4/30{0,32}; +192.0.9.8/30{0,30}; +192.0.9.8/31{0,32}; +fd00:9::/64{0,64}; +fd00:9::/120{0,128}; -)"
	if got := showRules(w.peers["BGPPeer lb/m"].Export); got != want {
		t.Errorf("rules %s, want %s", got, want)
	}
	served := prefixes("10.96.0.0/12", "192.0.9.4/30", "192.0.9.8/30", "192.0.9.8/31", "fd00:9::/64", "fd00:9::/120")
	if got, _ := w.Served(); !slices.Equal(got, served) {
		t.Errorf("served %v, want %v", got, served)
	}
}

// People see which object asks for a peer and a route, and no password.
func TestView(t *testing.T) {
	w := newWorld(t)
	if v := w.View(); v.AS != 0 || v.Peers == nil || v.Routes == nil {
		t.Errorf("%+v", v)
	}
	w.set(nodeOf("own 192.0.2.5 10.244.1.0/24 rr=1.0.0.1"), pool("v4", "10.244.0.0/16"), config(func(c *model.BGPConfiguration) { c.ClusterIPs = prefixes("10.96.0.0/12") }),
		service("a", "10.96.0.1", local), ready("a", "own"), &model.BGPFilter{Name: "f"},
		tor("p", func(p *model.BGPPeer) {
			p.AS, p.Filters, p.Password = 64512, []string{"f"}, model.SecretRef{Name: "s", Key: "k"}
		}))
	v := w.View()
	want := []PeerView{{Name: "BGPPeer p", Object: model.Ref{Kind: model.BGPPeerKind, Name: model.Name{Name: "p"}}, Address: addr("192.0.2.1"), Port: 179, AS: 64512, Password: true, Client: true, Filters: []string{"f"}}}
	if !reflect.DeepEqual(v.Peers, want) || v.Mesh || v.Cluster != addr("1.0.0.1") || v.RouterID != addr("192.0.2.5") {
		t.Errorf("%+v", v)
	}
	var whys []string
	for _, r := range v.Routes {
		whys = append(whys, fmt.Sprintf("%s %v", r.Prefix, r.Why))
	}
	if want := []string{"10.96.0.0/12 [BGPConfiguration default]", "10.96.0.1/32 [Service shop/a]", "10.244.1.0/24 [Node own]"}; !slices.Equal(whys, want) {
		t.Errorf("%q, want %q", whys, want)
	}
	m := newWorld(t)
	m.set(nodeOf("own 192.0.2.5"), nodeOf("a 192.0.2.2"), config())
	if v := m.View(); !v.Mesh || len(v.Peers) != 1 || v.Peers[0].Object != (model.Ref{}) {
		t.Errorf("%+v", v)
	}
}

// What a BGPAdvertisement announces stays while a name of its communities is missing, and what is
// new waits for it.
func TestMissingCommunity(t *testing.T) {
	community := func(alias string) *model.Community {
		return &model.Community{Name: model.Name{Namespace: "lb", Name: "c"}, Aliases: map[string]string{alias: "64500:7"}}
	}
	ad := func(length int, aliases ...string) *model.BGPAdvertisement {
		return advertisement("x", func(a *model.BGPAdvertisement) { a.Length4, a.Communities = length, aliases })
	}
	w := newWorld(t)
	w.set(nodeOf("own 192.0.2.5"), config(func(c *model.BGPConfiguration) { c.NoMesh = true }), addresses("p", "192.0.9.0", "192.0.9.255"), service("a", "", given("192.0.9.1", "")))
	for _, step := range []struct {
		name    string
		do      func()
		want    string // the prefix and its communities
		exports string
		faults  string // what is in force of the advertisement that waits; "": none does
	}{
		{"an advertisement comes before its community", func() { w.set(ad(32, "vpn")) }, "", "", model.InForceNothing},
		{"that comes", func() { w.set(community("vpn")) }, "192.0.9.1/32 [64500:7]", "192.0.9.0/24 32", ""},
		{"and goes", func() { w.remove(community("").Ref()) }, "192.0.9.1/32 [64500:7]", "192.0.9.0/24 32", model.InForceLast},
		{"the advertisement changes", func() { w.set(ad(25, "vpn")) }, "192.0.9.1/32 [64500:7]", "192.0.9.0/24 32", model.InForceLast},
		{"and names none", func() { w.set(ad(26)) }, "192.0.9.0/26 []", "192.0.9.0/24 26", ""},
		{"and one that is missing", func() { w.set(ad(27, "vpn")) }, "192.0.9.0/26 []", "192.0.9.0/24 26", model.InForceLast},
		{"that comes", func() { w.set(community("vpn")) }, "192.0.9.0/27 [64500:7]", "192.0.9.0/24 27", ""},
		{"and gets another name", func() { w.set(community("other")) }, "192.0.9.0/27 [64500:7]", "192.0.9.0/24 27", model.InForceLast},
		{"the advertisement goes", func() { w.remove(ad(0).Ref()) }, "", "", ""},
		{"and comes again", func() { w.set(ad(27, "vpn")) }, "", "", model.InForceNothing},
	} {
		step.do()
		got, exports, faults := "", "", ""
		for p, r := range w.routes {
			if prefix("192.0.9.0/24").Contains(p.Addr()) {
				got += fmt.Sprintf("%s %v", p, r.Announcements[0].Communities)
			}
		}
		for p, bits := range w.pooled {
			exports += fmt.Sprintf("%s %d", p, bits)
		}
		for _, i := range w.Issues() {
			if strings.Contains(i.Reason, "has the name vpn, for which it waits") {
				faults += i.InForce
			}
		}
		if got != step.want || exports != step.exports || faults != step.faults {
			t.Errorf("%s: %q, exports %q, in force %q; want %q, %q and %q", step.name, got, exports, faults, step.want, step.exports, step.faults)
		}
	}
}

// In whatever order objects come, go and change, the order is that of the current ones.
func TestOrderIsOfTheCurrentObjects(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t)
		f := &model.BGPFilter{Name: "f"}
		vpn := &model.Community{Name: model.Name{Namespace: "lb", Name: "c"}, Aliases: map[string]string{"vpn": "64500:7"}}
		w.set(f, vpn) // which a BGPPeer and a BGPAdvertisement would wait for
		current := map[model.Ref]model.Object{f.Ref(): f, vpn.Ref(): vpn}
		for range 25 {
			changes := map[model.Ref]model.Object{}
			for range r.IntN(5) {
				o := randomObject(r)
				changes[o.Ref()] = o
				if r.IntN(4) == 0 && o.Ref() != nodeOf("own").Ref() && o.Ref().Kind != model.BGPFilterKind && o.Ref() != vpn.Ref() {
					changes[o.Ref()] = nil
				}
			}
			for ref, o := range changes {
				if o == nil {
					w.remove(ref)
					delete(current, ref)
				} else {
					current[ref] = o
				}
			}
			maps.DeleteFunc(changes, func(_ model.Ref, o model.Object) bool { return o == nil })
			w.set(slices.Collect(maps.Values(changes))...)
			anew := newWorld(t)
			anew.set(slices.Collect(maps.Values(current))...)
			if got, want := w.told(), anew.told(); !slices.Equal(got, want) {
				t.Fatalf("seed %d: told\n%s\nwant\n%s", seed, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if got, want := w.Compiler.settings, anew.Compiler.settings; (got == nil) != (want == nil) || got != nil && !got.Equal(want) {
				t.Fatalf("seed %d: settings %+v, want %+v", seed, got, want)
			}
			if got, want := w.faults(), anew.faults(); !slices.Equal(got, want) {
				t.Fatalf("seed %d: faults %q, want %q", seed, got, want)
			}
			if got, want := w.served, anew.served; !slices.Equal(got, want) {
				t.Fatalf("seed %d: served %v, want %v", seed, got, want)
			}
		}
	}
}

// randomObject is one of few.
func randomObject(r *rand.Rand) model.Object {
	pick := func(options ...string) string { return options[r.IntN(len(options))] }
	maybe := func() bool { return r.IntN(2) == 0 }
	name := pick("own", "a", "b", "c")
	switch r.IntN(13) {
	case 0, 1, 2:
		return nodeOf(name + " " + pick("192.0.2.5", "192.0.2.6", "192.0.2.7 fd00::7", "fd00::5", "") + " " + pick("10.244.1.0/24", "10.244.2.0/24") + " " + pick("", "as=64600") + " " +
			pick("", "rr=1.0.0.1 reflector=yes", "reflector=yes") + " " + pick("", "", excludeLabel+"=", "leaving"))
	case 3:
		return &model.IPPool{Name: pick("p", "q"), CIDR: prefix(pick("10.244.0.0/16", "10.244.0.0/23")), DisableBGPExport: maybe()}
	case 4:
		return &model.BlockAffinity{Name: pick("x", "y"), CIDR: prefix(pick("10.244.1.64/26", "10.244.9.0/26")), Node: name}
	case 5:
		c := &model.BGPConfiguration{Name: pick("default", "node.own", "node.a"), Port: uint16(179 + r.IntN(2))}
		if c.Name == "default" {
			c.NoMesh, c.ClusterIPs, c.LoadBalancerIPs, c.EachLoadBalancerIP = maybe(), prefixes("10.96.0.0/12"), prefixes(pick("192.0.9.0/24", "192.0.9.1/32")), maybe()
			c.MeshPassword = []model.SecretRef{{}, {Name: "s", Key: "k"}}[r.IntN(2)] // of one that is missing, the one before stays
			if c.MeshPassword.Name == "" {
				c.MeshPassword = model.SecretRef{}
			}
		}
		c.Advertisements = []model.PrefixAdvertisement{{CIDR: prefix("10.0.0.0/8"), Communities: []string{pick("64500:1", "64500:2", "name")}}}
		return c
	case 6, 7:
		p := &model.BGPPeer{Name: pick("p", "q", "r"), Node: pick("", "own", "a"), Filters: []string{"f"}[:r.IntN(2)]}
		if p.Node == "" && maybe() {
			p.Nodes = model.Has("reflector")
		}
		if maybe() {
			p.Peers = model.Has("reflector")
		} else {
			p.Address, p.AS, p.OneWay = addr(pick("192.0.2.1", "192.0.2.5", "192.0.2.6", "fd00::7")), 64512, maybe()
		}
		return p
	case 8:
		return &model.BGPFilter{Name: "f", Import: []model.BGPFilterRule{{Accept: maybe(), CIDR: prefix("10.0.0.0/8")}}}
	case 9:
		return metalLB(pick("m", "n"), func(p *model.MetalLBPeer) {
			p.Address, p.Nodes, p.RouterID = addr(pick("192.0.2.1", "192.0.2.2")), []model.Selector{model.Everything(), model.Has("reflector")}[r.IntN(2)], []netip.Addr{{}, addr("1.1.1.1")}[r.IntN(2)]
		})
	case 10:
		return advertisement(pick("x", "y"), func(a *model.BGPAdvertisement) {
			a.Length4, a.Peers, a.Communities = 24+8*r.IntN(2), []string{"m"}[:r.IntN(2)], []string{"vpn"}[:r.IntN(2)]
			a.Nodes = []model.Selector{model.Everything(), model.Has("reflector")}[r.IntN(2)]
		})
	case 11:
		if maybe() {
			c := &model.Community{Name: model.Name{Namespace: "lb", Name: pick("c", "d")}, Aliases: map[string]string{"vpn": pick("64500:7", "64500:8")}}
			if c.Name.Name == "d" && maybe() {
				c.Aliases = map[string]string{"other": "64500:8"}
			}
			return c
		}
		return addresses("p", "192.0.9.0", pick("192.0.9.3", "192.0.9.63"))
	}
	of := pick("a", "b")
	if maybe() {
		return ready(of, pick("own", "-own", "a"))
	}
	// Each has an address of its own, as which of two gets one depends on who had it before.
	return service(of, "10.96.0."+pick("1", "2"), given(map[string]string{"a": "192.0.9.1", "b": "192.0.9.2"}[of], ""), func(s *model.Service) { s.ExternalLocal = maybe() })
}

// 1,000 nodes, of which one changes.
func BenchmarkOneNode(b *testing.B) {
	w := newWorld(b)
	objects := []model.Object{nodeOf("own 192.0.2.5")}
	for i := range 1000 {
		objects = append(objects, nodeOf(fmt.Sprintf("n%d 192.0.%d.%d", i, 4+i>>8, i&255)))
	}
	w.set(objects...)
	for i := 0; b.Loop(); i++ {
		w.store.Apply(events(nodeOf(fmt.Sprintf("n7 192.0.3.%d", i&255))))
		if o := w.update(); len(o.Peers) != 1 {
			b.Fatal(len(o.Peers))
		}
	}
}

func BenchmarkManyServices(b *testing.B) {
	objects := []model.Object{nodeOf("own 192.0.2.5"), config(func(c *model.BGPConfiguration) { c.ClusterIPs = prefixes("10.96.0.0/12") })}
	for i := range 10000 {
		name := fmt.Sprintf("s%d", i)
		objects = append(objects, service(name, fmt.Sprintf("10.97.%d.%d", i>>8, i&255), func(s *model.Service) { s.ExternalLocal = i%10 == 0 }), ready(name, "own"))
	}
	for b.Loop() {
		w := newWorld(b)
		w.set(objects...)
		if len(w.routes) != 1001 {
			b.Fatal(len(w.routes))
		}
	}
}
