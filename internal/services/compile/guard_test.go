package compile_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

var everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

func external(f family, names string) func(*model.Service) {
	return func(s *model.Service) { s.ExternalIPs = f.addrs(names) }
}

func balanced(f family, names string) func(*model.Service) {
	return func(s *model.Service) { s.LoadBalancerIPs = f.addrs(names) }
}

// kubernetes is the Service of the API server, c8:443 and c9:443, which is reached at n9:6443.
func kubernetes(f family) []any {
	named := model.Name{Namespace: "default", Name: "kubernetes"}
	svc := &model.Service{Name: named, ClusterIPs: f.addrs("c8 c9"), Ports: []model.ServicePort{{Name: "https", Protocol: model.TCP, Port: 443, TargetPort: 6443}}}
	return []any{svc, &model.EndpointSlice{
		Name: named, Service: "kubernetes", Ports: []model.EndpointPort{{Name: "https", Protocol: model.TCP, Port: 6443}}, Endpoints: []model.Endpoint{f.endpoint("n9")},
	}}
}

// No service gets an address of a node or an API server, nor a port that nodes need; it is named,
// and has the rest of its own.
func TestAddressesThatNoServiceMayHave(t *testing.T) {
	allowed := compile.Config{Config: services.Config{AllowNodeAddresses: everywhere}}
	at := func(port, node uint16) func(*model.Service) {
		return func(s *model.Service) { s.Ports[0].Port, s.Ports[0].NodePort = port, node }
	}
	const flag = " (--allow-node-addresses lets services have some), it is left out"
	for _, tc := range []struct {
		name   string
		cfg    compile.Config
		svc    func(f family) *model.Service
		want   string   // beside those of the Service kubernetes
		issues []string // A1 stands for the address of that name
	}{
		{"an external IP of this node", compile.Config{}, func(f family) *model.Service { return f.service(external(f, "n1 x1")) },
			"ClusterIP c1:80 -> reject\nExternalIP x1:80 -> reject", []string{"externalIP N1 is an address of node here" + flag}},
		{"of another node, beyond its main ones", compile.Config{}, func(f family) *model.Service { return f.service(external(f, "n4")) },
			"ClusterIP c1:80 -> reject", []string{"externalIP N4 is an address of node there" + flag}},
		{"a load balancer's, of another node", compile.Config{}, func(f family) *model.Service { return f.service(balanced(f, "n3 l1")) },
			"ClusterIP c1:80 -> reject\nLoadBalancer l1:80 -> reject", []string{"load balancer address N3 is an address of node there" + flag}},
		{"of an interface", compile.Config{Config: services.Config{HostAddresses: prefixesOf(24, 64, "n7")}}, func(f family) *model.Service { return f.service(external(f, "n7")) },
			"ClusterIP c1:80 -> reject", []string{"externalIP N7 is an address of node here" + flag}},
		{"that an interface has for a service", compile.Config{Config: services.Config{HostAddresses: prefixesOf(32, 128, "x1", "c1")}}, func(f family) *model.Service { return f.service(external(f, "x1")) },
			"ClusterIP c1:80 -> reject\nExternalIP x1:80 -> reject", nil},
		{"a cluster IP of a node", compile.Config{}, func(f family) *model.Service {
			return f.service(external(f, "x1"), func(s *model.Service) { s.ClusterIPs = f.addrs("n1") })
		}, "ExternalIP x1:80 -> reject", []string{"clusterIP N1 is an address of node here, whose other ports would be refused to everybody, it is left out"}},
		{"a cluster IP of a node stays refused", allowed, func(f family) *model.Service {
			return f.service(func(s *model.Service) { s.ClusterIPs = f.addrs("n1") })
		}, "", []string{"clusterIP N1 is an address of node here, whose other ports would be refused to everybody, it is left out"}},
		{"a cluster IP that the Node object of another says to be its own", compile.Config{}, func(f family) *model.Service {
			return f.service(func(s *model.Service) { s.ClusterIPs = f.addrs("n3") })
		}, "ClusterIP n3:80 -> reject", nil},
		{"an external IP of the API server", compile.Config{}, func(f family) *model.Service { return f.service(external(f, "n9")) },
			"ClusterIP c1:80 -> reject", []string{"externalIP N9 is an address of the API server" + flag}},
		{"where this agent reaches its API", compile.Config{Config: services.Config{APIServers: apiAt("x9")}}, func(f family) *model.Service { return f.service(external(f, "x9")) },
			"ClusterIP c1:80 -> reject", []string{"externalIP X9 is an address of the API server" + flag}},
		{"the cluster IP of the API server", compile.Config{}, func(f family) *model.Service { return f.service(balanced(f, "c9"), at(443, 0)) },
			"ClusterIP c1:443 -> reject", []string{"load balancer address C9 is an address of the API server" + flag}},
		{"allowed", allowed, func(f family) *model.Service { return f.service(external(f, "n1 n9"), balanced(f, "n3")) },
			"ClusterIP c1:80 -> reject\nExternalIP n1:80 -> reject\nExternalIP n9:80 -> reject\nLoadBalancer n3:80 -> reject", nil},
		{"allowed, but not the API's port", allowed, func(f family) *model.Service { return f.service(external(f, "n9"), at(6443, 0)) },
			"ClusterIP c1:6443 -> reject", []string{"TCP N9:6443 is where the API server is reached, it is left out"}},
		{"allowed, but not where this agent reaches its API", compile.Config{Config: services.Config{AllowNodeAddresses: everywhere, APIServers: apiAt("x9")}},
			func(f family) *model.Service { return f.service(balanced(f, "x9"), at(8443, 0)) },
			"ClusterIP c1:8443 -> reject", []string{"TCP X9:8443 is where the API server is reached, it is left out"}},
		{"the API server at a cluster IP is served", compile.Config{Config: services.Config{APIServers: apiAt("c1")}}, func(f family) *model.Service { return f.service(at(8443, 0)) },
			"ClusterIP c1:8443 -> reject", nil},
		{"allowed, but not a port that nodes need", allowed, func(f family) *model.Service { return f.service(external(f, "n1 x1"), at(22, 0)) },
			"ClusterIP c1:22 -> reject\nExternalIP x1:22 -> reject", []string{"TCP N1:22 is a port that nodes need for themselves (--reserved-ports), it is left out"}},
		{"a node port that nodes need", compile.Config{}, func(f family) *model.Service { return f.service(at(80, 22)) },
			"ClusterIP c1:80 -> reject", []string{"TCP N1:22 is a port that nodes need for themselves (--reserved-ports), it is left out"}},
		{"the same number of another protocol", compile.Config{}, func(f family) *model.Service {
			return f.service(at(80, 22), func(s *model.Service) { s.Ports[0].Protocol = model.UDP })
		}, "ClusterIP c1:80 UDP -> reject\nNodePort n1:22 UDP -> reject", nil},
		{"a health check's port that nodes need", compile.Config{}, func(f family) *model.Service {
			return f.service(externalLocal, func(s *model.Service) { s.HealthCheckNodePort = 22 })
		}, "ClusterIP c1:80 -> reject", []string{"healthCheckNodePort 22 is a port that nodes need for themselves (--reserved-ports), it is left out"}},
		{"outside of what external IPs may be", compile.Config{Config: services.Config{ExternalIPCIDRs: prefixesOf(32, 128, "x1")}}, func(f family) *model.Service { return f.service(external(f, "x1 x2"), balanced(f, "l1")) },
			"ClusterIP c1:80 -> reject\nExternalIP x1:80 -> reject\nLoadBalancer l1:80 -> reject", []string{"externalIP X2 is not in --external-ip-cidrs, it is left out"}},
		{"no external IPs at all", compile.Config{Config: services.Config{ExternalIPCIDRs: []netip.Prefix{}}}, func(f family) *model.Service { return f.service(external(f, "x1")) },
			"ClusterIP c1:80 -> reject", []string{"externalIP X1 is not in --external-ip-cidrs, it is left out"}},
		{"outside of what load balancers have", compile.Config{Config: services.Config{LoadBalancerCIDRs: prefixesOf(32, 128, "l1")}}, func(f family) *model.Service { return f.service(external(f, "x1"), balanced(f, "l1 l2")) },
			"ClusterIP c1:80 -> reject\nExternalIP x1:80 -> reject\nLoadBalancer l1:80 -> reject", []string{"load balancer address L2 is not in --load-balancer-cidrs, it is left out"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, f family) {
				tc.cfg.ReservedPorts = []state.PortRange{{Protocol: model.TCP, First: 20, Last: 23}}
				other := &model.Node{Name: "there", IPs: f.addrs("n3"), OtherIPs: f.addrs("n4")}
				var want []string
				for _, issue := range tc.issues {
					for _, a := range strings.Fields("N1 N3 N4 N7 N9 X1 X2 X9 C9 L2") {
						addr := f.addr(strings.ToLower(a)).String()
						if f.name == v6.name {
							issue = strings.ReplaceAll(issue, a+":", "["+addr+"]:")
						}
						issue = strings.ReplaceAll(issue, a, addr)
					}
					want = append(want, "Service shop/web: "+issue)
				}
				objects := append(kubernetes(f), tc.svc(f), f.node(), other)
				check := func(c *compile.Compiler) {
					t.Helper()
					checkIssues(t, c, want...)
					for _, i := range c.Issues() {
						if i.Refused != strings.HasSuffix(i.Reason, "left out") {
							t.Errorf("%v: marked as refused: %t", i, i.Refused)
						}
					}
					got := sorted(show(c.State()))
					if wanted := sorted(strings.TrimSpace("ClusterIP c8:443 of kubernetes -> n9:6443\nClusterIP c9:443 of kubernetes -> n9:6443\n" + tc.want)); got != wanted {
						t.Errorf("got:\n%s\nwant:\n%s", got, wanted)
					}
				}
				check(compiled(tc.cfg, objects...))
				// Whatever comes last.
				for i := range objects {
					h := newHistory(tc.cfg)
					h.apply(t, events(append(append([]any{}, objects[:i]...), objects[i+1:]...)...)...)
					h.apply(t, event(objects[i]))
					check(h.compiler)
				}
			})
		})
	}
}

