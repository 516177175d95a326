package userspace_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/userspace"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// patience is how long a test waits for what has to come.
const patience = time.Minute

var (
	vip        = netip.MustParseAddrPort("10.96.0.1:80")
	clientAddr = netip.MustParseAddr("10.1.0.2")
	serverAddr = netip.MustParseAddr("10.2.0.2")
	backend    = netip.AddrPortFrom(serverAddr, 8080)
)

// bed is a client, a node with the driver, and a server, in a row.
type bed struct {
	t                    testing.TB
	client, node, server *netns.NS
	driver               *userspace.Driver
	state                *state.State
}

// newBed makes the namespaces, and opens the driver there.
func newBed(t testing.TB, o userspace.Options) *bed {
	t.Helper()
	b := &bed{t: t, state: state.New()}
	for name, ns := range map[string]**netns.NS{"c": &b.client, "n": &b.node, "s": &b.server} {
		*ns = world.NewHost(t, name).NS
	}
	b.join(b.client, "10.1.0.2/24", "client", "10.1.0.1/24")
	b.join(b.server, "10.2.0.2/24", "server", "10.2.0.1/24")
	must(t, b.node.Sysctl("net/ipv4/ip_forward", "1"))
	must(t, b.node.Do(func() (err error) {
		b.driver, err = userspace.Open(o)
		return err
	}))
	t.Cleanup(func() {
		must(t, b.driver.Purge(context.Background()))
		must(t, b.driver.Close())
	})
	b.state.Services.ClusterIPs[vip.Addr()] = struct{}{}
	return b
}

// join attaches a host to the node, which is its router.
func (b *bed) join(host *netns.NS, addr, name, router string) {
	must(b.t, netns.Veth(host, "eth0", b.node, name))
	for _, end := range []struct {
		ns         *netns.NS
		name, addr string
	}{{host, "eth0", addr}, {b.node, name, router}} {
		l, err := end.ns.LinkByName(end.name)
		must(b.t, err)
		a, err := netlink.ParseAddr(end.addr)
		must(b.t, err)
		must(b.t, end.ns.AddrAdd(l, a))
	}
	must(b.t, host.RouteAdd(&netlink.Route{Gw: net.IP(netip.MustParsePrefix(router).Addr().AsSlice())}))
}

// serve has the frontend be served by the backends.
func (b *bed) serve(proto model.Protocol, at netip.AddrPort, backends ...netip.AddrPort) {
	b.t.Helper()
	b.state.Services.Frontends[state.FrontendKey{Addr: at.Addr(), Protocol: proto, Port: at.Port()}] = &state.Frontend{
		Service: model.Name{Namespace: "shop", Name: "web"}, Backends: backends, Alive: backends, Serving: backends, Reject: true,
	}
	b.adopt()
}

func (b *bed) adopt() {
	b.t.Helper()
	p, err := b.driver.Adopt(context.Background(), b.state.Clone(), driver.Keep{})
	must(b.t, err)
	must(b.t, p.Apply(context.Background()))
}

// listen has the server at the address handle connections until the test ends.
func (b *bed) listen(ns *netns.NS, at netip.AddrPort, handle func(*net.TCPConn)) {
	b.t.Helper()
	must(b.t, ns.Do(func() error {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		var running sync.WaitGroup
		b.t.Cleanup(func() { _ = l.Close(); running.Wait() })
		running.Go(func() {
			for {
				c, err := l.AcceptTCP()
				if err != nil {
					return
				}
				running.Go(func() {
					defer c.Close()
					_ = c.SetDeadline(time.Now().Add(5 * patience))
					handle(c)
				})
			}
		})
		return nil
	}))
}

// datagrams returns the address of a server that sends datagrams back.
func (b *bed) datagrams() netip.AddrPort {
	b.t.Helper()
	must(b.t, b.server.Do(func() error {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(backend))
		if err != nil {
			return err
		}
		b.t.Cleanup(func() { _ = c.Close() })
		go func() {
			buffer := make([]byte, 1500)
			for {
				n, from, err := c.ReadFromUDPAddrPort(buffer)
				if err != nil {
					return
				}
				_, _ = c.WriteToUDPAddrPort(buffer[:n], from)
			}
		}()
		return nil
	}))
	return backend
}

// dial connects from the client.
func (b *bed) dial(to netip.AddrPort) *net.TCPConn {
	b.t.Helper()
	var c net.Conn
	must(b.t, b.client.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", to.String(), patience)
		return err
	}))
	b.t.Cleanup(func() { _ = c.Close() })
	must(b.t, c.SetDeadline(time.Now().Add(5*patience)))
	return c.(*net.TCPConn)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// echo has no pipe while it waits, as io.Copy from one socket to another would.
