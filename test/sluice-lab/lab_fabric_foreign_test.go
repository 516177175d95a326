package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// inVXLAN is what a UDP packet to a VXLAN device holds that carries a UDP packet.
func inVXLAN(device net.HardwareAddr, from, to netip.AddrPort, text string) []byte {
	b := []byte{8, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(b, state.VNI<<8)
	b = append(append(append(b, device...), 2, 0, 0, 0, 0, 9), 8, 0) // Ethernet, from anybody
	ip := []byte{0x45, 0, 0, byte(28 + len(text)), 0, 0, 0, 0, 64, 17, 0, 0}
	ip = append(append(ip, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	b = append(b, ip...)
	for _, v := range []uint16{from.Port(), to.Port(), uint16(8 + len(text)), 0} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return append(b, text...)
}

// Who can reach a node from outside gets nothing into the pod network by its tunnels; a node does.
func TestLabFabricForeignTunnel(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(file, []byte(modeManifests), 0o600); err != nil {
		t.Fatal(err)
	}
	l := upWith(t, "testforeign", "--fabric", "vxlan", file)
	pods := map[string]netip.Addr{}
	var victim string // the namespace of the pod on the first node
	for _, p := range l.Cluster.Pods {
		if strings.HasPrefix(p.Name, "client") {
			pods[p.Spec.NodeName] = netip.MustParseAddr(p.Status.PodIPs[0].IP)
			if p.Spec.NodeName == "node1" {
				victim = l.PodNS(p)
			}
		}
	}
	var in *net.UDPConn
	inside(t, victim, func() (err error) { in, err = net.ListenUDP("udp4", nil); return err })
	defer in.Close()
	at := netip.AddrPortFrom(pods["node1"], in.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	var mac net.HardwareAddr
	inside(t, l.NodeNS("node1"), func() error {
		device, err := net.InterfaceByName(state.DeviceVXLAN)
		if err == nil {
			mac = device.HardwareAddr
		}
		return err
	})
	send := func(host, text string) {
		inside(t, l.NodeNS(host), func() error {
			c, err := net.Dial("udp4", netip.AddrPortFrom(l.Cluster.Node("node1").IPs[0], 4789).String())
			if err == nil {
				_, err = c.Write(inVXLAN(mac, netip.AddrPortFrom(pods["node2"], 5555), at, text))
				c.Close()
			}
			return err
		})
	}
	drops := foreignDrops(t, l)
	send(plan.Outside, "foreign")
	b := make([]byte, 64)
	n, from, err := 0, netip.AddrPort{}, os.ErrDeadlineExceeded
	for end := time.Now().Add(10 * time.Second); errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end); {
		send("node2", "node") // again, as a datagram may get lost
		if err := in.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		n, from, err = in.ReadFromUDPAddrPort(b)
	}
	if err != nil || string(b[:n]) != "node" || from.Addr() != pods["node2"] {
		t.Errorf("the pod gets %q from %s: %v", b[:n], from, err)
	}
	if d := <-drops; d.From.Address != l.Cluster.OutsideIPs[0] {
		t.Errorf("dropped: %+v", d)
	}
}

// foreignDrops yields what sluice drops shows on the first node of packets to tunnels, once it
// listens.
func foreignDrops(t *testing.T, l *lab.Lab) <-chan agent.Drop {
	t.Helper()
	found, ready := make(chan agent.Drop, 16), make(chan struct{})
	client := agent.NewClient(filepath.Join(lab.Dir, l.Name, "node1", "run", filepath.Base(agent.DefaultSocket)))
	go func() {
		_ = client.Drops(t.Context(), func() { close(ready) }, func(r agent.DropReport) error {
			if r.Drop != nil && r.Drop.Reason == state.DropForeignTunnel {
				found <- *r.Drop
			}
			return nil
		})
	}()
	<-ready
	return found
}

// inside runs f in a network namespace.
func inside(t *testing.T, name string, f func() error) {
	t.Helper()
	ns, err := netns.Open(name)
	if err == nil {
		err = ns.Do(f)
		ns.Close()
	}
	if err != nil {
		t.Fatal(fmt.Errorf("in %s: %w", name, err))
	}
}