// prefixesOf returns addresses of both families.
func prefixesOf(four, six int, names ...string) (list []netip.Prefix) {
	for _, n := range names {
		list = append(list, netip.PrefixFrom(v4.addr(n), four), netip.PrefixFrom(v6.addr(n), six))
	}
	return list
}

func apiAt(n string) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(v4.addr(n), 8443), netip.AddrPortFrom(v6.addr(n), 8443)}
}

// What a service may not have is taken from it when that becomes known, and given back.
func TestGuardMoves(t *testing.T) {
	bothFamilies(t, func(t *testing.T, f family) {
		h := newHistory(compile.Config{})
		h.apply(t, events(f.service(external(f, "n3 x1")), f.node())...)
		expect := func(what string, names ...string) {
			t.Helper()
			for _, n := range strings.Fields("n3 x1") {
				_, got := h.compiler.State().Services.Frontends[state.FrontendKey{Addr: f.addr(n), Protocol: model.TCP, Port: 80}]
				if want := strings.Contains(strings.Join(names, " "), n); got != want {
					t.Errorf("%s: %s served: %t, want %t", what, n, got, want)
				}
			}
		}
		expect("at first", "n3", "x1")
		node := &model.Node{Name: "there", IPs: f.addrs("n3")}
		h.apply(t, event(node))
		expect("a node comes", "x1")
		h.apply(t, gone(node))
		expect("and goes", "n3", "x1")
		h.cfg.HostAddresses = []netip.Prefix{netip.PrefixFrom(f.addr("n3"), 24)}
		h.compiler.Services.SetHostAddresses(h.cfg.HostAddresses)
		h.apply(t)
		expect("an interface gets the address", "x1")
		h.cfg.APIServers = []netip.AddrPort{netip.AddrPortFrom(f.addr("x1"), 6443)}
		if !h.compiler.SetAPIServers(h.cfg.APIServers) || h.compiler.SetAPIServers(h.cfg.APIServers) {
			t.Error("SetAPIServers tells a change from none wrongly")
		}
		h.apply(t)
		expect("the API is reached at the other")
	})
}