func echo(c *net.TCPConn) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{c}, make([]byte, 4096))
}

// exchange sends something and reads it back.
func exchange(c net.Conn, text string) error {
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("got %q, sent %q", got, text)
	}
	return nil
}

// The end of what one side sends reaches the other, which may go on.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{})
	b.listen(b.server, backend, func(c *net.TCPConn) {
		all, _ := io.ReadAll(c)
		_, _ = fmt.Fprintf(c, "%d bytes", len(all))
	})
	b.serve(model.TCP, vip, backend)
	c := b.dial(vip)
	_, err := c.Write(make([]byte, 100_000))
	must(t, err)
	must(t, c.CloseWrite())
	got, err := io.ReadAll(c)
	must(t, err)
	if string(got) != "100000 bytes" {
		t.Errorf("got %q", got)
	}
}

// A reset by either side is one to the other.
func TestResets(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{})
	seen := make(chan error, 1)
	b.listen(b.server, backend, func(c *net.TCPConn) {
		first := make([]byte, 1)
		_, _ = io.ReadFull(c, first)
		if first[0] == 's' {
			_ = c.SetLinger(0)
			return
		}
		_, _ = c.Write(first)
		_, err := c.Read(first)
		seen <- err
	})
	b.serve(model.TCP, vip, backend)
	c := b.dial(vip)
	_, err := io.WriteString(c, "s")
	must(t, err)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client of a server that resets: %v", err)
	}
	c = b.dial(vip)
	must(t, exchange(c, "c"))
	must(t, c.SetLinger(0))
	must(t, c.Close())
	if err := <-seen; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server of a client that resets: %v", err)
	}
}

// Much in both directions at once arrives as it was sent, over as many connections as have pipes,
// and over more.
func TestBulk(t *testing.T) {
	b := newBed(t, userspace.Options{})
	b.listen(b.server, backend, echo)
	b.serve(model.TCP, vip, backend)
	transfer := func(size int64) error {
		c := b.dial(vip)
		defer c.Close()
		sent, got := sha256.New(), sha256.New()
		failed := make(chan error, 1)
		go func() {
			block := bytes.Repeat([]byte("0123456789abcdef0"), 4096)
			for n := int64(0); n < size; n += int64(len(block)) {
				block[0]++
				_, _ = sent.Write(block)
				if _, err := c.Write(block); err != nil {
					failed <- err
					return
				}
			}
			failed <- c.CloseWrite()
		}()
		_, err := io.Copy(got, c)
		if err = errors.Join(err, <-failed); err == nil && !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
			err = errors.New("what came back is not what was sent")
		}
		return err
	}
	must(t, transfer(50<<20))
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			if err := transfer(256 << 10); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// Clients that do not read hold up nobody else, more of them than there are pipes, and get
// everything once they read.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	const size, slow = 2 << 20, 150
	b := newBed(t, userspace.Options{})
	b.listen(b.server, backend, func(c *net.TCPConn) { _, _ = c.Write(make([]byte, size)) })
	other := netip.AddrPortFrom(serverAddr, 8081)
	b.listen(b.server, other, echo)
	b.serve(model.TCP, vip, backend)
	quick := netip.AddrPortFrom(vip.Addr(), 81)
	b.serve(model.TCP, quick, other)
	var slowOnes []*net.TCPConn
	for range slow {
		slowOnes = append(slowOnes, b.dial(vip))
	}
	c := b.dial(quick)
	for range 100 {
		must(t, exchange(c, "quick"))
	}
	for _, c := range slowOnes {
		if n, err := io.Copy(io.Discard, c); n != size || err != nil {
			t.Fatalf("%d of %d bytes: %v", n, size, err)
		}
	}
}

