package compile_test

import (
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
)

// Which endpoints a ClusterIP is balanced over.
func TestEndpoints(t *testing.T) {
	for _, tc := range []struct {
		name    string
		objects func(f family) []any
		want    string
	}{
		{"ready endpoints of all slices serve", func(f family) []any {
			return []any{f.service(), slice("b", f.endpoint("e3")), slice("a", f.endpoint("e2"), f.endpoint("e1"))}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080 e3:8080`},

		{"an endpoint in two slices counts once, in its best condition", func(f family) []any {
			return []any{f.service(), slice("a", f.endpoint("e1", notReady)), slice("b", f.endpoint("e1"))}
		}, `ClusterIP c1:80 -> e1:8080`},

		{"endpoints that are not ready get nothing and may finish", func(f family) []any {
			return []any{f.service(), slice("a", f.endpoint("e1"), f.endpoint("e2", notReady), f.endpoint("e3", draining), f.endpoint("e4", dying))}
		}, `ClusterIP c1:80 -> e1:8080, serving: e1:8080 e3:8080, alive: e1:8080 e2:8080 e3:8080 e4:8080`},

		{"with none ready, those serving and terminating serve", func(f family) []any {
			return []any{f.service(), slice("a", f.endpoint("e2", notReady), f.endpoint("e3", draining), f.endpoint("e4", dying))}
		}, `ClusterIP c1:80 -> e3:8080, alive: e2:8080 e3:8080 e4:8080`},

		{"with none usable, connections are rejected", func(f family) []any {
			return []any{f.service(), slice("a", f.endpoint("e2", notReady), f.endpoint("e4", dying))}
		}, `ClusterIP c1:80 -> reject, alive: e2:8080 e4:8080`},

		{"with no slice and no selector, connections are rejected", func(f family) []any {
			return []any{f.service()}
		}, `ClusterIP c1:80 -> reject`},

		{"slice ports are matched by name and protocol", func(f family) []any {
			s := slice("a", f.endpoint("e1"))
			s.Ports = []model.EndpointPort{{Name: "http", Protocol: model.UDP, Port: 1}, {Name: "other", Protocol: model.TCP, Port: 2}}
			both := slice("b", f.endpoint("e2"))
			both.Ports = []model.EndpointPort{{Name: "http", Protocol: model.TCP, Port: 3}, {Name: "dns", Protocol: model.UDP, Port: 4}}
			svc := f.service()
			svc.Ports = append(svc.Ports, model.ServicePort{Name: "dns", Protocol: model.UDP, Port: 53}, model.ServicePort{Name: "sig", Protocol: model.SCTP, Port: 9})
			return []any{svc, s, both}
		}, `ClusterIP c1:80 -> e2:3
		ClusterIP c1:53 UDP -> e2:4
		ClusterIP c1:9 SCTP -> reject`},

		{"slices of other services and namespaces do not count", func(f family) []any {
			other, elsewhere := slice("a", f.endpoint("e1")), slice("a", f.endpoint("e2"))
			other.Service = "db"
			elsewhere.Name.Namespace = "prod"
			return []any{f.service(), other, elsewhere}
		}, `ClusterIP c1:80 -> reject`},

		{"zone hints keep traffic in the zone", func(f family) []any {
			return []any{f.node(), f.service(), slice("a", f.endpoint("e1", zones("z1")), f.endpoint("e2", zones("z2")), f.endpoint("e3", zones("z2", "z1")))}
		}, `ClusterIP c1:80 -> e1:8080 e3:8080, serving: e1:8080 e2:8080 e3:8080`},

		{"zone hints are ignored if a ready endpoint has none", func(f family) []any {
			return []any{f.node(), f.service(), slice("a", f.endpoint("e1", zones("z1")), f.endpoint("e2"))}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080`},

		{"zone hints are ignored if a ready endpoint has only node hints", func(f family) []any {
			return []any{f.node(), f.service(), slice("a", f.endpoint("e1", zones("z1")), f.endpoint("e2", nodes("there")))}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080`},

		{"hints of endpoints that are not ready do not matter", func(f family) []any {
			return []any{f.node(), f.service(), slice("a", f.endpoint("e1", zones("z1")), f.endpoint("e2", zones("z2")), f.endpoint("e3", draining))}
		}, `ClusterIP c1:80 -> e1:8080, serving: e1:8080 e2:8080 e3:8080`},

		{"zone hints are ignored if none names this zone", func(f family) []any {
			return []any{f.node(), f.service(), slice("a", f.endpoint("e1", zones("z3")), f.endpoint("e2", zones("z2")))}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080`},

		{"zone hints are ignored on a node of no known zone", func(f family) []any {
			return []any{f.service(), slice("a", f.endpoint("e1", zones("z1")), f.endpoint("e2", zones("z2")))}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080`},

		{"node hints come before zone hints", func(f family) []any {
			return []any{f.node(), f.service(), slice("a",
				f.endpoint("e1", zones("z1"), nodes("here")), f.endpoint("e2", zones("z1"), nodes("there")))}
		}, `ClusterIP c1:80 -> e1:8080, serving: e1:8080 e2:8080`},

		{"without a node hint for this node, zone hints hold", func(f family) []any {
			return []any{f.node(), f.service(), slice("a",
				f.endpoint("e1", zones("z1"), nodes("there")), f.endpoint("e2", zones("z2"), nodes("over-there")))}
		}, `ClusterIP c1:80 -> e1:8080, serving: e1:8080 e2:8080`},

		{"node hints are ignored if a ready endpoint has none", func(f family) []any {
			return []any{f.node(), f.service(), slice("a",
				f.endpoint("e1", zones("z2"), nodes("here")), f.endpoint("e2", zones("z1")))}
		}, `ClusterIP c1:80 -> e2:8080, serving: e1:8080 e2:8080`},

		{"hints do not hold back terminating endpoints once none is ready", func(f family) []any {
			return []any{f.node(), f.service(), slice("a", f.endpoint("e1", draining, zones("z1")), f.endpoint("e2", draining, zones("z2")))}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080`},

		{"no hints, no preference", func(f family) []any {
			return []any{f.node(), f.service(), slice("a", f.endpoint("e1", here), f.endpoint("e2"))}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, f family) {
				c := compiled(compile.Config{}, tc.objects(f)...)
				check(t, c, tc.want)
				checkIssues(t, c)
			})
		})
	}
}

// Endpoints that come from pods.
func TestSelectedPods(t *testing.T) {
	for _, tc := range []struct {
		name    string
		objects func(f family) []any
		want    string
	}{
		{"without a slice the ready pods that the selector matches serve", func(f family) []any {
			other := f.pod("c", "e3", func(p *model.Pod) { p.Labels = map[string]string{"app": "db"} })
			elsewhere := f.pod("d", "e4")
			elsewhere.Name.Namespace = "prod"
			return []any{f.service(selectsWeb), f.pod("b", "e1"), f.pod("a", "e2"), other, elsewhere}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080`},

		{"a selector has to match with all its terms", func(f family) []any {
			svc := f.service(func(s *model.Service) { s.Selector = map[string]string{"app": "web", "tier": "front"} })
			both := f.pod("b", "e2", func(p *model.Pod) { p.Labels = map[string]string{"app": "web", "tier": "front", "v": "1"} })
			return []any{svc, f.pod("a", "e1"), both}
		}, `ClusterIP c1:80 -> e2:8080`},

		{"pods that are not ready exist, finished ones and those without address don't", func(f family) []any {
			return []any{f.service(selectsWeb), f.pod("a", "e1"),
				f.pod("b", "e2", func(p *model.Pod) { p.Ready = false }),
				f.pod("c", "e3", func(p *model.Pod) { p.Finished = true }),
				f.pod("d", ""),
			}
		}, `ClusterIP c1:80 -> e1:8080, alive: e1:8080 e2:8080`},

		{"a ready pod that terminates drains", func(f family) []any {
			return []any{f.service(selectsWeb), f.pod("a", "e1"), f.pod("b", "e2", func(p *model.Pod) { p.Terminating = true })}
		}, `ClusterIP c1:80 -> e1:8080, serving: e1:8080 e2:8080`},

		{"ready pods that terminate serve where nothing else does", func(f family) []any {
			return []any{f.service(selectsWeb),
				f.pod("a", "e1", func(p *model.Pod) { p.Terminating, p.Ready = true, false }),
				f.pod("b", "e2", func(p *model.Pod) { p.Terminating = true })}
		}, `ClusterIP c1:80 -> e2:8080, alive: e1:8080 e2:8080`},

		{"publishNotReadyAddresses takes all pods as ready", func(f family) []any {
			svc := f.service(selectsWeb, func(s *model.Service) { s.PublishNotReady = true })
			return []any{svc, f.pod("a", "e1", func(p *model.Pod) { p.Ready = false }), f.pod("b", "e2", func(p *model.Pod) { p.Terminating = true })}
		}, `ClusterIP c1:80 -> e1:8080 e2:8080`},

		{"named target ports are those of each pod", func(f family) []any {
			svc := f.service(selectsWeb, func(s *model.Service) { s.Ports[0].TargetPort, s.Ports[0].TargetName = 0, "http" })
			return []any{svc, f.pod("a", "e1"),
				f.pod("b", "e2", func(p *model.Pod) { p.Ports[0].Port = 9090 }),
				f.pod("c", "e3", func(p *model.Pod) { p.Ports[0].Name = "web" }),
				f.pod("d", "e4", func(p *model.Pod) { p.Ports[0].Protocol = model.UDP }),
			}
		}, `ClusterIP c1:80 -> e1:8080 e2:9090`},

		{"without a target port it is the service's", func(f family) []any {
			return []any{f.service(selectsWeb, func(s *model.Service) { s.Ports[0].TargetPort = 0 }), f.pod("a", "e1")}
		}, `ClusterIP c1:80 -> e1:80`},

		{"where there is a slice it alone says who serves, and selected pods may finish", func(f family) []any {
			return []any{f.service(selectsWeb), slice("a", f.endpoint("e1")), f.pod("a", "e1"), f.pod("b", "e2"),
				f.pod("c", "e3", func(p *model.Pod) { p.Finished = true })}
		}, `ClusterIP c1:80 -> e1:8080, alive: e1:8080 e2:8080`},

		{"an empty slice is a slice", func(f family) []any {
			return []any{f.service(selectsWeb), slice("a"), f.pod("a", "e1")}
		}, `ClusterIP c1:80 -> reject, alive: e1:8080`},

		{"without a selector pods do not matter", func(f family) []any {
			return []any{f.service(), f.pod("a", "e1")}
		}, `ClusterIP c1:80 -> reject`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, f family) {
				c := compiled(compile.Config{}, tc.objects(f)...)
				check(t, c, tc.want)
				checkIssues(t, c)
			})
		})
	}
}

// The EndpointSlice controller writes the slices of a new service one after the other: what the
// first says of its family says nothing of the other.
func TestSlicesOfOneFamily(t *testing.T) {
	svc := v4.service(selectsWeb, func(s *model.Service) { s.ClusterIPs = append(s.ClusterIPs, v6.addr("c1")) })
	pod := v4.pod("a", "e1")
	pod.IPs = append(pod.IPs, v6.addr("e1"))
	for _, tc := range []struct {
		name   string
		slices []any
		want   string
	}{
		{"none", nil, "ClusterIP c1:80 -> e1:8080\nClusterIP c1:80 -> e1:8080"},
		{"of IPv4", []any{slice("a", v4.endpoint("e2"))}, "ClusterIP c1:80 -> e2:8080, alive: e1:8080 e2:8080\nClusterIP c1:80 -> e1:8080"},
		{"of IPv4, and an empty one", []any{slice("a", v4.endpoint("e1")), slice("b")}, "ClusterIP c1:80 -> e1:8080\nClusterIP c1:80 -> reject, alive: e1:8080"},
		{"of both", []any{slice("a", v4.endpoint("e1")), slice("b", v6.endpoint("e2"))}, "ClusterIP c1:80 -> e1:8080\nClusterIP c1:80 -> e2:8080, alive: e1:8080 e2:8080"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			check(t, compiled(compile.Config{}, append(tc.slices, svc, pod)...), tc.want)
		})
	}
}

func TestDualStackKeepsFamiliesApart(t *testing.T) {
	svc := v4.service(nodePort, selectsWeb, func(s *model.Service) {
		s.ClusterIPs = append(s.ClusterIPs, v6.addr("c1"))
		s.ExternalIPs = append(v4.addrs("x1"), v6.addr("x1"))
	})
	node := v4.node()
	node.IPs = append(node.IPs, v6.addr("n1"))
	pod := v4.pod("a", "e1")
	pod.IPs = append(pod.IPs, v6.addr("e1"))
	c := compiled(compile.Config{}, node, svc, pod, v4.pod("b", "e2"))
	check(t, c, `
		ClusterIP c1:80 -> e1:8080 e2:8080
		ExternalIP x1:80 -> e1:8080 e2:8080
		NodePort n1:30080 -> e1:8080 e2:8080
		ExternalIP x1:80 -> e1:8080
		ClusterIP c1:80 -> e1:8080
		NodePort n1:30080 -> e1:8080`)
	for k, f := range c.State().Services.Frontends {
		for _, b := range f.Backends {
			if b.Addr().Is4() != k.Addr.Is4() {
				t.Errorf("%s has the backend %s", k, b)
			}
		}
	}
}