// ports are the first n, of a service and its slices.
func ports(n int) (svc []model.ServicePort, eps []model.EndpointPort) {
	for i := range n {
		name := fmt.Sprintf("p%d", i)
		svc = append(svc, model.ServicePort{Name: name, Protocol: model.TCP, Port: uint16(i + 1), NodePort: uint16(i + 1)})
		eps = append(eps, model.EndpointPort{Name: name, Protocol: model.TCP, Port: uint16(i + 1)})
	}
	return svc, eps
}

// A service that would multiply to more than the kernel should hold is refused at once, at next to
// no cost, and everyone else is served.
func TestBudget(t *testing.T) {
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for _, tc := range []struct {
		name                       string
		external, ports, endpoints int
		ranges                     int
		edit                       func(*model.Service)
		want                       string // "": it is served
	}{
		{"65,536 endpoints at three addresses", 1, 1, 65_536, 0, nil, ""},
		{"the same, local ones apart", 1, 1, 65_536, 0, externalLocal, ""},
		{"1,000 ports and 100 endpoints", 1, 1_000, 100, 0, nil, ""},
		{"addresses × ports × endpoints", 1_000, 1_000, 5_000, 0, nil, "1001 addresses, 1000 ports, 5000 endpoints and no source ranges come to 5014008000 elements in the kernel"},
		{"addresses × ports", 20_000, 20_000, 0, 0, nil, "20001 addresses, 20000 ports, no endpoints and no source ranges come to 1600160000 elements in the kernel"},
		{"ports × endpoints", 0, 20_000, 20_000, 0, nil, "1 address, 20000 ports, 20000 endpoints and no source ranges come to 800160000 elements in the kernel"},
		{"source ranges × ports", 0, 1_000, 0, 1_000, nil, "2 addresses, 1000 ports, no endpoints and 1000 source ranges come to 8012000 elements in the kernel"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hostile := v4.service(named("hostile", 1), func(s *model.Service) { s.ClusterIPs = v4.addrs("c2") })
			if tc.edit != nil {
				tc.edit(hostile)
			}
			var to []model.EndpointPort
			hostile.Ports, to = ports(tc.ports)
			for i := range tc.external {
				hostile.ExternalIPs = append(hostile.ExternalIPs, address(1<<22+i))
			}
			for i := range tc.ranges {
				hostile.SourceRanges, hostile.LoadBalancerIPs = append(hostile.SourceRanges, netip.PrefixFrom(address(i*4), 30)), v4.addrs("l1")
			}
			list := &model.EndpointSlice{Name: name("hostile"), Service: "hostile", Ports: to}
			for i := range tc.endpoints {
				list.Endpoints = append(list.Endpoints, model.Endpoint{Addr: address(i), Ready: true, Serving: true, Node: "here"})
			}
			s := store.New()
			s.Apply(events(hostile, list, v4.service(), slice("a", v4.endpoint("e1")), v4.node()))
			c := compile.New(compile.Config{Config: services.Config{Node: "here"}})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			begun := time.Now()
			c.Update(s, s.Take())
			took := time.Since(begun)
			runtime.ReadMemStats(&after)
			t.Logf("%s, %d kB", took, (after.TotalAlloc-before.TotalAlloc)/1024)
			if c.State().Services.Frontends[state.FrontendKey{Addr: v4.addr("c1"), Protocol: model.TCP, Port: 80}] == nil {
				t.Error("the other service is not served")
			}
			_, served := c.State().Services.Frontends[state.FrontendKey{Addr: v4.addr("c2"), Protocol: model.TCP, Port: 1}]
			if tc.want == "" {
				if !served {
					t.Errorf("it is not served: %v", c.Issues())
				}
				return
			}
			checkIssues(t, c, "Service shop/hostile: "+tc.want+"; a Service may have 524288, so nothing is programmed for it: part it into several")
			if len(c.State().Services.Frontends) != 1 {
				t.Errorf("%d frontends", len(c.State().Services.Frontends))
			}
			if spent := after.TotalAlloc - before.TotalAlloc; spent > 20<<20 {
				t.Errorf("refusing it took %d MB", spent>>20)
			}
		})
	}
}

