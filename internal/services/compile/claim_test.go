package compile_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// orders yields every order of the events.
func orders(events []store.Event) [][]store.Event {
	if len(events) < 2 {
		return [][]store.Event{events}
	}
	var all [][]store.Event
	for i := range events {
		rest := append(append([]store.Event{}, events[:i]...), events[i+1:]...)
		for _, o := range orders(rest) {
			all = append(all, append([]store.Event{events[i]}, o...))
		}
	}
	return all
}

const foreignClusterIP = "another's cluster IP as external IP: the other has it, however old"

// Of the services that claim a frontend, the older one has it, then the first by name, in whatever
// order they come; the others have the rest of theirs. A cluster IP comes before what others chose.
func TestClashes(t *testing.T) {
	clusterIP := func(f family, names string) func(*model.Service) {
		return func(s *model.Service) { s.ClusterIPs = f.addrs(names) }
	}
	external := func(f family, names string) func(*model.Service) {
		return func(s *model.Service) { s.ExternalIPs = f.addrs(names) }
	}
	const taken = "Service shop/%s: TCP %s belongs to Service shop/%s, %s; give one of them another address or port"
	for _, tc := range []struct {
		name    string
		objects func(f family) []any
		want    string
		// loser, key by its address's name and port, winner
		issues [][3]string
	}{
		{"the same external IP: the older has it", func(f family) []any {
			return []any{
				f.service(named("a", 20), clusterIP(f, "c1"), external(f, "x1")),
				f.service(named("b", 10), clusterIP(f, "c2"), external(f, "x1 x2")),
			}
		}, `ClusterIP c1:80 of a -> reject
		ClusterIP c2:80 of b -> reject
		ExternalIP x1:80 of b -> reject
		ExternalIP x2:80 of b -> reject`, [][3]string{{"a", "x1:80", "b"}}},

		{"of the same age: the first by name", func(f family) []any {
			return []any{
				f.service(named("a", 10), clusterIP(f, "c1"), external(f, "x1")),
				f.service(named("b", 10), clusterIP(f, "c2"), external(f, "x1")),
			}
		}, `ClusterIP c1:80 of a -> reject
		ClusterIP c2:80 of b -> reject
		ExternalIP x1:80 of a -> reject`, [][3]string{{"b", "x1:80", "a"}}},

		{"of unknown age: the newest", func(f family) []any {
			return []any{
				f.service(named("a", 0), clusterIP(f, "c1"), external(f, "x1")),
				f.service(named("b", 10), clusterIP(f, "c2"), external(f, "x1")),
			}
		}, `ClusterIP c1:80 of a -> reject
		ClusterIP c2:80 of b -> reject
		ExternalIP x1:80 of b -> reject`, [][3]string{{"a", "x1:80", "b"}}},

		{"the same node port", func(f family) []any {
			return []any{f.node(),
				f.service(named("a", 10), clusterIP(f, "c1"), nodePort),
				f.service(named("b", 20), clusterIP(f, "c2"), nodePort),
			}
		}, `ClusterIP c1:80 of a -> reject
		ClusterIP c2:80 of b -> reject
		NodePort n1:30080 of a -> reject`, [][3]string{{"b", "n1:30080", "a"}}},

		{"a node port and an external IP that is the node's", func(f family) []any {
			return []any{f.node(),
				f.service(named("a", 10), clusterIP(f, "c1"), nodePort),
				f.service(named("b", 5), clusterIP(f, "c2"), external(f, "n1"), func(s *model.Service) { s.Ports[0].Port = 30080 }),
			}
		}, `ClusterIP c1:80 of a -> reject
		ClusterIP c2:30080 of b -> reject
		ExternalIP n1:30080 of b -> reject`, [][3]string{{"a", "n1:30080", "b"}}},

		{"the same cluster IP: other ports are both's", func(f family) []any {
			more := func(s *model.Service) {
				s.Ports = append(s.Ports, model.ServicePort{Name: "more", Protocol: model.TCP, Port: 81})
			}
			return []any{f.service(named("a", 10)), f.service(named("b", 20), more)}
		}, `ClusterIP c1:80 of a -> reject
		ClusterIP c1:81 of b -> reject`, [][3]string{{"b", "c1:80", "a"}}},

		{foreignClusterIP, func(f family) []any {
			return []any{f.service(named("a", 10), clusterIP(f, "c1")), f.service(named("b", 5), clusterIP(f, "c2"), external(f, "c1"))}
		}, `ClusterIP c1:80 of a -> reject
		ClusterIP c2:80 of b -> reject`, [][3]string{{"b", "c1:80", "a"}}},

		{"three of them", func(f family) []any {
			return []any{f.service(named("a", 30)), f.service(named("b", 20)), f.service(named("c", 10))}
		}, `ClusterIP c1:80 of c -> reject`, [][3]string{{"a", "c1:80", "c"}, {"b", "c1:80", "c"}}},

		{"the same port of another protocol is no clash", func(f family) []any {
			udp := func(s *model.Service) { s.Ports[0].Protocol = model.UDP }
			return []any{f.service(named("a", 10), external(f, "x1")), f.service(named("b", 20), clusterIP(f, "c2"), external(f, "x1"), udp)}
		}, `ClusterIP c1:80 of a -> reject
		ClusterIP c2:80 UDP of b -> reject
		ExternalIP x1:80 of a -> reject
		ExternalIP x1:80 UDP of b -> reject`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, f family) {
				for _, order := range orders(events(tc.objects(f)...)) {
					h := newHistory(compile.Config{Config: services.Config{AllowNodeAddresses: everywhere}})
					for _, e := range order {
						h.apply(t, e)
					}
					if got := sorted(show(h.compiler.State())); got != sorted(lines(tc.want)) {
						t.Fatalf("got:\n%s", got)
					}
					var want []string
					for _, i := range tc.issues {
						var port int
						_, _ = fmt.Sscanf(i[1][3:], "%d", &port)
						key := fmt.Sprintf("%s:%d", f.addr(i[1][:2]), port)
						if f.name == v6.name {
							key = fmt.Sprintf("[%s]:%d", f.addr(i[1][:2]), port)
						}
						why := "which was there first"
						switch tc.name {
						case foreignClusterIP:
							why = "whose cluster IP that is"
						case "of the same age: the first by name":
							why = "which comes first by name"
						}
						want = append(want, fmt.Sprintf(taken, i[0], key, i[2], why))
					}
					checkIssues(t, h.compiler, want...)
				}
			})
		})
	}
}

