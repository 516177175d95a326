package load

import (
	"net"
	"net/netip"
	"testing"
	"time"
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
