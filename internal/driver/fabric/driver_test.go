package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/fabric"
	"sluice.dev/sluice/internal/netns"
	"sluice.dev/sluice/internal/state"
)

// must fails the test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// namespace makes one that goes with the test.
func namespace(t testing.TB, name string) *netns.NS {
	t.Helper()
	ns, err := netns.New(fmt.Sprintf("fab%d-%s", os.Getpid(), name))
	must(t, err)
	t.Cleanup(func() { must(t, ns.Delete()) })
	return ns
}

// run runs "ip …" and the like.
func run(t testing.TB, ns *netns.NS, line string) string {
	t.Helper()
	words := strings.Fields(line)
	out, err := ns.Run(words[0], words[1:]...)
	must(t, err)
	return string(out)
}

// open opens a driver in a namespace.
func open(t testing.TB, ns *netns.NS) *fabric.Driver {
	t.Helper()
	var d *fabric.Driver
	must(t, ns.Do(func() (err error) { d, err = fabric.Open(driver.Options{}); return err }))
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// node is one with a pod behind it: 10.244.N.2 and fd00:10:244:N::2.
type node struct {
	n   int
	ns  *netns.NS
	pod *netns.NS
	d   *fabric.Driver
}

func addr(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}

// families are what tests do twice.
var families = []struct {
	name   string
	node   func(n int) netip.Addr   // its address
	pods   func(n int) netip.Prefix // its pods' addresses
	device string                   // for VXLAN
}{
	{"IPv4", func(n int) netip.Addr { return addr("192.0.2.%d", n) }, func(n int) netip.Prefix { return netip.PrefixFrom(addr("10.244.%d.0", n), 24) }, state.DeviceVXLAN},
	{"IPv6", func(n int) netip.Addr { return addr("fd00:2::%d", n) }, func(n int) netip.Prefix { return netip.PrefixFrom(addr("fd00:10:244:%d::", n), 64) }, state.DeviceVXLAN6},
}

// nodes makes some on one subnet.
func nodes(t testing.TB, count int) (all []*node) {
	t.Helper()
	lan := namespace(t, "lan")
	run(t, lan, "ip link add br0 type bridge")
	run(t, lan, "ip link set br0 up")
	for n := 1; n <= count; n++ {
		x := newNode(t, n, lan, families[0].node(n).String()+"/24", families[1].node(n).String()+"/64")
		run(t, lan, fmt.Sprintf("ip link set n%d master br0", n))
		all = append(all, x)
	}
	return all
}

func newNode(t testing.TB, n int, lan *netns.NS, addrs ...string) *node {
	t.Helper()
	x := &node{n: n, ns: namespace(t, fmt.Sprintf("node%d", n)), pod: namespace(t, fmt.Sprintf("pod%d", n))}
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		must(t, x.ns.Sysctl(key, "1"))
	}
	must(t, x.ns.Sysctl("net.ipv6.conf.default.accept_dad", "0")) // or addresses come a second later
	must(t, netns.Veth(x.ns, "eth0", lan, fmt.Sprintf("n%d", n)))
	for _, a := range addrs {
		run(t, x.ns, "ip addr add "+a+" dev eth0 nodad")
	}
	must(t, netns.Veth(x.pod, "eth0", x.ns, "pod"))
	run(t, x.ns, "ip link set pod address 02:00:00:00:00:01")
	for i, gateway := range []string{"169.254.1.1", "fd00::1"} {
		pod := families[i].pods(n).Addr().Next().Next().String()
		run(t, x.pod, "ip addr add "+pod+" dev eth0 nodad")
		run(t, x.pod, "ip route add default via "+gateway+" dev eth0 onlink")
		run(t, x.pod, "ip neigh add "+gateway+" lladdr 02:00:00:00:00:01 dev eth0 nud permanent")
		run(t, x.ns, "ip route add "+pod+" dev pod")
	}
	x.d = open(t, x.ns)
	return x
}

// native has each of some nodes reach the pods of all.
func native(all []*node, of *node) *state.Fabric {
	f := state.NewFabric()
	for _, other := range all {
		for _, fam := range families {
			if other != of {
				f.Routes[fam.pods(other.n)] = &state.Route{Node: fmt.Sprintf("node%d", other.n), Device: "eth0", Via: fam.node(other.n)}
			} else {
				f.Routes[fam.pods(of.n)] = &state.Route{Node: fmt.Sprintf("node%d", of.n)}
			}
		}
	}
	return f
}

