package announce

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket receives frames of one type on all interfaces of a network namespace, and sends them. It
// receives nothing before it listens.
type socket struct {
	file  *os.File
	raw   syscall.RawConn
	typ   uint16
	heard bool
}

// Filters of classic BPF, which run for each frame of the type: what is a question comes through.
var (
	onlyRequests = []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 20},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: arpRequest, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	onlySolicitations = []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 20},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: protocolICMPv6, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 54},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: solicitation, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
)

// openSocket opens a socket in the calling thread's network namespace.
func openSocket(typ uint16, filter []unix.SockFilter) (*socket, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return nil, errors.Join(fmt.Errorf("configure packet socket: %w", err), unix.Close(fd))
	}
	s := &socket{file: os.NewFile(uintptr(fd), "packet socket"), typ: typ}
	s.raw, err = s.file.SyscallConn()
	return s, err
}

// listen has the socket receive.
func (s *socket) listen() error {
	if s.heard {
		return nil
	}
	var err error
	bind := func(fd uintptr) {
		err = unix.Bind(int(fd), &unix.SockaddrLinklayer{Protocol: bits.ReverseBytes16(s.typ)})
	}
	if err := errors.Join(s.raw.Control(bind), err); err != nil {
		return fmt.Errorf("listen on packet socket: %w", err)
	}
	s.heard = err == nil
	return err
}

// receive returns a frame and the interface that it came by. It waits for one; the error is
// os.ErrClosed once the socket is closed.
func (s *socket) receive(b []byte) (n, index int, err error) {
	var from unix.Sockaddr
	if s.raw.Read(func(fd uintptr) bool {
		n, from, err = unix.Recvfrom(int(fd), b, 0)
		return err != unix.EAGAIN && err != unix.EINTR
	}) != nil {
		return 0, 0, os.ErrClosed
	}
	at, ok := from.(*unix.SockaddrLinklayer)
	if err != nil || !ok || at.Pkttype == unix.PACKET_OUTGOING || at.Pkttype == unix.PACKET_OTHERHOST {
		return 0, 0, err
	}
	return n, at.Ifindex, nil
}

// send sends a frame by an interface.
func (s *socket) send(frame []byte, index int) (err error) {
	to := &unix.SockaddrLinklayer{Protocol: bits.ReverseBytes16(s.typ), Ifindex: index, Halen: 6}
	copy(to.Addr[:], frame)
	control := s.raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), frame, unix.MSG_DONTWAIT, to) })
	return errors.Join(control, err)
}

// groups are memberships in the groups to which questions for addresses of IPv6 go, so that network
// cards and switches let those through.
type groups struct {
	fds    []int // the kernel limits how many groups a socket can join
	joined map[membership]int
}

type membership struct {
	index int
	group netip.Addr
}

// openGroups opens a socket in the calling thread's network namespace; more are opened in that of
// the thread that joins.
func openGroups() (*groups, error) {
	g := &groups{joined: map[membership]int{}}
	return g, g.more()
}

func (g *groups) more() error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket for multicast groups: %w", err)
	}
	g.fds = append(g.fds, fd)
	return nil
}

// set joins those that are wanted, and leaves the others.
func (g *groups) set(want map[membership]bool) (failed error) {
	for m, fd := range g.joined {
		if !want[m] {
			_ = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, m.request()) // the interface may be gone
			delete(g.joined, m)
		}
	}
	for m := range want {
		if _, has := g.joined[m]; has {
			continue
		}
		if err := g.join(m); err != nil {
			failed = fmt.Errorf("join group %s: %w", m.group, err)
		}
	}
	return failed
}

func (g *groups) join(m membership) error {
	for i := 0; ; i++ {
		if i == len(g.fds) {
			if err := g.more(); err != nil {
				return err
			}
		}
		err := unix.SetsockoptIPv6Mreq(g.fds[i], unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, m.request())
		if err == nil {
			g.joined[m] = g.fds[i]
			return nil
		}
		if full := err == unix.ENOBUFS || err == unix.ENOMEM; !full || len(g.fds) > maxSockets {
			return err
		}
	}
}

// maxSockets bounds how many sockets hold memberships.
const maxSockets = 100

func (m membership) request() *unix.IPv6Mreq {
	return &unix.IPv6Mreq{Multiaddr: m.group.As16(), Interface: uint32(m.index)}
}

func (g *groups) close() {
	for _, fd := range g.fds {
		_ = unix.Close(fd)
	}
	g.fds = nil
}