// Idle connections have two sockets and two goroutines each, and nothing is left of them, nor of
// the driver, once they end.
func TestIdleAndLeaks(t *testing.T) {
	const many = 1000
	b := newBed(t, userspace.Options{})
	b.listen(b.server, backend, echo)
	b.serve(model.TCP, vip, backend)
	b.serve(model.UDP, vip, backend)
	must(t, exchange(b.dial(vip), "first"))
	goroutines, files, memory := runtime.NumGoroutine(), openFiles(t), memoryInUse()
	var all []*net.TCPConn
	for range many {
		all = append(all, b.dial(vip))
	}
	for _, c := range all {
		must(t, exchange(c, "hello"))
	}
	// The client and the server are in this process, too: a socket each, and the server a
	// goroutine.
	eventually(t, "two sockets and two goroutines for each connection", func() bool {
		return openFiles(t)-files <= 4*many+300 && runtime.NumGoroutine()-goroutines <= 3*many+10
	})
	each := (memoryInUse() - memory) / many
	t.Logf("each of %d idle connections takes %d bytes, those of its client and its server in this process among them", many, each)
	if each > 64<<10 {
		t.Errorf("%d bytes", each)
	}
	for _, c := range all {
		must(t, c.Close())
	}
	eventually(t, "nothing is left", func() bool {
		return openFiles(t)-files <= 300 && runtime.NumGoroutine()-goroutines <= 10
	})
	must(t, b.driver.Purge(context.Background()))
	must(t, b.driver.Close())
	eventually(t, "nothing of the driver is left", func() bool { return openFiles(t) < files && runtime.NumGoroutine() < goroutines })
}

func openFiles(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(all)
}

// memoryInUse is the heap and the goroutines' stacks.
func memoryInUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// try asks by a connection of its own, which may be reset before dialling has returned.
func (b *bed) try(at netip.AddrPort) error {
	return b.client.Do(func() error {
		c, err := net.DialTimeout("tcp", at.String(), patience)
		if err != nil {
			return err
		}
		return errors.Join(c.SetDeadline(time.Now().Add(patience)), exchange(c.(*net.TCPConn), "hello"), c.Close())
	})
}

// What is beyond the limit is reset, until there is room.
func TestLimit(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{Connections: 2})
	b.listen(b.server, backend, echo)
	b.serve(model.TCP, vip, backend)
	first, second := b.dial(vip), b.dial(vip)
	must(t, errors.Join(exchange(first, "a"), exchange(second, "b")))
	another := func() error { return b.try(vip) }
	if another() == nil {
		t.Error("a third connection is served")
	}
	must(t, exchange(first, "a"))
	must(t, first.Close())
	eventually(t, "room for another", func() bool { return another() == nil })
}

// A backend that refuses is not the end of a connection while there are others.
func TestAnotherBackendIsTried(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{})
	b.listen(b.server, backend, echo)
	dead := netip.AddrPortFrom(serverAddr, 9)
	b.serve(model.TCP, vip, dead, backend)
	for range 20 {
		must(t, exchange(b.dial(vip), "hello"))
	}
	b.serve(model.TCP, vip, dead)
	if err := b.try(vip); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("of a service without a backend that answers: %v", err)
	}
}