// Where all services come to too much, those of the namespace that asks for most are refused, its
// largest first, and taken up when there is room; one endpoint that comes and goes does not make
// them come and go. So it is in slices, too.
func TestTooMuchTogether(t *testing.T) {
	in := func(namespace string, i, endpoints int) (all []store.Event) {
		all = numbered(i, endpoints)
		all[0].Object.(*model.Service).Name.Namespace, all[0].Name.Namespace = namespace, namespace
		all[1].Object.(*model.EndpointSlice).Name.Namespace, all[1].Name.Namespace = namespace, namespace
		return all
	}
	for sliced, step := range map[bool]func(*history, ...store.Event){
		false: func(h *history, events ...store.Event) { h.apply(t, events...) },
		true: func(h *history, events ...store.Event) {
			for more := true; more; events = nil {
				_, more = h.step(t, events...)
			}
		},
	} {
		h := newHistory(compile.Config{})
		h.apply(t, events(v4.node())...)
		h.room = 64
		h.limit(500)
		expect := func(when string, want ...int) {
			t.Helper()
			var got []int
			for i := range 9 {
				if h.compiler.State().Services.Frontends[state.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), Protocol: model.TCP, Port: 80}] != nil {
					got = append(got, i)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, in slices: %t: %v are served, not %v", when, sliced, got, want)
			}
			same(t, h.compiler, h.fresh())
		}
		step(h, slices.Concat(in("many", 1, 84), in("many", 2, 84), in("many", 3, 84), in("many", 4, 84))...)
		expect("there is room", 1, 2, 3, 4)
		step(h, in("shop", 5, 184)...)
		expect("another asks for less than all of them", 1, 2, 3, 5)
		if got := fmt.Sprint(h.compiler.Issues()); !strings.Contains(got, "it counts for 100 elements in the kernel; all Services may have 500") {
			t.Error(got)
		}
		step(h, in("many", 1, 188)...)
		expect("one of them grows", 2, 3, 4, 5)
		less := in("shop", 5, 34)
		step(h, less...)
		expect("there is not enough room for it", 2, 3, 4, 5)
		step(h, in("shop", 5, 0)...)
		step(h, in("many", 1, 84)...)
		expect("there is", 1, 2, 3, 4, 5)
	}
}

