package nftables

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// vxlanPacket is what a VXLAN packet holds, with a text in place of a frame.
func vxlanPacket(vni uint32, text string) []byte {
	b := binary.BigEndian.AppendUint32(nil, 1<<27)
	return append(binary.BigEndian.AppendUint32(b, vni<<8), text...)
}

// Tunnels of the pod network take packets from nodes alone; those of other programs take what they
// do. What is dropped is counted. Policy or not, in both families, and while a masqueraded flow has
// a tunnel's port, too (projectcalico/calico#13118).
func TestTunnelsTakePacketsFromNodes(t *testing.T) {
	t.Parallel()
	here, there := world.NewHost(t, "node"), world.NewHost(t, "far")
	here.Join("e0", there, "e0")
	here.Address("e0", "192.0.2.1/24", "fd00::1/64")
	there.Address("e0", "192.0.2.2/24", "192.0.2.9/24", "fd00::2/64", "fd00::9/64")
	node, far := here.NS, there.NS
	e0, err := node.LinkByName("e0")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	s := &state.State{Services: state.NewServices(), Policy: state.NewPolicy()}
	s.Services.Settings.Tunnels = []state.TunnelEnd{{Addr: addr("192.0.2.1")}, {Addr: addr("192.0.2.1"), Port: 4789}, {Addr: addr("fd00::1"), Port: 4789}}
	s.Services.Settings.Untracked = true
	here.Set("net.ipv4.ip_forward", "1")
	takePort(t, node)
	s.Services.Peers = map[netip.Addr]struct{}{addr("192.0.2.2"): {}, addr("fd00::2"): {}}
	s.Policy.HostDevices[e0.Attrs().Index] = struct{}{}
	for _, policy := range []bool{false, true} {
		d := openIn(t, node, Options{Options: driver.Options{Policy: policy, Fabric: true}})
		want := *s
		if !policy {
			want.Policy = nil
		}
		adopt(t, d, &want)
		if n, text := adopt(t, d, &want); n > 0 {
			t.Errorf("the kernel differs:\n%s", text)
		}
		for _, c := range []struct {
			from, network, to string
			packet            []byte
			dropped           bool
		}{
			{"192.0.2.9", "udp4", "192.0.2.1:4789", vxlanPacket(state.VNI, "foreign"), true},
			{"192.0.2.2", "udp4", "192.0.2.1:4789", vxlanPacket(state.VNI, "node"), false},
			{"192.0.2.9", "udp4", "192.0.2.1:4789", vxlanPacket(42, "another program's"), false},
			{"192.0.2.9", "udp4", "192.0.2.1:4788", vxlanPacket(state.VNI, "another port"), false},
			{"fd00::9", "udp6", "[fd00::1]:4789", vxlanPacket(state.VNI, "foreign"), true},
			{"fd00::2", "udp6", "[fd00::1]:4789", vxlanPacket(state.VNI, "node"), false},
			{"192.0.2.9", "ip4:4", "192.0.2.1", []byte("foreign"), true},
			{"192.0.2.2", "ip4:4", "192.0.2.1", []byte("node"), false},
		} {
			before := foreign(t, d)
			arrives := deliver(t, node, far, c.from, c.network, c.to, c.packet)
			if after := foreign(t, d); arrives == c.dropped || (after > before) != c.dropped {
				t.Errorf("policy %v: %s to %s: %q arrives: %v, dropped %d", policy, c.from, c.to, c.packet, arrives, after-before)
			}
		}
		if err := d.Purge(t.Context()); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// tunnelFrom is the port that packets of tunnels come from.
const tunnelFrom = 40000

// takePort has a pod's flow to where packets of tunnels come from be masqueraded, and keep the port
// that they go to.
func takePort(t *testing.T, node *netns.NS) {
	t.Helper()
	pod := testNS(t)
	if err := netns.Veth(node, "p0", pod, "e0"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ns   *netns.NS
		args []string
	}{
		{node, strings.Fields("ip addr add 10.9.9.1/24 dev p0")}, {pod, strings.Fields("ip addr add 10.9.9.9/24 dev e0")},
		{pod, strings.Fields("ip route add default via 10.9.9.1")},
		{node, []string{"nft", "add table ip other; add chain ip other out { type nat hook postrouting priority 100; }; add rule ip other out ip saddr 10.9.9.9 masquerade"}},
	} {
		if out, err := c.ns.Run(c.args[0], c.args[1:]...); err != nil {
			t.Fatalf("%v: %v: %s", c.args, err, out)
		}
	}
	err := pod.Do(func() error {
		c, err := net.DialUDP("udp4", &net.UDPAddr{Port: 4789}, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: tunnelFrom})
		if err == nil {
			_, err = c.Write([]byte("mine"))
			_ = c.Close()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// foreign counts the packets dropped so far.
func foreign(t *testing.T, d *Driver) uint64 {
	t.Helper()
	counts, err := d.DropCounts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return counts[state.DropForeignTunnel]
}

// deliver sends a packet, and then one from a node. It reports whether the first arrives.
func deliver(t *testing.T, node, far *netns.NS, from, network, to string, packet []byte) bool {
	t.Helper()
	var in net.PacketConn
	err := node.Do(func() (err error) { in, err = net.ListenPacket(network, to); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	peer := "192.0.2.2"
	if network == "udp6" {
		peer = "fd00::2"
	}
	last := string(vxlanPacket(state.VNI, "the last one"))
	err = far.Do(func() error {
		for _, p := range []struct{ from, text string }{{from, string(packet)}, {peer, last}} {
			local := net.Addr(&net.UDPAddr{IP: net.ParseIP(p.from), Port: tunnelFrom})
			if network == "ip4:4" {
				local = &net.IPAddr{IP: net.ParseIP(p.from)}
			}
			out, err := (&net.Dialer{LocalAddr: local}).Dial(network, to)
			if err != nil {
				return err
			}
			_, err = out.Write([]byte(p.text))
			out.Close()
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = in.SetReadDeadline(time.Now().Add(10 * time.Second))
	}
	if err != nil {
		t.Fatal(err)
	}
	b, arrives := make([]byte, 256), false
	for {
		n, _, err := in.ReadFrom(b)
		if err != nil {
			t.Fatalf("%s to %s: %q: %v", from, to, packet, err)
		}
		if string(b[:n]) == last {
			return arrives
		}
		arrives = arrives || string(b[:n]) == string(packet)
	}
}

// Packets between nodes' tunnels are tracked or not, as the settings say; a driver that comes later
// finds nothing to do, and what has no tunnel any more has no chain.
func TestOuterPacketsAreNotTracked(t *testing.T) {
	t.Parallel()
	ns := testNS(t)
	want := &state.State{Services: state.NewServices(), Policy: state.NewPolicy()}
	settings := &want.Services.Settings
	settings.Tunnels = []state.TunnelEnd{{Addr: netip.MustParseAddr("192.0.2.1")}, {Addr: netip.MustParseAddr("192.0.2.1"), Port: 4789}, {Addr: netip.MustParseAddr("fd00::1"), Port: 4789}}
	have := func() int {
		out, err := ns.Run("nft", "list", "table", "inet", ruleset.TableName)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(out), "notrack")
	}
	d := openIn(t, ns, Options{Options: driver.Options{Policy: true, Fabric: true}})
	adopt(t, d, want)
	for _, untracked := range []bool{true, false, true} {
		now := *settings
		now.Untracked = untracked
		update(t, d, state.Delta{Services: state.ServicesDelta{Settings: &now}})
		*settings = now
		if n := have(); untracked && n != 6 || !untracked && n != 0 {
			t.Errorf("untracked %v: %d rules", untracked, n)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = openIn(t, ns, Options{Options: driver.Options{Policy: true, Fabric: true}})
		if n, text := adopt(t, d, want); n > 0 {
			t.Errorf("untracked %v: the kernel differs:\n%s", untracked, text)
		}
	}
	adopt(t, d, &state.State{Policy: state.NewPolicy()}) // policy alone
	if n := have(); n != 6 {
		t.Errorf("after policy was adopted: %d rules", n)
	}
	adopt(t, d, &state.State{Services: state.NewServices()}) // services without tunnels
	if n := have(); n != 0 {
		t.Errorf("without tunnels: %d rules", n)
	}
}
