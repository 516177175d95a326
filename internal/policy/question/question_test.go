package question

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     Question
		err      string
	}{
		{"web", "db:5432", Question{From: ParseEnd("web"), To: ParseEnd("db"), Port: "5432"}, ""},
		{"shop/web", "shop/db:5432/TCP", Question{From: ParseEnd("shop/web"), To: ParseEnd("shop/db"), Port: "5432", Protocol: "tcp"}, ""},
		{"10.0.0.1", "svc/kube-system/dns:dns/udp", Question{From: ParseEnd("10.0.0.1"), To: ParseEnd("svc/kube-system/dns"), Port: "dns", Protocol: "udp"}, ""},
		{"[fd00::1]", "[fd00::2]:80/sctp", Question{From: ParseEnd("fd00::1"), To: ParseEnd("fd00::2"), Port: "80", Protocol: "sctp"}, ""},
		{"fd00::1", "[fd00::2]/icmp", Question{From: ParseEnd("fd00::1"), To: ParseEnd("fd00::2"), Protocol: "icmp"}, ""},
		{"web", "svc/shop/db", Question{From: ParseEnd("web"), To: ParseEnd("svc/shop/db")}, ""},
		{"web", "svc/shop/db/udp", Question{From: ParseEnd("web"), To: ParseEnd("svc/shop/db"), Protocol: "udp"}, ""},
		{"node/a", "shop/db/icmp", Question{From: ParseEnd("node/a"), To: ParseEnd("shop/db"), Protocol: "icmp"}, ""},
		{"web", "shop/tcp:80", Question{From: ParseEnd("web"), To: ParseEnd("shop/tcp"), Port: "80"}, ""},
		{"", "db:80", Question{}, "where the connection comes from"},
		{"web", "db", Question{}, "TO:PORT"},
		{"web", "shop/tcp", Question{}, "TO:PORT"},
		{"web", "fd00::2:80", Question{}, "IPv6 address in brackets"},
		{"web", "db:80/icmp", Question{}, "TO/icmp"},
		{"web", ":80", Question{}, "TO:PORT"},
		{"web", "db:70000", Question{}, "out of range"},
		{"web", "db:0", Question{}, "out of range"},
		{"web", "x/a:80/tpc", Question{}, `"tpc" is not a known protocol: write it as TO:PORT or TO:PORT/PROTOCOL (tcp, udp, sctp), or TO/icmp`},
	} {
		got, err := Parse(c.from, c.to)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s to %s: %v, want %q", c.from, c.to, err, c.err)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s to %s: %+v, %v; want %+v", c.from, c.to, got, err, c.want)
		}
	}
}

// What an end is written as is read as the same end.
func TestEndString(t *testing.T) {
	for text, want := range map[string]End{
		"::ffff:10.0.0.1": {Addr: netip.MustParseAddr("10.0.0.1")},
		"fe80::1%eth0":    {Addr: netip.MustParseAddr("fe80::1")},
		"Pods/shop/web":   {Kind: Pod, Name: "shop/web"},
		"node/a":          {Kind: Node, Name: "a"},
		"shop/web":        {Name: "shop/web"},
		"web":             {Name: "web"},
	} {
		if got := ParseEnd(text); got != want || ParseEnd(got.String()) != want {
			t.Errorf("%s is %+v, and again %+v; want %+v", text, got, ParseEnd(got.String()), want)
		}
	}
}

