package foreign

import (
	"cmp"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Way is a new connection's way through a node.
type Way struct {
	Source             netip.Addr
	Destination        netip.Addr     // as a service translates it
	Asked              netip.AddrPort // the destination before
	Protocol           uint8
	SourcePort         uint16 // 0: not known
	DestinationPort    uint16
	ICMPType, ICMPCode uint8
	In, Out            int  // indexes of interfaces; 0: not known
	FromNode, ToNode   bool // the node itself is an end of it
	Tunnel             bool // these are packets of a tunnel, which are not tracked and get no answer
	Inside             bool // the destination is of a pod or node of the cluster
	// AtInput: services take connections where those for the node itself end, and send them on as
	// the node's own (IPVS).
	AtInput bool
}

// byInput reports whether a service takes the connection so.
func (w Way) byInput() bool {
	return w.AtInput && w.Asked != netip.AddrPortFrom(w.Destination, w.DestinationPort)
}

// hooks are those that the connection's packets pass.
func (w Way) hooks() []string {
	switch {
	case w.FromNode && w.ToNode:
		return nil // by lo, which such rules accept
	case w.byInput() && w.FromNode:
		return []string{"output", "input", "postrouting", "egress"}
	case w.byInput():
		return []string{"ingress", "prerouting", "input", "output", "postrouting", "egress"}
	case w.FromNode:
		return []string{"output", "postrouting", "egress"}
	case w.ToNode:
		return []string{"ingress", "prerouting", "input"}
	}
	return []string{"ingress", "prerouting", "forward", "postrouting", "egress"}
}

// replyHooks are those at which answers have the addresses that the backend knows.
func (w Way) replyHooks() []string {
	switch {
	case w.FromNode && w.ToNode, w.Tunnel, w.byInput(): // which has other hooks in each mode
		return nil
	case w.FromNode:
		return []string{"input"}
	case w.ToNode:
		return []string{"output"}
	}
	return []string{"forward"}
}

// packet is a packet as far as it is known; of the zero packet nothing is.
type packet struct {
	v4         answer
	protocol   uint8
	network    bits // the header
	transport  bits // its beginning
	asked      bits // network's and transport's before translation
	askedPorts bits
	in, out    nic
	hook       string
	priority   int
	reply      bool
	untracked  bool
	byInput    bool   // it is translated behind the hook input
	translated answer // its destination
	marked     bool   // a rule may have given it a mark
}

// packets are the first of each direction, of a way by two interfaces.
func (w *Way) packets(in, out nic) (request, reply *packet) {
	to := netip.AddrPortFrom(w.Destination, w.DestinationPort)
	const usual = 50000 // within the range of Linux, and that of RFC 6335
	from := netip.AddrPortFrom(w.Source, cmp.Or(w.SourcePort, usual))
	request = &packet{v4: is(w.Source.Is4()), protocol: w.Protocol, in: in, out: out, translated: is(to != w.Asked), byInput: w.byInput(), untracked: w.Tunnel}
	request.network, request.transport = headers(from, to, w, syn)
	request.asked, request.askedPorts = headers(from, w.Asked, w, syn)
	reply = &packet{v4: request.v4, protocol: w.Protocol, in: out, out: in, reply: true, translated: request.translated}
	reply.network, reply.transport = headers(to, from, w, syn|ack)
	return request, reply
}

// TCP's flags, of which a connection's first packets have syn, and ack in the answer (RFC 9293).
const fin, syn, rst, ack, urg = 1 << 0, 1 << 1, 1 << 2, 1 << 4, 1 << 5

// headers are those of a packet between two addresses.
func headers(from, to netip.AddrPort, w *Way, flags byte) (network, transport bits) {
	if from.Addr().Is4() {
		network = make(bits, 20)
		network.set(0, 0x45)
		network[6] = partly{0, 0x3f} // no fragment
		network.set(7, 0)
		network.set(9, w.Protocol)
		network.set(12, from.Addr().AsSlice()...)
		network.set(16, to.Addr().AsSlice()...)
	} else {
		network = make(bits, 40)
		network[0] = partly{0x60, 0xf0}
		network.set(6, w.Protocol)
		network.set(8, from.Addr().AsSlice()...)
		network.set(24, to.Addr().AsSlice()...)
	}
	transport = make(bits, 16)
	switch w.Protocol {
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		if flags&ack == 0 {
			transport.set(0, w.ICMPType, w.ICMPCode)
		}
		return network, transport
	case unix.IPPROTO_TCP:
		transport[13] = partly{flags, fin | syn | rst | ack | urg}
	}
	for at, port := range []uint16{from.Port(), to.Port()} {
		transport.set(2*at, binary.BigEndian.AppendUint16(nil, port)...)
	}
	return network, transport
}

// beforeServices reports whether the packet is where services have not translated it.
func (p *packet) beforeServices() bool {
	const dstNAT = -100 // NF_IP_PRI_NAT_DST
	switch {
	case p.reply:
		return false
	case p.byInput:
		return p.hook == "ingress" || p.hook == "prerouting" || p.hook == "input"
	}
	return p.hook == "ingress" || (p.hook == "prerouting" || p.hook == "output") && p.priority <= dstNAT
}

// header returns bytes of one.
func (p *packet) header(network bool, offset, length int) bits {
	of := p.transport
	switch {
	case p.beforeServices() && network:
		of = p.asked
	case p.beforeServices():
		of = p.askedPorts
	case network:
		of = p.network
	}
	return of.slice(offset, length)
}

// interfaces returns those that are known where the packet is.
func (p *packet) interfaces() (in, out nic) {
	if p.hook != "output" && p.hook != "postrouting" && p.hook != "egress" { // where a packet of the node has none
		in = p.in
	}
	if p.hook != "ingress" && p.hook != "prerouting" && p.hook != "input" {
		out = p.out
	}
	return in, out
}

// state returns the connection's, a bit of IP_CT_*; 0: it is not known.
func (p *packet) state() uint32 {
	const conntrack = -200 // NF_IP_PRI_CONNTRACK
	switch {
	case p.network == nil || p.hook == "ingress" || p.priority <= conntrack && p.hook == "prerouting":
		return 0
	case p.reply:
		return stateEstablished
	case p.untracked:
		return stateUntracked
	}
	return stateNew
}

// Bits of a connection's state, and of its status (nf_conntrack_common.h).
const (
	stateEstablished = 1 << 1
	stateNew         = 1 << 3
	stateUntracked   = 1 << 6
	statusDNAT       = 1 << 5
)

// dnat is whether the destination is translated already.
func (p *packet) dnat() answer {
	if p.beforeServices() && p.network != nil {
		return no
	}
	return p.translated
}

// partly is a byte, of whose bits some are known.
type partly struct{ value, known byte }

// bits are bytes of which not all is known.
type bits []partly

// known are bytes that are.
func known(b ...byte) bits {
	all := make(bits, len(b))
	all.set(0, b...)
	return all
}

func (b bits) set(at int, bytes ...byte) {
	for i, v := range bytes {
		b[at+i] = partly{v, 0xff}
	}
}

// slice returns so many of them; those beyond the end are not known.
func (b bits) slice(offset, length int) bits {
	part := make(bits, length)
	if offset < len(b) {
		copy(part, b[offset:])
	}
	return part
}

// equal is whether they are those.
func (b bits) equal(to []byte) answer {
	all := yes
	for i, v := range to {
		switch {
		case i >= len(b):
			return maybe
		case (b[i].value^v)&b[i].known != 0:
			return no
		case b[i].known != 0xff:
			all = maybe
		}
	}
	return all
}

// compare orders them as numbers of the network's byte order; ok: that is known.
func (b bits) compare(to []byte) (order int, ok bool) {
	for i, v := range to {
		switch {
		case i >= len(b) || b[i].known != 0xff:
			return 0, false
		case b[i].value != v:
			return int(b[i].value) - int(v), true
		}
	}
	return 0, true
}

// within is whether they are between two values, both included.
func (b bits) within(from, to []byte) answer {
	least, ok := b.compare(from)
	most, also := b.compare(to)
	switch {
	case ok && least < 0 || also && most > 0:
		return no
	case ok && also:
		return yes
	}
	return maybe
}
