package drivertest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
)

// Forged is an IP packet that a host of the mesh writes itself, including the header.
type Forged struct {
	Host     string // the sender
	From, To netip.Addr
	Protocol uint8
	Payload  []byte
	Fragment *Fragment // nil: not a fragment
}

// Fragment selects the part of a packet's payload that is sent.
type Fragment struct {
	ID   uint16
	From int // a multiple of 8
	To   int
}

// Forge sends the packets, and reports whether a packet of the first one's protocol, with the mark
// in it, arrives at an address of the mesh.
func (m *Mesh) Forge(at netip.Addr, mark string, packets ...Forged) (arrived bool, err error) {
	err = onOneCPU(func() error {
		arrived, err = m.forge(at, mark, packets)
		return err
	})
	return arrived, err
}

func (m *Mesh) forge(at netip.Addr, mark string, packets []Forged) (bool, error) {
	fd, err := m.raw(at, packets[0].Protocol)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	for _, p := range packets {
		if err := m.In(p.Host, p.send); err != nil {
			return false, err
		}
	}
	if err := m.sentinel.flush(); err != nil {
		return false, err
	}
	for buf := make([]byte, 2048); ; {
		b, _, err := receive(fd, buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("receive at %v: %w", at, err)
		case bytes.Contains(b, []byte(mark)):
			return true, nil
		}
	}
}

func (p Forged) send() error {
	fd, err := unix.Socket(socketFamily(p.To), unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("open raw socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, p.marshal(), 0, sockaddr(p.To)); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("send %+v: %w", p, err)
	}
	return nil
}

func (p Forged) marshal() []byte {
	if f := p.Fragment; f != nil {
		return header(p, p.Payload[f.From:f.To], f.ID, f.From/8, f.To < len(p.Payload))
	}
	return header(p, p.Payload, 0, 0, false)
}

// header writes an IP header before the payload.
func header(p Forged, payload []byte, id uint16, offset int, more bool) []byte {
	be := binary.BigEndian
	if p.From.Is4() {
		b := make([]byte, 20, 20+len(payload))
		b[0], b[8], b[9] = 4<<4|5, 64, p.Protocol
		be.PutUint16(b[2:], uint16(20+len(payload)))
		be.PutUint16(b[4:], id)
		be.PutUint16(b[6:], uint16(offset))
		if more {
			b[6] |= 0x20
		}
		copy(b[12:], p.From.AsSlice())
		copy(b[16:], p.To.AsSlice())
		be.PutUint16(b[10:], checksum(b))
		return append(b, payload...)
	}
	b := make([]byte, 40, 48+len(payload))
	b[0], b[6], b[7] = 6<<4, p.Protocol, 64
	copy(b[8:], p.From.AsSlice())
	copy(b[24:], p.To.AsSlice())
	if p.Fragment != nil {
		b[6] = unix.IPPROTO_FRAGMENT
		word := uint16(offset << 3)
		if more {
			word |= 1
		}
		b = append(b, p.Protocol, 0)
		b = be.AppendUint16(b, word)
		b = be.AppendUint32(b, uint32(id))
	}
	be.PutUint16(b[4:], uint16(len(b)-40+len(payload)))
	return append(b, payload...)
}

// ForgedReset is a TCP segment that resets a connection. Its sequence number is the next that the
// server expects from the client, whose socket is given.
func ForgedReset(host string, client syscall.RawConn, from, to netip.AddrPort) (Forged, error) {
	const reset = 0x04
	next, _, err := sequence(client)
	return Forged{Host: host, From: from.Addr(), To: to.Addr(), Protocol: unix.IPPROTO_TCP, Payload: segment(from, to, reset, next, 0, nil)}, err
}

// ForgedDatagram is a UDP datagram.
func ForgedDatagram(host string, from, to netip.AddrPort, text string) Forged {
	return Forged{Host: host, From: from.Addr(), To: to.Addr(), Protocol: unix.IPPROTO_UDP, Payload: datagram(from, to, []byte(text))}
}

// ForgedAnswer is a segment with SYN and ACK, or with SYN alone if it is the first of a connection.
func ForgedAnswer(host string, from, to netip.AddrPort, first bool, text string) Forged {
	const ack = 0x10
	flags := byte(tcpSYN)
	if !first {
		flags |= ack
	}
	return Forged{Host: host, From: from.Addr(), To: to.Addr(), Protocol: unix.IPPROTO_TCP, Payload: segment(from, to, flags, 1, 1, []byte(text))}
}

// ForgedAssociation is an INIT of SCTP. Its checksum is wrong if it is broken.
func ForgedAssociation(host string, from, to netip.AddrPort, broken bool, text string) Forged {
	const checksumAt = 8
	b := sctpPacket{src: from.Port(), dst: to.Port(), chunk: sctpInit, tag: 1, note: text}.marshal()
	if broken {
		b[checksumAt] ^= 1
	}
	return Forged{Host: host, From: from.Addr(), To: to.Addr(), Protocol: unix.IPPROTO_SCTP, Payload: b}
}

// A Quote is the packet that an ICMP error is about, as much of it as errors quote.
type Quote struct {
	From, To netip.AddrPort
	Protocol model.Protocol
	Text     string
}

// ForgedError is an ICMP error.
func ForgedError(host string, from, to netip.Addr, errorType, code byte, about Quote) Forged {
	be := binary.BigEndian
	quoted := be.AppendUint16(nil, about.From.Port())
	quoted = be.AppendUint16(quoted, about.To.Port())
	// The text is behind everything that address translation changes.
	quoted = append(be.AppendUint32(quoted, 1), make([]byte, 12)...)
	quoted = append(quoted, about.Text...)
	quoted = header(Forged{From: about.From.Addr(), To: about.To.Addr(), Protocol: uint8(about.Protocol)}, quoted, 1, 0, false)
	b := append([]byte{errorType, code, 0, 0, 0, 0, 0x05, 0x00}, quoted...) // the last four: an MTU of 1280
	f := Forged{Host: host, From: from, To: to, Protocol: unix.IPPROTO_ICMP, Payload: b}
	if to.Is6() {
		f.Protocol = unix.IPPROTO_ICMPV6
		be.PutUint16(b[2:], checksum(pseudo(from, to, unix.IPPROTO_ICMPV6, len(b)), b))
	} else {
		be.PutUint16(b[2:], checksum(b))
	}
	return f
}