// ends fills a store with everything that a question can name.
func ends() *store.Store {
	s := store.New()
	pod := func(namespace, name string, ips ...string) store.Event {
		p := &model.Pod{Name: model.Name{Namespace: namespace, Name: name}, Node: "node-a",
			Ports: []model.ContainerPort{{Name: "http", Protocol: model.TCP, Port: 8080}, {Name: "dns", Protocol: model.UDP, Port: 53}}}
		for _, ip := range ips {
			p.IPs = append(p.IPs, netip.MustParseAddr(ip))
		}
		return store.Event{Kind: model.PodKind, Name: p.Name, Object: p}
	}
	service := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "web-1"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, TargetPort: 8080}},
	}
	s.Apply([]store.Event{
		{Kind: model.ServiceKind, Name: service.Name, Object: service},
		pod("shop", "web-1", "10.1.0.1", "fd00::1"), // shares its name with the service
		pod("shop", "frontend-7d4b9-x2v5k", "10.1.0.2"),
		pod("default", "client", "10.1.0.3"),
		pod("shop", "late"),
		{Kind: model.NodeKind, Name: model.Name{Name: "node-a"}, Object: &model.Node{Name: "node-a",
			IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::1")}}},
	})
	return s
}

func TestFind(t *testing.T) {
	s := ends()
	for _, c := range []struct {
		text, name string
		addrs      string
		err        string
	}{
		{"10.9.9.9", "10.9.9.9", "10.9.9.9", ""},
		{"::ffff:10.9.9.9", "10.9.9.9", "10.9.9.9", ""},
		{"client", "pod default/client", "10.1.0.3", ""},
		{"shop/web-1", "pod shop/web-1", "10.1.0.1 fd00::1", ""},
		{"svc/shop/web-1", "service shop/web-1", "", ""},
		{"pod/shop/web-1", "pod shop/web-1", "10.1.0.1 fd00::1", ""},
		{"node-a", "node node-a", "192.0.2.1 2001:db8::1", ""},
		{"node/node-a", "node node-a", "192.0.2.1 2001:db8::1", ""},
		{"shop/late", "", "", "has no address yet"},
		{"shop/frontend", "", "", "did you mean shop/frontend-7d4b9-x2v5k?"},
		{"Shop/WEB-1", "", "", "did you mean shop/web-1, svc/shop/web-1"},
		{"DEFAULT/CLI", "", "", "did you mean default/client?"},
		{"frontend", "", "", "did you mean shop/frontend-7d4b9-x2v5k?"},
		{"svc/shop/wbe-1", "", "", "no service shop/wbe-1: did you mean svc/shop/web-1?"},
		{"node/node-b", "", "", "no node node-b: did you mean node/node-a?"},
		{"pod/client2", "", "", "no pod client2: did you mean default/client?"},
		{"unheard", "", "", "NAMESPACE/NAME"},
	} {
		s.Read(func(v *store.View) {
			e, err := find(v, ParseEnd(c.text))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: %v, want %q", c.text, err, c.err)
				}
				return
			}
			var addrs []string
			for _, a := range e.addrs {
				addrs = append(addrs, a.String())
			}
			if err != nil || e.name != c.name || strings.Join(addrs, " ") != c.addrs {
				t.Errorf("%s is %q with %v, want %q with %s: %v", c.text, e.name, addrs, c.name, c.addrs, err)
			}
		})
	}
}

func TestPort(t *testing.T) {
	s := ends()
	for _, c := range []struct {
		to       string
		port     uint16
		protocol uint8
		err      string
	}{
		{"shop/web-1:http", 8080, 6, ""},
		{"shop/web-1:dns", 53, 17, ""},
		{"shop/web-1:dns/tcp", 0, 0, `no port "dns": it has http (TCP), dns (UDP)`},
		{"svc/shop/web-1:http", 80, 6, ""},
		{"svc/shop/web-1:81/udp", 81, 17, ""},
		{"10.1.0.1:http", 0, 0, "10.1.0.1 has no named ports"},
		{"client/icmp", 0, ping, ""},
	} {
		q, err := Parse("client", c.to)
		if err != nil {
			t.Fatal(err)
		}
		s.Read(func(v *store.View) {
			e, err := find(v, q.To)
			if err != nil {
				t.Fatal(err)
			}
			port, protocol, err := e.port(q)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: %v, want %q", c.to, err, c.err)
				}
				return
			}
			if err != nil || port != c.port || protocol != c.protocol {
				t.Errorf("%s: port %d, protocol %d, %v; want %d, %d", c.to, port, protocol, err, c.port, c.protocol)
			}
		})
	}
}

