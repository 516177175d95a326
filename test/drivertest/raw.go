package drivertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
)

// SCTP needs no kernel support here: clients and servers are raw sockets with as much of RFC 9260
// as connection tracking expects, an INIT and the INIT ACK to it.
const (
	sctpInit    = 1
	sctpInitAck = 2
)

// An sctpPacket is an SCTP packet with one INIT or INIT ACK chunk. Note is carried as a parameter
// that receivers ignore.
type sctpPacket struct {
	src, dst uint16
	vtag     uint32 // the receiver's tag; 0 with an INIT
	chunk    byte
	tag      uint32 // the sender's initiate tag
	note     string
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p sctpPacket) marshal() []byte {
	const fixed = 12 + 4 + 16
	length := 4 + 16
	if p.note != "" {
		length += 4 + len(p.note)
	}
	b := make([]byte, 12+(length+3)&^3)
	be := binary.BigEndian
	be.PutUint16(b[0:], p.src)
	be.PutUint16(b[2:], p.dst)
	be.PutUint32(b[4:], p.vtag)
	b[12] = p.chunk
	be.PutUint16(b[14:], uint16(length))
	be.PutUint32(b[16:], p.tag)
	be.PutUint32(b[20:], 65536) // receiver window
	be.PutUint16(b[24:], 1)     // outbound streams
	be.PutUint16(b[26:], 1)     // inbound streams
	be.PutUint32(b[28:], 1)     // initial sequence number
	if p.note != "" {
		be.PutUint16(b[fixed:], 0x8fff) // unknown parameter, to be skipped without a report
		be.PutUint16(b[fixed+2:], uint16(4+len(p.note)))
		copy(b[fixed+4:], p.note)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

func parseSCTP(b []byte) (p sctpPacket, ok bool) {
	be := binary.BigEndian
	if len(b) < 32 || (b[12] != sctpInit && b[12] != sctpInitAck) {
		return p, false
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	zeroed := append([]byte{}, b...)
	clear(zeroed[8:12])
	if crc32.Checksum(zeroed, castagnoli) != sum {
		return p, false
	}
	p = sctpPacket{src: be.Uint16(b[0:]), dst: be.Uint16(b[2:]), vtag: be.Uint32(b[4:]), chunk: b[12], tag: be.Uint32(b[16:])}
	if len(b) > 36 {
		if end := 32 + int(be.Uint16(b[34:])); end <= len(b) {
			p.note = string(b[36:end])
		}
	}
	return p, true
}

// rawSocket opens a raw socket of a transport, bound to addr, with a receive time-out and ICMP
// errors reported.
func rawSocket(proto int, addr netip.Addr, timeout time.Duration) (int, error) {
	fd, err := unix.Socket(socketFamily(addr), unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return -1, fmt.Errorf("open raw socket: %w", err)
	}
	tv := unix.NsecToTimeval(timeout.Nanoseconds())
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	if err == nil && addr.Is4() {
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVERR, 1)
	} else if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVERR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(addr))
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("prepare raw socket on %v: %w", addr, err), unix.Close(fd))
	}
	return fd, nil
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

// receive returns the next packet's payload and sender.
func receive(fd int, buf []byte) ([]byte, netip.Addr, error) {
	n, from, err := unix.Recvfrom(fd, buf, 0)
	for errors.Is(err, unix.EINTR) { // a signal of Go's own
		n, from, err = unix.Recvfrom(fd, buf, 0)
	}
	if err != nil {
		return nil, netip.Addr{}, err
	}
	switch from := from.(type) {
	case *unix.SockaddrInet4: // raw IPv4 sockets deliver the header too
		if head := int(buf[0]&15) * 4; head <= n {
			return buf[head:n], netip.AddrFrom4(from.Addr), nil
		}
	case *unix.SockaddrInet6:
		return buf[:n], netip.AddrFrom16(from.Addr), nil
	}
	return nil, netip.Addr{}, errors.New("receive packet: unknown sender")
}

// listenSCTP answers each INIT to the address with an INIT ACK that carries the answer, whatever
// the port: a raw socket sees them all.
func listenSCTP(addr netip.AddrPort, seen *arrivals) (*server, error) {
	fd, err := rawSocket(unix.IPPROTO_SCTP, addr.Addr(), 100*time.Millisecond)
	if err != nil {
		return nil, err
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			select {
			case <-stop:
				return
			default:
			}
			b, from, err := receive(fd, buf)
			if err != nil {
				continue
			}
			if p, ok := parseSCTP(b); ok && p.chunk == sctpInit {
				seen.Add(1)
				a := answer{netip.AddrPortFrom(addr.Addr(), p.dst), netip.AddrPortFrom(from, p.src)}
				reply := sctpPacket{src: p.dst, dst: p.src, vtag: p.tag, chunk: sctpInitAck, tag: p.tag ^ 1, note: a.String()}
				_ = unix.Sendto(fd, reply.marshal(), 0, sockaddr(from))
			}
		}
	}()
	return &server{func() error {
		close(stop)
		<-done
		return unix.Close(fd)
	}}, nil
}

