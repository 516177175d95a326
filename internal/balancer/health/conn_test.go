package health

import (
	"bufio"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/world"
)

func TestTCP(t *testing.T) {
	b := run(t, Options{})
	_, at := listen(t, "tcp4", "127.0.0.1:0")
	b.want(Check{Type: TCP}, at, true, "connected")
	_, at = listen(t, "tcp6", "[::1]:0")
	b.want(Check{Type: TCP}, at, true, "connected")
	b.want(Check{Type: TCP}, closed(t), false, "connection refused")
	b.want(Check{Type: TCP}, netip.AddrPortFrom(at.Addr(), 0), false, "it has no port: set the check's")
	b.want(Check{Type: TCP, Port: at.Port()}, netip.AddrPortFrom(at.Addr(), 1), true, "connected")
}

// A plain check is no connection to the backend's program.
func TestTCPIsNotAccepted(t *testing.T) {
	t.Parallel()
	l, at := listen(t, "tcp4", "127.0.0.1:0")
	b := run(t, Options{})
	for range 20 {
		b.want(Check{Type: TCP, Interval: time.Hour, Rise: 1}, at, true, "connected")
		b.Set(map[Key]*Target{{"farm", t.Name()}: nil})
	}
	var accepted atomic.Int32
	first := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			first <- c
		}
	}()
	c, err := net.Dial("tcp4", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server := <-first // connections are accepted in the order in which they came
	defer server.Close()
	if server.RemoteAddr().String() != c.LocalAddr().String() || accepted.Load() != 1 {
		t.Error("the backend accepted a check")
	}
}

// Each check has a connection of its own, though the socket may be the last one's. Where the
// backend ends it with the answer, neither side keeps a TIME-WAIT entry.
func TestHTTPIsAConnection(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	const checks = 20
	clients := map[string]bool{}
	var l net.Listener
	ns.In(func() (err error) {
		l, err = net.Listen("tcp4", "198.51.100.1:0")
		return err
	})
	defer l.Close()
	served := make(chan bool)
	go func() {
		defer close(served)
		for range checks {
			c, err := l.Accept()
			if err != nil {
				return
			}
			clients[c.RemoteAddr().String()] = true
			_, _ = http.ReadRequest(bufio.NewReader(c))
			raw, _ := c.(*net.TCPConn).SyscallConn()
			_ = raw.Control(func(fd uintptr) { // the answer goes with the end, in one packet
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1)
			})
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
			_ = c.Close()
		}
	}()
	b := runIn(t, Options{}, ns.Do)
	at := netip.MustParseAddrPort(l.Addr().String())
	for range checks {
		b.want(Check{Type: HTTP, Interval: time.Hour, Timeout: time.Hour}, at, true, "status 200")
		b.Set(map[Key]*Target{{"farm", t.Name()}: nil})
	}
	<-served
	if len(clients) != checks {
		t.Errorf("%d connections, want %d", len(clients), checks)
	}
	if waiting := ns.Exec("ss", "-Htn", "state", "time-wait"); waiting != "" {
		t.Errorf("still in TIME-WAIT:\n%s", waiting)
	}
}

// A check of a link-local address binds its socket to an interface: no other check has it.
func TestLinkLocal(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	var l net.Listener
	ns.In(func() (err error) {
		l, err = net.Listen("tcp6", "[::]:0")
		return err
	})
	defer l.Close()
	port := netip.MustParseAddrPort(l.Addr().String()).Port()
	ns.Address("v1", "fe80::1/64")
	ns.Address("v2", "fe80::2/64", "2001:db8::2/64")
	b := runIn(t, Options{}, ns.Do)
	for _, addr := range []string{"::1", "fe80::2%v2", "2001:db8::2", "fe80::1%v1", "::1"} {
		c := Check{Type: TCP, Interval: time.Hour, Timeout: time.Hour}
		if r := b.check(c, netip.AddrPortFrom(netip.MustParseAddr(addr), port)); !r.Up {
			t.Errorf("%s: %s", addr, r.Why)
		}
	}
}

