package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/preflight"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/store"
)

// A node whose name no Node has is not ready, and keeps what the kernel has until its Node is
// known.
func TestMisnamedNodeIsNotReady(t *testing.T) {
	b := start(t, before(t, web(1, "10.1.0.1"), web(2, "10.1.0.2")))
	handler := b.Agent.health.handler(b.metrics.healthz, b.metrics.livez)
	readyz := func() (int, string) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return w.Code, w.Body.String()
	}
	named := func(name string) store.Event {
		return store.Event{Kind: model.NodeKind, Name: model.Name{Name: name}, Object: &model.Node{Name: name}}
	}
	b.source.deliver(named("Node-A"), named("node-b"))
	b.source.deliver(web(1, "10.1.0.1", "10.1.0.9")...)
	b.source.sync()
	const grown = "TCP 10.0.0.1:80 -> [10.1.0.1:8080 10.1.0.9:8080]"
	b.holds(t, grown, web2)
	eventually(t, "it is kept", func() bool { return b.Status().Kept == 1 })
	const reason = "there is no Node object named node-a, but there are others (Node-A, node-b): set --node to this node's name"
	if s := b.Status(); s.OK || !strings.Contains(strings.Join(s.Problems, "\n"), reason) {
		t.Errorf("status: %+v", s)
	}
	if code, text := readyz(); code != http.StatusServiceUnavailable || text != "not ready: "+reason+"\n" {
		t.Errorf("/readyz: %d %s", code, text)
	}
	b.source.deliver(named("node-a"))
	b.holds(t, grown)
	eventually(t, "all is well", func() bool { return b.Status().OK })
	if code, text := readyz(); code != http.StatusOK {
		t.Errorf("/readyz of a node that is known: %d %s", code, text)
	}
}

// More nodes on this node's subnets than the kernel knows neighbours are a problem; those behind a
// router are not.
func TestMoreNodesThanNeighbours(t *testing.T) {
	tables := preflight.ReadNeighbours()
	if len(tables) == 0 || !tables[0].IPv4 || tables[0].Most > 1<<16 {
		t.Skipf("the kernel's tables of neighbours: %+v", tables)
	}
	for subnet, crowded := range map[string]bool{"10.0.0.1/8": true, "192.0.2.1/24": false} {
		b := start(t, func(c *Config) {
			c.Compiler = compile.New(compile.Config{Config: services.Config{Node: c.Node, HostAddresses: []netip.Prefix{netip.MustParsePrefix(subnet)}}})
		})
		for i := range tables[0].Most + 2 {
			n := &model.Node{Name: fmt.Sprint("node-", i), IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}}
			if i == 0 {
				n.Name = "node-a"
			}
			b.source.deliver(store.Event{Kind: model.NodeKind, Name: model.Name{Name: n.Name}, Object: n})
		}
		problems := strings.Join(b.Status().Problems, "\n")
		want := fmt.Sprintf("there are %d nodes, and the kernel knows %d neighbours of IPv4 at the most", tables[0].Most+1, tables[0].Most)
		if strings.Contains(problems, want) != crowded || strings.Contains(problems, "set net.ipv4.neigh.default.gc_thresh3 to ") != crowded {
			t.Errorf("%s: %s", subnet, problems)
		}
	}
}