// Clients stay where another program has sent them, and are sent elsewhere if that is no backend.
func TestRemembered(t *testing.T) {
	t.Parallel()
	other := netip.AddrPortFrom(serverAddr, 8081)
	asked := 0
	b := newBed(t, userspace.Options{Options: driver.Options{Remembered: func(context.Context) ([]state.Remembered, error) {
		asked++
		to := func(to netip.AddrPort) state.Remembered {
			return state.Remembered{Service: model.Name{Namespace: "shop", Name: "web"}, Protocol: model.TCP, Client: clientAddr, Backend: to}
		}
		return []state.Remembered{to(other), to(netip.AddrPortFrom(serverAddr, 7))}, errors.New("and there may be more")
	}}})
	for _, at := range []netip.AddrPort{backend, other} {
		b.listen(b.server, at, func(c *net.TCPConn) { _, _ = fmt.Fprint(c, at) })
	}
	both := []netip.AddrPort{backend, other}
	b.state.Services.Frontends[keyOf(vip)] = &state.Frontend{
		Service: model.Name{Namespace: "shop", Name: "web"}, Backends: both, Alive: both, Serving: both, Affinity: time.Hour}
	b.adopt()
	b.adopt()
	for range 10 {
		if got, err := io.ReadAll(b.dial(vip)); err != nil || string(got) != other.String() {
			t.Fatalf("answered by %s, %v", got, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// A backend that is a frontend, even the same one, is not served by the proxy again.
func TestBackendIsItsFrontend(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{Connections: 10})
	b.serve(model.TCP, vip, vip)
	must(t, b.client.Do(func() error {
		c, err := net.DialTimeout("tcp", vip.String(), patience)
		if err != nil {
			return nil // it was reset at once
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		if err := exchange(c, "hello"); err == nil {
			t.Error("answered")
		}
		return nil
	}))
}

// The backend reads the client's address, and the one that was asked for, before all else.
func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{ClientAddress: userspace.ProxyProtocol})
	headers := make(chan []byte, 1)
	b.listen(b.server, backend, func(c *net.TCPConn) {
		h := make([]byte, 28)
		_, _ = io.ReadFull(c, h)
		headers <- h
		echo(c)
	})
	b.serve(model.TCP, vip, backend)
	c := b.dial(vip)
	must(t, exchange(c, "hello"))
	want := append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"), clientAddr.AsSlice()...)
	want = append(want, vip.Addr().AsSlice()...)
	want = binary.BigEndian.AppendUint16(want, c.LocalAddr().(*net.TCPAddr).AddrPort().Port())
	want = binary.BigEndian.AppendUint16(want, vip.Port())
	if got := <-headers; !bytes.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Routers that want shorter packets of the proxy are heard.
func TestPathMTU(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{})
	b.listen(b.server, backend, func(c *net.TCPConn) { _, _ = c.Write(make([]byte, 1<<20)) })
	b.serve(model.TCP, vip, backend)
	// Another client, behind a router with a link for packets of 1,000 bytes. Its own interface
	// says nothing of that.
	far := world.NewHost(t, "f").NS
	b.join(far, "10.3.0.2/24", "far", "10.3.0.1/24") // of b.node: moved to the client, which is the router
	l, err := b.node.LinkByName("far")
	must(t, err)
	must(t, b.node.LinkSetNsFd(l, b.client.Fd()))
	l, err = b.client.LinkByName("far")
	must(t, err)
	a, err := netlink.ParseAddr("10.3.0.1/24")
	must(t, err)
	must(t, errors.Join(b.client.AddrAdd(l, a), b.client.LinkSetUp(l), b.client.LinkSetMTU(l, 1000), b.client.Sysctl("net/ipv4/ip_forward", "1")))
	_, dst, err := net.ParseCIDR("10.3.0.0/24")
	must(t, err)
	must(t, b.node.RouteAdd(&netlink.Route{Dst: dst, Gw: clientAddr.AsSlice()}))
	must(t, far.Do(func() error {
		c, err := net.DialTimeout("tcp", vip.String(), patience)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		n, err := io.Copy(io.Discard, c)
		if n != 1<<20 && err == nil {
			err = fmt.Errorf("%d bytes", n)
		}
		return err
	}))
}

// The table goes with the driver, and connections with it.
func TestClose(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{})
	b.listen(b.server, backend, echo)
	b.serve(model.TCP, vip, backend)
	c := b.dial(vip)
	must(t, exchange(c, "hello"))
	must(t, b.driver.Close())
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection of a driver that was closed: %v", err)
	}
	must(t, b.node.Do(func() (err error) {
		b.driver, err = userspace.Open(userspace.Options{})
		return err
	}))
	b.adopt()
	must(t, exchange(b.dial(vip), "hello"))
}

// A datagram that went through the proxy is answered, though another program serves by then and the
// proxy is about to end.
func TestDrainAwaitsAnswers(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{})
	draining := make(chan struct{})
	var server *net.UDPConn
	must(t, b.server.Do(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(backend))
		return err
	}))
	defer server.Close()
	b.serve(model.UDP, vip, backend)
	var c net.Conn
	must(t, b.client.Do(func() (err error) {
		c, err = net.Dial("udp", vip.String())
		return err
	}))
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := io.WriteString(c, "ask")
	must(t, err)
	buffer := make([]byte, 16)
	_, from, err := server.ReadFromUDPAddrPort(buffer)
	must(t, err)
	answered := make(chan error, 1)
	go func() {
		<-draining
		time.Sleep(300 * time.Millisecond) // as a slow server does
		_, err := server.WriteToUDPAddrPort(buffer[:3], from)
		answered <- err
	}()
	must(t, b.driver.Drain(t.Context(), sync.OnceValue(func() error { close(draining); return nil })))
	must(t, b.driver.Close())
	must(t, <-answered)
	if _, err := c.Read(buffer); err != nil {
		t.Errorf("a datagram of before is not answered: %v", err)
	}
	must(t, b.node.Do(func() (err error) {
		b.driver, err = userspace.Open(userspace.Options{})
		return err
	}))
}

// TestPlanSaysEachOnce has a plan name what it adds for each family.
func TestPlanSaysEachOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{})
	p, err := b.driver.Adopt(t.Context(), b.state, driver.Keep{})
	must(t, err)
	lines := strings.Split(strings.TrimSpace(p.String()), "\n")
	slices.Sort(lines)
	if len(slices.Compact(lines)) != p.Len() {
		t.Errorf("of %d changes:\n%s", p.Len(), p)
	}
}
