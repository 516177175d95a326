package world

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An ICMPError is about a packet that was sent from one address to another.
type ICMPError struct {
	Type, Code byte
	Protocol   uint8
	From, To   netip.AddrPort
}

// TooBig is the error by which a router has shorter packets be sent.
func TooBig(protocol uint8, from, to netip.AddrPort) ICMPError {
	e := ICMPError{Type: 3, Code: 4, Protocol: protocol, From: from, To: to} // RFC 1191
	if from.Addr().Is6() {
		e.Type, e.Code = 2, 0 // RFC 4443
	}
	return e
}

// Message is the ICMP message, which says 1,400 where the error has a length. Its checksum is that
// of IPv4; the kernel writes that of IPv6.
func (e ICMPError) Message() []byte {
	b := binary.BigEndian.AppendUint32([]byte{e.Type, e.Code, 0, 0}, 1400)
	if e.From.Addr().Is4() {
		b = append(b, 0x45, 0, 5, 220, 0, 0, 0x40, 0, 60, e.Protocol, 0, 0)
	} else {
		b = append(b, 0x60, 0, 0, 0, 5, 180, e.Protocol, 60)
	}
	b = append(append(b, e.From.Addr().AsSlice()...), e.To.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, e.From.Port()), e.To.Port())
	b = append(b, 5, 200, 0, 0)
	if e.From.Addr().Is4() {
		binary.BigEndian.PutUint16(b[2:], Checksum(b))
	}
	return b
}

// Checksum is that of RFC 1071, of an even number of bytes.
func Checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// parseICMPError reads an ICMP message, which need not be an error: then it is of no address.
func parseICMPError(b []byte, is4 bool) (e ICMPError) {
	protocol, addresses, length := 6, 8, 16
	if is4 {
		protocol, addresses, length = 9, 12, 4
	}
	quoted := b[min(8, len(b)):]
	if len(quoted) < addresses+2*length+4 {
		return e
	}
	at := func(n int) netip.AddrPort {
		a, _ := netip.AddrFromSlice(quoted[addresses+n*length:][:length])
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(quoted[addresses+2*length+2*n:]))
	}
	return ICMPError{b[0], b[1], quoted[protocol], at(0), at(1)}
}

func icmpNetwork(is4 bool) string {
	if is4 {
		return "ip4:icmp"
	}
	return "ip6:ipv6-icmp"
}

// SendICMP sends an ICMP error from an address of the host to where the packet that it is about
// came from.
func (h *Host) SendICMP(from string, e ICMPError) {
	h.t.Helper()
	h.In(func() error {
		c, err := net.ListenPacket(icmpNetwork(e.From.Addr().Is4()), from)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.WriteTo(e.Message(), &net.IPAddr{IP: e.From.Addr().AsSlice()})
		return err
	})
}

// ICMPErrors are the ICMP errors that hosts get.
type ICMPErrors chan heardError

type heardError struct {
	ICMPError
	host string
}

// HearICMP listens to the ICMP errors of a family that hosts get, by name.
func HearICMP(t testing.TB, is4 bool, hosts map[string]*Host) ICMPErrors {
	t.Helper()
	heard := make(ICMPErrors, 1000)
	for name, h := range hosts {
		var c net.PacketConn
		h.In(func() (err error) { c, err = net.ListenPacket(icmpNetwork(is4), ""); return err })
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			b := make([]byte, 2000)
			for n, _, err := c.ReadFrom(b); err == nil; n, _, err = c.ReadFrom(b) {
				if e := parseICMPError(b[:n], is4); e.To.IsValid() {
					heard <- heardError{e, name}
				}
			}
		}()
	}
	return heard
}

// Who returns the host that gets an ICMP error within a time; "": none does.
func (heard ICMPErrors) Who(e ICMPError, within time.Duration) string {
	for over := time.After(within); ; {
		select {
		case got := <-heard:
			if got.ICMPError == e {
				return got.host
			}
		case <-over:
			return ""
		}
	}
}

// ServeLong has the host send so many bytes by each TCP connection to an address, until the test
// ends.
func (h *Host) ServeLong(at string, bytes int) {
	h.t.Helper()
	var l net.Listener
	h.In(func() (err error) { l, err = net.Listen("tcp", at); return err })
	h.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go func() {
				_, _ = c.Write(make([]byte, bytes))
				_ = c.Close()
			}()
		}
	}()
}

// Read opens a TCP connection and returns how many bytes come by it until its end, within a time.
func (h *Host) Read(from, to string, within time.Duration) (int64, error) {
	c, err := h.Dial("tcp", from, to, within)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(within))
	return io.Copy(io.Discard, c)
}

// Narrow makes the host the way by which others' packets to a client's addresses go, with room for
// 1,300 bytes at the most: it has a device "out", which leads to the client's new device "narrow".
func (h *Host) Narrow(client *Host, to ...string) {
	h.t.Helper()
	h.Forward()
	h.Join("out", client, "narrow")
	h.Address("out", "10.5.0.1/24", "fd05::1/64")
	client.Address("narrow", "10.5.0.2/24", "fd05::2/64")
	h.IP("link set out mtu 1300")
	for _, a := range to {
		addr := netip.MustParseAddr(a)
		via := map[bool]string{true: "10.5.0.2", false: "fd05::2"}[addr.Is4()]
		h.Route(netip.PrefixFrom(addr, addr.BitLen()).String(), via)
	}
}

// Transport protocols.
const (
	TCP = unix.IPPROTO_TCP
	UDP = unix.IPPROTO_UDP
)
