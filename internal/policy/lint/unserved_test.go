package lint_test

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/lint"
	"sluice.dev/sluice/internal/store"
)

func TestUnserved(t *testing.T) {
	in := func(name string) model.Name { return model.Name{Namespace: "shop", Name: name} }
	pod := func(name, addr, port string, ready bool) *model.Pod {
		p := &model.Pod{Name: in(name), Labels: map[string]string{"app": "web"}, Ready: ready, IPs: []netip.Addr{netip.MustParseAddr(addr)}}
		if port != "" {
			p.Ports = []model.ContainerPort{{Name: port, Protocol: model.TCP, Port: 8080}}
		}
		return p
	}
	slice := func(name, addr, port string, ready bool) *model.EndpointSlice {
		s := &model.EndpointSlice{Name: in(name), Service: "web"}
		if addr != "" {
			s.Endpoints = []model.Endpoint{{Addr: netip.MustParseAddr(addr), Ready: ready, Serving: ready}}
		}
		if port != "-" {
			s.Ports = []model.EndpointPort{{Name: port, Protocol: model.TCP, Port: 8080}}
		}
		return s
	}
	web := map[string]string{"app": "web"}
	other := &model.Pod{Name: in("other"), IPs: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}
	for _, c := range []struct {
		name     string
		selector map[string]string
		target   string
		objects  []any
		want     string
	}{
		{"pods", web, "http", []any{pod("a", "10.0.0.1", "http", true)}, ""},
		{"slices of pods", web, "http", []any{pod("a", "10.0.0.1", "http", true), slice("s", "10.0.0.1", "", true)}, ""},
		{"no pods", web, "http", []any{other}, "its selector app=web selects no pod of namespace shop"},
		{"no pods, and slices without endpoints", web, "http", []any{other, slice("s", "", "-", true)}, "its selector app=web selects no pod of namespace shop"},
		{"Pods that are not read", web, "http", []any{slice("s", "10.0.0.1", "", false)}, "1 endpoint, none is ready"},
		{"Pods that are not read, no endpoint", web, "http", []any{slice("s", "", "", false)}, "its EndpointSlices have no endpoint"},
		{"Pods that are not read, the other family", web, "http", []any{slice("s", "fd00::1", "", true)}, "its EndpointSlices have no IPv4 address"},
		{"Pods that are not read, no slice", web, "http", nil, "no Pod is known, and no EndpointSlice is of it (label kubernetes.io/service-name)"},
		{"Pods that are read no more", web, "http", []any{other, slice("s", "10.0.0.1", "", false)}, "1 endpoint, none is ready"},
		{"a name that no pod has", web, "htp", []any{pod("a", "10.0.0.1", "http", true), pod("b", "10.0.0.2", "http", true), pod("c", "10.0.0.3", "admin", true), slice("s", "", "-", true)},
			`3 ready pods, none has a port named "htp" of TCP (they have admin, http)`},
		{"no names", web, "htp", []any{pod("a", "10.0.0.1", "", true)}, `1 ready pod, none has a port named "htp" of TCP (they name none)`},
		{"none ready", web, "", []any{pod("a", "10.0.0.1", "", false), slice("s", "10.0.0.1", "", false)}, "1 pod, none is ready"},
		{"none of those that matter", web, "http", []any{pod("a", "10.0.0.1", "http", false), pod("b", "10.0.0.2", "", true)}, "2 pods, none of those that have the port is ready"},
		{"the other family", web, "", []any{pod("a", "fd00::1", "", true), slice("s", "fd00::1", "", true)}, "1 ready pod, none has an IPv4 address"},
		{"slices that are behind", web, "", []any{pod("a", "10.0.0.1", "", true), slice("s", "10.0.0.1", "", false)}, "1 endpoint, none is ready"},
		{"no slice without a selector", nil, "", nil, "it has no selector, and no EndpointSlice is of it (label kubernetes.io/service-name)"},
		{"slices of the other family", nil, "", []any{slice("s", "fd00::1", "", true)}, "its EndpointSlices have no IPv4 address"},
		{"slices of another port", nil, "", []any{slice("s", "10.0.0.1", "x", true)}, `no EndpointSlice has a port named "" of TCP (they have "x" of TCP)`},
		{"slices without endpoints", nil, "", []any{slice("s", "", "", true)}, "its EndpointSlices have no endpoint"},
		{"slices without ports", nil, "", []any{slice("s", "10.0.0.1", "-", true)}, "its EndpointSlices have no ports"},
		{"an endpoint", nil, "", []any{slice("s", "10.0.0.1", "", true)}, ""},
	} {
		s := store.New()
		svc := &model.Service{Name: in("web"), Selector: c.selector, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80, TargetName: c.target}}}
		for _, o := range append(c.objects, svc) {
			ref := o.(model.Object).Ref()
			s.Apply([]store.Event{{Kind: ref.Kind, Name: ref.Name, Object: o}})
		}
		s.Read(func(v *store.View) {
			if got := lint.Unserved(v, svc, &svc.Ports[0], true); got != c.want {
				t.Errorf("%s: %q, want %q", c.name, got, c.want)
			}
		})
	}
}
