package takeover_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/world"
)

// serve answers each line and each datagram with the backend's name, and the client's address as it
// is seen.
func serve(t *testing.T, name string, ns *world.Host) {
	t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	err := ns.Do(func() (err error) {
		if tcp, err = net.Listen("tcp", ":8080"); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", ":8053")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = tcp.Close(), udp.Close() })
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					_, _ = fmt.Fprintln(conn, name, conn.RemoteAddr())
				}
			}()
		}
	}()
	go func() {
		for buf := make([]byte, 100); ; {
			_, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(fmt.Appendln(nil, name, from), from)
		}
	}()
}

// answerLimit is more than a machine with other work takes: what it delays is not lost. A packet of
// TCP that is lost is sent again, and counted; one of UDP is never answered.
const answerLimit = 10 * time.Second

// dial connects from a namespace.
func dial(ns *world.Host, network, to string, limit time.Duration) (conn net.Conn, err error) {
	err = ns.Do(func() error {
		conn, err = (&net.Dialer{Timeout: limit}).Dial(network, to)
		return err
	})
	return conn, err
}

// lost is how many packets that a connection has sent did not arrive: TCP has sent them again, and
// nobody has had them twice.
func lost(conn net.Conn) (n int) {
	tcp, is := conn.(*net.TCPConn)
	if !is {
		return 0
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	for end := time.Now().Add(time.Second); ; time.Sleep(10 * time.Millisecond) { // that one came twice is said a moment later
		_ = raw.Control(func(fd uintptr) { n = again(int(fd)) })
		if n == 0 || time.Now().After(end) {
			return n
		}
	}
}

// again is how many packets of a TCP socket were sent again for want of the first.
func again(fd int) int {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return max(0, int(info.Total_retrans)-int(info.Dsack_dups))
}

// refuse makes a connection that is to be refused, and returns how many of its attempts were not. A
// refusal by ICMP that comes while the system call is still at work counts for the kernel only when
// the connection is tried again, a second later (tcp_v4_err: sock_owned_by_user); the socket's
// queue of errors has it all the same. The second may be refused by TCP: kube-proxy and the agent
// each have their way.
func refuse(ns *world.Host, network, to string) (missed int, err error) {
	fd := -1
	d := net.Dialer{Timeout: answerLimit, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(s uintptr) {
			_ = unix.SetsockoptInt(int(s), unix.IPPROTO_IP, unix.IP_RECVERR, 1)
			fd, _ = unix.Dup(int(s))
		})
	}}
	err = ns.Do(func() error {
		conn, err := d.Dial(network, to)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	defer func() { _ = unix.Close(fd) }()
	info, noInfo := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if noInfo != nil {
		return 0, errors.Join(err, noInfo)
	}
	missed = 1 + again(fd) - int(info.Segs_in) // an answer of TCP, which is the last one
	for missed > 0 {
		if _, _, _, _, err := unix.Recvmsg(fd, nil, make([]byte, 512), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT); err != nil {
			break
		}
		missed--
	}
	return missed, err
}

// ask sends a line and returns the name of who answers, with the client's address as seen there.
func ask(conn net.Conn, limit time.Duration) (name, client string, err error) {
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", "", err
	}
	if _, err := conn.Write([]byte("who\n")); err != nil {
		return "", "", err
	}
	buf := make([]byte, 100)
	n, err := conn.Read(buf)
	if err != nil {
		return "", "", err
	}
	name, client, _ = strings.Cut(strings.TrimSpace(string(buf[:n])), " ")
	return name, client, nil
}

// traffic runs until it is stopped, and counts.
type traffic struct {
	t       *testing.T
	quit    chan struct{}
	wg      sync.WaitGroup
	mu      sync.Mutex
	count   map[string]int // requests by what is done
	failed  []string
	stopped sync.Once
}

// way is how a service is asked for.
type way struct {
	what, network, to string
	from              *world.Host
}

func (c *cluster) ways() []way {
	return []way{
		{"pod to cluster IP", "tcp4", "10.96.1.1:80", c.pod},
		{"node to cluster IP", "tcp4", "10.96.1.1:80", c.node},
		{"outside to node port", "tcp4", nodeAddr.String() + ":30080", c.outside},
		{"outside to external IP", "tcp4", "203.0.113.10:80", c.outside},
		{"outside to load balancer", "tcp4", "203.0.113.20:80", c.outside},
		{"pod to load balancer", "tcp4", "203.0.113.20:80", c.pod},
		{"backend to its own cluster IP", "tcp4", "10.96.1.1:80", c.backends["one"]},
		{"pod to cluster IP, UDP", "udp4", "10.96.1.1:53", c.pod},
		{"outside to node port, UDP", "udp4", nodeAddr.String() + ":30053", c.outside},
		{"pod to cluster IP, IPv6", "tcp6", "[fd00:10:96::101]:80", c.pod},
		{"backend to its own cluster IP, IPv6", "tcp6", "[fd00:10:96::101]:80", c.backends["one"]},
		{"outside to node port, IPv6", "tcp6", netip.AddrPortFrom(addr6(nodeAddr), 30086).String(), c.outside},
		{"pod to cluster IP, IPv6, UDP", "udp6", "[fd00:10:96::101]:53", c.pod},
		{"outside to node port, IPv6, UDP", "udp6", netip.AddrPortFrom(addr6(nodeAddr), 30056).String(), c.outside},
	}
}

