package policytest

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/drivertest"
)

// testResetUnderAnothersAddress shows that a segment which ends a connection, sent under its
// client's address by another pod, is dropped before connection tracking believes it.
func testResetUnderAnothersAddress(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	k.declare(t, row{})
	for family := range Families {
		server := netip.AddrPortFrom(names["b"][family], 80)
		pair, err := k.mesh.Pair(t, "a", tcp, server, server)
		if err != nil {
			t.Fatal(err)
		}
		client, err := pair.Client.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		from := pair.Client.LocalAddr().(*net.TCPAddr).AddrPort()
		reset, err := drivertest.ForgedReset("c", client, from, server)
		if err != nil {
			t.Fatal(err)
		}
		before := k.dropped(t, state.DropSpoofed)
		if _, err := k.mesh.Forge(server.Addr(), "", reset); err != nil {
			t.Fatal(err)
		}
		if got := k.dropped(t, state.DropSpoofed); got != before+1 {
			t.Errorf("%v: %d segments count as spoofed, want 1", server, got-before)
		}
		const established = 3 // TCP_CONNTRACK_ESTABLISHED
		e := k.entry(t, tcp, from, server)
		// Of a connection in a flowtable there is no more to know than that it is there.
		if info, told := e.ProtoInfo.(*netlink.ProtoInfoTCP); told && (info.State != established || e.TimeOut < 3600) {
			t.Errorf("%v: connection tracking believed the segment: %+v, state %+v", server, e, info)
		}
		if !pair.Speak(true, drivertest.Patient) || !pair.Speak(false, drivertest.Patient) {
			t.Errorf("%v: the connection does not go on", server)
		}
	}
}

// testFragmentUnderAnothersAddress shows that nothing which a pod sends under another's address
// becomes part of what that one sends.
func testFragmentUnderAnothersAddress(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	if can := k.driver.Capabilities(); can.Can&driver.Fragments == 0 {
		t.Skipf("the driver %s does not support this: it lacks %s", can.Name, driver.Fragments)
	}
	k.declare(t, row{})
	for family := range Families {
		for i, host := range []string{"a", "c"} {
			from, to := netip.AddrPortFrom(names["a"][family], 40000), netip.AddrPortFrom(names["b"][family], 80)
			whole := drivertest.ForgedDatagram(host, from, to, "forged  and what its owner sends")
			first, last := whole, whole
			first.Fragment = &drivertest.Fragment{ID: uint16(1 + i), From: 0, To: 16}
			last.Fragment = &drivertest.Fragment{ID: uint16(1 + i), From: 16, To: len(whole.Payload)}
			last.Host = "a"
			arrived, err := k.mesh.Forge(to.Addr(), "forged", first, last)
			if err != nil {
				t.Fatal(err)
			}
			if want := host == "a"; arrived != want {
				t.Errorf("the first fragment from %s, the last from a, to %v: a datagram arrives: %v, want %v", host, to, arrived, want)
			}
		}
	}
}

// dropped is how many packets the kernel has dropped for the reason.
func (k *kernel) dropped(t *testing.T, reason state.Drop) uint64 {
	t.Helper()
	counts, err := k.driver.Capabilities().Counter.DropCounts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return counts[reason]
}

// entry is what connection tracking knows of a connection.
func (k *kernel) entry(t *testing.T, proto model.Protocol, from, to netip.AddrPort) *netlink.ConntrackFlow {
	t.Helper()
	family := netlink.InetFamily(unix.AF_INET)
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	var flows []*netlink.ConntrackFlow
	err := k.mesh.Node.Do(func() (err error) {
		flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, family)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if f.Forward.Protocol == uint8(proto) && f.Forward.SrcPort == from.Port() && f.Forward.DstPort == to.Port() {
			return f
		}
	}
	t.Fatalf("connection tracking does not know %v -> %v", from, to)
	return nil
}

