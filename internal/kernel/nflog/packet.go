package nflog

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Header is what the headers of a packet say. Ports are those of TCP, UDP and SCTP; a fragment that
// is not the first has none, nor flags nor ICMP type.
type Header struct {
	Source, Destination         netip.Addr
	Protocol                    uint8 // of what IPv6 extension headers are before
	SourcePort, DestinationPort uint16
	ICMPType, ICMPCode          uint8 // ICMP, ICMPv6
	TCPFlags                    uint8 // FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32
	Length                      int   // of the packet, by its IP header
	Fragment                    bool  // not the first
	// About is the packet that an ICMP error is about; nil: it is no error, or does not say.
	About *Header
}

var (
	errShort   = errors.New("the packet is shorter than its header")
	errVersion = errors.New("neither IPv4 nor IPv6")
)

// Parse reads the headers of an IP packet, of which the end may be missing. An error means that not
// even the addresses are there; what else is missing is zero.
func Parse(b []byte) (Header, error) {
	if len(b) == 0 {
		return Header{}, errShort
	}
	switch b[0] >> 4 {
	case 4:
		return parse4(b)
	case 6:
		return parse6(b)
	}
	return Header{}, errVersion
}

// parse4 reads IPv4 (RFC 791).
func parse4(b []byte) (h Header, err error) {
	if len(b) < 20 || b[0]&15 < 5 {
		return h, errShort
	}
	h.Length = int(binary.BigEndian.Uint16(b[2:]))
	h.Protocol = b[9]
	h.Source, h.Destination = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	h.Fragment = binary.BigEndian.Uint16(b[6:])&0x1fff != 0
	if n := int(b[0]&15) * 4; n <= len(b) {
		h.transport(b[n:])
	}
	return h, nil
}

// parse6 reads IPv6 and walks its extension headers (RFC 8200).
func parse6(b []byte) (h Header, err error) {
	if len(b) < 40 {
		return h, errShort
	}
	h.Length = 40 + int(binary.BigEndian.Uint16(b[4:]))
	h.Protocol = b[6]
	h.Source, h.Destination = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	for b = b[40:]; len(b) >= 8; {
		n := 8 + int(b[1])*8
		switch h.Protocol {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS, unix.IPPROTO_MH, 139, 140: // 139 HIP, 140 Shim6
		case unix.IPPROTO_AH: // RFC 4302: in units of four bytes
			n = 8 + int(b[1])*4
		case unix.IPPROTO_FRAGMENT:
			n = 8
			h.Fragment = binary.BigEndian.Uint16(b[2:])&^7 != 0
		default:
			h.transport(b)
			return h, nil
		}
		h.Protocol = b[0]
		if h.Fragment || n > len(b) {
			return h, nil
		}
		b = b[n:]
	}
	h.transport(b)
	return h, nil
}

// transport reads what follows the IP headers.
func (h *Header) transport(b []byte) {
	if h.Fragment {
		return
	}
	switch h.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		if len(b) >= 4 {
			h.SourcePort, h.DestinationPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		}
		if len(b) >= 14 && h.Protocol == unix.IPPROTO_TCP {
			h.TCPFlags = b[13]
		}
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		if len(b) >= 2 {
			h.ICMPType, h.ICMPCode = b[0], b[1]
		}
		if h.icmpError() && len(b) >= icmpHeader {
			if about, err := Parse(b[icmpHeader:]); err == nil {
				h.About = &about
			}
		}
	}
}

// icmpHeader is before the packet that an ICMP error is about.
const icmpHeader = 8

// icmpError reports whether the ICMP message is an error (RFC 1122, section 3.2.2; RFC 4443).
func (h *Header) icmpError() bool {
	if h.Protocol == unix.IPPROTO_ICMPV6 {
		return h.ICMPType < 128
	}
	switch h.ICMPType {
	case 3, 4, 5, 11, 12:
		return true
	}
	return false
}
