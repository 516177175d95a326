package cni_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/world"
)

// Chained with the reference plugins: ports of the node lead to the container, its
// bandwidth is bounded, its parameters are set, and what the node's firewall denies others passes.
func TestChained(t *testing.T) {
	needPlugins(t)
	b := newTestbed(t, "1.0.0", plugin(ranges))
	b.use("1.0.0", plugin(ranges),
		`{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}`,
		`{"type": "bandwidth", "capabilities": {"bandwidth": true}}`,
		`{"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}}`,
		`{"type": "firewall", "backend": "iptables"}`)
	x, y, outside := b.container("x"), b.container("y"), host(t, "outside")
	b.node.Join("uplink", outside, "eth0")
	b.node.Address("uplink", "192.168.5.1/24", "fd05::1/64")
	outside.Address("eth0", "192.168.5.2/24", "fd05::2/64")
	for _, rule := range []string{"-P FORWARD DROP", "-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT"} {
		b.node.Exec("iptables", strings.Fields(rule)...)
		b.node.Exec("ip6tables", strings.Fields(rule)...)
	}
	const rate, size = 16_000_000, 3_000_000 // bits a second, bytes
	bandwidth := map[string]int{"ingressRate": rate, "ingressBurst": 800_000, "egressRate": rate, "egressBurst": 800_000}
	x.CapabilityArgs = map[string]any{
		"portMappings": []map[string]any{{"hostPort": 9090, "containerPort": 8080, "protocol": "tcp"}},
		"bandwidth":    bandwidth,
	}
	y.CapabilityArgs = map[string]any{"bandwidth": bandwidth}
	for _, c := range []*container{x, y} {
		if err := b.tryAdd(c); err != nil {
			t.Fatal(err)
		}
	}
	// portmap 1.1.1 fails for ports of a container with both families, bandwidth without any.
	if err := b.node.Do(func() error { return b.cni.CheckNetworkList(t.Context(), b.list, y.RuntimeConf) }); err != nil {
		t.Error(err)
	}
	for _, a := range x.addrs() {
		reach(t, y.ns, x.ns, netip.AddrPortFrom(a, 8080))
	}
	if out := x.ns.Exec("cat", "/proc/sys/net/core/somaxconn"); out != "500\n" {
		t.Error("somaxconn:", out)
	}
	listener := listen(t, x.ns, ":8080")
	go func() {
		for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	for _, at := range []string{"192.168.5.1:9090", "[fd05::1]:9090"} {
		begin := time.Now()
		err := outside.Do(func() error {
			conn, err := net.DialTimeout("tcp", at, 5*time.Second)
			if err != nil {
				return err
			}
			sent := bytes.Repeat([]byte("x"), size)
			go func() { _, _ = conn.Write(sent); _ = conn.(*net.TCPConn).CloseWrite() }()
			got, err := io.ReadAll(conn)
			if err == nil && len(got) != size {
				err = fmt.Errorf("%d bytes came back of %d", len(got), size)
			}
			return errors.Join(err, conn.Close())
		})
		if err != nil {
			t.Errorf("by the node's port at %s: %v", at, err)
		}
		if took, least := time.Since(begin), time.Duration(float64(size-200_000)*8/rate*float64(time.Second))/2; took < least {
			t.Errorf("%d bytes took %s, which is faster than the bandwidth", size, took)
		}
	}
	b.del(x)
	b.del(y)
	b.node.IP("link del uplink")
	b.empty()
}

// With sbr after it, a second interface answers by itself to what came by it, though default routes
// are the first one's.
func TestChainedRoutesBySource(t *testing.T) {
	needPlugins(t)
	b := newTestbed(t, "1.0.0", plugin(ranges))
	x, y := b.add("x"), b.add("y")
	b.use("1.0.0", plugin(`"ranges": [[{"subnet": "10.78.0.0/24"}], [{"subnet": "fd78::/64"}]]`), `{"type": "sbr"}`)
	conf := *x.RuntimeConf
	conf.IfName = "net1"
	second := &container{ns: x.ns, RuntimeConf: &conf}
	if err := b.tryAdd(second); err != nil {
		t.Fatal(err)
	}
	sent := func(device string) uint64 { return x.ns.Device(device).Attrs().Statistics.TxBytes }
	for device, c := range map[string]*container{"eth0": x, "net1": second} {
		for _, a := range c.addrs() {
			before := map[string]uint64{"eth0": sent("eth0"), "net1": sent("net1")}
			reach(t, y.ns, x.ns, netip.AddrPortFrom(a, 8080))
			for other, was := range before {
				if now := sent(other); (now-was > 200) != (other == device) { // beside what IPv6 says of itself
					t.Errorf("%d bytes left by %s of what is answered from %s of %s", now-was, other, a, device)
				}
			}
		}
	}
	b.del(second)
	b.use("1.0.0", plugin(ranges))
	b.del(x)
	b.del(y)
	b.empty()
}

// What tuning sets of an interface does not keep packets from it.
func TestChainedTuning(t *testing.T) {
	needPlugins(t)
	b := newTestbed(t, "1.0.0", plugin(ranges), `{"type": "tuning", "mtu": 1300, "promisc": true, "allmulti": true, "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1"}}`)
	x := b.add("x")
	if a := x.ns.Device("eth0").Attrs(); a.MTU != 1300 || a.Promisc == 0 {
		t.Errorf("%+v", a)
	}
	if out := x.ns.Exec("cat", "/proc/sys/net/ipv4/conf/eth0/arp_notify"); out != "1\n" {
		t.Error("arp_notify:", out)
	}
	b.use("1.0.0", plugin(ranges))
	y := b.add("y")
	for _, c := range [][2]*container{{x, y}, {y, x}} {
		for _, a := range c[1].addrs() {
			reach(t, c[0].ns, c[1].ns, netip.AddrPortFrom(a, 8080))
		}
	}
	b.del(x)
	b.del(y)
	b.empty()
}

// listen opens a listener on a host, which is closed with the test.
func listen(t *testing.T, h *world.Host, address string) (l net.Listener) {
	t.Helper()
	h.In(func() (err error) { l, err = net.Listen("tcp", address); return err })
	t.Cleanup(func() { _ = l.Close() })
	return l
}
