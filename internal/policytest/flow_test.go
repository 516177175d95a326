package policytest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver/drivertest"
	"sluice.dev/sluice/internal/model"
)

// TestCut shows that an established connection ends when a policy comes to forbid it,
// whichever end speaks next, and goes on when it is allowed again; over TCP and UDP, by a policy
// of either end, directly and through a service.
func TestCut(t *testing.T) {
	k := openKernel(t, "cut", map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	cluster := lbService(model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}}, "b")
	open := row{services: []svc{cluster}}
	for _, proto := range []model.Protocol{tcp, udp} {
		for family := range Families {
			for via, port := range map[string]uint16{"b": 80, "vip": 80} {
				for _, closed := range []row{
					{services: open.services, policies: isolated("b", "in ingress: []")},
					{services: open.services, policies: isolated("a", "out egress: []")},
				} {
					for _, clientFirst := range []bool{true, false} {
						name := fmt.Sprint(proto, " ", names[via][family], " ", clientFirst)
						t.Run(name, func(t *testing.T) {
							k.declare(t, open)
							server := netip.AddrPortFrom(names["b"][family], 80)
							p, err := k.mesh.Pair(t, "a", proto, server, netip.AddrPortFrom(names[via][family], port))
							if err != nil {
								t.Fatal(err)
							}
							k.declare(t, closed)
							k.falls(t, p, clientFirst)
							k.declare(t, open)
							k.revives(t, p)
						})
					}
				}
			}
		}
	}
}

// falls waits until neither end hears the other, for no longer than a cut may take.
func (k *kernel) falls(t *testing.T, p *drivertest.Pair, clientFirst bool) {
	t.Helper()
	begun := time.Now()
	for _, client := range []bool{clientFirst, !clientFirst} {
		for p.Speak(client, drivertest.Silent) {
			if time.Since(begun) > drivertest.Patient {
				t.Fatalf("a connection that is forbidden still goes on (client speaks: %v)", client)
			}
		}
	}
}

// revives waits until both ends hear each other again.
func (k *kernel) revives(t *testing.T, p *drivertest.Pair) {
	t.Helper()
	for _, client := range []bool{true, false} {
		begun := time.Now()
		for !p.Speak(client, drivertest.Patient) {
			if time.Since(begun) > 2*drivertest.Patient {
				t.Fatalf("a connection that is allowed again does not go on (client speaks: %v)", client)
			}
		}
	}
}

// TestErrors shows that the ICMP error that belongs to a permitted flow passes, also between pods
// that are isolated otherwise.
func TestErrors(t *testing.T) {
	k := openKernel(t, "icmp", map[string][2]netip.Addr{"a": names["a"], "b": names["b"]})
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

// TestNeighbours shows that isolated pods still find their next hop: what neighbour discovery and ARP
// need passes.
func TestNeighbours(t *testing.T) {
	k := openKernel(t, "nd", map[string][2]netip.Addr{"a": names["a"], "b": names["b"]})
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
