package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

func TestParseQuestion(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     Question
		err      string
	}{
		{"web", "db:5432", Question{From: "web", To: "db", Port: "5432"}, ""},
		{"shop/web", "shop/db:5432/TCP", Question{From: "shop/web", To: "shop/db", Port: "5432", Protocol: "tcp"}, ""},
		{"10.0.0.1", "svc/kube-system/dns:dns/udp", Question{From: "10.0.0.1", To: "svc/kube-system/dns", Port: "dns", Protocol: "udp"}, ""},
		{"[fd00::1]", "[fd00::2]:80/sctp", Question{From: "fd00::1", To: "fd00::2", Port: "80", Protocol: "sctp"}, ""},
		{"fd00::1", "[fd00::2]/icmp", Question{From: "fd00::1", To: "fd00::2", Protocol: "icmp"}, ""},
		{"node/a", "shop/db/icmp", Question{From: "node/a", To: "shop/db", Protocol: "icmp"}, ""},
		{"web", "shop/tcp:80", Question{From: "web", To: "shop/tcp", Port: "80"}, ""},
		{"", "db:80", Question{}, "where the connection comes from"},
		{"web", "db", Question{}, "TO:PORT"},
		{"web", "shop/tcp", Question{}, "TO:PORT"},
		{"web", "fd00::2:80", Question{}, "IPv6 address in brackets"},
		{"web", "db:80/icmp", Question{}, "TO/icmp"},
		{"web", ":80", Question{}, "TO:PORT"},
		{"web", "db:70000", Question{}, "out of range"},
		{"web", "db:0", Question{}, "out of range"},
		{"web", "x/a:80/tpc", Question{}, `"tpc" is no protocol that is known here: write it as TO:PORT or TO:PORT/PROTOCOL (tcp, udp, sctp), or TO/icmp`},
	} {
		got, err := ParseQuestion(c.from, c.to)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s to %s: %v, want %q", c.from, c.to, err, c.err)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s to %s (-want +got): %v\n%s", c.from, c.to, err, cmp.Diff(c.want, got))
		}
	}
}

// ends fills a store with what the ends of questions may be.
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
	s.Apply(web(1, "10.1.0.1"))
	s.Apply([]store.Event{
		pod("shop", "web-1", "10.1.0.1", "fd00::1"), // shares its name with the service
		pod("shop", "frontend-7d4b9-x2v5k", "10.1.0.2"),
		pod("default", "client", "10.1.0.3"),
		pod("shop", "late"),
		{Kind: model.NodeKind, Name: model.Name{Name: "node-a"}, Object: &model.Node{Name: "node-a",
			IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::1")}}},
	})
	return s
}

func TestFindEnd(t *testing.T) {
	s := ends()
	for _, c := range []struct {
		text, name string
		addrs      string
		err        string
	}{
		{"10.9.9.9", "", "10.9.9.9", ""},
		{"::ffff:10.9.9.9", "", "10.9.9.9", ""},
		{"client", "pod default/client", "10.1.0.3", ""},
		{"shop/web-1", "pod shop/web-1", "10.1.0.1 fd00::1", ""},
		{"svc/shop/web-1", "service shop/web-1", "10.0.0.1", ""},
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
			e, err := findEnd(v, c.text)
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

func TestPortOfEnd(t *testing.T) {
	s := ends()
	for _, c := range []struct {
		to       string
		port     uint16
		protocol uint8
		err      string
	}{
		{"shop/web-1:http", 8080, 6, ""},
		{"shop/web-1:dns", 53, 17, ""},
		{"shop/web-1:dns/tcp", 0, 0, `no port "dns": it has http, dns`},
		{"svc/shop/web-1:http", 80, 6, ""},
		{"svc/shop/web-1:81/udp", 81, 17, ""},
		{"10.1.0.1:http", 0, 0, "10.1.0.1 gives no port a name"},
		{"client/icmp", 0, ping, ""},
	} {
		q, err := ParseQuestion("client", c.to)
		if err != nil {
			t.Fatal(err)
		}
		s.Read(func(v *store.View) {
			e, err := findEnd(v, q.To)
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

func FuzzParseQuestion(f *testing.F) {
	f.Add("shop/web", "[fd00::2]:80/sctp")
	f.Add("[", "a/b/icmp")
	f.Fuzz(func(t *testing.T, from, to string) {
		q, err := ParseQuestion(from, to)
		if err == nil && (q.From == "" || q.To == "") {
			t.Errorf("%q to %q: taken as %+v", from, to, q)
		}
	})
}
