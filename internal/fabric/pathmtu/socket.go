package pathmtu

import (
	"encoding/binary"
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
	is4    bool
	header int // bytes of a packet before what is sent
	port   int
}

func dial(is4 bool) (*socket, error) {
	s := &socket{is4: is4, header: 28}
	family, level := unix.AF_INET, unix.IPPROTO_IP
	options := map[int]int{unix.IP_MTU_DISCOVER: unix.IP_PMTUDISC_PROBE, unix.IP_RECVERR: 1}
	if !is4 {
		s.header, family, level = 48, unix.AF_INET6, unix.IPPROTO_IPV6
		options = map[int]int{unix.IPV6_MTU_DISCOVER: unix.IPV6_PMTUDISC_PROBE, unix.IPV6_RECVERR: 1, unix.IPV6_V6ONLY: 1}
	}
	var err error
	if s.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, err
	}
	for option, value := range options {
		if err := unix.SetsockoptInt(s.fd, level, option, value); err != nil {
			s.close()
			return nil, err
		}
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
		for {
			about, by, errno, info, ok := s.next()
			if !ok {
				break
			}
			switch {
			case about != at:
			case errno == unix.EMSGSIZE:
				return false, info
			case by == to:
				return true, 0
			default:
				return false, 0
			}
		}
	}
	return false, 0
}

// next reads one error: of a packet to which address and port, by whom.
func (s *socket) next() (about netip.AddrPort, by netip.Addr, errno unix.Errno, info int, ok bool) {
	oob := make([]byte, 256)
	_, n, _, from, err := unix.Recvmsg(s.fd, nil, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		return about, by, 0, 0, false
	}
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		about = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		about = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	controls, _ := unix.ParseSocketControlMessage(oob[:n])
	for _, c := range controls {
		// struct sock_extended_err, and the address of who says it.
		const size, addr4, addr6 = 16, 4, 8
		if is := c.Header.Type == unix.IP_RECVERR || c.Header.Type == unix.IPV6_RECVERR; !is || len(c.Data) < size {
			continue
		}
		errno, info = unix.Errno(binary.NativeEndian.Uint32(c.Data)), int(binary.NativeEndian.Uint32(c.Data[8:]))
		if offender := c.Data[size:]; s.is4 && len(offender) >= addr4+4 {
			by = netip.AddrFrom4([4]byte(offender[addr4:]))
		} else if !s.is4 && len(offender) >= addr6+16 {
			by = netip.AddrFrom16([16]byte(offender[addr6:]))
		}
	}
	return about, by, errno, info, true
}