// testInvalidThroughServices shows that what connection tracking can make nothing of does not pass
// a policy by way of a service.
func testInvalidThroughServices(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"]})
	services := []svc{lbService(model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}, Ports: []model.ServicePort{
		{Name: "tcp", Protocol: tcp, Port: 80, TargetPort: 80}, {Name: "sctp", Protocol: sctp, Port: 80, TargetPort: 81},
	}}, "b")}
	forge := map[string]func(from, to netip.AddrPort, valid bool, text string) drivertest.Forged{
		"an answer": func(from, to netip.AddrPort, valid bool, text string) drivertest.Forged {
			return drivertest.ForgedAnswer("a", from, to, valid, text)
		},
		"a broken association": func(from, to netip.AddrPort, valid bool, text string) drivertest.Forged {
			return drivertest.ForgedAssociation("a", from, to, !valid, text)
		},
	}
	port := uint16(40000)
	for _, isolates := range []bool{false, true} {
		r := row{services: services}
		if isolates {
			r.policies = isolated("b", "in ingress: []")
		}
		k.declare(t, r)
		for name, packet := range forge {
			for family := range Families {
				for _, valid := range []bool{true, false} {
					port++
					from, to := netip.AddrPortFrom(names["a"][family], port), netip.AddrPortFrom(names["vip"][family], 80)
					text := fmt.Sprintf("%s, %d", name, port)
					arrived, err := k.mesh.Forge(names["b"][family], text, packet(from, to, valid, text))
					if err != nil {
						t.Fatal(err)
					}
					if valid && arrived == isolates || isolates && arrived {
						t.Errorf("%s to %v, valid: %t, isolated: %t: arrived: %t", name, to, valid, isolates, arrived)
					}
				}
			}
		}
	}
}

// icmpErrors are types and codes of errors, by family.
var icmpErrors = [2][][2]byte{
	{{3, 1}, {3, 3}, {3, 4}, {4, 0}, {11, 0}, {12, 0}},
	{{1, 0}, {1, 4}, {2, 0}, {3, 0}, {4, 0}},
}

// parameterProblem is an ICMPv4 error that needs driver.Errors to pass through a service.
var parameterProblem = [2]byte{12, 0}

// An errorPath is an ICMP error about a connection: who sends it, to which address, and at which it
// arrives.
type errorPath struct {
	host     string
	from, to netip.Addr
	at       netip.Addr // where it arrives, if it does
	about    drivertest.Quote
	arrives  bool
}

// testWhoseError shows that an ICMP error about a connection arrives from the connection's ends,
// from the node and from routers outside, and from no other pod.
func testWhoseError(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	services := []svc{lbService(model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}}, "b")}
	to := func(pod string) string { return "[{podSelector: {matchLabels: {app: " + pod + "}}}]" }
	closed := isolated("a", "ingress: [], egress: [{to: "+to("b")+"}]") + isolated("b", "ingress: [{from: "+to("a")+"}], egress: []")
	for name, policies := range map[string]string{"open": "", "isolated": closed} {
		t.Run(name, func(t *testing.T) {
			k.declare(t, row{services: services, policies: policies})
			for family := range Families {
				for _, proto := range []model.Protocol{tcp, udp} {
					for _, via := range []string{"b", "vip"} {
						t.Run(fmt.Sprint(proto, " ", names[via][family]), func(t *testing.T) { k.errors(t, family, "a", proto, via, k.betweenPods) })
					}
				}
			}
		})
	}
	t.Run("of the node and of others", func(t *testing.T) {
		k.declare(t, row{})
		for family := range Families {
			for client, proto := range map[string]model.Protocol{"node": tcp, "outside": udp} {
				t.Run(fmt.Sprint(names[client][family]), func(t *testing.T) { k.errors(t, family, client, proto, "b", k.toOthers) })
			}
		}
	})
}

