package health

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// pinger is the socket of all ICMP checks of one family. Echoes are told apart by their sequence
// numbers, and from those of other programs by the token that they carry.
type pinger struct {
	fd      int
	is4     bool
	raw     bool // the kernel gives replies to anyone, IPv4's with their IP header
	token   []byte
	number  uint16
	waiting map[uint16]*target // by the number of the echo request
}

// echo headers: type, code, checksum, identifier and sequence number, as RFC 792 and RFC 4443 have
// them.
const (
	echoHeader = 8
	tokenSize  = 16

	echoReply4, echoRequest4 = 0, 8
	echoRequest6, echoReply6 = 128, 129
)

func (p *pinger) busy() bool { return p != nil && len(p.waiting) > 0 }

// ping begins an ICMP check.
func (s *sockets) ping(t *target) {
	p, err := s.pinger(t.at.Addr().Is4())
	if err != nil {
		s.end(t, outcome{err: err})
		return
	}
	p.number++
	number := p.number
	if p.waiting[number] != nil {
		s.end(t, outcome{err: errors.New("send echo request: too many are under way")})
		return
	}
	p.waiting[number] = t
	t.cancel = func() { delete(p.waiting, number) }
	to, _ := sockaddr(netip.AddrPortFrom(t.at.Addr(), 0))
	err = unix.Sendto(p.fd, p.request(number), 0, to)
	if err != nil { // it may be that of an earlier request, which is read later
		err = unix.Sendto(p.fd, p.request(number), 0, to)
	}
	if err != nil {
		s.end(t, failed(err))
	}
}

// pinger returns the socket of a family. It is opened at the first check.
func (s *sockets) pinger(is4 bool) (*pinger, error) {
	at := 0
	if !is4 {
		at = 1
	}
	if s.pings[at] != nil {
		return s.pings[at], nil
	}
	p, err := openPinger(is4)
	if err != nil {
		return nil, fmt.Errorf("open ICMP socket: %w", err)
	}
	if err := s.watch(p.fd, unix.EPOLLIN, unix.EPOLL_CTL_ADD); err != nil {
		_ = unix.Close(p.fd)
		return nil, err
	}
	s.pings[at] = p
	return p, nil
}

// openPinger opens a socket for echoes alone, which takes no capability, if the sysctl
// net.ipv4.ping_group_range lets it, and a raw one otherwise.
func openPinger(is4 bool) (*pinger, error) {
	p := &pinger{is4: is4, token: make([]byte, tokenSize), waiting: map[uint16]*target{}}
	if _, err := rand.Read(p.token); err != nil {
		return nil, err
	}
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if !is4 {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	const flags = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	var err error
	p.fd, err = unix.Socket(family, unix.SOCK_DGRAM|flags, protocol)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		p.raw = true
		p.fd, err = unix.Socket(family, unix.SOCK_RAW|flags, protocol)
	}
	if err != nil {
		return nil, err
	}
	if err := p.configure(); err != nil {
		_ = unix.Close(p.fd)
		return nil, err
	}
	return p, nil
}

// configure has the socket hear of hosts that cannot be reached and, if it is raw, of no ICMP
// messages but replies.
func (p *pinger) configure() error {
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if !p.is4 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	if err := unix.SetsockoptInt(p.fd, level, option, 1); err != nil || !p.raw {
		return err
	}
	if p.is4 {
		const icmpFilter = 1 // of linux/icmp.h: a bit for each type to be dropped
		drop := ^(uint32(1) << echoReply4)
		return unix.SetsockoptInt(p.fd, unix.SOL_RAW, icmpFilter, int(int32(drop)))
	}
	filter := unix.ICMPv6Filter{}
	for i := range filter.Data {
		filter.Data[i] = ^uint32(0)
	}
	filter.Data[echoReply6>>5] &^= 1 << (echoReply6 & 31)
	return unix.SetsockoptICMPv6Filter(p.fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &filter)
}

// request returns an echo request. The kernel fills in the checksum of IPv6, and the identifier
// unless the socket is raw.
func (p *pinger) request(number uint16) []byte {
	b := make([]byte, echoHeader, echoHeader+tokenSize)
	b[0] = echoRequest6
	if p.is4 {
		b[0] = echoRequest4
	}
	copy(b[4:6], p.token)
	binary.BigEndian.PutUint16(b[6:], number)
	b = append(b, p.token...)
	if p.is4 {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return b
}

// checksum is that of RFC 1071, of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// hear reads replies, and errors in place of them.
func (s *sockets) hear(p *pinger) {
	for {
		n, from, err := unix.Recvfrom(p.fd, s.buffer[:], 0)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil { // one of those that are read below, and reported once more
			continue
		}
		if number, ok := p.parse(s.buffer[:n]); ok {
			s.settle(p, number, from, up("echo reply"))
		}
	}
	for s.hearError(p) {
	}
}

// hearError reads an error that the network, or this machine's own kernel, has sent for an echo
// request: the request itself, to whom it was, and why. It returns false if there is none.
func (s *sockets) hearError(p *pinger) bool {
	var control [512]byte
	n, controls, _, to, err := unix.Recvmsg(p.fd, s.buffer[:], control[:], unix.MSG_ERRQUEUE)
	if err != nil {
		return false
	}
	request := s.buffer[:n]
	messages, err := unix.ParseSocketControlMessage(control[:controls])
	if err != nil || len(request) < echoHeader || p.raw && !bytes.Equal(request[4:6], p.token[:2]) {
		return true
	}
	for _, m := range messages {
		// struct sock_extended_err begins with the error.
		is := m.Header.Type == unix.IP_RECVERR || m.Header.Type == unix.IPV6_RECVERR
		if is && len(m.Data) >= 4 {
			errno := unix.Errno(binary.NativeEndian.Uint32(m.Data))
			s.settle(p, binary.BigEndian.Uint16(request[6:]), to, failed(errno))
		}
	}
	return true
}

// parse returns the number of an echo reply, false if the packet is something else.
func (p *pinger) parse(packet []byte) (number uint16, ok bool) {
	reply := byte(echoReply6)
	if p.is4 {
		reply = echoReply4
	}
	if p.raw && p.is4 && len(packet) > 0 {
		packet = packet[min(int(packet[0]&0xf)*4, len(packet)):]
	}
	if len(packet) < echoHeader+tokenSize || packet[0] != reply || !bytes.Equal(packet[echoHeader:], p.token) {
		return 0, false
	}
	return binary.BigEndian.Uint16(packet[6:]), true
}

// settle ends the check that an echo request is of, if it was sent to who the socket says.
func (s *sockets) settle(p *pinger, number uint16, who unix.Sockaddr, o outcome) {
	var addr netip.Addr
	switch a := who.(type) {
	case *unix.SockaddrInet4:
		addr = netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		addr = netip.AddrFrom16(a.Addr)
	}
	if t := p.waiting[number]; t != nil && t.at.Addr().WithZone("") == addr {
		s.end(t, o)
	}
}
