package compile_test

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

func TestSmoke(t *testing.T) {
	s := store.New()
	n := model.Name{Namespace: "shop", Name: "web"}
	s.Apply([]store.Event{
		{Kind: store.Services, Name: n, Object: &model.Service{Name: n, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Selector: map[string]string{"a": "b"},
			Ports: []model.ServicePort{{Port: 80, Protocol: model.TCP, NodePort: 30080, TargetName: "http"}}}},
		{Kind: store.Nodes, Name: model.Name{Name: "n1"}, Object: &model.Node{Name: "n1", IPs: []netip.Addr{netip.MustParseAddr("192.168.0.1")}}},
		{Kind: store.Pods, Name: model.Name{Namespace: "shop", Name: "p"}, Object: &model.Pod{Name: model.Name{Namespace: "shop", Name: "p"}, Labels: map[string]string{"a": "b"}, Node: "n1", Ready: true,
			IPs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}, Ports: []model.ContainerPort{{Name: "http", Protocol: model.TCP, Port: 8080}}}},
	})
	c := compile.New(compile.Config{Node: "n1"})
	d := c.Update(s, s.Take())
	for k, f := range d.Frontends {
		t.Log(k, *f)
	}
	t.Log(d.ClusterIPs, d.Hairpins, c.Issues(), c.Services())
	if len(d.Frontends) != 2 {
		t.Fatal(d)
	}
}