// When the one that has a frontend goes, or gives it up, the next takes over.
func TestClashEnds(t *testing.T) {
	bothFamilies(t, func(t *testing.T, f family) {
		older := f.service(named("b", 10))
		newer := f.service(named("a", 20))
		key := state.FrontendKey{Addr: f.addr("c1"), Protocol: model.TCP, Port: 80}
		for _, tc := range []struct {
			name string
			end  store.Event
		}{
			{"deleted", gone(older)},
			{"moved to another address", event(f.service(named("b", 10), func(s *model.Service) { s.ClusterIPs = f.addrs("c2") }))},
			{"made headless", event(f.service(named("b", 10), func(s *model.Service) { s.Unproxied = "headless" }))},
			{"recreated", event(f.service(named("b", 30)))},
		} {
			t.Run(tc.name, func(t *testing.T) {
				h := newHistory(compile.Config{})
				h.apply(t, events(older, newer)...)
				if got := h.compiler.State().Services.Frontends[key].Service; got != older.Name {
					t.Fatalf("%s has it first", got)
				}
				d := h.apply(t, tc.end)
				if f := d.Services.Frontends[key]; f == nil || f.Service != newer.Name {
					t.Errorf("the delta gives it to %v", f)
				}
			})
		}
		t.Run("back again", func(t *testing.T) {
			h := newHistory(compile.Config{})
			h.apply(t, events(older, newer)...)
			h.apply(t, gone(older))
			checkIssues(t, h.compiler)
			h.apply(t, event(older))
			check(t, h.compiler, `ClusterIP c1:80 of b -> reject`)
		})
		t.Run("a change of the one without it changes nothing", func(t *testing.T) {
			h := newHistory(compile.Config{})
			h.apply(t, events(older, newer)...)
			changed := *newer
			changed.Affinity = 1
			if d := h.apply(t, event(&changed)); d.Len() != 0 {
				t.Errorf("delta: %+v", d)
			}
			if d := h.apply(t, gone(newer)); d.Len() != 0 {
				t.Errorf("delta: %+v", d)
			}
			checkIssues(t, h.compiler)
		})
	})
}

