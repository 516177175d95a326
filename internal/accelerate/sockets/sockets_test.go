package sockets_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/accelerate/sockets"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/bpf"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/drivertest"
	"sluice.dev/sluice/test/world"
)

// node is a node with two pods, and a machine outside.
type node struct {
	*testing.T
	host, client, server, outside *world.Host
	driver                        *sockets.Driver
	want                          *state.State
}

func newNode(t *testing.T) *node {
	t.Parallel()
	world.MountBPF(t)
	n := &node{T: t, host: world.NewHost(t, "node"), outside: world.NewHost(t, "outside"), want: state.New()}
	n.host.Forward()
	n.client = world.NewPod(n.host, "client", "10.1.0.1", "fd00:1::1")
	n.server = world.NewPod(n.host, "server", "10.1.0.2", "10.1.0.3", "fd00:1::2", "fd00:1::3")
	n.host.Join("eth0", n.outside, "eth0")
	n.host.Address("eth0", "192.0.2.1/24")
	n.outside.Address("eth0", "192.0.2.9/24")
	n.outside.Gateway("192.0.2.1")
	for _, at := range []string{"10.1.0.2:80", "10.1.0.3:80", "[fd00:1::2]:80", "[fd00:1::3]:80"} {
		n.server.Serve(at, at)
	}
	n.want.Services.Settings.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/64")}
	return n
}

// open opens the accelerator, and awaits that it has found the pods.
func (n *node) open() {
	n.Helper()
	n.host.In(func() error {
		n.driver = sockets.Open(drivertest.Nothing(), slog.New(slog.DiscardHandler))
		return nil
	})
	n.Cleanup(func() { _ = n.driver.Close() })
	n.adopt()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s := n.driver.Status()
		if s.Off == "" && strings.HasSuffix(s.Note, "2 pods") {
			return
		}
		if time.Now().After(end) {
			n.Fatalf("%+v; want the sockets of two pods to be served", s)
		}
	}
}

func (n *node) adopt() {
	n.Helper()
	n.apply(n.driver.Adopt(n.Context(), n.want.Clone(), driver.Keep{}))
}

func (n *node) apply(p driver.Plan, err error) {
	n.Helper()
	if err = errors.Join(err, p.Apply(n.Context())); err != nil {
		n.Fatal(err)
	}
	if err := n.driver.Capabilities().Settler.Settle(n.Context()); err != nil {
		n.Fatal(err)
	}
}

// serve has an address and port of TCP and UDP be served by endpoints; by none, not any more.
func (n *node) serve(at string, by ...string) {
	n.Helper()
	n.change(at, func(f *state.Frontend) {
		*f = state.Frontend{}
		for _, b := range by {
			f.Backends = append(f.Backends, netip.MustParseAddrPort(b))
		}
		f.Alive, f.Serving = f.Backends, f.Backends
	})
}

func (n *node) change(at string, edit func(*state.Frontend)) {
	n.Helper()
	var d state.Delta
	d.Services.Frontends = map[state.FrontendKey]*state.Frontend{}
	for _, p := range []model.Protocol{model.TCP, model.UDP} {
		to := netip.MustParseAddrPort(at)
		k := state.FrontendKey{Addr: to.Addr(), Protocol: p, Port: to.Port()}
		var f state.Frontend
		if before := n.want.Services.Frontends[k]; before != nil {
			f = *before
			f.Backends = nil
		}
		if edit(&f); len(f.Backends) > 0 {
			d.Services.Frontends[k] = &f
		} else {
			d.Services.Frontends[k] = nil
		}
	}
	n.want.Apply(d)
	n.apply(n.driver.Update(n.Context(), d))
}

const (
	vip4, vip6 = "10.96.0.1:80", "[fd00:96::1]:80"
	patience   = 5 * time.Second
	silence    = 200 * time.Millisecond
)

// answered fails unless one of the servers answers, and is shown as what was asked.
func (n *node) answered(from *world.Host, network, to string, by ...string) {
	n.Helper()
	a, err := from.Ask(network, "", to, patience)
	if err != nil || !slices.Contains(by, a.Server) {
		n.Errorf("%s from %s to %s: %+v, %v; want an answer of one of %v", network, from.Name, to, a, err, by)
	}
}

