package xdp_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/accelerate/xdp"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// node is a node with servers of its own, and a client on a network with it, which has four
// addresses: those that end in 2 and 3.
type node struct {
	*testing.T
	client, host *world.Host
	want         *state.State
	front        int // the interface to the client
	keep         driver.Keep
	d            *xdp.Driver
}

const (
	balanced4 = "203.0.113.9"
	balanced6 = "2001:db8:113::9"
	refused   = 300 * time.Millisecond // how long nothing comes back from where nothing is to come from
)

func newNode(t *testing.T) *node {
	n := &node{T: t, client: world.NewHost(t, "client"), host: world.NewHost(t, "node"), want: &state.State{Services: state.NewServices(), Policy: state.NewPolicy()}}
	world.MountBPF(t)
	n.host.Forward()
	n.client.Join("eth0", n.host, "front")
	n.client.Address("eth0", "10.0.0.2/24", "10.0.0.3/24", "fd00::2/64", "fd00::3/64")
	n.host.Address("front", "10.0.0.1/24", "fd00::1/64")
	n.client.Gateway("10.0.0.1", "fd00::1")
	n.host.Neighbour("front", n.client, "eth0", "fd00::2", "fd00::3") // who is denied cannot ask for neighbours, either
	n.client.Neighbour("eth0", n.host, "front", "fd00::1")
	n.host.Serve("node", ":53", ":80")
	n.front = n.host.Device("front").Attrs().Index
	n.want.Policy.HostDevices[n.front] = struct{}{}
	n.open()
	t.Cleanup(func() {
		_ = n.d.Close()
		n.host.In(xdp.Remove)
	})
	return n
}

// open has a process begin to serve.
func (n *node) open() {
	n.Helper()
	n.host.In(func() error {
		base, err := openBase()
		if err == nil {
			n.d, err = xdp.Open(base, xdp.Options{Stages: xdp.Stages{Drop: true}})
		}
		return err
	})
	adopt(n.T, n.d, n.want.Clone(), n.keep)
}

func openBase() (driver.Driver, error) {
	return nftables.Open(nftables.Options{Options: driver.Options{Policy: true}})
}

// without has a process serve without the program for a while, and then one with it again.
func (n *node) without(while func()) {
	n.Helper()
	var base driver.Driver
	err := n.d.Close()
	n.host.In(func() error {
		if err == nil {
			err = xdp.Remove()
		}
		if err == nil {
			base, err = openBase()
		}
		return err
	})
	adopt(n.T, base, n.want.Clone(), n.keep)
	while()
	if err := base.Close(); err != nil {
		n.Fatal(err)
	}
	n.open()
}

// change has the state be another one.
func (n *node) change(delta state.Delta) {
	n.Helper()
	n.want.Apply(delta)
	p, err := n.d.Update(n.Context(), delta)
	if err == nil {
		err = p.Apply(n.Context())
	}
	if err != nil {
		n.Fatal(err)
	}
}

// counted is how many packets have been dropped for a reason, and how many of them by the program.
func (n *node) counted(reason state.Drop) (all, early uint64) {
	n.Helper()
	counts, err := n.d.Capabilities().Counter.DropCounts(n.Context())
	if err != nil {
		n.Fatal(err)
	}
	return counts[reason], n.d.Dropped()
}

// burst is how many packets are sent at once: most of them come in a tick of the clock whose first
// packet is left to the base.
const burst = 200

func (n *node) burst(from, to string) {
	n.Helper()
	c, err := n.client.Dial("udp", from, to, world.Patience)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = c.Close() }) // before, it would refuse answers, by ICMP
	for range burst {
		if _, err := c.Write([]byte("ask\n")); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			n.Fatal(err)
		}
	}
}

// answers fails the test unless servers answer the client at each of its addresses, and the program
// drops none of a burst of packets from there.
func (n *node) answers(when, to4, to6 string, from ...string) {
	n.Helper()
	for _, from := range from {
		dropped := n.d.Dropped()
		n.burst(from, atFamily(from, to4, to6))
		defer func() {
			if now := n.d.Dropped(); now != dropped {
				n.Errorf("%s, from %s: the program dropped %d packets", when, from, now-dropped)
			}
		}()
		for _, network := range []string{"tcp", "udp"} {
			if g, err := n.client.Ask(network, from, atFamily(from, to4, to6), world.Patience); err != nil {
				n.Errorf("%s, %s from %s: %+v, %v; %v", when, network, from, g, err, n.d.Status())
			}
		}
	}
}

