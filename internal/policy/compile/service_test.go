package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

func svc(name string, ports ...model.ServicePort) *model.Service {
	return &model.Service{Name: model.Name{Namespace: "shop", Name: name}, Selector: map[string]string{"app": name}, Ports: ports}
}

// slice has endpoints "10.0.0.1", and ports "TCP 80".
func slice(name, service, ports string, addrs ...string) *model.EndpointSlice {
	s := &model.EndpointSlice{Name: model.Name{Namespace: "shop", Name: name}, Service: service}
	for text := range strings.SplitSeq(ports, ", ") {
		var protocol string
		var p model.EndpointPort
		if n, _ := fmt.Sscan(text, &protocol, &p.Port); n == 2 {
			p.Protocol = map[string]model.Protocol{"TCP": model.TCP, "UDP": model.UDP}[protocol]
			s.Ports = append(s.Ports, p)
		}
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.MustParseAddr(a)})
	}
	return s
}

func shop(name string) model.Name { return model.Name{Namespace: "shop", Name: name} }

// The endpoints of services that rules name, through what changes them.
func TestServices(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	to := model.PolicyRule{Name: "egress[0]", Destination: model.RuleEnd{Ports: []model.PolicyPort{{Service: shop("db")}}}}
	by := from(model.Peer{Service: shop("db")})
	h.apply(t, event(pod(1, "here", "app", "web")), event(networkPolicy("x", ingress(by), egress(to))))
	targetPort := model.ServicePort{Protocol: model.TCP, Port: 80, TargetPort: 8080}
	for _, step := range []struct {
		name   string
		object any // or what is gone
		want   string
	}{
		{"a service without endpoints", svc("db", targetPort), ""},
		{"its pods, before it has slices", pod(2, "there", "app", "db"), "10.0.0.2; 10.0.0.2 TCP 8080"},
		{"another has no say", slice("other-1", "other", "TCP 80", "10.0.0.9"), "10.0.0.2; 10.0.0.2 TCP 8080"},
		{"slices say what its endpoints are", slice("db-1", "db", "TCP 5432, UDP 5432", "10.0.0.3"), "10.0.0.3; 10.0.0.3 TCP 5432, 10.0.0.3 UDP 5432"},
		{"a second slice", slice("db-2", "db", "TCP 5432", "10.0.0.3", "10.0.0.4"), "10.0.0.3, 10.0.0.4; 10.0.0.3 TCP 5432, 10.0.0.3 UDP 5432, 10.0.0.4 TCP 5432"},
		{"of the other family", slice("db-3", "db", "TCP 5432", "fd00::3"), "10.0.0.3, 10.0.0.4, fd00::3; 10.0.0.3 TCP 5432, 10.0.0.3 UDP 5432, 10.0.0.4 TCP 5432, fd00::3 TCP 5432"},
		{"one goes", store.Event{Kind: model.EndpointSliceKind, Name: shop("db-2")}, "10.0.0.3, fd00::3; 10.0.0.3 TCP 5432, 10.0.0.3 UDP 5432, fd00::3 TCP 5432"},
		{"without ports an endpoint is a source alone", slice("db-1", "db", "", "10.0.0.3"), "10.0.0.3, fd00::3; fd00::3 TCP 5432"},
		{"the service goes, by mistake: what was allowed and denied stays", store.Event{Kind: model.ServiceKind, Name: shop("db")}, "10.0.0.3, fd00::3; fd00::3 TCP 5432"},
		{"its slices go after it", store.Event{Kind: model.EndpointSliceKind, Name: shop("db-1")}, "10.0.0.2, fd00::3; 10.0.0.2 TCP 8080, fd00::3 TCP 5432"},
		{"no address stays without a pod", store.Event{Kind: model.PodKind, Name: shop("p2")}, "fd00::3; fd00::3 TCP 5432"},
		{"a pod comes", pod(3, "there", "app", "db"), "10.0.0.3, fd00::3; 10.0.0.3 TCP 8080, fd00::3 TCP 5432"},
		{"it comes back", svc("db", targetPort), "10.0.0.3, fd00::3; 10.0.0.3 TCP 8080, fd00::3 TCP 5432"},
		{"it goes for good, with its slices", store.Event{Kind: model.EndpointSliceKind, Name: shop("db-3")}, "10.0.0.3; 10.0.0.3 TCP 8080"},
		{"and the policy after it", store.Event{Kind: model.ServiceKind, Name: shop("db")}, "10.0.0.3; 10.0.0.3 TCP 8080"},
		{"the policy goes", store.Event{Kind: model.NetworkPolicy, Name: shop("x")}, ""},
	} {
		e, gone := step.object.(store.Event)
		if !gone {
			e = event(step.object)
		}
		h.apply(t, e)
		p := h.compiler.Policy()
		if got := text(p.Groups, netip.Addr.String, netip.Addr.Compare) + "; " + text(p.NamedPorts, portText, comparePorts); strings.Trim(got, "; ") != step.want {
			t.Errorf("%s: %s, want %s", step.name, got, step.want)
		}
		same(t, h.compiler, h.fresh())
	}
	h.apply(t, store.Event{Kind: model.PodKind, Name: shop("pod-1")}, store.Event{Kind: model.PodKind, Name: shop("pod-2")})
}