// unserved fails if a connection or datagram gets anywhere.
func (n *node) unserved(from *world.Host, network, to string) {
	n.Helper()
	if a, err := from.Ask(network, "", to, silence); err == nil {
		n.Errorf("%s from %s to %s is answered by %s; want it not to be served at the socket", network, from.Name, to, a.Server)
	}
}

// Sockets of the node and of its pods get an endpoint, of TCP and UDP and both families; those of
// others do not.
func TestServed(t *testing.T) {
	n := newNode(t)
	n.open()
	n.serve(vip4, "10.1.0.2:80", "10.1.0.3:80")
	n.serve(vip6, "[fd00:1::2]:80")
	for _, network := range []string{"tcp", "udp"} {
		for _, from := range []*world.Host{n.client, n.host, n.server} {
			n.answered(from, network, vip4, "10.1.0.2:80", "10.1.0.3:80")
			n.answered(from, network, vip6, "[fd00:1::2]:80")
		}
		n.unserved(n.outside, network, vip4)
		n.unserved(n.client, network, "10.96.0.1:81")
	}
	n.serve(vip4)
	n.unserved(n.client, "tcp", vip4)
	n.unserved(n.client, "udp", vip4)
}

// What a program is told of its peer is what it asked for; IPv4 at a socket of IPv6, too.
func TestPeersName(t *testing.T) {
	n := newNode(t)
	n.open()
	n.serve(vip4, "10.1.0.2:80")
	n.serve(vip6, "[fd00:1::2]:80")
	for _, c := range []struct {
		domain int
		to     string
	}{{unix.AF_INET, vip4}, {unix.AF_INET6, vip6}, {unix.AF_INET6, vip4}} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			s := n.socket(n.client, c.domain, kind)
			n.must(unix.Connect(s, sockaddr(c.domain, c.to)))
			peer, err := unix.Getpeername(s)
			n.must(err)
			if got := shown(peer); got != c.to {
				n.Errorf("domain %d, type %d: the peer is %s; want %s", c.domain, kind, got, c.to)
			}
			n.must(unix.Send(s, []byte("?\n"), 0))
			if got := n.receive(s); !strings.Contains(got, ":80 ") {
				n.Errorf("domain %d, type %d: received %q", c.domain, kind, got)
			}
		}
	}
}

// A socket that is not connected stays with an endpoint while that serves, moves on by itself, and
// sees answers come from what it asked.
func TestUnconnected(t *testing.T) {
	n := newNode(t)
	n.open()
	n.serve(vip4, "10.1.0.2:80", "10.1.0.3:80")
	n.serve(vip6, "[fd00:1::2]:80")
	for _, domain := range []int{unix.AF_INET, unix.AF_INET6} {
		s := n.socket(n.client, domain, unix.SOCK_DGRAM)
		first := n.exchange(s, domain, vip4)
		for range 20 {
			if again := n.exchange(s, domain, vip4); again != first {
				n.Fatalf("one socket is answered by %s and %s", first, again)
			}
		}
		other := map[string]string{"10.1.0.2:80": "10.1.0.3:80", "10.1.0.3:80": "10.1.0.2:80"}[first]
		n.serve(vip4, other)
		if got := n.exchange(s, domain, vip4); got != other {
			n.Errorf("answered by %s; want the endpoint that is left, %s", got, other)
		}
		n.serve(vip4, "10.1.0.2:80", "10.1.0.3:80")
		if domain == unix.AF_INET6 {
			if got := n.exchange(s, domain, vip6); got != "[fd00:1::2]:80" {
				n.Errorf("answered by %s", got)
			}
		}
	}
}