// initSCTP sends an INIT from one socket address to another and waits for the INIT ACK.
func initSCTP(from, to netip.AddrPort, tag uint32, timeout time.Duration) (answer, error) {
	fd, err := rawSocket(unix.IPPROTO_SCTP, from.Addr(), timeout)
	if err != nil {
		return answer{}, err
	}
	defer unix.Close(fd)
	// Connected, so that errors for what it sends are its own.
	if err := unix.Connect(fd, sockaddr(to.Addr())); err != nil {
		return answer{}, fmt.Errorf("connect raw socket: %w", err)
	}
	p := sctpPacket{src: from.Port(), dst: to.Port(), chunk: sctpInit, tag: tag}
	if _, err := unix.Write(fd, p.marshal()); err != nil {
		return answer{}, err
	}
	buf := make([]byte, 2048)
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		b, _, err := receive(fd, buf)
		if err != nil {
			return answer{}, err
		}
		if r, ok := parseSCTP(b); ok && r.chunk == sctpInitAck && r.vtag == tag && r.src == to.Port() && r.dst == from.Port() {
			return parseAnswer(r.note)
		}
	}
	return answer{}, unix.EAGAIN
}

// ping sends one ICMP echo request and waits for its reply.
func ping(from, to netip.Addr, id uint16, timeout time.Duration) error {
	proto, request, reply := unix.IPPROTO_ICMP, byte(8), byte(0)
	if to.Is6() {
		proto, request, reply = unix.IPPROTO_ICMPV6, 128, 129
	}
	fd, err := rawSocket(proto, from, timeout)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 16)
	b[0] = request
	binary.BigEndian.PutUint16(b[4:], id)
	if to.Is4() { // the kernel computes ICMPv6's checksum
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	if err := unix.Sendto(fd, b, 0, sockaddr(to)); err != nil {
		return err
	}
	buf := make([]byte, 2048)
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		r, sender, err := receive(fd, buf)
		if err != nil {
			return err
		}
		if sender == to && len(r) >= 8 && r[0] == reply && binary.BigEndian.Uint16(r[4:]) == id {
			return nil
		}
	}
	return unix.EAGAIN
}

// TCP flags.
const (
	tcpSYN  = 0x02
	tcpPush = 0x18 // with ACK
)

// segment is a TCP segment without options.
func segment(from, to netip.AddrPort, flags byte, seq, ack uint32, payload []byte) []byte {
	be := binary.BigEndian
	b := make([]byte, 20, 20+len(payload))
	be.PutUint16(b[0:], from.Port())
	be.PutUint16(b[2:], to.Port())
	be.PutUint32(b[4:], seq)
	be.PutUint32(b[8:], ack)
	b[12], b[13] = 5<<4, flags
	be.PutUint16(b[14:], 1024)
	b = append(b, payload...)
	be.PutUint16(b[16:], checksum(pseudo(from.Addr(), to.Addr(), model.TCP, len(b)), b))
	return b
}

// datagram is a UDP datagram.
func datagram(from, to netip.AddrPort, payload []byte) []byte {
	be := binary.BigEndian
	b := make([]byte, 8, 8+len(payload))
	be.PutUint16(b[0:], from.Port())
	be.PutUint16(b[2:], to.Port())
	be.PutUint16(b[4:], uint16(8+len(payload)))
	b = append(b, payload...)
	be.PutUint16(b[6:], checksum(pseudo(from.Addr(), to.Addr(), model.UDP, len(b)), b))
	return b
}

// pseudo is the pseudo-header of RFC 793 and RFC 8200 that checksums cover.
func pseudo(from, to netip.Addr, proto model.Protocol, length int) []byte {
	b := append(from.AsSlice(), to.AsSlice()...)
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	return binary.BigEndian.AppendUint32(b, uint32(proto))
}

// checksum is the Internet checksum of the parts, all of even length except the last.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, p := range parts {
		for i := 0; i+1 < len(p); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(p[i:]))
		}
		if len(p)%2 == 1 {
			sum += uint32(p[len(p)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// injectTCP sends a segment from one end of an established connection to the other, with the
// addresses as the sender sees them.
func injectTCP(from, to netip.AddrPort, seq, ack uint32) error {
	fd, err := rawSocket(unix.IPPROTO_TCP, from.Addr(), time.Second)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, segment(from, to, tcpPush, seq, ack, []byte("stray")), 0, sockaddr(to.Addr())); err != nil {
		return fmt.Errorf("send segment: %w", err)
	}
	return nil
}

// InjectStray sends a segment far outside the window of a TCP connection, through the network of
// the calling thread, as the connection's server would. client is the client's socket, in any
// network. The segment goes from the server's own address to the client's address as the server
// sees it. It acknowledges exactly what the client has sent: if it reached the client untranslated,
// the client's reset would have the right number to end the server's connection.
func InjectStray(client syscall.RawConn, from, to netip.AddrPort) error {
	next, expected, err := sequence(client)
	if err != nil {
		return err
	}
	return injectTCP(from, to, expected+1<<29, next)
}

// sequence returns the numbers of the next bytes that a TCP socket will send and expects.
func sequence(c syscall.RawConn) (next, expected uint32, err error) {
	const repairOff, receiveQueue, sendQueue = -1, 1, 2 // linux/tcp.h; off without a window probe
	inside := c.Control(func(fd uintptr) {
		if err = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR, 1); err != nil {
			return
		}
		for queue, number := range map[int]*uint32{sendQueue: &next, receiveQueue: &expected} {
			if err == nil {
				err = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR_QUEUE, queue)
			}
			if err == nil {
				var n int
				n, err = unix.GetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_QUEUE_SEQ)
				*number = uint32(n)
			}
		}
		err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR, repairOff))
	})
	if err = errors.Join(inside, err); err != nil {
		return 0, 0, fmt.Errorf("read sequence numbers: %w", err)
	}
	return next, expected, nil
}
