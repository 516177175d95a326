package world_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/test/world"
)

// Pods of a node, and a host behind a router, reach each other, and each says whom it sees.
func TestReach(t *testing.T) {
	t.Parallel()
	node, outside := world.NewHost(t, "node"), world.NewHost(t, "outside")
	node.Forward()
	node.Join("front", outside, "eth0")
	node.Address("front", "10.9.0.1/24", "fd09::1/64")
	outside.Address("eth0", "10.9.0.2/24", "fd09::2/64")
	outside.Gateway("10.9.0.1", "fd09::1")
	a := world.NewPod(node, "a", "10.1.0.1", "fd01::1")
	b := world.NewPod(node, "b", "10.1.0.2", "fd01::2")
	a.Serve("a", ":80", ":81")
	b.Serve("b", "10.1.0.2:80", "[fd01::2]:80")
	for _, tt := range []struct {
		host             *world.Host
		from, to, server string
		port             uint16
	}{
		{b, "10.1.0.2", "10.1.0.1:80", "a", 80}, {b, "fd01::2", "[fd01::1]:81", "a", 81},
		{outside, "10.9.0.2", "10.1.0.2:80", "b", 80}, {outside, "fd09::2", "[fd01::2]:80", "b", 80},
	} {
		for _, network := range []string{"tcp", "udp"} {
			got, err := tt.host.Ask(network, "", tt.to, world.Patience)
			if err != nil || got.Server != tt.server || got.Client.Addr().String() != tt.from || got.Port != tt.port {
				t.Errorf("%s %s: %+v, %v", network, tt.to, got, err)
			}
		}
	}
	if got, err := b.Ask("tcp", "", "10.1.0.1:82", world.Patience); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %+v, %v", got, err)
	}
	a.IP("link set eth0 down")
	for _, network := range []string{"tcp", "udp"} {
		if got, err := outside.Ask(network, "10.9.0.2", "10.1.0.1:80", 50*time.Millisecond); !world.TimedOut(err) {
			t.Errorf("%s, the pod is cut off: %+v, %v", network, got, err)
		}
	}
}

// A host with an address of no network reaches what is said to be behind its device.
func TestBehind(t *testing.T) {
	t.Parallel()
	x, y := world.NewHost(t, "x"), world.NewHost(t, "y")
	for _, h := range []*world.Host{x, y} {
		h.Set("net.ipv4.conf.all.arp_ignore", "8") // it has to be told where the other one is
	}
	x.Join("eth0", y, "eth0")
	x.Address("eth0", "10.1.0.1/32")
	y.Address("eth0", "10.2.0.1/32")
	x.Behind("eth0", "10.2.0.0/24")
	y.Behind("eth0", "10.1.0.0/24")
	y.Neighbour("eth0", x, "eth0", "10.1.0.1")
	x.Neighbour("eth0", y, "eth0", "10.2.0.1")
	y.ServeUDP("y", ":53")
	if got, err := x.Ask("udp", "", "10.2.0.1:53", world.Patience); err != nil || got.Server != "y" {
		t.Errorf("%+v, %v", got, err)
	}
}