// A socket of UDP that is connected is connected anew when its endpoint serves no more; one of TCP
// is reset when its endpoint is gone.
func TestEndpointGoes(t *testing.T) {
	n := newNode(t)
	n.open()
	n.serve(vip4, "10.1.0.2:80")
	udp := n.socket(n.client, unix.AF_INET, unix.SOCK_DGRAM)
	mapped := n.socket(n.client, unix.AF_INET6, unix.SOCK_DGRAM)
	n.must(unix.Connect(udp, sockaddr(unix.AF_INET, vip4)))
	n.must(unix.Connect(mapped, sockaddr(unix.AF_INET6, vip4)))
	conn, err := n.client.Dial("tcp", "", vip4, patience)
	n.must(err)
	defer func() { _ = conn.Close() }()
	direct, err := n.client.Dial("tcp", "", "10.1.0.2:80", patience)
	n.must(err)
	defer func() { _ = direct.Close() }()

	ask := func(by string) {
		t.Helper()
		for _, s := range []int{udp, mapped} {
			n.must(unix.Send(s, []byte("?\n"), 0))
			if got := n.receive(s); !strings.HasPrefix(got, by) {
				n.Errorf("a connected socket of UDP is answered by %q; want %s", got, by)
			}
		}
	}
	ask("10.1.0.2:80")
	both := []netip.AddrPort{netip.MustParseAddrPort("10.1.0.2:80"), netip.MustParseAddrPort("10.1.0.3:80")}
	n.change(vip4, func(f *state.Frontend) { f.Backends, f.Serving, f.Alive = both[1:], both[1:], both })
	ask("10.1.0.3:80")
	if _, err := world.Exchange(conn, patience); err != nil {
		n.Errorf("the connection has ended though its endpoint is there: %v", err)
	}
	n.change(vip4, func(f *state.Frontend) { f.Backends, f.Alive = both[1:], both[1:] })
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		n.Errorf("the connection ends with %v; want it to be reset", err)
	}
	if _, err := world.Exchange(direct, patience); err != nil {
		n.Errorf("the connection to the endpoint itself has ended: %v", err)
	}
	ask("10.1.0.3:80")
}

// What cannot be decided at the socket is left to packets.
func TestLeftToPackets(t *testing.T) {
	n := newNode(t)
	n.open()
	endpoint := []netip.AddrPort{netip.MustParseAddrPort("10.1.0.2:80")}
	for what, edit := range map[string]func(*state.Frontend){
		"affinity":      func(f *state.Frontend) { f.Affinity = time.Hour },
		"source ranges": func(f *state.Frontend) { f.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} },
		"no endpoint":   func(f *state.Frontend) { f.Backends = nil },
	} {
		n.serve(vip4, "10.1.0.2:80")
		n.answered(n.client, "tcp", vip4, "10.1.0.2:80")
		n.change(vip4, func(f *state.Frontend) { f.Backends = endpoint; edit(f) })
		n.unserved(n.client, "tcp", vip4)
		if t.Failed() {
			n.Fatal(what)
		}
	}
	n.serve(vip4, "10.1.0.2:80")
	settings := n.want.Services.Settings
	settings.MasqueradeAll = true
	d := state.Delta{Services: state.ServicesDelta{Settings: &settings}}
	n.want.Apply(d)
	n.apply(n.driver.Update(t.Context(), d))
	n.unserved(n.client, "tcp", vip4)
}

// A pod that redirects its own connections, as to the proxy of a service mesh, asks for the service
// itself, also if it begins to do so after it was found.
func TestRedirected(t *testing.T) {
	n := newNode(t)
	n.open()
	n.serve(vip4, "10.1.0.2:80")
	n.answered(n.client, "tcp", vip4, "10.1.0.2:80")
	n.client.Exec("nft", "add table ip mesh; add chain ip mesh out { type nat hook output priority -100; }")
	for end := time.Now().Add(patience); !strings.HasSuffix(n.driver.Status().Note, " 1 pod"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			n.Fatalf("%+v; want the sockets of one pod to be served", n.driver.Status())
		}
	}
	n.unserved(n.client, "tcp", vip4)
	n.answered(n.server, "tcp", vip4, "10.1.0.2:80")
}

// Sockets that are connected to a service are counted by endpoint until they are closed.
func TestFlows(t *testing.T) {
	n := newNode(t)
	n.open()
	n.serve(vip4, "10.1.0.2:80")
	k := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: model.TCP, Port: 80}
	count := func(want int) {
		t.Helper()
		counts, err := n.driver.Flows([]state.FrontendKey{k})
		if got := counts[k][netip.MustParseAddrPort("10.1.0.2:80")]; got != want || err != nil {
			n.Errorf("%v, %v; want %d sockets at the endpoint", counts, err, want)
		}
	}
	count(0)
	var open []net.Conn
	for range 3 {
		c, err := n.client.Dial("tcp", "", vip4, patience)
		n.must(err)
		open = append(open, c)
	}
	count(3)
	for _, c := range open {
		n.must(c.Close())
	}
	count(0)
}

