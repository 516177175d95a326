package load

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A request that began late, as its thread was held up, has its whole time.
func TestBegunLate(t *testing.T) {
	listen, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listen.Close() }()
	file, err := listen.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	l, err := newLoop(Config{
		Sources: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Target: netip.MustParseAddrPort(listen.Addr().String()), Timeout: time.Minute,
	}, int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	l.start(time.Now().Add(-time.Hour))
	l.expire(t.Context())
	if l.res.Failed != 0 || l.active != 1 {
		t.Errorf("%d failed %v, %d are under way", l.res.Failed, l.res.Reasons, l.active)
	}
}

// A connection that somebody has given up before it is accepted is not taken for the client's own.
func TestOtherEnd(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		t.Cleanup(func() { unix.Close(fd) })
		err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 2))
	}
	if err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(at.(*unix.SockaddrInet4).Port))
	other, err := net.Dial("tcp4", to.String())
	if err == nil {
		err = errors.Join(other.(*net.TCPConn).SetLinger(0), other.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	client, server, err := connect(to, fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	defer unix.Close(server)
	got := make([]byte, 8)
	if _, err := unix.Write(client, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := readable(server); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(server, got); err != nil || string(got[:n]) != "first" {
		t.Errorf("the server has %q, %v", got[:n], err)
	}
}