// A service that names one address and port twice has it for the first of its ports.
func TestServiceClashesWithItself(t *testing.T) {
	bothFamilies(t, func(t *testing.T, f family) {
		svc := f.service(func(s *model.Service) {
			s.Ports = append(s.Ports, model.ServicePort{Protocol: model.TCP, Port: 80, TargetPort: 9090},
				model.ServicePort{Name: "third", Protocol: model.TCP, Port: 80})
		})
		c := compiled(compile.Config{}, svc)
		key := state.FrontendKey{Addr: f.addr("c1"), Protocol: model.TCP, Port: 80}
		if got := c.State().Services.Frontends[key].Port; got != "http" {
			t.Errorf("it leads to port %q", got)
		}
		claimed := "Service shop/web: " + key.String() + " is claimed by its port http and its port "
		checkIssues(t, c, claimed+"80; the first one has it", claimed+"third; the first one has it")
	})
}

// Two services cannot share a health check port.
func TestHealthCheckPortClash(t *testing.T) {
	checked := func(s *model.Service) { s.ExternalLocal, s.HealthCheckNodePort = true, 31000 }
	a := v4.service(named("a", 20), checked)
	b := v4.service(named("b", 10), checked, func(s *model.Service) { s.ClusterIPs = v4.addrs("c2") })
	only := func(n string) map[model.Name]*services.HealthCheck {
		return map[model.Name]*services.HealthCheck{name(n): {Service: name(n), Port: 31000}}
	}
	for _, order := range orders(events(a, b)) {
		h := newHistory(compile.Config{})
		for _, e := range order {
			h.apply(t, e)
		}
		if got := h.compiler.Services.AllHealthChecks(); !sameChecks(got, only("b")) {
			t.Errorf("got %v", got)
		}
		checkIssues(t, h.compiler, "Service shop/a: healthCheckNodePort 31000 belongs to Service shop/b, which was there first; give one of them another address or port")
		h.apply(t, gone(b))
		if got := h.compiler.Services.AllHealthChecks(); !sameChecks(got, only("a")) {
			t.Errorf("after b is gone: %v", got)
		}
	}
}

// A node port of one Service keeps the health check of another from answering, which says so
// (kubernetes/kubernetes#63617).
func TestHealthCheckPortIsNodePort(t *testing.T) {
	a := v4.service(named("a", 10), func(s *model.Service) { s.ExternalLocal, s.HealthCheckNodePort = true, 31000 })
	b := v4.service(named("b", 20), func(s *model.Service) { s.ClusterIPs, s.Ports[0].NodePort = v4.addrs("c2"), 31000 })
	subnet := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	host := []netip.Prefix{netip.MustParsePrefix("198.51.100.7/24"), netip.MustParsePrefix("198.51.100.8/24")}
	for where, cfg := range map[string]compile.Config{
		v4.addr("n1").String():       {},
		"198.51.100.7, 198.51.100.8": {Config: services.Config{NodePortAddresses: subnet, HostAddresses: host}},
	} {
		c := compiled(cfg, v4.node(), a, b)
		checkIssues(t, c, "Service shop/a: healthCheckNodePort 31000 is answered at "+where+" by Service shop/b, which has that port there; give one of them another port")
	}
}

