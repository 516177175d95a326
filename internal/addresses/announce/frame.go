package announce

import (
	"encoding/binary"
	"net/netip"

	"sluice.dev/sluice/internal/kernel/ping"
)

// The types of frames, and what is in them; all as on Ethernet.
const (
	typeARP  = 0x0806
	typeIPv6 = 0x86dd

	headerSize = 14
	arpSize    = headerSize + 28
	ipv6Size   = headerSize + 40
	targetSize = ipv6Size + 24 // an ICMPv6 message with a target

	arpRequest, arpReply = 1, 2
	solicitation, advert = 135, 136 // of neighbours
	solicited, override  = 0x40, 0x20

	protocolICMPv6 = 58
)

type mac = [6]byte

var (
	broadcast = mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodes  = netip.MustParseAddr("ff02::1")
)

// question is an ARP request or a neighbour solicitation.
type question struct {
	target netip.Addr // who has it
	sender netip.Addr // who asks; unspecified, of one that checks that nobody else has the target
	mac    mac        // of the sender
}

// readARP reads a frame with an ARP request.
func readARP(f []byte) (q question, ok bool) {
	if len(f) < arpSize || string(f[12:20]) != "\x08\x06\x00\x01\x08\x00\x06\x04" || binary.BigEndian.Uint16(f[20:]) != arpRequest {
		return q, false
	}
	return question{netip.AddrFrom4([4]byte(f[38:42])), netip.AddrFrom4([4]byte(f[28:32])), mac(f[22:28])}, true
}

// arp makes a frame that says that an address is at a MAC: a request or a reply to a machine.
func arp(operation uint16, own mac, a netip.Addr, to mac, asked netip.Addr) []byte {
	f := make([]byte, 0, arpSize)
	f = append(append(f, to[:]...), own[:]...)
	f = append(f, "\x08\x06\x00\x01\x08\x00\x06\x04"...)
	f = binary.BigEndian.AppendUint16(f, operation)
	f = append(append(f, own[:]...), a.AsSlice()...)
	return append(append(f, to[:]...), asked.AsSlice()...)
}

// readSolicitation reads a frame with a neighbour solicitation. Its checksum has been looked at by
// nobody, and is not by us: the sender's own machine may leave it to hardware.
func readSolicitation(f []byte) (q question, ok bool) {
	if len(f) < targetSize || binary.BigEndian.Uint16(f[12:]) != typeIPv6 || f[20] != protocolICMPv6 || f[21] != 255 || f[54] != solicitation || f[55] != 0 {
		return q, false
	}
	return question{netip.AddrFrom16([16]byte(f[62:78])), netip.AddrFrom16([16]byte(f[22:38])), mac(f[6:12])}, true
}

// advertisement makes a frame that says that an address is at a MAC: to one who asked, or to all.
func advertisement(own mac, a netip.Addr, to mac, dst netip.Addr, flags byte) []byte {
	message := make([]byte, 0, 32)
	message = append(message, advert, 0, 0, 0, flags, 0, 0, 0)
	message = append(message, a.AsSlice()...)
	message = append(append(message, 2, 1), own[:]...) // option: the link-layer address of the target
	binary.BigEndian.PutUint16(message[2:], ping.Checksum6(a, dst, message))

	f := make([]byte, 0, ipv6Size+len(message))
	f = append(append(f, to[:]...), own[:]...)
	f = append(binary.BigEndian.AppendUint16(f, typeIPv6), 0x60, 0, 0, 0)
	f = append(binary.BigEndian.AppendUint16(f, uint16(len(message))), protocolICMPv6, 255)
	f = append(append(f, a.AsSlice()...), dst.AsSlice()...)
	return append(f, message...)
}

// multicastMAC is where frames to a multicast address of IPv6 go.
func multicastMAC(group netip.Addr) mac {
	b := group.As16()
	return mac{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// solicitedNode is the group to which questions for an address go.
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

// answer is the frame that answers a question.
func (q question) answer(own mac) []byte {
	switch {
	case q.target.Is4():
		return arp(arpReply, own, q.target, q.mac, q.sender)
	case q.sender.IsUnspecified():
		return advertisement(own, q.target, multicastMAC(allNodes), allNodes, override)
	}
	return advertisement(own, q.target, q.mac, q.sender, solicited|override)
}

// unasked are the frames that tell all neighbours of an address.
func unasked(own mac, a netip.Addr) [][]byte {
	if a.Is4() {
		return [][]byte{arp(arpRequest, own, a, broadcast, a), arp(arpReply, own, a, broadcast, a)}
	}
	return [][]byte{advertisement(own, a, multicastMAC(allNodes), allNodes, override)}
}
