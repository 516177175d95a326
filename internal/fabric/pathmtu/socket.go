package pathmtu

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/ping"
)

// The ports that probes go to, in turns, so that a late answer is not taken for another's. They are
// traceroute's.
const (
	firstPort = 33434
	ports     = 64
)

var errNoFamily = unix.EAFNOSUPPORT

// socket sends probes of one family, and hears what becomes of them.
type socket struct {
	fd     int
	header int // bytes of a packet before what is sent
	port   int
}

func dial(is4 bool) (*socket, error) {
	fd, err := ping.Listen(is4, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	s := &socket{fd: fd, header: 28}
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if !is4 {
		s.header, level, option, value = 48, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *socket) close() { _ = unix.Close(s.fd) }

// probe sends a packet of a size and waits for what becomes of it. It has arrived if the host that
// it is for says anything about it.
func (s *socket) probe(to netip.Addr, size int, until time.Time) (arrived bool, said int) {
	s.port = (s.port + 1) % ports
	at := netip.AddrPortFrom(to, uint16(firstPort+s.port))
	dest, _ := ping.Sockaddr(at)
	for range 2 { // the first may get the error of an earlier one
		err := unix.Sendto(s.fd, make([]byte, size-s.header), 0, dest)
		if err == nil || errors.Is(err, unix.EMSGSIZE) {
			break
		}
	}
	for left := time.Until(until); left > 0; left = time.Until(until) {
		poll := []unix.PollFd{{Fd: int32(s.fd)}}
		if n, err := unix.Poll(poll, int(left.Milliseconds())+1); n == 0 || err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
		for r, ok := ping.NextRefusal(s.fd, nil); ok; r, ok = ping.NextRefusal(s.fd, nil) {
			switch {
			case r.To != at:
			case r.Err == unix.EMSGSIZE:
				return false, r.Size
			default:
				return r.By == to, 0
			}
		}
	}
	return false, 0
}
