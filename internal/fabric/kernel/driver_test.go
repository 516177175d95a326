package kernel_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	fabric "sluice.dev/sluice/internal/fabric/kernel"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// must fails the test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs "ip …" and the like.
func run(h *world.Host, line string) string {
	words := strings.Fields(line)
	return h.Exec(words[0], words[1:]...)
}

// open opens a driver in a namespace.
func open(t testing.TB, h *world.Host) *fabric.Driver {
	t.Helper()
	var d *fabric.Driver
	h.In(func() (err error) { d, err = fabric.Open(driver.Options{}); return err })
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// node is one with a pod behind it: 10.244.N.2 and fd00:10:244:N::2.
type node struct {
	n       int
	ns, pod *world.Host
	d       *fabric.Driver
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

// podOf is the address of the pod that a node has.
func podOf(pods netip.Prefix) string { return pods.Addr().Next().Next().String() }

// nodes makes some on one subnet.
func nodes(t testing.TB, count int) (all []*node) {
	t.Helper()
	lan := world.NewHost(t, "lan")
	lan.Bridge("br0")
	for n := 1; n <= count; n++ {
		x := newNode(t, n, lan, families[0].node(n).String()+"/24", families[1].node(n).String()+"/64")
		lan.Port("br0", fmt.Sprint("n", n))
		all = append(all, x)
	}
	return all
}

func newNode(t testing.TB, n int, lan *world.Host, addrs ...string) *node {
	t.Helper()
	x := &node{n: n, ns: world.NewHost(t, fmt.Sprint("node", n))}
	x.ns.Forward()
	x.ns.Join("eth0", lan, fmt.Sprint("n", n))
	x.ns.Address("eth0", addrs...)
	x.pod = world.NewPod(x.ns, fmt.Sprint("pod", n), podOf(families[0].pods(n)), podOf(families[1].pods(n)))
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

// echo answers on port 7 of a host.
func echo(t testing.TB, h *world.Host) {
	t.Helper()
	var l net.Listener
	h.In(func() (err error) { l, err = net.Listen("tcp", ":7"); return err })
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
}

// dial connects from a host, at the first try.
func dial(h *world.Host, to netip.Addr) (c net.Conn, err error) {
	err = h.Do(func() error {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, 7).String(), 10*time.Second)
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
		for _, ns := range []*world.Host{from.ns, from.pod} {
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

// Real packets pass in each mode, and a restart changes nothing; also on nodes whose new interfaces
// have no IPv6.
func TestModes(t *testing.T) {
	all := nodes(t, 3)
	for _, x := range all {
		x.ns.Set("net/ipv6/conf/default/disable_ipv6", "1")
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

// In a container that may not write kernel parameters a device lacks IPv6 alone, and what is said
// of it is what mends it.
func TestIPv6MayNotBeTurnedOn(t *testing.T) {
	if os.Getenv("SLUICE_TEST_MOUNTS") == "" { // a mount namespace of its own, as mounts are the whole process's
		cmd := exec.CommandContext(t.Context(), "unshare", "--mount", os.Args[0], "-test.run=^TestIPv6MayNotBeTurnedOn$", "-test.v")
		cmd.Env = append(os.Environ(), "SLUICE_TEST_MOUNTS=own")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	all := nodes(t, 2)
	for _, x := range all {
		echo(t, x.pod)
	}
	of := func(x *node) *state.Fabric { // both families by one device, as WireGuard has them
		f := tunnelled(all, x)
		f.Tunnels[state.DeviceVXLAN].Address6 = addr("fd00::%d", x.n)
		f.Routes[netip.MustParsePrefix("fd00:9::/64")] = &state.Route{Node: "node9", Device: state.DeviceVXLAN}
		return f
	}
	x := all[0]
	x.ns.Set("net/ipv6/conf/default/disable_ipv6", "1")
	adopt(t, all[1].d, of(all[1]))
	must(t, unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""))
	must(t, unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	reaches := func(fam int) bool {
		c, err := dial(x.ns, families[fam].pods(2).Addr().Next().Next())
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}
	for _, again := range []bool{false, true} { // as an audit
		p, err := x.d.Adopt(t.Context(), &state.State{Fabric: of(x)}, driver.Keep{})
		must(t, err)
		must(t, p.Apply(t.Context()))
		aside := x.d.SetAside()
		if len(aside) != 2 {
			t.Fatalf("again %v: set aside: %+v", again, aside)
		}
		for i, device := range []string{state.DeviceVXLAN, state.DeviceVXLAN6} {
			said := aside[i].Reason
			if aside[i].Name.Name != device || !strings.Contains(said, "net/ipv6/conf/"+device+"/disable_ipv6=0") || !strings.HasSuffix(said, "through it by IPv6") {
				t.Errorf("%+v", aside[i])
			}
		}
		if tampered, err := x.d.Tampered(t.Context()); tampered || err != nil {
			t.Errorf("tampered %v, %v", tampered, err)
		}
		if !reaches(0) {
			t.Errorf("again %v: IPv4 does not pass", again)
		}
	}
	must(t, unix.Unmount("/proc/sys", 0))
	for _, device := range []string{state.DeviceVXLAN, state.DeviceVXLAN6} {
		x.ns.In(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/"+device+"/disable_ipv6", []byte("0"), 0) })
	}
	must(t, unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""))
	must(t, unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	adopt(t, x.d, of(x))
	if !reaches(1) {
		t.Error("once it was done as it says, IPv6 does not pass")
	}
	must(t, unix.Unmount("/proc/sys", 0))
}