// Nobody's service is refused, or interrupted, for those of somebody who asks for more: neither
// when it grows, nor at an agent's start, whatever it takes to come back.
func TestWhoAsksForLessIsServed(t *testing.T) {
	in := func(namespace string, i, endpoints int) (all []store.Event) {
		all = numbered(i, endpoints)
		all[0].Object.(*model.Service).Name.Namespace, all[0].Name.Namespace = namespace, namespace
		all[1].Object.(*model.EndpointSlice).Name.Namespace, all[1].Name.Namespace = namespace, namespace
		return all
	}
	var victims, all []store.Event
	for i := range 9 {
		victims = append(victims, in("victim", i, 33)...) // 49 elements each
	}
	all = append(all, victims...)
	for i := range 11 {
		all = append(all, in("attacker", 20+i, 34)...) // 50 each
	}
	for _, sliced := range []bool{false, true} {
		for range 20 {
			h := newHistory(compile.Config{})
			h.apply(t, events(v4.node())...)
			h.compiler.Services.SetTogether(1000, 875)
			h.room = 64
			h.apply(t, all...)
			served := func() {
				t.Helper()
				for i := range 9 {
					if h.compiler.State().Services.Frontends[state.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), Protocol: model.TCP, Port: 80}] == nil {
						t.Fatalf("service %d is not served, in slices: %t", i, sliced)
					}
				}
			}
			served()
			changes := in("victim", 0, 44)
			for more := true; more; changes = nil {
				if more = sliced; sliced {
					_, more = h.step(t, changes...)
				} else {
					h.apply(t, changes...)
				}
				served()
			}
		}
	}
}

// The faults of one service do not fill the status.
func TestManyFaults(t *testing.T) {
	svc := v4.service(func(s *model.Service) {
		for i := range 2_000 {
			s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{127, 0, byte(i >> 8), byte(i)}))
		}
	})
	c := compiled(compile.Config{}, svc)
	issues := c.Issues()
	if n := len(issues); n != 65 || !strings.Contains(fmt.Sprint(issues), "and 1936 more") {
		t.Errorf("%d issues: %v", n, issues)
	}
}

// A change of a service within its budget takes time by its size, not by the square of it.
func TestLargeServiceChanges(t *testing.T) {
	svc := v4.service()
	svc.Ports = nil
	list := slice("a")
	list.Ports = nil
	for i := range 700 {
		port := fmt.Sprintf("p%d", i)
		svc.Ports = append(svc.Ports, model.ServicePort{Name: port, Protocol: model.TCP, Port: uint16(i + 1)})
		list.Ports = append(list.Ports, model.EndpointPort{Name: port, Protocol: model.TCP, Port: 8080})
	}
	for i := range 700 {
		list.Endpoints = append(list.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Ready: true, Serving: true})
	}
	s := store.New()
	s.Apply(events(svc, list))
	c := compile.New(compile.Config{Config: services.Config{Node: "here"}})
	c.Update(s, s.Take())
	less := *list
	less.Endpoints = list.Endpoints[:699]
	s.Apply(events(&less))
	begun := time.Now()
	if d := c.Update(s, s.Take()); len(d.Services.Frontends) != 700 {
		t.Errorf("%d frontends changed", len(d.Services.Frontends))
	}
	t.Logf("took %s", time.Since(begun))
	s.Apply(events(func() *model.Service { more := *svc; more.Affinity = time.Hour; return &more }()))
	begun = time.Now()
	c.Update(s, s.Take())
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("a change took %s", took)
	}
	t.Logf("took %s", time.Since(begun))
}