// startTraffic holds a connection each way and makes new ones all the time.
func startTraffic(c *cluster) *traffic {
	tr := &traffic{t: c.t, quit: make(chan struct{}), count: map[string]int{}}
	c.t.Cleanup(func() { tr.stop() })
	for _, w := range c.ways() {
		tr.hold(w)
		tr.renew(w)
	}
	tr.refused(way{"pod to a service without endpoints", "tcp4", "10.96.1.4:80", c.pod})
	tr.refused(way{"outside to a node port without endpoints", "tcp4", nodeAddr.String() + ":30084", c.outside})
	return tr
}

func (tr *traffic) stop() {
	tr.stopped.Do(func() { close(tr.quit) })
	tr.wg.Wait()
}

func (tr *traffic) fail(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.failed = append(tr.failed, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// every calls f again and again, with a pause.
func (tr *traffic) every(what string, pause time.Duration, f func()) {
	tr.wg.Go(func() {
		for n := 0; ; n++ {
			f()
			select {
			case <-tr.quit:
				tr.mu.Lock()
				tr.count[what] += n + 1
				tr.mu.Unlock()
				return
			case <-time.After(pause):
			}
		}
	})
}

// hold keeps one connection, which has to stay where it is.
func (tr *traffic) hold(w way) {
	tr.t.Helper()
	conn, err := dial(w.from, w.network, w.to, answerLimit)
	if err != nil {
		tr.t.Fatalf("%s: %v", w.what, err)
	}
	tr.t.Cleanup(func() { _ = conn.Close() })
	first, as, err := ask(conn, answerLimit)
	if err != nil {
		tr.t.Fatalf("%s: %v", w.what, err)
	}
	missing := 0
	tr.every("held: "+w.what, 50*time.Millisecond, func() {
		name, client, err := ask(conn, answerLimit)
		if err != nil || name != first || client != as {
			tr.fail("held, %s: was %s as %s, now %s as %s: %v", w.what, first, as, name, client, err)
		}
		if n := lost(conn); n > missing {
			tr.fail("held, %s: %d packets were lost", w.what, n-missing)
			missing = n
		}
	})
}

// renew makes new connections.
func (tr *traffic) renew(w way) {
	tr.every("new: "+w.what, 20*time.Millisecond, func() {
		begun := time.Now()
		conn, err := dial(w.from, w.network, w.to, answerLimit)
		connected := time.Now()
		if err == nil {
			_, _, err = ask(conn, answerLimit)
			answered := time.Now()
			if n := lost(conn); n > 0 {
				tr.fail("new, %s from %s: %d packets were lost; begun %s, connected after %s, answered after %s more", w.what, conn.LocalAddr(), n,
					begun.Format("05.000"), connected.Sub(begun), answered.Sub(connected))
			}
			_ = conn.Close()
		}
		if err != nil {
			tr.fail("new, %s: %v after %s", w.what, err, time.Since(begun))
		}
	})
}

// refused makes connections that are to be refused at once.
func (tr *traffic) refused(w way) {
	tr.every("refused: "+w.what, 20*time.Millisecond, func() {
		missed, err := refuse(w.from, w.network, w.to)
		if !errors.Is(err, syscall.ECONNREFUSED) || missed > 0 {
			tr.fail("refused, %s: %v, and %d attempts were not refused", w.what, err, missed)
		}
	})
}

// check stops the traffic and fails the test for each request that did not do as it should.
func (tr *traffic) check() {
	tr.t.Helper()
	tr.stop()
	total := 0
	for what, n := range tr.count {
		total += n
		if n < 20 {
			tr.t.Errorf("%s: only %d requests", what, n)
		}
	}
	tr.t.Logf("%d requests, %d failed", total, len(tr.failed))
	for i, f := range tr.failed {
		if i == 20 {
			break
		}
		tr.t.Error(f)
	}
}

// sticky are clients of the service with session affinity, each with an address of its own.
type sticky struct {
	*cluster
	clients []net.IP
}

// stickyClients are as many as it takes that they will not be at the same backends again by chance.
func (c *cluster) stickyClients() sticky {
	c.t.Helper()
	s := sticky{cluster: c}
	addr := podAddrs["client"]
	for range 16 {
		addr = addr.Next()
		c.pod.Address("eth0", addr.String()+"/24")
		s.clients = append(s.clients, addr.AsSlice())
	}
	return s
}

// where returns the backend of each client.
func (s sticky) where() []string {
	s.t.Helper()
	var names []string
	for _, ip := range s.clients {
		var conn net.Conn
		err := s.pod.Do(func() (err error) {
			d := net.Dialer{Timeout: answerLimit, LocalAddr: &net.TCPAddr{IP: ip}}
			conn, err = d.Dial("tcp4", "10.96.1.3:80")
			return err
		})
		s.must(err)
		name, _, err := ask(conn, answerLimit)
		_ = conn.Close()
		s.must(err)
		names = append(names, name)
	}
	return names
}

// check sees that all are where they were.
func (s sticky) check(at []string) {
	s.t.Helper()
	if now := s.where(); !slices.Equal(now, at) {
		s.t.Errorf("clients with session affinity were at %v and are at %v", at, now)
	}
}