// errors opens a connection to b and sends errors about it.
func (k *kernel) errors(t *testing.T, family int, client string, proto model.Protocol, via string, paths func(family int, client string, asked, answered drivertest.Quote) []errorPath) {
	t.Helper()
	server, call := netip.AddrPortFrom(names["b"][family], 80), netip.AddrPortFrom(names[via][family], 80)
	pair, err := k.mesh.Pair(t, client, proto, server, call)
	if err != nil {
		t.Fatal(err)
	}
	from := netip.MustParseAddrPort(pair.Client.LocalAddr().String())
	asked := drivertest.Quote{From: from, To: server, Protocol: proto}
	answered := drivertest.Quote{From: call, To: from, Protocol: proto}
	can := k.driver.Capabilities().Can
	before, lost := k.dropped(t, state.DropForeignError), uint64(0)
	for i, p := range paths(family, client, asked, answered) {
		for _, e := range icmpErrors[family] {
			if e == parameterProblem && p.at != p.to && can&driver.Errors == 0 {
				continue
			}
			p.about.Text = fmt.Sprintf("error %d %v of %s", i, e, p.host)
			arrived, err := k.mesh.Forge(p.at, p.about.Text, drivertest.ForgedError(p.host, p.from, p.to, e[0], e[1], p.about))
			if err != nil {
				t.Fatal(err)
			}
			if arrived != p.arrives {
				t.Errorf("%v over %s: ICMP %v from %s to %v about %+v arrives: %v, want %v", proto, via, e, p.host, p.to, p.about, arrived, p.arrives)
			}
			if !arrived {
				lost++
			}
		}
	}
	if counted := k.dropped(t, state.DropForeignError) - before; counted != lost {
		t.Errorf("%v over %s: %d errors count as dropped, and %d did not arrive", proto, via, counted, lost)
	}
}

// betweenPods are errors about a connection from pod a to pod b.
func (k *kernel) betweenPods(family int, _ string, asked, answered drivertest.Quote) []errorPath {
	a, b, c := names["a"][family], names["b"][family], names["c"][family]
	node, outside := names["node"][family], names["outside"][family]
	at := answered.From.Addr() // that a calls
	back := drivertest.Quote{From: asked.To, To: asked.From, Protocol: asked.Protocol}
	nobodys := drivertest.Quote{From: netip.AddrPortFrom(a, 1), To: asked.To, Protocol: asked.Protocol}
	return []errorPath{
		{"c", c, a, a, asked, false}, {"c", c, a, a, drivertest.Quote{From: asked.From, To: answered.From, Protocol: asked.Protocol}, false},
		{"c", c, b, b, back, false}, {"c", c, at, b, answered, false}, {"c", c, a, a, nobodys, false},
		{"b", b, a, a, asked, true}, {"a", a, at, b, answered, true},
		{"outside", outside, a, a, asked, true}, {"outside", outside, at, b, answered, true},
		{"node", node, a, a, asked, true}, {"node", node, b, b, back, true},
	}
}

// toOthers are errors about a connection from somebody else to pod b.
func (k *kernel) toOthers(family int, client string, asked, _ drivertest.Quote) []errorPath {
	b, c, other := names["b"][family], names["c"][family], names[client][family]
	return []errorPath{
		{"c", c, other, other, asked, false}, {"b", b, other, other, asked, true},
	}
}

// testPathMTU shows that a client learns through a service how large packets may be on the way to
// its backend.
func testPathMTU(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"]})
	services := []svc{lbService(model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}}, "b")}
	k.declare(t, row{services: services, policies: isolated("a", "ingress: [], egress: [{to: [{podSelector: {matchLabels: {app: b}}}]}]")})
	link, err := k.mesh.Node.LinkByName("to-b")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.mesh.Node.LinkSetMTU(link, 1300); err != nil {
		t.Fatal(err)
	}
	for family := range Families {
		server := netip.AddrPortFrom(names["b"][family], 80)
		pair, err := k.mesh.Pair(t, "a", tcp, server, netip.AddrPortFrom(names["vip"][family], 80))
		if err != nil {
			t.Fatal(err)
		}
		const size = 200_000
		deadline := time.Now().Add(10 * drivertest.Patient)
		_, _ = pair.Client.SetDeadline(deadline), pair.Server.SetDeadline(deadline)
		go func() { _, _ = pair.Client.Write(make([]byte, size)) }()
		if n, err := io.ReadFull(pair.Server, make([]byte, size)); err != nil {
			t.Errorf("%v: %d of %d bytes arrive: %v", server, n, size, err)
		}
	}
}