// TestElementsUsedAgain has sockets get endpoints of the service that they ask for, also while the
// kernel uses elements of the maps again for another one.
func TestElementsUsedAgain(t *testing.T) {
	n := newNode(t)
	n.open()
	const asked, other = "198.51.100.1:80", "198.51.100.2:80"
	n.serve(asked, "10.1.0.2:80", "10.1.0.3:80")
	n.serve(other, "10.1.0.2:81", "10.1.0.3:81")
	var slots *ebpf.Map
	n.host.In(func() error {
		folder, err := bpf.Own(sockets.Name)
		if err == nil {
			slots, err = ebpf.LoadPinnedMap(filepath.Join(folder.Path(), "slots"), nil)
		}
		return err
	})
	defer func() { _ = slots.Close() }()
	var keys [][8]byte
	var pages [][80]byte
	var key [8]byte
	var page [80]byte
	for all := slots.Iterate(); all.Next(&key, &page); {
		keys, pages = append(keys, key), append(pages, page)
	}
	keys, pages = slices.Repeat(keys, 64), slices.Repeat(pages, 64)
	over, ended := make(chan struct{}), make(chan error)
	go func() {
		for {
			_, err := slots.BatchUpdate(keys, pages, nil)
			select {
			case <-over:
				ended <- err
				return
			default:
			}
		}
	}()
	const ours, theirs = ":0050 ", ":0051 " // as /proc/net/udp has the ports of endpoints
	for range 20 {
		n.client.In(func() error {
			for range 500 {
				c, err := net.Dial("udp", asked)
				if err != nil {
					return err
				}
				defer func() { _ = c.Close() }()
			}
			all, err := os.ReadFile("/proc/thread-self/net/udp")
			if right, wrong := bytes.Count(all, []byte(ours)), bytes.Count(all, []byte(theirs)); wrong > 0 || right < 500 {
				t.Errorf("%d sockets got endpoints of the service, and %d another's", right, wrong)
			}
			return err
		})
	}
	close(over)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A connection that is still being made to an endpoint that goes is reset, so that its program can
// try again.
func TestEndpointGoesBeforeItAnswers(t *testing.T) {
	n := newNode(t)
	n.open()
	n.server.Exec("nft", "add table inet f; add chain inet f in { type filter hook input priority 0; }; add rule inet f in tcp dport 80 drop")
	n.serve(vip4, "10.1.0.2:80")
	s := n.socket(n.client, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK)
	if err := unix.Connect(s, sockaddr(unix.AF_INET, vip4)); !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	n.change(vip4, func(f *state.Frontend) {
		f.Backends = []netip.AddrPort{netip.MustParseAddrPort("10.1.0.3:80")}
		f.Alive, f.Serving = f.Backends, f.Backends
	})
	if got, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || got != int(unix.ECONNRESET) {
		t.Errorf("the socket's error is %v, %v; want that it is reset", unix.Errno(got), err)
	}
}

// A socket of UDP that is connected to a service gets answers from the same endpoint also where it
// names the service again; and an endpoint that it asks by itself answers as itself.
func TestDatagramsOfOneSocket(t *testing.T) {
	n := newNode(t)
	n.open()
	n.serve(vip4, "10.1.0.2:80", "10.1.0.3:80")
	for range 10 {
		s := n.socket(n.client, unix.AF_INET, unix.SOCK_DGRAM)
		n.must(unix.Connect(s, sockaddr(unix.AF_INET, vip4)))
		n.exchange(s, unix.AF_INET, vip4)
	}
	s := n.socket(n.client, unix.AF_INET, unix.SOCK_DGRAM)
	server := n.exchange(s, unix.AF_INET, vip4)
	n.exchange(s, unix.AF_INET, server)
	n.exchange(s, unix.AF_INET, vip4)
}

// Paths of MPTCP are sockets of the kernel's, which nobody tells of when they are closed.
func TestMPTCP(t *testing.T) {
	n := newNode(t)
	n.open()
	n.serve(vip4, "10.1.0.2:80")
	var s int
	n.client.In(func() (err error) {
		s, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_MPTCP)
		if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOPROTOOPT) {
			t.Skip("the kernel has no MPTCP")
		}
		return err
	})
	defer func() { _ = unix.Close(s) }()
	if err := unix.Connect(s, sockaddr(unix.AF_INET, vip4)); !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	counts, err := n.driver.Flows([]state.FrontendKey{{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: model.TCP, Port: 80}})
	if len(counts) > 0 || err != nil {
		t.Errorf("%v, %v; want it to be left to packets", counts, err)
	}
}