func mac(n int) state.MAC { return state.MAC{0x66, 0, 0, 0, 0, byte(n)} }

// tunnelled does so through VXLAN.
func tunnelled(all []*node, of *node) *state.Fabric {
	f := state.NewFabric()
	for _, fam := range families {
		f.Tunnels[fam.device] = &state.Tunnel{Encapsulation: state.VXLAN, Local: fam.node(of.n), Address: fam.pods(of.n).Addr(), MTU: 1430, MAC: mac(of.n), VNI: 4096, Port: 4789}
		for _, other := range all {
			pods, name := fam.pods(other.n), fmt.Sprintf("node%d", other.n)
			if other == of {
				f.Routes[pods] = &state.Route{Node: name}
				continue
			}
			gateway := fam.node(other.n)
			if gateway.Is6() {
				gateway = addr("fe80::%d", other.n)
			}
			f.Routes[pods] = &state.Route{Node: name, Device: fam.device, Via: gateway}
			f.VTEPs[state.VTEPKey{Device: fam.device, Gateway: gateway}] = &state.VTEP{Node: name, MAC: mac(other.n), Remote: fam.node(other.n)}
		}
	}
	return f
}

// adopt adopts and returns what was done.
func adopt(t testing.TB, d *fabric.Driver, f *state.Fabric) string {
	t.Helper()
	p, err := d.Adopt(t.Context(), &state.State{Fabric: f}, driver.Keep{})
	must(t, err)
	text := p.String()
	must(t, p.Apply(t.Context()))
	if aside := d.SetAside(); len(aside) > 0 {
		t.Errorf("set aside: %+v", aside)
	}
	return text
}

// echo answers on port 7 in a namespace.
func echo(t testing.TB, ns *netns.NS) {
	t.Helper()
	must(t, ns.Do(func() error {
		l, err := net.Listen("tcp", ":7")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
			}
		}()
		return nil
	}))
}

// dial connects from a namespace.
func dial(ns *netns.NS, to netip.Addr) (c net.Conn, err error) {
	err = ns.Do(func() error {
		c, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(context.Background(), "tcp", netip.AddrPortFrom(to, 7).String())
		return err
	})
	return c, err
}

// say sends a text and waits for its echo.
func say(c net.Conn, text string) error {
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != text {
		return errors.New("the echo is another text")
	}
	return nil
}

// reach connects all nodes and pods with all pods.
func reach(t testing.TB, all []*node) {
	t.Helper()
	long := strings.Repeat("long enough for full packets. ", 10000)
	for _, from := range all {
		for _, ns := range []*netns.NS{from.ns, from.pod} {
			for _, to := range all {
				for _, fam := range families {
					pod := fam.pods(to.n).Addr().Next().Next()
					c, err := dial(ns, pod)
					if err != nil {
						t.Errorf("%s to %s: %v", ns.Name, pod, err)
						continue
					}
					if err := say(c, long); err != nil {
						t.Errorf("%s to %s: %v", ns.Name, pod, err)
					}
					_ = c.Close()
				}
			}
		}
	}
}

// step is a fabric of each node.
type step struct {
	name string
	of   func(all []*node, of *node) *state.Fabric
}

var modes = []step{{"native", native}, {"VXLAN", tunnelled}}

// Real packets pass in each mode, and a restart changes nothing.
func TestModes(t *testing.T) {
	all := nodes(t, 3)
	for _, x := range all {
		echo(t, x.pod)
	}
	for _, mode := range modes {
		for _, x := range all {
			adopt(t, x.d, mode.of(all, x))
		}
		t.Run(mode.name, func(t *testing.T) { reach(t, all) })
		for _, x := range all {
			if did := adopt(t, open(t, x.ns), mode.of(all, x)); did != "" {
				t.Errorf("%s: adopting again did:\n%s", mode.name, did)
			}
			if tampered, err := x.d.Tampered(t.Context()); tampered || err != nil {
				t.Errorf("%s: tampered %v, %v", mode.name, tampered, err)
			}
		}
	}
}
