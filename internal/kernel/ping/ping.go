// Package ping sends ICMP echo requests and hears what becomes of them (RFC 792, RFC 4443).
package ping

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Socket is for echoes of one family. Echoes are told apart by their numbers, and from those of
// other programs by the token that they carry. It is not safe for concurrent use.
type Socket struct {
	fd     int
	is4    bool
	raw    bool // the kernel gives replies to anyone, IPv4's with their IP header
	token  []byte
	buffer [2048]byte
}

// Answer is what became of an echo request.
type Answer struct {
	Number uint16     // of the request
	To     netip.Addr // whom the request was sent to, without a zone
	Err    error      // what the network, or this machine's own kernel, says in place of a reply; nil: the reply came
}

// echo headers: type, code, checksum, identifier and sequence number.
const (
	echoHeader = 8
	tokenSize  = 16

	echoReply4, echoRequest4 = 0, 8
	echoRequest6, echoReply6 = 128, 129
)

// Open opens a socket, in the calling thread's network namespace, for echoes alone, which takes no
// capability if the sysctl net.ipv4.ping_group_range lets it, and a raw one otherwise.
func Open(is4 bool) (*Socket, error) {
	s := &Socket{is4: is4, token: make([]byte, tokenSize)}
	if _, err := rand.Read(s.token); err != nil {
		return nil, err
	}
	protocol := unix.IPPROTO_ICMP
	if !is4 {
		protocol = unix.IPPROTO_ICMPV6
	}
	var err error
	s.fd, err = Listen(is4, unix.SOCK_DGRAM, protocol)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		s.raw = true
		s.fd, err = Listen(is4, unix.SOCK_RAW, protocol)
	}
	if err != nil {
		return nil, fmt.Errorf("open ICMP socket: %w", err)
	}
	if err := s.configure(); err != nil {
		s.Close()
		return nil, fmt.Errorf("configure ICMP socket: %w", err)
	}
	return s, nil
}

// FD is the descriptor, which can be read when there are answers.
func (s *Socket) FD() int { return s.fd }

// Close releases the socket; again, it does nothing.
func (s *Socket) Close() {
	_ = unix.Close(s.fd)
	s.fd = -1 // the number may be another file's next
}

// configure has the socket hear of no ICMP messages but replies if it is raw.
func (s *Socket) configure() error {
	if !s.raw {
		return nil
	}
	if s.is4 {
		const icmpFilter = 1 // of linux/icmp.h: a bit for each type to be dropped
		drop := ^(uint32(1) << echoReply4)
		return unix.SetsockoptInt(s.fd, unix.SOL_RAW, icmpFilter, int(int32(drop)))
	}
	filter := unix.ICMPv6Filter{}
	for i := range filter.Data {
		filter.Data[i] = ^uint32(0)
	}
	filter.Data[echoReply6>>5] &^= 1 << (echoReply6 & 31)
	return unix.SetsockoptICMPv6Filter(s.fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &filter)
}

// Send sends an echo request. It does not wait.
func (s *Socket) Send(number uint16, to netip.Addr) error {
	at, _ := Sockaddr(netip.AddrPortFrom(to, 0))
	request := s.request(number)
	err := unix.Sendto(s.fd, request, 0, at)
	if err != nil { // it may be that of an earlier request, which Next tells
		err = unix.Sendto(s.fd, request, 0, at)
	}
	return err
}