// drops fails the test unless each packet from addresses is dropped for a reason, nearly all of
// them by the program; not early: all by the base.
func (n *node) drops(when string, reason state.Drop, early bool, to4, to6 string, from ...string) {
	n.Helper()
	for _, from := range from {
		all, before := n.counted(reason)
		n.burst(from, atFamily(from, to4, to6))
		now, after := n.counted(reason)
		for end := time.Now().Add(world.Patience); now-all < burst && time.Now().Before(end); now, after = n.counted(reason) {
			time.Sleep(time.Millisecond) // a busy machine has not seen all of them yet
		}
		now, after = now-all, after-before
		if least := map[bool]uint64{true: burst / 2}[early]; now != burst || after < least || !early && after > 0 {
			n.Errorf("%s, from %s: %d of %d packets were dropped, %d by the program; %v", when, from, now, burst, after, n.d.Status())
		}
	}
}

func atFamily(from, to4, to6 string) string {
	if netip.MustParseAddr(from).Is4() {
		return to4
	}
	return to6
}

// runs says whether a program runs at the interface to the client.
func (n *node) runs() bool {
	return strings.Contains(n.host.Exec("ip", "link", "show", "front"), "prog/xdp")
}

// balanced are frontends of a load balancer that are closed to all but some sources.
func balanced(ranges ...string) map[state.FrontendKey]*state.Frontend {
	all := map[state.FrontendKey]*state.Frontend{}
	for addr, backend := range map[string]string{balanced4: "10.0.0.1:53", balanced6: "[fd00::1]:53"} {
		at := netip.MustParseAddr(addr)
		f := &state.Frontend{Service: model.Name{Namespace: "shop", Name: "web"}, Kind: state.LoadBalancer, Backends: []netip.AddrPort{netip.MustParseAddrPort(backend)}}
		f.Alive, f.Serving = f.Backends, f.Backends
		for _, r := range ranges {
			if p := netip.MustParsePrefix(r); p.Addr().Is4() == at.Is4() {
				f.SourceRanges = append(f.SourceRanges, p)
			}
		}
		for _, p := range []model.Protocol{model.TCP, model.UDP} {
			all[state.FrontendKey{Addr: at, Protocol: p, Port: 80}] = f
		}
	}
	return all
}

