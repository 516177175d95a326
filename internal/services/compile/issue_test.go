package compile_test

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/store"
)

// What is at fault is named and left out; everything beside it works.
func TestIssues(t *testing.T) {
	other := func(f family) family {
		if f.name == v4.name {
			return v6
		}
		return v4
	}
	type want struct{ frontends, issue string }
	for _, tc := range []struct {
		name    string
		objects func(f family) []any
		want    func(f family) want
	}{
		{"a service port of 0", func(f family) []any {
			return []any{f.service(func(s *model.Service) {
				s.Ports = append(s.Ports, model.ServicePort{Name: "bad", Protocol: model.TCP})
			})}
		}, func(f family) want {
			return want{`ClusterIP c1:80 -> reject`, `Service shop/web: port "bad": 0 is out of range (1 to 65535), the port is left out`}
		}},
		{"an unknown protocol", func(f family) []any {
			return []any{f.service(func(s *model.Service) {
				s.Ports = append(s.Ports, model.ServicePort{Name: "bad", Protocol: 1, Port: 81})
			})}
		}, func(f family) want {
			return want{`ClusterIP c1:80 -> reject`, `Service shop/web: port 81: its protocol is none of TCP, UDP and SCTP, the port is left out`}
		}},
		{"no cluster IP", func(f family) []any {
			return []any{f.service(func(s *model.Service) { s.ClusterIPs = nil })}
		}, func(f family) want {
			return want{``, `Service shop/web: has no clusterIP, so nothing is programmed for it: set spec.clusterIP, as a cluster's API server does`}
		}},
		{"a slice port of 0", func(f family) []any {
			bad := slice("b", f.endpoint("e2"))
			bad.Ports[0].Port = 0
			return []any{f.service(), slice("a", f.endpoint("e1")), bad}
		}, func(f family) want {
			return want{`ClusterIP c1:80 -> e1:8080`, `EndpointSlice shop/b: port 0 is out of range, the port is left out`}
		}},
		{"an endpoint of the other family than its slice", func(f family) []any {
			return []any{f.service(), slice("a", f.endpoint("e1"), other(f).endpoint("e2"), other(f).endpoint("e3"))}
		}, func(f family) want {
			return want{`ClusterIP c1:80 -> e1:8080`, "EndpointSlice shop/a: endpoint " + other(f).addr("e2").String() + " and 1 more: " +
				other(f).name + " in a slice of " + f.name + ", left out"}
		}},
		{"a slice of a family that the service has not", func(f family) []any {
			return []any{f.service(), slice("a", f.endpoint("e1")), slice("b", other(f).endpoint("e2"))}
		}, func(f family) want {
			return want{`ClusterIP c1:80 -> e1:8080`, "EndpointSlice shop/b: endpoint " + other(f).addr("e2").String() +
				": the service has no " + other(f).name + " address, left out"}
		}},
		{"an endpoint that is a loopback address", func(f family) []any {
			bad := f.endpoint("e1")
			bad.Addr = loopback(f)
			return []any{f.service(), slice("a", f.endpoint("e1"), bad)}
		}, func(f family) want {
			return want{`ClusterIP c1:80 -> e1:8080`, "EndpointSlice shop/a: endpoint " + loopback(f).String() + ": a loopback address, left out"}
		}},
		{"an external IP that is a loopback address", func(f family) []any {
			return []any{f.service(func(s *model.Service) { s.ExternalIPs = append(f.addrs("x1"), loopback(f)) })}
		}, func(f family) want {
			return want{"ClusterIP c1:80 -> reject\nExternalIP x1:80 -> reject", "Service shop/web: externalIP " + loopback(f).String() + " is a loopback address, it is left out"}
		}},
		{"a selected pod with a loopback address", func(f family) []any {
			bad := f.pod("b", "")
			bad.IPs = []netip.Addr{loopback(f)}
			return []any{f.service(selectsWeb), f.pod("a", "e1"), bad}
		}, func(f family) want {
			return want{`ClusterIP c1:80 -> e1:8080`, "Pod shop/b: address " + loopback(f).String() + " is a loopback address, it is left out"}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, f family) {
				h := newHistory(compile.Config{})
				objects := tc.objects(f)
				h.apply(t, events(objects...)...)
				w := tc.want(f)
				if got := sorted(show(h.compiler.State())); got != sorted(w.frontends) {
					t.Errorf("got:\n%s\nwant:\n%s", got, w.frontends)
				}
				checkIssues(t, h.compiler, w.issue)
				h.apply(t, gone(objects[0]))
				checkIssues(t, h.compiler)
			})
		})
	}
}

func loopback(f family) netip.Addr {
	if f.name == v4.name {
		return netip.MustParseAddr("127.0.0.5")
	}
	return netip.IPv6Loopback()
}