// A service's address that the node has itself is another program's, as of a cache of DNS on the
// node; node ports are the service's.
func TestAddressOfTheNode(t *testing.T) {
	n := newNode(t)
	n.open()
	n.serve(vip4, "10.1.0.2:80")
	n.serve("192.0.2.1:30080", "10.1.0.2:80")
	n.change("192.0.2.1:30080", func(f *state.Frontend) { f.Kind, f.Backends = state.NodePort, f.Alive })
	n.answered(n.client, "tcp", vip4, "10.1.0.2:80")
	n.host.Address("eth0", "10.96.0.1/32")
	n.host.Serve("cache", vip4)
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		a, err := n.client.Ask("udp", "", vip4, patience)
		if err == nil && a.Server == "cache" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v, %v; want the program on the node to answer", a, err)
		}
	}
	n.answered(n.client, "tcp", vip4, "cache")
	n.answered(n.host, "tcp", vip4, "cache")
	n.answered(n.client, "tcp", "192.0.2.1:30080", "10.1.0.2:80")
}

// Policies that judge packets before they are translated name the service's address.
func TestUntrackedPolicy(t *testing.T) {
	n := newNode(t)
	n.want.Policy = state.NewPolicy()
	n.open()
	n.serve(vip4, "10.1.0.2:80")
	n.answered(n.client, "tcp", vip4, "10.1.0.2:80")
	d := state.Delta{Policy: state.PolicyDelta{Hosts: map[int]*state.Host{1: {Name: "all", UntrackedOut: "x"}}}}
	n.want.Apply(d)
	n.apply(n.driver.Update(t.Context(), d))
	n.unserved(n.client, "tcp", vip4)
	if s := n.driver.Status(); !strings.Contains(s.Note, "host endpoint all") {
		t.Errorf("%+v; want it to say which host endpoint", s)
	}
}

// The kernel goes on while no agent runs; the next one finds what it left, and its sockets.
func TestRestart(t *testing.T) {
	n := newNode(t)
	n.open()
	n.serve(vip4, "10.1.0.2:80")
	udp := n.socket(n.client, unix.AF_INET, unix.SOCK_DGRAM)
	first := n.exchange(udp, unix.AF_INET, vip4)
	connected := n.socket(n.client, unix.AF_INET, unix.SOCK_DGRAM)
	n.must(unix.Connect(connected, sockaddr(unix.AF_INET, vip4)))
	n.must(n.driver.Close())
	n.answered(n.client, "tcp", vip4, "10.1.0.2:80")
	if again := n.exchange(udp, unix.AF_INET, vip4); again != first {
		n.Errorf("answered by %s, before by %s", again, first)
	}
	n.want.Services.Frontends[state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: model.UDP, Port: 80}] = &state.Frontend{
		Backends: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.3:80")}, Serving: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.3:80")},
	}
	n.open()
	if got := n.exchange(udp, unix.AF_INET, vip4); got != "10.1.0.3:80" {
		n.Errorf("answered by %s; want the endpoint that came meanwhile", got)
	}
	n.must(unix.Send(connected, []byte("?\n"), 0))
	if got := n.receive(connected); !strings.HasPrefix(got, "10.1.0.3:80") {
		n.Errorf("answered by %q; want the endpoint that came meanwhile", got)
	}
	n.must(n.driver.Purge(t.Context()))
	n.unserved(n.client, "tcp", vip4)
}

