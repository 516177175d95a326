package compile_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
)

func TestServices(t *testing.T) {
	two := 2
	objects := []any{
		v4.node(),
		v4.service(nodePort, externalLocal, func(s *model.Service) {
			s.Ports = append(s.Ports, model.ServicePort{Name: "dns", Protocol: model.UDP, Port: 53})
		}),
		slice("a", v4.endpoint("e1", here), v4.endpoint("e2", here), v4.endpoint("e3"), v4.endpoint("e4", draining), v4.endpoint("e5", dying), v4.endpoint("e6", notReady)),
		v4.service(named("db", 1)),
		v4.service(named("none", 1), func(s *model.Service) { s.ClusterIPs, s.Unproxied = nil, "headless" }),
	}
	want := []services.ServiceView{
		{Namespace: "shop", Name: "db", Type: "ClusterIP", Frontends: []services.FrontendView{
			{Kind: "ClusterIP", Address: "172.16.0.1", Port: 80, Protocol: "TCP", PortName: "http"}}},
		{Namespace: "shop", Name: "none", Type: "ClusterIP", Unproxied: "headless", Frontends: []services.FrontendView{}},
		{Namespace: "shop", Name: "web", Type: "NodePort", Frontends: []services.FrontendView{
			{Kind: "ClusterIP", Address: "172.16.0.1", Port: 80, Protocol: "TCP", PortName: "http", Backends: 3, HeldBy: "shop/db"},
			{Kind: "ClusterIP", Address: "172.16.0.1", Port: 53, Protocol: "UDP", PortName: "dns"},
			{Kind: "NodePort", Address: "192.168.0.1", Port: 30080, Protocol: "TCP", PortName: "http", Backends: 3, Local: &two},
		}, Endpoints: services.Counts{Ready: 3, Serving: 4, Terminating: 2, Local: 2}},
	}
	got := compiled(compile.Config{}, objects...).Services.Views()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