// An address of a Service that a newer Node comes to name stays the Service's, but where it is the
// host's own; the Node is named. An older Node has it.
func TestServiceAndNodeWithOneAddress(t *testing.T) {
	bothFamilies(t, func(t *testing.T, f family) {
		key := state.FrontendKey{Addr: f.addr("x1"), Protocol: model.TCP, Port: 80}
		svc := f.service(named("web", 20), func(s *model.Service) { s.ExternalIPs = f.addrs("x1") })
		there := func(created int64) *model.Node {
			return &model.Node{Name: "there", Created: time.Unix(created, 0), IPs: f.addrs("n3"), OtherIPs: f.addrs("x1")}
		}
		a := f.addr("x1")
		h := newHistory(compile.Config{})
		h.apply(t, events(f.node(), svc, there(30))...)
		if h.compiler.State().Services.Frontends[key] == nil {
			t.Error("the newer node takes it")
		}
		checkIssues(t, h.compiler, fmt.Sprintf("Node there: its address %s is the externalIP of Service shop/web, which was there first: the Service's ports there lead to the Service; give the node another address", a))
		h.apply(t, event(there(10)))
		if h.compiler.State().Services.Frontends[key] != nil {
			t.Error("the older node does not have it")
		}
		checkIssues(t, h.compiler, fmt.Sprintf("Service shop/web: externalIP %s is an address of node there (--allow-node-addresses lets services have some), it is left out", a))
		own := f.node()
		own.Created, own.OtherIPs = time.Unix(30, 0), f.addrs("x1")
		h.apply(t, gone(there(10)), event(own))
		if h.compiler.State().Services.Frontends[key] == nil {
			t.Error("this node's object takes it")
		}
		h.cfg.HostAddresses = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
		h.compiler.Services.SetHostAddresses(h.cfg.HostAddresses)
		h.apply(t)
		if h.compiler.State().Services.Frontends[key] != nil {
			t.Error("the host is cut off from its address")
		}
	})
}

// Whatever Services and Nodes claim, except for Nodes' InternalIPs, and in whatever order they
// come, a newer one takes nothing from those that were there before, and what it does not get is
// named with it alone.
func TestOlderObjectsKeepWhatTheyHave(t *testing.T) {
	named := 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 5))
		f := [...]family{v4, v6}[seed%2]
		some := func(names ...string) []netip.Addr { return f.addrs(names[r.IntN(len(names))]) }
		ages := r.Perm(8)
		var all []any // the oldest first
		for i, id := range ages {
			created := time.Unix(int64(i+1), 0)
			if r.IntN(3) == 0 {
				n := &model.Node{Name: fmt.Sprint("n", id), Created: created, IPs: some("n3", "n4"), OtherIPs: some("", "x1", "x2", "l1")}
				if r.IntN(2) == 0 { // it has no InternalIP of the family
					n.IPs, n.External, n.OtherIPs = n.OtherIPs, len(n.OtherIPs), nil
				}
				all = append(all, n)
				continue
			}
			all = append(all, f.service(func(s *model.Service) {
				s.Name, s.Created, s.ClusterIPs = name(fmt.Sprint("s", id)), created, f.addrs(fmt.Sprint("c", i+1))
				s.ExternalIPs, s.LoadBalancerIPs = some("", "x1", "x1 x2"), some("", "l1", "x2")
				s.Ports[0].Port, s.Ports[0].NodePort = uint16(80+r.IntN(2)), uint16(30080+r.IntN(2))
				if s.ExternalLocal = r.IntN(2) == 0; s.ExternalLocal {
					s.HealthCheckNodePort = uint16(31000 + r.IntN(2))
				}
			}))
		}
		var before *history
		checks := map[uint16]*services.HealthCheck{}
		for count := 1; count <= len(all); count++ {
			h := newHistory(compile.Config{})
			h.apply(t, event(f.node()))
			list := events(all[:count]...)
			r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			for _, e := range list {
				h.apply(t, e)
			}
			newest := events(all[count-1])[0].Name
			now := h.compiler.Services.HealthChecks()
			for port, c := range checks {
				if c != nil && (now[port] == nil || *now[port] != *c) {
					t.Fatalf("seed %d: the health check of %s goes once there is %s", seed, c.Service, newest)
				}
			}
			if before != nil {
				for key, had := range before.compiler.State().Services.Frontends {
					if has := h.compiler.State().Services.Frontends[key]; has == nil || has.Service != had.Service {
						t.Fatalf("seed %d: %s has not %s once there is %s", seed, had.Service, key, newest)
					}
				}
				for _, issue := range h.compiler.Issues() {
					if issue.Object.Name != newest && !slices.Contains(before.compiler.Issues(), issue) {
						t.Fatalf("seed %d: %s, once there is %s", seed, issue, newest)
					}
				}
			}
			named += len(h.compiler.Issues())
			before, checks = h, now
		}
	}
	if named < 1000 {
		t.Errorf("%d claims were of what another had", named)
	}
}