// Where services are to be served in packets alone, nothing goes on at sockets but connections of
// TCP.
func TestWithdraw(t *testing.T) {
	n := newNode(t)
	n.host.In(sockets.Withdraw) // nothing is there
	n.open()
	n.serve(vip4, "10.1.0.2:80")
	s := n.socket(n.client, unix.AF_INET, unix.SOCK_DGRAM)
	n.must(unix.Connect(s, sockaddr(unix.AF_INET, vip4)))
	n.must(n.driver.Close())
	n.host.In(sockets.Withdraw)
	n.unserved(n.client, "tcp", vip4)
	// The packets of the socket go to the service's address now: to nobody here.
	limit := unix.NsecToTimeval(int64(silence))
	n.must(unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	n.must(unix.Send(s, []byte("?\n"), 0))
	if got := n.receive(s); got != "" {
		n.Errorf("answered %q; want the socket to be connected to the service", got)
	}
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// socket opens a socket that waits a moment for answers.
func (n *node) socket(in *world.Host, domain, kind int) (fd int) {
	n.Helper()
	in.In(func() (err error) {
		fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
		return err
	})
	n.Cleanup(func() { _ = unix.Close(fd) })
	limit := unix.NsecToTimeval(int64(2 * time.Second))
	n.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	return fd
}

// exchange sends a datagram, and returns who answers it; the answer has to come from where it was
// sent to.
func (n *node) exchange(s, domain int, to string) (server string) {
	n.Helper()
	n.must(unix.Sendto(s, []byte("?\n"), 0, sockaddr(domain, to)))
	b := make([]byte, 200)
	var from unix.Sockaddr
	c, err := again(func() (c int, err error) { c, from, err = unix.Recvfrom(s, b, 0); return c, err })
	n.must(err)
	if got := shown(from); got != to {
		n.Fatalf("the answer comes from %s; want %s", got, to)
	}
	server, _, _ = strings.Cut(string(b[:c]), " ")
	return server
}

// again calls f until no signal interrupts it.
func again(f func() (int, error)) (n int, err error) {
	for {
		if n, err = f(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (n *node) receive(s int) string {
	n.Helper()
	b := make([]byte, 200)
	c, err := again(func() (int, error) { return unix.Read(s, b) })
	if errors.Is(err, unix.EAGAIN) {
		return ""
	}
	n.must(err)
	return string(b[:c])
}

func sockaddr(domain int, at string) unix.Sockaddr {
	a := netip.MustParseAddrPort(at)
	if domain == unix.AF_INET {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func shown(s unix.Sockaddr) string {
	switch a := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String()
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)).String()
	}
	return ""
}

// Where it cannot be, it is off and says why, and the driver works.
func TestOff(t *testing.T) {
	for what, c := range map[string]struct {
		mount func() error
		want  string
	}{
		"no BPF file system": {func() error { return unix.Mount("tmpfs", bpf.Root, "tmpfs", 0, "") }, "no BPF file system is mounted"},
		"read-only":          {func() error { return unix.Mount("bpf", bpf.Root, "bpf", unix.MS_RDONLY, "") }, "read-only"},
	} {
		t.Run(what, func(t *testing.T) {
			host := world.NewHost(t, "node")
			host.In(func() error {
				runtime.LockOSThread() // it ends with its mounts
				err := unix.Unshare(unix.CLONE_NEWNS)
				if err == nil {
					err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
				}
				if err = errors.Join(err, c.mount()); err != nil {
					return err
				}
				d := sockets.Open(drivertest.Nothing(), slog.New(slog.DiscardHandler))
				if s := d.Status(); !strings.Contains(s.Off, c.want) {
					t.Errorf("%+v; want it to be off: %s", s, c.want)
				}
				plan, err := d.Adopt(t.Context(), state.New(), driver.Keep{})
				if err == nil {
					err = plan.Apply(t.Context())
				}
				return errors.Join(err, d.Purge(t.Context()), d.Close())
			})
		})
	}
}

// What an agent of another release has left under the same names is not taken for ours.
func TestOtherLayout(t *testing.T) {
	n := newNode(t)
	n.host.In(func() error {
		f, err := bpf.Own(sockets.Name)
		if err != nil {
			return err
		}
		if err := f.Make(); err != nil {
			return err
		}
		m, err := ebpf.NewMapWithOptions(&ebpf.MapSpec{Name: "frontends", Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1, Pinning: ebpf.PinByName}, ebpf.MapOptions{PinPath: f.Path()})
		if err != nil {
			return err
		}
		return m.Close()
	})
	n.open()
	n.serve(vip4, "10.1.0.2:80")
	n.answered(n.client, "tcp", vip4, "10.1.0.2:80")
}