// TestCase shows what a question is about: the addresses of a service that its client uses, its
// ports, and by which nodes a client from outside comes in.
func TestCase(t *testing.T) {
	s := ends()
	ip := netip.MustParseAddr
	balanced := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "front"}, ClusterIPs: []netip.Addr{ip("10.0.0.2"), ip("fd00::a")},
		LoadBalancerIPs: []netip.Addr{ip("203.0.113.1")}, ExternalIPs: []netip.Addr{ip("203.0.113.2")}, ExternalLocal: true,
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080}, {Name: "dns", Protocol: model.UDP, Port: 53}},
	}
	headless := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "db"}, Unproxied: model.Headless,
		Ports: []model.ServicePort{{Name: "sql", Protocol: model.TCP, Port: 5432}},
	}
	ported := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "ported"}, ClusterIPs: []netip.Addr{ip("10.0.0.4")},
		Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80, NodePort: 30090}},
	}
	slice := func(of *model.Service, port uint16, name string, endpoints ...model.Endpoint) store.Event {
		e := &model.EndpointSlice{Name: of.Name, Service: of.Name.Name, Endpoints: endpoints,
			Ports: []model.EndpointPort{{Name: name, Protocol: model.TCP, Port: port}}}
		return store.Event{Kind: model.EndpointSliceKind, Name: e.Name, Object: e}
	}
	at := func(a, node string, ready bool) model.Endpoint {
		return model.Endpoint{Addr: ip(a), Node: node, Ready: ready, Serving: ready}
	}
	early := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "early"}, Unproxied: model.Headless, PublishNotReady: true, Selector: map[string]string{"app": "early"},
		Ports: []model.ServicePort{{Name: "sql", Protocol: model.TCP, Port: 80, TargetName: "sql"}, {Name: "none", Protocol: model.TCP, Port: 81, TargetName: "none"}},
	}
	starting := &model.Pod{Name: model.Name{Namespace: "shop", Name: "early"}, Labels: early.Selector, Node: "node-a", IPs: []netip.Addr{ip("10.1.0.40")},
		Ports: []model.ContainerPort{{Name: "sql", Protocol: model.TCP, Port: 5432}}}
	chained := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "chained"}, ClusterIPs: []netip.Addr{ip("10.0.0.5")}, Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	}
	events := []store.Event{
		{Kind: model.PodKind, Name: starting.Name, Object: starting},
		slice(chained, 30080, "http", at("192.0.2.1", "", true)), // the node port of front
		slice(balanced, 8080, "http", at("10.1.0.2", "node-c", true), at("10.1.0.8", "node-b", true), at("10.1.0.9", "node-a", false)),
		slice(headless, 5432, "sql", at("10.1.0.2", "node-a", true), at("10.1.0.3", "node-b", false)),
	}
	for _, svc := range []*model.Service{balanced, headless, ported, early, chained} {
		events = append(events, store.Event{Kind: model.ServiceKind, Name: svc.Name, Object: svc})
	}
	naming := &model.Policy{Key: model.PolicyKey{Kind: model.CalicoPolicy, Name: model.Name{Namespace: "shop", Name: "p"}}, Tier: model.DefaultTier.Name,
		EgressRules: []model.PolicyRule{{Destination: model.RuleEnd{Ports: []model.PolicyPort{{Service: headless.Name}}}}}}
	events = append(events, store.Event{Kind: naming.Key.Kind, Name: naming.Key.Name, Object: naming})
	s.Apply(events)
	for _, c := range []struct {
		from, to, via string
		want          string
		nodes         string
		err           string
	}{
		{"client", "svc/shop/front:http", "", "10.0.0.2:80/6", "node-a", ""},
		{"client", "svc/shop/front", "", "10.0.0.2:80/6 10.0.0.2:53/17", "", ""},
		{"client", "svc/shop/front/udp", "", "10.0.0.2:53/17", "", ""},
		{"shop/web-1", "svc/shop/front:80", "", "10.0.0.2:80/6 [fd00::a]:80/6", "", ""},
		{"198.51.100.1", "svc/shop/front:80", "", "203.0.113.1:80/6 via node-b,node-c 203.0.113.2:80/6 via node-b,node-c", "node-a node-b node-c", ""},
		{"198.51.100.1", "203.0.113.1:80", "", "203.0.113.1:80/6 via node-b,node-c", "", ""},
		{"198.51.100.1", "203.0.113.1:80", "node-a", "203.0.113.1:80/6 via node-a", "", ""},
		{"198.51.100.1", "node-a:30080", "", "192.0.2.1:30080/6", "", ""},
		{"client", "svc/shop/db:5432", "", "10.1.0.2:5432/6", "node-a", ""},
		{"client", "svc/shop/db:sql", "", "10.1.0.2:5432/6", "", ""},
		{"client", "svc/shop/db", "", "10.1.0.2:5432/6", "", ""},
		{"client", "svc/shop/db:9999", "", "10.1.0.2:9999/6", "", ""},
		{"client", "svc/shop/db:web", "", "", "", "headless and has no endpoint that is ready with that port"},
		{"client", "svc/shop/early", "", "10.1.0.40:5432/6", "node-a", ""},
		{"client", "svc/shop/chained", "", "10.0.0.5:80/6", "", ""},
		{"198.51.100.1", "svc/shop/ported:80", "", "", "", "has no address outside the cluster, and the client is outside: ask about its node port, as in node/NAME:30090"},
		{"198.51.100.1", "svc/shop/web-1:80", "", "", "", "ask about 10.0.0.1, if that is reached from there"},
		{"198.51.100.1", "203.0.113.1:80", "node-x", "", "", "there is no node node-x: did you mean node/node-a?"},
		{"client", "203.0.113.1:80", "node-a", "", "", "--via is for a client outside the cluster"},
		{"client", "127.0.0.1:80", "", "", "", "127.0.0.1 is a loopback address: what goes there leaves no pod or node, and nothing judges it"},
		{"::1", "svc/shop/front:80", "", "", "", "::1 is a loopback address"},
		{"client", "224.0.0.1:80/udp", "", "", "", "224.0.0.1 is a multicast address"},
		{"client", "169.254.20.10:53/udp", "", "169.254.20.10:53/17", "", ""},
		{"client", "svc/shop/ported/udp", "", "", "", "has no port of that protocol"},
	} {
		q, err := Parse(c.from, c.to)
		if err != nil {
			t.Fatal(err)
		}
		q.Via = c.via
		var got *Case
		var found bool
		s.Read(func(v *store.View) { got, err = q.Case(v, "node-a", func(netip.Addr) bool { return false }) })
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s to %s: %v, want %q", c.from, c.to, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
			continue
		}
		if got.Objects.Read(func(v *store.View) { found = v.Service(balanced.Name) != nil }); c.to == "svc/shop/chained" && !found {
			t.Error("an endpoint is a node port of another service, which is not among the objects")
		}
		if got.Objects.Read(func(v *store.View) { found = len(v.Slices(headless.Name)) == 1 }); !found {
			t.Errorf("%s to %s: a policy names service %s, whose endpoints are not among the objects", c.from, c.to, headless.Name)
		}
		var text []string
		for _, con := range got.Connections {
			to := fmt.Sprintf("%v/%d", netip.AddrPortFrom(con.To, con.Port), con.Protocol)
			if con.Via != nil {
				to += " via " + strings.Join(con.Via, ",")
			}
			text = append(text, to)
		}
		if nodes := strings.Join(got.Nodes, " "); strings.Join(text, " ") != c.want || c.nodes != "" && nodes != c.nodes {
			t.Errorf("%s to %s: %v on %s, want %s on %s", c.from, c.to, text, nodes, c.want, c.nodes)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("shop/web", "[fd00::2]:80/sctp")
	f.Add("[", "a/b/icmp")
	f.Fuzz(func(t *testing.T, from, to string) {
		q, err := Parse(from, to)
		if err == nil && (q.From == End{} || q.To == End{}) {
			t.Errorf("%q to %q: taken as %+v", from, to, q)
		}
	})
}

// Of many nodes by which a client may come in, some are looked at, and the answer can say how many
// are not.
func TestCaseOfManyNodes(t *testing.T) {
	s := store.New()
	open := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "open"}, LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.9")},
		Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}
	events := []store.Event{{Kind: model.ServiceKind, Name: open.Name, Object: open}}
	for i := range 30 {
		n := &model.Node{Name: fmt.Sprintf("node-%02d", i)}
		events = append(events, store.Event{Kind: model.NodeKind, Name: model.Name{Name: n.Name}, Object: n})
	}
	s.Apply(events)
	q, err := Parse("198.51.100.1", "203.0.113.9:80")
	if err != nil {
		t.Fatal(err)
	}
	for via, want := range map[string][2]int{"": {16, 14}, "node-29": {1, 0}} {
		q.Via = via
		var got *Case
		s.Read(func(v *store.View) { got, err = q.Case(v, "node-07", func(netip.Addr) bool { return false }) })
		if err != nil {
			t.Fatal(err)
		}
		if n := len(got.Connections[0].Via); n != want[0] || got.MoreEntries != want[1] {
			t.Errorf("via %q: %d entries and %d more, want %v", via, n, got.MoreEntries, want)
		}
	}
}
