package compile_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
)

// What a service is reached at, and how.
func TestFrontends(t *testing.T) {
	loadBalancer := func(f family, names string) func(*model.Service) {
		return func(s *model.Service) { s.LoadBalancerIPs = f.addrs(names) }
	}
	external := func(f family, names string) func(*model.Service) {
		return func(s *model.Service) { s.ExternalIPs = f.addrs(names) }
	}
	two := func(f family) *model.EndpointSlice {
		return slice("a", f.endpoint("e1", here), f.endpoint("e2"))
	}
	for _, tc := range []struct {
		name    string
		objects func(f family) []any
		want    string
	}{
		{"node ports are served on the node's first address", func(f family) []any {
			return []any{f.node(), f.service(nodePort), two(f)}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080
		NodePort n1:30080 -> e1:8080 e2:8080`},

		{"load balancer addresses and external IPs have the service's port", func(f family) []any {
			return []any{f.service(loadBalancer(f, "l1 l2"), external(f, "x1")), two(f)}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080
		ExternalIP x1:80 -> e1:8080 e2:8080
		LoadBalancer l1:80 -> e1:8080 e2:8080
		LoadBalancer l2:80 -> e1:8080 e2:8080`},

		{"affinity holds at every address", func(f family) []any {
			return []any{f.service(external(f, "x1"), func(s *model.Service) { s.Affinity = 3 * time.Hour }), two(f)}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080, affinity: 3h0m0s
		ExternalIP x1:80 -> e1:8080 e2:8080, affinity: 3h0m0s`},

		{"internalTrafficPolicy Local keeps to this node, at the cluster IP alone", func(f family) []any {
			return []any{f.service(external(f, "x1"), internalLocal), two(f)}
		}, `ClusterIP c1:80 -> e1:8080, serving: e1:8080 e2:8080
		ExternalIP x1:80 -> e1:8080 e2:8080`},

		{"internalTrafficPolicy Local drops what has nobody here", func(f family) []any {
			return []any{f.service(internalLocal), slice("a", f.endpoint("e2"))}
		}, `ClusterIP c1:80 -> drop, serving: e2:8080`},

		{"internalTrafficPolicy Local rejects what has nobody anywhere", func(f family) []any {
			return []any{f.service(internalLocal), slice("a", f.endpoint("e2", notReady))}
		}, `ClusterIP c1:80 -> reject, alive: e2:8080`},

		{"a terminating endpoint elsewhere is somebody", func(f family) []any {
			return []any{f.service(internalLocal), slice("a", f.endpoint("e2", draining))}
		}, `ClusterIP c1:80 -> drop, serving: e2:8080`},

		{"externalTrafficPolicy Local keeps connections from outside on this node", func(f family) []any {
			return []any{f.node(), f.service(nodePort, loadBalancer(f, "l1"), external(f, "x1"), externalLocal), two(f)}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080
		ExternalIP x1:80 -> e1:8080 e2:8080, local: e1:8080
		NodePort n1:30080 -> e1:8080 e2:8080, local: e1:8080
		LoadBalancer l1:80 -> e1:8080 e2:8080, local: e1:8080`},

		{"externalTrafficPolicy Local with nobody here", func(f family) []any {
			return []any{f.service(external(f, "x1"), externalLocal), slice("a", f.endpoint("e2"))}
		}, `ClusterIP c1:80 -> e2:8080
		ExternalIP x1:80 -> e2:8080, local:`},

		{"externalTrafficPolicy Local with nobody anywhere", func(f family) []any {
			return []any{f.service(external(f, "x1"), externalLocal)}
		}, `ClusterIP c1:80 -> reject
		ExternalIP x1:80 -> reject, local:`},

		{"both policies Local", func(f family) []any {
			return []any{f.service(external(f, "x1"), externalLocal, internalLocal), two(f)}
		}, `ClusterIP c1:80 -> e1:8080, serving: e1:8080 e2:8080
		ExternalIP x1:80 -> e1:8080 e2:8080, local: e1:8080`},

		{"this node falls back to its terminating endpoints by itself", func(f family) []any {
			return []any{f.service(external(f, "x1"), externalLocal), slice("a", f.endpoint("e1", here, draining), f.endpoint("e2"))}
		}, `ClusterIP c1:80 -> e2:8080, serving: e1:8080 e2:8080
		ExternalIP x1:80 -> e2:8080, local: e1:8080, serving: e1:8080 e2:8080`},

		{"a ready endpoint here comes before a terminating one here", func(f family) []any {
			return []any{f.service(external(f, "x1"), externalLocal), slice("a", f.endpoint("e1", here, draining), f.endpoint("e2", here))}
		}, `ClusterIP c1:80 -> e2:8080, serving: e1:8080 e2:8080
		ExternalIP x1:80 -> e2:8080, local: e2:8080, serving: e1:8080 e2:8080`},

		{"hints do not matter to a Local policy", func(f family) []any {
			return []any{f.node(), f.service(external(f, "x1"), externalLocal), slice("a", f.endpoint("e1", here, zones("z2")), f.endpoint("e2", zones("z1")))}
		}, `ClusterIP c1:80 -> e2:8080, serving: e1:8080 e2:8080
		ExternalIP x1:80 -> e2:8080, local: e1:8080, serving: e1:8080 e2:8080`},

		{"source ranges close the load balancer's address alone", func(f family) []any {
			ranges := func(s *model.Service) {
				s.SourceRanges = []netip.Prefix{netip.PrefixFrom(f.addr("e9"), 24).Masked(), netip.PrefixFrom(f.addr("e9"), 24)}
			}
			return []any{f.node(), f.service(nodePort, loadBalancer(f, "l1"), external(f, "x1"), ranges)}
		}, `ClusterIP c1:80 -> reject
		ExternalIP x1:80 -> reject
		NodePort n1:30080 -> reject
		LoadBalancer l1:80 -> reject, from: [RANGE]`},

		{"a range of all addresses closes nothing", func(f family) []any {
			ranges := func(s *model.Service) {
				s.SourceRanges = []netip.Prefix{netip.PrefixFrom(f.addr("e9"), 24), netip.PrefixFrom(f.addr("e9"), 0)}
			}
			return []any{f.service(loadBalancer(f, "l1"), ranges)}
		}, `ClusterIP c1:80 -> reject
		LoadBalancer l1:80 -> reject`},

		{"addresses of a family that the service has not are left out", func(f family) []any {
			other := v6
			if f.name == v6.name {
				other = v4
			}
			node := f.node()
			node.IPs = append(node.IPs, other.addr("n1"))
			return []any{node, f.service(loadBalancer(other, "l1"), external(other, "x1"), nodePort)}
		}, `ClusterIP c1:80 -> reject
		NodePort n1:30080 -> reject`},

		{"headless and otherwise unproxied services have no frontend", func(f family) []any {
			return []any{f.node(), f.service(nodePort, external(f, "x1"), func(s *model.Service) { s.Unproxied = "headless" }), two(f)}
		}, ``},

		{"a load balancer's address that is an external IP too keeps its source ranges", func(f family) []any {
			ranges := func(s *model.Service) { s.SourceRanges = []netip.Prefix{netip.PrefixFrom(f.addr("e9"), 24)} }
			return []any{f.service(loadBalancer(f, "l1"), external(f, "l1"), ranges)}
		}, `ClusterIP c1:80 -> reject
		LoadBalancer l1:80 -> reject, from: [RANGE]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, f family) {
				objects := tc.objects(f)
				c := compiled(compile.Config{}, objects...)
				got := sorted(replaceRange(show(c.State()), f))
				if want := sorted(lines(tc.want)); got != want {
					t.Errorf("got:\n%s\nwant:\n%s", got, want)
				}
				checkIssues(t, c)
			})
		})
	}
}

// Where a source range holds one of the node's addresses, the load balancer's own
// address may connect too: it is the node's source where it is bound there.
func TestSourceRangesOfTheNode(t *testing.T) {
	bothFamilies(t, func(t *testing.T, f family) {
		single := func(names ...string) []netip.Prefix {
			var ps []netip.Prefix
			for _, n := range names {
				ps = append(ps, netip.PrefixFrom(f.addr(n), f.addr(n).BitLen()))
			}
			slices.SortFunc(ps, netip.Prefix.Compare)
			return ps
		}
		h := newHistory(compile.Config{})
		h.apply(t, events(f.node(), f.service(func(s *model.Service) {
			s.LoadBalancerIPs, s.SourceRanges = f.addrs("l1 l2"), single("e9", "n2")
		}))...)
		ranges := func(vip string) []netip.Prefix {
			return h.compiler.State().Services.Frontends[state.FrontendKey{Addr: f.addr(vip), Protocol: model.TCP, Port: 80}].SourceRanges
		}
		for _, vip := range []string{"l1", "l2"} {
			if got, want := ranges(vip), single("e9", "n2", vip); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", vip, got, want)
			}
		}
		moved := f.node()
		moved.IPs = f.addrs("n1")
		if d := h.apply(t, event(moved)); len(d.Services.Frontends) != 2 {
			t.Errorf("the node's address is no longer in a range: %+v", d)
		}
		if got, want := ranges("l1"), single("e9", "n2"); !slices.Equal(got, want) {
			t.Errorf("without the node: %v, want %v", got, want)
		}
	})
}

// A load balancer's address of a family that has no range is closed.
func TestSourceRangesOfTheOtherFamilyAlone(t *testing.T) {
	bothFamilies(t, func(t *testing.T, f family) {
		other, nobody := v6, "0.0.0.0/32"
		if f.name == v6.name {
			other, nobody = v4, "::/128"
		}
		c := compiled(compile.Config{}, f.service(func(s *model.Service) {
			s.LoadBalancerIPs = f.addrs("l1")
			s.SourceRanges = []netip.Prefix{netip.PrefixFrom(other.addr("e0"), 24)}
		}))
		got := c.State().Services.Frontends[state.FrontendKey{Addr: f.addr("l1"), Protocol: model.TCP, Port: 80}].SourceRanges
		if want := []netip.Prefix{netip.MustParsePrefix(nobody)}; !slices.Equal(got, want) {
			t.Errorf("source ranges %v, want %v", got, want)
		}
	})
}

func TestNodePortAddresses(t *testing.T) {
	prefixes := func(list ...string) []netip.Prefix {
		var ps []netip.Prefix
		for _, s := range list {
			ps = append(ps, netip.MustParsePrefix(s))
		}
		return ps
	}
	host := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("198.51.100.7/24"), netip.MustParsePrefix("fe80::1/64"), netip.PrefixFrom(v4.addr("n1"), 24)}
	for _, tc := range []struct {
		name string
		cfg  compile.Config
		want []string
	}{
		{"the first of each family by default", compile.Config{Config: services.Config{HostAddresses: host}}, []string{"192.168.0.1", "fd00:168::1"}},
		{"those covered", compile.Config{Config: services.Config{NodePortAddresses: prefixes("192.168.0.2/32")}}, []string{"192.168.0.2"}},
		{"those of the host too", compile.Config{Config: services.Config{NodePortAddresses: prefixes("198.51.100.0/24", "192.168.0.1/32"), HostAddresses: host}}, []string{"192.168.0.1", "198.51.100.7"}},
		{"never loopback or link-local", compile.Config{Config: services.Config{NodePortAddresses: prefixes("0.0.0.0/0", "::/0"), HostAddresses: host}},
			[]string{"192.168.0.1", "192.168.0.2", "198.51.100.7", "fd00:168::1", "fd00:168::2"}},
		{"none", compile.Config{Config: services.Config{NodePortAddresses: prefixes("10.99.0.0/16")}}, nil},
		{"the first beside those covered", compile.Config{Config: services.Config{NodePortAddresses: prefixes("198.51.100.0/24"), NodePortPrimary: true, HostAddresses: host}},
			[]string{"192.168.0.1", "198.51.100.7", "fd00:168::1"}},
		{"another first", compile.Config{Config: services.Config{PrimaryAddr: v4.addr("n2")}}, []string{"192.168.0.2", "fd00:168::1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node := v4.node()
			node.IPs = append(node.IPs, v6.addrs("n1 n2")...)
			svc := v4.service(nodePort, func(s *model.Service) { s.ClusterIPs = append(s.ClusterIPs, v6.addr("c1")) })
			c := compiled(tc.cfg, node, svc)
			var got []string
			for _, k := range slices.SortedFunc(maps.Keys(c.State().Services.Frontends), state.FrontendKey.Compare) {
				if c.State().Services.Frontends[k].Kind == state.NodePort {
					got = append(got, k.Addr.String())
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			if tc.want == nil && len(c.Issues()) != 1 {
				t.Errorf("issues: %v", c.Issues())
			}
		})
	}
}

func TestHealthChecks(t *testing.T) {
	checked := func(s *model.Service) { s.ExternalLocal, s.HealthCheckNodePort = true, 31000 }
	for _, tc := range []struct {
		name   string
		change func(*model.Service)
		eps    func(f family) []model.Endpoint
		want   map[model.Name]*services.HealthCheck
	}{
		{"ready endpoints on this node count", checked, func(f family) []model.Endpoint {
			return []model.Endpoint{f.endpoint("e1", here), f.endpoint("e2", here), f.endpoint("e3"), f.endpoint("e4", here, notReady), f.endpoint("e5", here, draining)}
		}, map[model.Name]*services.HealthCheck{name("web"): {Service: name("web"), Port: 31000, LocalEndpoints: 2}}},
		{"terminating ones do not, though they serve", checked, func(f family) []model.Endpoint {
			return []model.Endpoint{f.endpoint("e5", here, draining)}
		}, map[model.Name]*services.HealthCheck{name("web"): {Service: name("web"), Port: 31000}}},
		{"an endpoint of two ports counts once", func(s *model.Service) {
			checked(s)
			s.Ports = append(s.Ports, model.ServicePort{Name: "http", Protocol: model.TCP, Port: 81})
		}, func(f family) []model.Endpoint {
			return []model.Endpoint{f.endpoint("e1", here)}
		}, map[model.Name]*services.HealthCheck{name("web"): {Service: name("web"), Port: 31000, LocalEndpoints: 1}}},
		{"only where there is a port for it", externalLocal, func(f family) []model.Endpoint { return nil }, map[model.Name]*services.HealthCheck{}},
		{"only under externalTrafficPolicy Local", func(s *model.Service) { s.HealthCheckNodePort = 31000 },
			func(f family) []model.Endpoint { return nil }, map[model.Name]*services.HealthCheck{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, f family) {
				c := compiled(compile.Config{}, f.service(tc.change), slice("a", tc.eps(f)...))
				if got := c.Services.AllHealthChecks(); !sameChecks(got, tc.want) {
					t.Errorf("got %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// A dual-stack endpoint has two addresses and is one endpoint.
func TestHealthCheckOfDualStackEndpoints(t *testing.T) {
	svc := v4.service(func(s *model.Service) {
		s.ExternalLocal, s.HealthCheckNodePort = true, 31000
		s.ClusterIPs = append(s.ClusterIPs, v6.addr("c1"))
	})
	c := compiled(compile.Config{}, svc, slice("a", v4.endpoint("e1", here), v4.endpoint("e2", here)), slice("b", v6.endpoint("e1", here)))
	if got := c.Services.AllHealthChecks()[name("web")].LocalEndpoints; got != 2 {
		t.Errorf("%d local endpoints, want 2", got)
	}
}

// Hairpins are the endpoints of this node that connections are balanced to.
func TestHairpins(t *testing.T) {
	bothFamilies(t, func(t *testing.T, f family) {
		db := f.service(named("db", 0), func(s *model.Service) { s.ClusterIPs = f.addrs("c2") })
		dbSlice := slice("db", f.endpoint("e1", here))
		dbSlice.Service = "db"
		web := slice("a", f.endpoint("e1", here), f.endpoint("e2"), f.endpoint("e3", here, notReady))
		h := newHistory(compile.Config{})
		h.apply(t, events(f.service(), web, db, dbSlice)...)
		want := map[netip.Addr]struct{}{f.addr("e1"): {}}
		if got := h.compiler.State().Services.Hairpins; !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if d := h.apply(t, gone(web)); len(d.Services.Hairpins) != 0 {
			t.Errorf("one of two users gone: %v", d.Services.Hairpins)
		}
		if d := h.apply(t, gone(db)); !maps.Equal(d.Services.Hairpins, map[netip.Addr]bool{f.addr("e1"): false}) {
			t.Errorf("both users gone: %v", d.Services.Hairpins)
		}
	})
}

func TestClusterIPsAreThoseOfProxiedServices(t *testing.T) {
	bothFamilies(t, func(t *testing.T, f family) {
		second := f.service(named("db", 0), func(s *model.Service) { s.Ports[0].Port = 81 })
		headless := f.service(named("h", 0), func(s *model.Service) { s.ClusterIPs, s.Unproxied = f.addrs("c3"), "label" })
		h := newHistory(compile.Config{})
		h.apply(t, events(f.service(), second, headless)...)
		want := map[netip.Addr]struct{}{f.addr("c1"): {}}
		if got := h.compiler.State().Services.ClusterIPs; !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if d := h.apply(t, gone(second)); len(d.Services.ClusterIPs) != 0 {
			t.Errorf("one of two users gone: %v", d.Services.ClusterIPs)
		}
		if d := h.apply(t, gone(f.service())); !maps.Equal(d.Services.ClusterIPs, map[netip.Addr]bool{f.addr("c1"): false}) {
			t.Errorf("both users gone: %v", d.Services.ClusterIPs)
		}
	})
}

func TestSettings(t *testing.T) {
	p := func(list ...string) []netip.Prefix {
		var ps []netip.Prefix
		for _, s := range list {
			ps = append(ps, netip.MustParsePrefix(s))
		}
		return ps
	}
	node := func(cidrs ...string) []any { return []any{&model.Node{Name: "here", PodCIDRs: p(cidrs...)}} }
	for _, tc := range []struct {
		name  string
		cfg   compile.Config
		nodes []any
		want  state.Settings
	}{
		{"masked, sorted, each address covered once", compile.Config{Config: services.Config{ServiceCIDRs: p("fd00::1/112", "172.16.0.9/16", "172.16.9.0/24", "172.16.0.0/16", "172.16.0.0/24"), MasqueradeAll: true}}, nil,
			state.Settings{ServiceCIDRs: p("172.16.0.0/16", "fd00::/112"), MasqueradeAll: true}},
		{"the node's pods within the cluster's", compile.Config{Config: services.Config{ClusterCIDRs: p("10.0.0.0/8")}}, node("10.1.2.0/24"),
			state.Settings{ClusterCIDRs: p("10.0.0.0/8"), LocalCIDRs: p("10.1.2.0/24")}},
		{"the node's pods unknown", compile.Config{Config: services.Config{ClusterCIDRs: p("10.0.0.0/8")}}, nil,
			state.Settings{ClusterCIDRs: p("10.0.0.0/8"), LocalCIDRs: p("10.0.0.0/8")}},
		{"the node's pods outside the cluster's", compile.Config{Config: services.Config{ClusterCIDRs: p("10.0.0.0/8")}}, node("192.168.0.0/24"),
			state.Settings{ClusterCIDRs: p("10.0.0.0/8"), LocalCIDRs: p("10.0.0.0/8")}},
		{"the node's pods wider than the cluster's", compile.Config{Config: services.Config{ClusterCIDRs: p("10.0.0.0/16")}}, node("10.0.0.0/8"),
			state.Settings{ClusterCIDRs: p("10.0.0.0/16"), LocalCIDRs: p("10.0.0.0/16")}},
		{"a family each by itself", compile.Config{Config: services.Config{ClusterCIDRs: p("10.0.0.0/8", "fd10::/48")}}, node("10.1.2.0/24"),
			state.Settings{ClusterCIDRs: p("10.0.0.0/8", "fd10::/48"), LocalCIDRs: p("10.1.2.0/24", "fd10::/48")}},
		{"the cluster's unknown", compile.Config{}, node("10.1.2.0/24", "fd10::/64"),
			state.Settings{ClusterCIDRs: p("10.1.2.0/24", "fd10::/64"), LocalCIDRs: p("10.1.2.0/24", "fd10::/64")}},
		{"nothing tells pods from others", compile.Config{Config: services.Config{ClusterUnknown: true}}, node("10.1.2.0/24", "fd10::/64"),
			state.Settings{}},
		{"nothing known", compile.Config{}, nil, state.Settings{}},
		{"pods reach the outside with the node's address", compile.Config{Config: services.Config{Fabric: true}}, []any{ // projectcalico/calico#12769
			&model.IPPool{Name: "b", CIDR: p("10.1.0.0/16")[0], NATOutgoing: true}, &model.IPPool{Name: "a", CIDR: p("10.0.0.0/16")[0]},
			&model.IPPool{Name: "balanced", CIDR: p("192.0.2.0/24")[0], OfServices: true}, &model.IPPool{Name: "c", CIDR: p("fd00::/64")[0], NATOutgoing: true, Disabled: true}},
			state.Settings{OutgoingCIDRs: p("10.1.0.0/16", "fd00::/64"), PoolCIDRs: p("10.0.0.0/16", "10.1.0.0/16", "fd00::/64")}},
		{"and with their own", compile.Config{Config: services.Config{Fabric: true}}, []any{&model.IPPool{Name: "a", CIDR: p("10.0.0.0/16")[0]}}, state.Settings{}},
		{"pools are another program's", compile.Config{}, []any{&model.IPPool{Name: "a", CIDR: p("10.0.0.0/16")[0], NATOutgoing: true}}, state.Settings{}},
		{"the cluster's, by the flag", compile.Config{Config: services.Config{Fabric: true, ClusterCIDRs: p("10.0.0.0/8"), NATOutgoing: true}}, nil,
			state.Settings{ClusterCIDRs: p("10.0.0.0/8"), LocalCIDRs: p("10.0.0.0/8"), OutgoingCIDRs: p("10.0.0.0/8"), PoolCIDRs: p("10.0.0.0/8")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := compiled(tc.cfg, tc.nodes...).State().Services.Settings; !got.Equal(tc.want) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}