// TestSourceRanges has load balancers' addresses be closed to some sources, and what the base lets
// pass be let pass: connections from before, and whatever comes to other ports and addresses.
func TestSourceRanges(t *testing.T) {
	t.Parallel()
	const to4, to6 = balanced4 + ":80", "[" + balanced6 + "]:80"
	n := newNode(t)
	n.change(state.Delta{Services: state.ServicesDelta{Frontends: balanced()}})
	if n.runs() {
		t.Error("a program runs without source ranges")
	}
	var open []net.Conn
	for _, from := range []string{"10.0.0.3", "fd00::3"} {
		for _, network := range []string{"tcp", "udp"} {
			c, err := n.client.Dial(network, from, atFamily(from, to4, to6), world.Patience)
			if err == nil {
				_, err = world.Exchange(c, world.Patience)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			open = append(open, c)
		}
	}
	check := func(when string, early bool) {
		t.Helper()
		n.answers(when, to4, to6, "10.0.0.2", "fd00::2")
		n.answers(when+", itself", "10.0.0.1:80", "[fd00::1]:80", "10.0.0.3", "fd00::3")
		n.drops(when, state.DropSourceRanges, early, to4, to6, "10.0.0.3", "fd00::3")
		if _, err := n.client.Dial("tcp", "10.0.0.3", to4, refused); !world.TimedOut(err) {
			t.Errorf("%s: %v", when, err)
		}
		for _, c := range open {
			if _, err := world.Exchange(c, world.Patience); err != nil {
				t.Errorf("%s, over a connection from before: %v", when, err)
			}
		}
	}
	closed := balanced("10.0.0.2/32", "192.0.2.0/24", "fd00::2/127", "2001:db8::/32")
	for k, f := range closed {
		if k.Addr.Is6() {
			f.SourceRanges[0] = netip.MustParsePrefix("fd00::2/128")
		}
	}
	n.change(state.Delta{Services: state.ServicesDelta{Frontends: closed}})
	check("closed", true)

	var over atomic.Bool
	var asked atomic.Int64
	var clients sync.WaitGroup
	for _, from := range []string{"10.0.0.2", "fd00::2"} {
		clients.Go(func() {
			for !over.Load() {
				if _, err := n.client.Ask("udp", from, atFamily(from, to4, to6), world.Patience); err != nil {
					t.Errorf("while ranges change: %v", err)
					return
				}
				asked.Add(1)
			}
		})
	}
	for _, from := range []string{"10.0.0.3", "fd00::3"} {
		c, err := n.client.Dial("udp", from, atFamily(from, to4, to6), world.Patience)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		clients.Go(func() {
			for !over.Load() {
				_ = c.SetDeadline(time.Now().Add(time.Millisecond))
				_, _ = c.Write([]byte("ask\n"))
				if n, err := c.Read(make([]byte, 99)); err == nil {
					t.Errorf("from %s, an answer of %d bytes", from, n)
					return
				}
			}
		})
	}
	some := func() {
		for before := asked.Load(); asked.Load() < before+20 && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
	}
	for range 3 {
		n.without(some)
		some()
	}
	for i := range 20 { // ranges come and go that matter to nobody here, and endpoints
		next := maps.Clone(closed)
		for k, f := range next {
			other := *f
			if other.SourceRanges = append(other.SourceRanges[:1:1], f.SourceRanges[1:]...); i%2 == 0 {
				other.SourceRanges = other.SourceRanges[:1]
			}
			next[k] = &other
		}
		n.change(state.Delta{Services: state.ServicesDelta{Frontends: next}})
		some()
	}
	over.Store(true)
	clients.Wait()

	if err := n.d.Close(); err != nil {
		t.Fatal(err)
	}
	n.open()
	check("another process", true)
	n.change(state.Delta{Policy: state.PolicyDelta{HostDevices: map[int]bool{n.front: false}}})
	n.change(state.Delta{Policy: state.PolicyDelta{HostDevices: map[int]bool{n.front: true}}})
	check("the interface was another's for a moment", true)
	n.change(state.Delta{Policy: state.PolicyDelta{Hosts: map[int]*state.Host{n.front: {Name: "edge", Device: "front", UntrackedIn: "none"}}, Rules: map[state.RulesID]*state.Rules{"none": {ID: "none"}}}})
	n.drops("a doNotTrack policy might pass services by", state.DropSourceRanges, false, to4, to6, "10.0.0.3", "fd00::3")
	n.change(state.Delta{Policy: state.PolicyDelta{Hosts: map[int]*state.Host{n.front: nil}}})
	check("none does", true)

	n.change(state.Delta{Services: state.ServicesDelta{Frontends: balanced()}})
	n.answers("open", to4, to6, "10.0.0.2", "10.0.0.3", "fd00::3")
	if !n.runs() {
		t.Error("the program goes with the last source ranges: some network cards begin anew then")
	}
	n.change(state.Delta{Services: state.ServicesDelta{Frontends: closed}})
	check("closed again", true)
	gone := map[state.FrontendKey]*state.Frontend{}
	for k := range closed {
		gone[k] = nil
	}
	n.change(state.Delta{Services: state.ServicesDelta{Frontends: gone}})
	for _, from := range []string{"10.0.0.3", "fd00::3"} { // it is passed on to nobody, and not dropped by us
		all, early := n.counted(state.DropSourceRanges)
		_, _ = n.client.Ask("udp", from, atFamily(from, to4, to6), refused)
		if now, after := n.counted(state.DropSourceRanges); now != all || after != early {
			t.Error("packets are dropped by source ranges of a service that has gone")
		}
	}
}

// TestLateInterface has deny lists come to hold at an interface whose index is beyond what the
// program was made for.
func TestLateInterface(t *testing.T) {
	t.Parallel()
	const late = 5000
	n := newNode(t)
	n.host.IP(fmt.Sprintf("link add late index %d type veth peer name eth1", late), "link set late up", "link set eth1 netns "+n.client.Name)
	n.client.IP("link set eth1 up")
	n.host.Address("late", "10.0.1.1/24")
	n.client.Address("eth1", "10.0.1.3/24")
	n.client.Neighbour("eth1", n.host, "late", "10.0.1.1")
	denied := &state.Denied{Devices: []state.Device{{Index: n.front, Name: "front"}}, Lists: []*state.List{{Name: "bad", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.1.3/32")}}}}
	n.change(state.Delta{Policy: state.PolicyDelta{Denied: denied, HostDevices: map[int]bool{late: true}}})
	n.answers("before", "10.0.1.1:53", "", "10.0.1.3")
	both := *denied
	both.Devices = append(both.Devices[:1:1], state.Device{Index: late, Name: "late"})
	n.change(state.Delta{Policy: state.PolicyDelta{Denied: &both}})
	n.drops("late", state.DropDenyList, true, "10.0.1.1:53", "", "10.0.1.3")
	n.change(state.Delta{Policy: state.PolicyDelta{Denied: denied}})
	n.answers("after", "10.0.1.1:53", "", "10.0.1.3")
}

// TestOtherProgram has source ranges hold where another program's XDP program is.
func TestOtherProgram(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: ebpf.XDP, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	var other link.Link
	n.host.In(func() (err error) {
		other, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: n.front, Flags: link.XDPDriverMode})
		return err
	})
	defer func() { _ = other.Close() }()
	n.change(state.Delta{Services: state.ServicesDelta{Frontends: balanced("10.0.0.2/32", "fd00::2/128")}})
	n.drops("by the base", state.DropSourceRanges, false, balanced4+":80", "["+balanced6+"]:80", "10.0.0.3", "fd00::3")
	if note := n.d.Status().Note; !strings.Contains(note, "not at front: another program's XDP program is there") {
		t.Errorf("status: %q", note)
	}
}