func TestTCPConversation(t *testing.T) {
	t.Parallel()
	serve := func(answers ...string) netip.AddrPort {
		l, at := listen(t, "tcp4", "127.0.0.1:0")
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				question := make([]byte, 5)
				_, _ = c.Read(question)
				for _, a := range answers {
					_, _ = c.Write([]byte(strings.ReplaceAll(a, "?", string(question))))
				}
				if len(answers) > 0 {
					_ = c.Close()
				}
			}
		}()
		return at
	}
	b := run(t, Options{})
	ask := Check{Type: TCP, Send: "PING\n", Expect: "PONG"}
	b.want(ask, serve("+PO", "NG\r\n"), true, "answered")
	b.want(ask, serve("-ERR\r\n"), false, `the answer lacks "PONG"`)
	b.want(ask, serve(""), false, "connection closed without an answer")
	b.want(quick(ask), serve(), false, "no answer within 100ms")
	b.want(Check{Type: TCP, Send: "x"}, serve(), true, "connected")
	b.want(ask, serve(strings.Repeat("x", maxAnswer-4)+"PONG"), true, "answered")
	b.want(ask, serve(strings.Repeat("x", 2*maxAnswer)+"PONG"), false, `the answer lacks "PONG"`)
}

func TestUDP(t *testing.T) {
	serve := func(answer string) netip.AddrPort {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			buffer := make([]byte, 100)
			for {
				n, from, err := c.ReadFrom(buffer)
				if err != nil {
					return
				}
				if answer != "" {
					_, _ = c.WriteTo([]byte(answer+string(buffer[:n])), from)
				}
			}
		}()
		return netip.MustParseAddrPort(c.LocalAddr().String())
	}
	b := run(t, Options{})
	b.want(Check{Type: UDP, Send: "who"}, serve("me "), true, "answered")
	b.want(Check{Type: UDP}, serve("me"), true, "answered")
	b.want(Check{Type: UDP, Send: "who", Expect: "me who"}, serve("me "), true, "answered")
	b.want(Check{Type: UDP, Send: "who", Expect: "you"}, serve("me "), false, `the answer lacks "you"`)
	b.want(quick(Check{Type: UDP, Send: "who"}), serve(""), false, "no answer within 100ms")
	b.want(Check{Type: UDP, Send: "who"}, closed(t), false, "connection refused")
}

func TestPing(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]string{"raw socket": "1 0", "ping socket": "0 0"} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			if err := ns.Sysctl("net/ipv4/ping_group_range", group); err != nil {
				t.Fatal(err)
			}
			b := runIn(t, Options{}, ns.Do)
			ping := Check{Type: ICMP}
			b.want(ping, netip.MustParseAddrPort("127.0.0.1:0"), true, "echo reply")
			b.want(ping, netip.MustParseAddrPort("[::1]:0"), true, "echo reply")
			b.want(ping, netip.MustParseAddrPort("192.0.2.1:0"), false, "network is unreachable")
			b.want(ping, netip.MustParseAddrPort("198.51.100.2:0"), false, "no route to host") // it has no neighbour
			b.want(ping, netip.MustParseAddrPort("198.51.100.1:0"), true, "echo reply")
			b.want(quick(ping), netip.MustParseAddrPort("198.51.100.3:0"), false, "no answer within 100ms")
		})
	}
}

// What no kernel answers, or only this one.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	b := runIn(t, Options{}, ns.Do)
	for _, check := range []Check{{Type: TCP}, {Type: UDP, Send: "x"}} {
		check.Timeout, check.Interval = 30*time.Second, 30*time.Second
		b.want(check, netip.MustParseAddrPort("192.0.2.1:80"), false, "network is unreachable")
		b.want(check, netip.MustParseAddrPort("198.51.100.2:80"), false, "no route to host")
		b.want(quick(check), netip.MustParseAddrPort("198.51.100.3:80"), false, "no answer within 100ms")
	}
}

// namespace makes one with the address 198.51.100.1/24 on a device where nobody else is. What is
// sent to 198.51.100.3 gets lost, since its neighbour entry has a hardware address that nobody has.
func namespace(t *testing.T) *world.Host {
	t.Helper()
	h := world.NewHost(t, "health")
	h.Join("v1", h, "v2")
	h.Address("v1", "198.51.100.1/24")
	h.Set("net.ipv4.neigh.v1.retrans_time_ms", "100") // the kernel gives up after three times this
	h.In(func() error {
		return h.NeighAdd(&netlink.Neigh{
			LinkIndex: h.Device("v1").Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: net.IPv4(198, 51, 100, 3), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 3},
		})
	})
	return h
}