// Addresses that no backend can have.
func TestUnusableEndpoints(t *testing.T) {
	for _, text := range []string{"0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "169.254.1.1", "fe80::1", "fd00::1%eth0", ""} {
		a, _ := netip.ParseAddr(text)
		f := v4
		if a.Is6() {
			f = v6
		}
		c := compiled(compile.Config{}, f.service(), slice("a", model.Endpoint{Addr: a, Ready: true, Serving: true}, f.endpoint("e1")))
		check(t, c, `ClusterIP c1:80 -> e1:8080`)
		if got := c.Issues(); len(got) != 1 || got[0].Object.String() != "EndpointSlice shop/a" {
			t.Errorf("%s: issues %v", text, got)
		}
	}
}

// An IPv4 address written as an IPv6 one is the IPv4 address.
func TestMappedAddresses(t *testing.T) {
	mapped := func(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }
	svc := v4.service()
	svc.ClusterIPs[0] = mapped(svc.ClusterIPs[0])
	e := v4.endpoint("e1")
	e.Addr = mapped(e.Addr)
	c := compiled(compile.Config{}, svc, slice("a", e))
	check(t, c, `ClusterIP c1:80 -> e1:8080`)
	if _, ok := c.State().Services.ClusterIPs[v4.addr("c1")]; !ok {
		t.Errorf("cluster IPs: %v", c.State().Services.ClusterIPs)
	}
}

// A frontend has 65,536 backends at the most.
func TestTooManyEndpoints(t *testing.T) {
	const n = 1<<16 + 10
	s := slice("a")
	for i := range uint32(n) {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], 10<<24+i)
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4(b), Ready: true, Serving: true, Node: "here"})
	}
	c := compiled(compile.Config{}, v4.service(externalLocal, func(s *model.Service) { s.ExternalIPs = v4.addrs("x1") }), s)
	for k, f := range c.State().Services.Frontends {
		if len(f.Backends) != 1<<16 || f.Backends[0].Addr() != netip.MustParseAddr("10.0.0.0") || len(f.Alive) != n {
			t.Errorf("%s: %d backends from %s, %d alive", k, len(f.Backends), f.Backends[0], len(f.Alive))
		}
		if f.LocalOnly && len(f.Local) != 1<<16 {
			t.Errorf("%s: %d local ones", k, len(f.Local))
		}
	}
	if got := len(c.State().Services.Hairpins); got != 1<<16 {
		t.Errorf("%d hairpins", got)
	}
	checkIssues(t, c, "Service shop/web: port 80 has 65546 endpoints; connections go to the first 65536 only")
}

// A node that is called other than its object gets nothing, which must not pass for a cluster
// without it.
func TestWrongNodeNameIsNamed(t *testing.T) {
	s := store.New()
	c := compile.New(compile.Config{Config: services.Config{Node: "typo"}})
	c.Update(s, s.Take())
	if issues := c.Issues(); len(issues) != 0 {
		t.Errorf("without any Node: %v", issues)
	}
	s.Apply([]store.Event{{Kind: model.NodeKind, Name: model.Name{Name: "n1"}, Object: &model.Node{Name: "n1"}}})
	c.Update(s, s.Take())
	if issues := c.Issues(); len(issues) != 1 || issues[0].Object.String() != "Node typo" || !strings.Contains(issues[0].Reason, "n1") {
		t.Errorf("with another Node: %v", issues)
	}
	s.Apply([]store.Event{{Kind: model.NodeKind, Name: model.Name{Name: "typo"}, Object: &model.Node{Name: "typo"}}})
	c.Update(s, s.Take())
	if issues := c.Issues(); len(issues) != 0 {
		t.Errorf("with its own Node: %v", issues)
	}
}

// A family in which the node has no address has no node ports, and that is said where a service has
// them.
func TestNodePortsWithoutAddress(t *testing.T) {
	dual := v4.service(nodePort)
	dual.ClusterIPs = append(dual.ClusterIPs, v6.addr("c1"))
	ipv4Alone := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	for _, tc := range []struct {
		name    string
		objects []any
		choose  []netip.Prefix
		want    []string
	}{
		{"an IPv4 node, an IPv4 service", []any{v4.node(), v4.service(nodePort)}, nil, nil},
		{"an IPv4 node, a service of both families", []any{v4.node(), dual}, nil, []string{"IPv6"}},
		{"an IPv6 node, a service of both families", []any{v6.node(), dual}, nil, []string{"IPv4"}},
		{"an IPv4 node, an IPv6 service without node ports", []any{v4.node(), v6.service()}, nil, nil},
		{"no node", []any{dual}, nil, []string{"IPv4", "IPv6"}},
		{"an IPv4 node, and IPv4 alone is asked for", []any{v4.node(), dual}, ipv4Alone, nil},
		{"an IPv6 node, and IPv4 alone is asked for", []any{v6.node(), dual}, ipv4Alone, []string{"IPv4"}},
	} {
		c := compiled(compile.Config{Config: services.Config{NodePortAddresses: tc.choose}}, tc.objects...)
		var want []string
		for _, family := range tc.want {
			want = append(want, "Node here: no "+family+" address of it is known or chosen, so node ports are not served there: "+
				"it needs a Node object with such an address, and --nodeport-addresses, if given, must cover one")
		}
		t.Run(tc.name, func(t *testing.T) { checkIssues(t, c, want...) })
	}
}
