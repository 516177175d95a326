package policytest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/drivertest"
)

// testCut shows that established connections end when a policy comes to forbid them,
// whichever end speaks next, and go on when they are allowed again; over TCP and UDP, by a policy
// of either end, directly and through a service.
func testCut(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	k.cut(t, func(map[string]*drivertest.Pair) {})
}

// cut has policies forbid connections for which opened has been called.
func (k *kernel) cut(t *testing.T, opened func(map[string]*drivertest.Pair)) {
	services := []svc{lbService(model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}}, "b")}
	for by, policy := range map[string]string{"by the server's": isolated("b", "in ingress: []"), "by the client's": isolated("a", "out egress: []")} {
		for first, clientFirst := range map[string]bool{"the client": true, "the server": false} {
			t.Run(by+" policy, "+first+" speaks first", func(t *testing.T) {
				k.declare(t, row{services: services})
				pairs := k.pairs(t)
				opened(pairs)
				k.declare(t, row{services: services, policies: policy})
				together(pairs, func(name string, p *drivertest.Pair) { falls(t, name, p, clientFirst) })
				k.declare(t, row{services: services})
				together(pairs, func(name string, p *drivertest.Pair) { revives(t, name, p) })
			})
		}
	}
}

// pairs are connections from a to b of all kinds.
func (k *kernel) pairs(t *testing.T) map[string]*drivertest.Pair {
	t.Helper()
	pairs := map[string]*drivertest.Pair{}
	port := uint16(80)
	for _, proto := range []model.Protocol{tcp, udp} {
		for family := range Families {
			for _, via := range []string{"b", "vip"} {
				if via == "b" {
					port++ // a server of its own
				}
				server := netip.AddrPortFrom(names["b"][family], port)
				call := server
				if via == "vip" {
					server, call = netip.AddrPortFrom(names["b"][family], 80), netip.AddrPortFrom(names["vip"][family], 80)
				}
				p, err := k.mesh.Pair(t, "a", proto, server, call)
				if err != nil {
					t.Fatal(err)
				}
				pairs[fmt.Sprint(proto, " ", call)] = p
			}
		}
	}
	return pairs
}

func together(pairs map[string]*drivertest.Pair, f func(name string, p *drivertest.Pair)) {
	var all sync.WaitGroup
	for name, p := range pairs {
		all.Go(func() { f(name, p) })
	}
	all.Wait()
}

// soon is how long a connection is watched that goes on.
const soon = time.Second

// falls shows that neither end hears the other, from the moment when the cut is said to be done.
func falls(t *testing.T, name string, p *drivertest.Pair, clientFirst bool) {
	t.Helper()
	for _, client := range []bool{clientFirst, !clientFirst} {
		if p.Speak(client, drivertest.Silent) {
			t.Errorf("%s: it is forbidden and still goes on (client speaks: %v)", name, client)
		}
	}
}

// revives waits until both ends hear each other again.
func revives(t *testing.T, name string, p *drivertest.Pair) {
	t.Helper()
	for _, client := range []bool{true, false} {
		begun := time.Now()
		for !p.Speak(client, drivertest.Silent) {
			if time.Since(begun) > 2*drivertest.Patient {
				t.Errorf("%s: it is allowed again and does not go on (client speaks: %v)", name, client)
				return
			}
		}
	}
}

// testKeepEstablished shows that, where that is asked for, a connection goes on though policy
// forbids it since, and a new one does not begin.
func testKeepEstablished(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"]}, keepEstablished)
	services := []svc{lbService(model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}}, "b")}
	k.declare(t, row{services: services})
	pairs := k.pairs(t)
	k.declare(t, row{services: services, policies: isolated("b", "ingress: []")})
	k.follow(t, packet{from: "a", proto: tcp, to: "b", port: 80}, 0)
	for end := time.Now().Add(soon); time.Now().Before(end); {
		for name, p := range pairs {
			if !p.Speak(true, drivertest.Patient) || !p.Speak(false, drivertest.Patient) {
				t.Fatalf("%s does not go on", name)
			}
		}
	}
}

// testErrors shows that the ICMP error that belongs to a permitted flow passes, also between pods
// that are isolated otherwise.
func testErrors(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"]})
	to := func(pod string) string { return "[{podSelector: {matchLabels: {app: " + pod + "}}}]" }
	k.declare(t, row{policies: isolated("a", "ingress: [], egress: [{to: "+to("b")+"}]") + isolated("b", "ingress: [{from: "+to("a")+"}], egress: []")})
	for family := range Families {
		err := k.mesh.In("a", func() error {
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(names["b"][family], 9999)))
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.Write([]byte("anyone?")); err != nil {
				return err
			}
			if err := c.SetReadDeadline(time.Now().Add(drivertest.Patient)); err != nil {
				return err
			}
			_, err = c.Read(make([]byte, 16))
			return err
		})
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v: %v, want port unreachable", names["b"][family], err)
		}
	}
}

// testNeighbours shows that isolated pods still find their next hop: what neighbour discovery and
// ARP need passes.
func testNeighbours(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"]})
	k.declare(t, row{policies: isolated("a", "ingress: [], egress: [{to: [{podSelector: {matchLabels: {app: b}}}]}]")})
	if err := k.mesh.ForgetNeighbours("a"); err != nil {
		t.Fatal(err)
	}
	for family := range Families {
		for end := time.Now().Add(drivertest.Patient); ; {
			trail, err := k.mesh.Trace(drivertest.Packet{Host: "a", From: names["a"][family], To: names["b"][family], Protocol: udp, Port: 80})
			if err != nil {
				t.Fatal(err)
			}
			if trail.At == "b" && trail.Answered {
				break
			}
			if time.Now().After(end) {
				t.Errorf("%v is not reached: %+v", names["b"][family], trail)
				break
			}
		}
	}
}
