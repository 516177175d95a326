package drivertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
)

// Ping is used as a transport of a Packet for an ICMP echo request.
const Ping = echoRequest

// A Packet is the first packet of a connection. A host of the mesh sends it: a pod by its name,
// "node" or "outside".
type Packet struct {
	Host     string
	From, To netip.Addr // From may be any address, even one that is not the host's
	Protocol model.Protocol
	Port     uint16
}

// A Trail is what a Packet and its answer left behind.
type Trail struct {
	At       string     // the host where it arrived; "" if it was dropped
	Port     uint16     // the port where it arrived
	Seen     netip.Addr // its source on arrival
	Answered bool       // an answer came back to the sender, from the address that it sent to

}

// Trace sends a packet and follows it. Each packet begins a new connection.
func (m *Mesh) Trace(p Packet) (trail Trail, err error) {
	err = onOneCPU(func() error {
		trail, err = m.trace(p)
		return err
	})
	return trail, err
}

func (m *Mesh) trace(p Packet) (trail Trail, err error) {
	if err := m.clear(); err != nil {
		return trail, err
	}
	m.port++
	if err := m.emit(p, m.port); err != nil {
		return trail, fmt.Errorf("send %+v: %w", p, err)
	}
	for range 2 { // the packet, then the answer to it
		if err := m.sentinel.flush(); err != nil {
			return trail, err
		}
		for a, pr := range m.probes {
			if err := pr.follow(m, p, a, &trail); err != nil {
				return trail, err
			}
		}
	}
	return trail, nil
}

// clear discards what arrived earlier.
func (m *Mesh) clear() error {
	for _, p := range m.probes {
		if err := p.drain(func(seen) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// follow checks what arrived at one address.
func (p *probe) follow(m *Mesh, sent Packet, at netip.Addr, trail *Trail) error {
	return p.drain(func(s seen) error {
		mine := s.proto == sent.Protocol
		switch {
		case mine && s.id == uint32(m.port) && !s.reply:
			trail.At, trail.Port, trail.Seen = m.topology.owner[at].name, s.dst, s.from
			if s.proto == model.TCP || s.proto == Ping {
				return nil // the kernel answers
			}
			return p.send(s.proto, s.dst, s.src, s.from, true)
		case mine && s.reply && at == sent.From && s.from == sent.To && s.dst == m.port:
			trail.Answered = true
		}
		return nil
	})
}

// emit sends the packet from the host, whatever its source address.
func (m *Mesh) emit(p Packet, port uint16) error {
	if own := m.probes[p.From]; own != nil && m.topology.owner[p.From].name == p.Host {
		return own.first(p, port)
	}
	h := m.topology.hosts[p.Host]
	if h == nil {
		return fmt.Errorf("there is no host %s", p.Host)
	}
	return h.ns.Do(func() error {
		liar, err := openSpoofing(p)
		if err != nil {
			return err
		}
		defer liar.close()
		return liar.first(p, port)
	})
}

// openSpoofing opens a probe for one transport that sends from an address that its host does not
// have.
func openSpoofing(p Packet) (*probe, error) {
	proto := rawNumber(p.Protocol, p.From)
	fd, err := unix.Socket(socketFamily(p.From), unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		return nil, fmt.Errorf("open raw socket: %w", err)
	}
	if p.From.Is4() {
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	} else {
		err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(p.From))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare raw socket for %v: %w", p.From, err), unix.Close(fd))
	}
	return &probe{addr: p.From, fds: map[model.Protocol]int{p.Protocol: fd}}, nil
}

// first sends the first packet of a connection; the source port also serves as its mark.
func (p *probe) first(of Packet, port uint16) error {
	if of.Protocol != Ping {
		return p.send(of.Protocol, port, of.Port, of.To, false)
	}
	b := make([]byte, 16)
	b[0] = 8
	if of.To.Is6() {
		b[0] = 128
	}
	binary.BigEndian.PutUint16(b[4:], port)
	if of.To.Is4() { // the kernel computes ICMPv6's checksum
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	err := unix.Sendto(p.fds[Ping], b, 0, sockaddr(of.To))
	if errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

// rawNumber returns the IP protocol of a transport in the family of an address.
func rawNumber(proto model.Protocol, a netip.Addr) int {
	if proto == Ping && a.Is6() {
		return unix.IPPROTO_ICMPV6
	}
	return int(proto)
}

// readSeen parses a packet from a raw socket; ok is false if it is neither a first packet nor an
// answer.
func readSeen(proto model.Protocol, from netip.Addr, b []byte) (s seen, ok bool) {
	if len(b) < 8 {
		return s, false
	}
	be := binary.BigEndian
	s = seen{proto: proto, from: from, src: be.Uint16(b[0:]), dst: be.Uint16(b[2:])}
	switch proto {
	case model.TCP:
		if len(b) < 20 {
			return s, false
		}
		s.id, s.reply = be.Uint32(b[4:]), b[13] != tcpSYN
	case model.UDP:
		text := string(b[8:])
		s.reply = text == "reply"
		if !s.reply && len(text) == 4 {
			s.id = be.Uint32(b[8:])
		}
	case model.SCTP:
		c, fine := parseSCTP(b)
		if !fine {
			return s, false
		}
		s.id, s.reply = c.tag, c.chunk == sctpInitAck
	case Ping:
		s.id, s.src, s.dst = uint32(be.Uint16(b[4:])), 0, be.Uint16(b[4:])
		s.reply = b[0] == 0 || b[0] == 129
		return s, b[0] == 8 || b[0] == 128 || s.reply
	}
	return s, true
}
