package compile_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// endpointsOf returns what a compiler says of the endpoints of shop/web among the objects.
func endpointsOf(objects ...any) (views []services.EndpointView) {
	s := store.New()
	s.Apply(events(objects...))
	c := compile.New(compile.Config{Config: services.Config{Node: "here"}})
	c.Update(s, s.Take())
	s.Read(func(v *store.View) { views = c.Services.Endpoints(v, name("web")) })
	return views
}

// Why endpoints are not chosen: inside, and outside where that differs.
func TestEndpointsSayWhyNot(t *testing.T) {
	const elsewhere = "it is not on this node: the traffic policy is Local"
	for title, tc := range map[string]struct {
		objects []any
		want    []string
	}{
		"conditions, while one is ready": {
			[]any{v4.service(), slice("a", v4.endpoint("e1"), v4.endpoint("e2", notReady), v4.endpoint("e3", draining), v4.endpoint("e4", dying))},
			[]string{"", "it is not ready", "it is terminating, and others are ready", "it is terminating, and does not serve any more"},
		},
		"conditions, while none is ready": {
			[]any{v4.service(), slice("a", v4.endpoint("e2", notReady), v4.endpoint("e3", draining), v4.endpoint("e4", dying))},
			[]string{"it is not ready", "", "it is terminating, and does not serve any more"},
		},
		"zone hints": {
			[]any{v4.node(), v4.service(), slice("a", v4.endpoint("e1", zones("z1")), v4.endpoint("e2", zones("z2")), v4.endpoint("e3", notReady, zones("z2")))},
			[]string{"", "its topology hints name other zones", "it is not ready"},
		},
		"node hints": {
			[]any{v4.node(), v4.service(), slice("a", v4.endpoint("e1", nodes("here")), v4.endpoint("e2", nodes("there")))},
			[]string{"", "its topology hints name other nodes"},
		},
		"hints that are ignored": {
			[]any{v4.node(), v4.service(), slice("a", v4.endpoint("e1", zones("z1")), v4.endpoint("e2"))},
			[]string{"", ""},
		},
		"internal policy Local": {
			[]any{v4.service(internalLocal), slice("a", v4.endpoint("e1", here), v4.endpoint("e2"))},
			[]string{"", elsewhere},
		},
		"external policy Local": {
			[]any{v4.node(), v4.service(nodePort, externalLocal), slice("a", v4.endpoint("e1", here), v4.endpoint("e2"))},
			[]string{"", " outside: " + elsewhere},
		},
		"both, each with another": {
			[]any{v4.node(), v4.service(nodePort, externalLocal), slice("a", v4.endpoint("e1", here, draining), v4.endpoint("e2"))},
			[]string{"it is terminating, and others are ready outside: ", " outside: " + elsewhere},
		},
		"a pod that no slice has": {
			[]any{v4.service(selectsWeb), slice("a", v4.endpoint("e1")), v4.pod("b", "e2")},
			[]string{"", "no EndpointSlice of the service has it"},
		},
		"pods without slices": {
			[]any{v4.service(selectsWeb), v4.pod("a", "e1"), v4.pod("b", "e2", func(p *model.Pod) { p.Ready = false })},
			[]string{"", "it is not ready"},
		},
		"a headless service": {
			[]any{v4.service(func(s *model.Service) { s.Unproxied, s.ClusterIPs = model.Headless, nil }), slice("a", v4.endpoint("e1"), v4.endpoint("e2", func(e *model.Endpoint) { e.Ready = false }))},
			[]string{"", "it is not ready"},
		},
		"a service that another program serves": {
			[]any{v4.service(func(s *model.Service) { s.Unproxied = "others" }), slice("a", v4.endpoint("e1"))},
			nil,
		},
	} {
		t.Run(title, func(t *testing.T) {
			var got []string
			for _, e := range endpointsOf(tc.objects...) {
				says := e.Inside.WhyNot
				if e.Outside != nil && *e.Outside != e.Inside {
					says += " outside: " + e.Outside.WhyNot
				}
				got = append(got, says)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Pod, node and zone are those of the slice, of the pod, of the node's object.
func TestEndpointsSayWhere(t *testing.T) {
	there := &model.Node{Name: "there", Labels: map[string]string{"topology.kubernetes.io/zone": "z2"}}
	placed := slice("a", v4.endpoint("e1", here, func(e *model.Endpoint) { e.Zone = "z9" }), v4.endpoint("e2"))
	pod := &model.Ref{Kind: model.PodKind, Name: name("b")}
	want := []services.EndpointView{
		{PortName: "http", Protocol: "TCP", Address: "10.1.0.1:8080", Node: "here", Zone: "z9", Ready: true, Serving: true, Inside: services.Choice{Chosen: true}},
		{PortName: "http", Protocol: "TCP", Address: "10.1.0.2:8080", Pod: pod, Node: "there", Zone: "z2", Ready: true, Serving: true, Inside: services.Choice{Chosen: true}},
	}
	if diff := cmp.Diff(want, endpointsOf(v4.node(), there, v4.service(), placed, v4.pod("b", "e2"))); diff != "" {
		t.Errorf("from a slice, -want +got:\n%s", diff)
	}
	want = want[1:]
	if diff := cmp.Diff(want, endpointsOf(there, v4.service(selectsWeb), v4.pod("b", "e2"))); diff != "" {
		t.Errorf("from a pod, -want +got:\n%s", diff)
	}
}

// The endpoints that are said to be chosen are the backends of the frontends.
func TestChosenEndpointsAreBackends(t *testing.T) {
	compared := 0
	for seed := range uint64(200) {
		w := newWorld(seed)
		s := store.New()
		for range 40 {
			s.Apply([]store.Event{w.event()})
		}
		c := compile.New(compile.Config{Config: services.Config{Node: "here"}})
		c.Update(s, s.Take())
		s.Read(func(v *store.View) {
			for key, f := range c.State().Services.Frontends {
				if ambiguous(v.Service(f.Service)) {
					continue
				}
				want, inside := f.Backends, f.Kind == state.ClusterIP
				if f.LocalOnly && !inside {
					want = f.Local
				}
				if got := chosenFor(t, c.Services.Endpoints(v, f.Service), key, f, inside); !slices.Equal(got, want) {
					t.Errorf("seed %d: %s of %s leads to %v, and these are said to be chosen: %v", seed, key, f.Service, want, got)
				}
				compared++
			}
		})
	}
	if compared < 1000 {
		t.Errorf("only %d frontends were compared", compared)
	}
}

// ambiguous reports whether the service has two ports of one name and protocol.
func ambiguous(svc *model.Service) bool {
	for i, p := range svc.Ports {
		if slices.ContainsFunc(svc.Ports[:i], func(o model.ServicePort) bool { return o.Name == p.Name && o.Protocol == p.Protocol }) {
			return true
		}
	}
	return false
}

// chosenFor returns the endpoints that are said to be chosen for a frontend.
func chosenFor(t *testing.T, views []services.EndpointView, key state.FrontendKey, f *state.Frontend, inside bool) (list []netip.AddrPort) {
	for _, e := range views {
		at := netip.MustParseAddrPort(e.Address)
		if e.PortName != f.Port || e.Protocol != key.Protocol.String() || at.Addr().Is4() != key.Addr.Is4() {
			continue
		}
		choice := e.Inside
		if !inside {
			choice = *e.Outside
		}
		if choice.Chosen != (choice.WhyNot == "") {
			t.Errorf("%s of %s: %+v", e.Address, f.Service, choice)
		}
		if choice.Chosen {
			list = append(list, at)
		}
	}
	return list
}