func portText(n state.NamedPort) string { return fmt.Sprint(n.Addr, " ", n.Protocol, " ", n.Port) }

func comparePorts(a, b state.NamedPort) int { return strings.Compare(portText(a), portText(b)) }

func text[M comparable](sets map[state.SetID]map[M]struct{}, text func(M) string, compare func(a, b M) int) string {
	var all []string
	for _, set := range sets {
		for _, m := range slices.SortedFunc(maps.Keys(set), compare) {
			all = append(all, text(m))
		}
	}
	return strings.Join(all, ", ")
}

// A service with too many endpoints, by itself or with others, allows nothing; and denies no less.
func TestTooManyEndpoints(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	h.endpoints = 3
	naming := func(name, service string) *model.Policy {
		p := networkPolicy(name, egress(model.PolicyRule{Name: "egress[0]", Destination: model.RuleEnd{Ports: []model.PolicyPort{{Service: shop(service)}}}}))
		p.Key.Kind = model.CalicoPolicy
		return p
	}
	h.apply(t, event(pod(1, "here", "app", "web")), event(naming("x", "a")), event(naming("y", "b")), event(naming("z", "c")),
		event(svc("a")), event(svc("b")), event(svc("c")))
	for _, step := range []struct {
		name    string
		slice   *model.EndpointSlice
		refused string
	}{
		{"few", slice("a", "a", "TCP 1, TCP 2", "10.0.0.3"), ""},
		{"too many by itself", slice("a", "a", "TCP 1, TCP 2", "10.0.0.3", "10.0.0.4"), "x"},
		{"few again", slice("a", "a", "TCP 1", "10.0.0.3"), ""},
		{"as many as one may have", slice("b", "b", "TCP 1", "10.0.0.5", "10.0.0.6", "10.0.0.7"), ""},
		{"too many together: the last to have its turn", slice("c", "c", "TCP 1, TCP 2, TCP 3", "10.0.0.8"), "z"},
		{"room again", slice("c", "c", "TCP 1, TCP 2", "10.0.0.8"), ""},
	} {
		h.apply(t, event(step.slice))
		var refused []string
		for _, i := range h.compiler.Issues() {
			refused = append(refused, i.Object.Name.Name)
		}
		if got := strings.Join(refused, " "); got != step.refused {
			t.Errorf("%s: refused are %q, want %q", step.name, got, step.refused)
		}
		denying := map[string]bool{}
		for _, rules := range h.compiler.Policy().Rules {
			for _, own := range rules.Tiers[0].Policies {
				denying[own.Policy.Name.Name] = own.Rules[0].Action == model.Deny
			}
		}
		for name, denies := range denying {
			if denies != strings.Contains(step.refused, name) {
				t.Errorf("%s: policy %s denies: %t", step.name, name, denies)
			}
		}
		same(t, h.compiler, h.fresh())
	}
}