// request returns an echo request. The kernel fills in the checksum of IPv6, and the identifier
// unless the socket is raw.
func (s *Socket) request(number uint16) []byte {
	b := make([]byte, echoHeader, echoHeader+tokenSize)
	b[0] = echoRequest6
	if s.is4 {
		b[0] = echoRequest4
	}
	copy(b[4:6], s.token)
	binary.BigEndian.PutUint16(b[6:], number)
	b = append(b, s.token...)
	if s.is4 {
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

// Checksum6 is that of an ICMPv6 message of an even number of bytes whose own field is zero.
func Checksum6(from, to netip.Addr, message []byte) uint16 {
	b := append(from.AsSlice(), to.AsSlice()...)
	b = append(b, 0, 0, 0, byte(len(message)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	return checksum(append(b, message...))
}

// Next returns an answer that has come, false if there is none. It does not wait.
func (s *Socket) Next() (Answer, bool) {
	for {
		n, from, err := unix.Recvfrom(s.fd, s.buffer[:], 0)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil { // one of those that are read below, and reported once more
			continue
		}
		if number, ok := s.parse(s.buffer[:n]); ok {
			return Answer{Number: number, To: AddrOf(from).Addr()}, true
		}
	}
	for {
		if a, ok, more := s.nextError(); ok || !more {
			return a, ok
		}
	}
}

// nextError reads an error that the network, or this machine's own kernel, has sent for an echo
// request: the request itself, to whom it was, and why. More is false if there is none; ok is false
// if it is another program's.
func (s *Socket) nextError() (a Answer, ok, more bool) {
	r, more := NextRefusal(s.fd, s.buffer[:])
	if r.Err == 0 || len(r.Packet) < echoHeader || s.raw && !bytes.Equal(r.Packet[4:6], s.token[:2]) {
		return a, false, more
	}
	return Answer{binary.BigEndian.Uint16(r.Packet[6:]), r.To.Addr(), r.Err}, true, true
}

// parse returns the number of an echo reply, false if the packet is something else.
func (s *Socket) parse(packet []byte) (number uint16, ok bool) {
	reply := byte(echoReply6)
	if s.is4 {
		reply = echoReply4
	}
	if s.raw && s.is4 && len(packet) > 0 {
		packet = packet[min(int(packet[0]&0xf)*4, len(packet)):]
	}
	if len(packet) < echoHeader+tokenSize || packet[0] != reply || !bytes.Equal(packet[echoHeader:], s.token) {
		return 0, false
	}
	return binary.BigEndian.Uint16(packet[6:]), true
}

// Sockaddr returns an address as system calls have it, and its family. The interface of a
// link-local address is looked up each time, as it may have gone and come.
func Sockaddr(at netip.AddrPort) (unix.Sockaddr, int) {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}, unix.AF_INET
	}
	to := &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	if zone := at.Addr().Zone(); zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil {
			to.ZoneId = uint32(i.Index)
		}
	}
	return to, unix.AF_INET6
}

// Listen opens a socket in the calling thread's network namespace that does not block, and hears
// what becomes of its packets: see NextRefusal.
func Listen(is4 bool, kind, protocol int) (fd int, err error) {
	family, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_RECVERR
	if !is4 {
		family, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	if fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol); err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// Refusal is an error that the network, or this machine's own kernel, has sent for a packet.
type Refusal struct {
	Packet []byte         // what was sent, as far as it came back
	To     netip.AddrPort // where it was sent, without a zone
	By     netip.Addr     // who says so; invalid: this machine
	Err    unix.Errno     // 0: none is told
	Size   int            // with EMSGSIZE: that of the packets that pass
}

// NextRefusal reads one from a socket's error queue into a buffer, false if there is none.
func NextRefusal(fd int, buffer []byte) (r Refusal, ok bool) {
	var control [512]byte
	n, controls, _, to, err := unix.Recvmsg(fd, buffer, control[:], unix.MSG_ERRQUEUE)
	if err != nil {
		return r, false
	}
	r.Packet, r.To = buffer[:n], AddrOf(to)
	messages, _ := unix.ParseSocketControlMessage(control[:controls])
	for _, m := range messages {
		// struct sock_extended_err, and the socket address of who says so.
		const size, addr4, addr6 = 16, 4, 8
		if is := m.Header.Type == unix.IP_RECVERR || m.Header.Type == unix.IPV6_RECVERR; !is || len(m.Data) < size+addr4+4 {
			continue
		}
		r.Err, r.Size = unix.Errno(binary.NativeEndian.Uint32(m.Data)), int(binary.NativeEndian.Uint32(m.Data[8:]))
		switch by := m.Data[size:]; binary.NativeEndian.Uint16(by) {
		case unix.AF_INET:
			r.By, _ = netip.AddrFromSlice(by[addr4 : addr4+4])
		case unix.AF_INET6:
			r.By, _ = netip.AddrFromSlice(by[addr6 : addr6+16])
		}
	}
	return r, true
}

// AddrOf is the address that a system call gives, without a zone; that of no IP socket is invalid.
func AddrOf(who unix.Sockaddr) (at netip.AddrPort) {
	switch a := who.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return at
}

// Packet returns an echo request as an IP packet, for a tunnel; both addresses are of one family.
func Packet(from, to netip.Addr) []byte {
	const hops = 64
	message := []byte{echoRequest4, 0, 0, 0, 0, 0, 0, 1, 's', 'l', 'u', 'i', 'c', 'e'}
	if from.Is4() {
		b := []byte{0x45, 0, 0, byte(20 + len(message)), 0, 0, 0, 0, hops, unix.IPPROTO_ICMP, 0, 0}
		b = append(append(b, from.AsSlice()...), to.AsSlice()...)
		binary.BigEndian.PutUint16(b[10:], checksum(b))
		binary.BigEndian.PutUint16(message[2:], checksum(message))
		return append(b, message...)
	}
	message[0] = echoRequest6
	binary.BigEndian.PutUint16(message[2:], Checksum6(from, to, message))
	b := []byte{0x60, 0, 0, 0, 0, byte(len(message)), unix.IPPROTO_ICMPV6, hops}
	return append(append(append(b, from.AsSlice()...), to.AsSlice()...), message...)
}

// Reply returns whom an IP packet is an echo reply of; invalid: it is none.
func Reply(packet []byte) (from netip.Addr) {
	switch {
	case len(packet) >= 28 && packet[0] == 0x45 && packet[9] == unix.IPPROTO_ICMP && packet[20] == echoReply4:
		return netip.AddrFrom4([4]byte(packet[12:16]))
	case len(packet) >= 48 && packet[0]>>4 == 6 && packet[6] == unix.IPPROTO_ICMPV6 && packet[40] == echoReply6:
		return netip.AddrFrom16([16]byte(packet[8:24]))
	}
	return from
}
