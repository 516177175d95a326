package nft

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// quotedAt is where the packet begins that an ICMP error is about (RFC 792, 4443).
const quotedAt = 8

// Quoted is the family as ICMP errors have it that are about a packet: its fields are those of the
// flow in the other direction than that packet went, which whoever got it would answer with. They
// are to be loaded after Quotes.
func (f Family) Quoted() Family {
	header, protocol, src, dst := uint32(40), uint32(ipv6Protocol), uint32(ipv6Src), uint32(ipv6Dst)
	if f.Bits == IPv4.Bits {
		header, protocol, src, dst = 20, ipv4Protocol, ipv4Src, ipv4Dst
	}
	at := func(field Field, offset uint32) Field {
		field.load = quoted(offset, uint32(field.Size))
		return field
	}
	f.Saddr, f.Daddr = at(f.Daddr, dst), at(f.Saddr, src)
	f.Sport, f.Dport = at(f.Dport, header+2), at(f.Sport, header)
	f.Transport = at(f.Transport, protocol)
	return f
}

func quoted(offset, size uint32) func(uint32) Expression {
	return payload(expr.PayloadBaseTransportHeader, quotedAt+offset, size)
}

// Quotes goes on if the packet, which is of the family, is an ICMP error about one that has its
// ports where those of most are: right behind the header, and in it.
func (r Rule) Quotes(f Family) Rule {
	if f.Bits != IPv4.Bits {
		r = r.Is(expr.CmpOpEq, f.Transport, []byte{unix.IPPROTO_ICMPV6}).ICMPType(1, 4) // RFC 4443
		r.loadAt(firstRegister, []Field{Masked(Field{Size: 1, load: quoted(0, 1)}, 4)})
		return r.compare(expr.CmpOpEq, []byte{6 << 4})
	}
	const laterFragment = 0x1fff
	// RFC 792: unreachable, source quench, time exceeded, and parameter problem.
	r = r.Is(expr.CmpOpEq, f.Transport, []byte{unix.IPPROTO_ICMP}).ICMPType(3, 12).
		Add(&expr.Range{Op: expr.CmpOpNeq, Register: firstRegister, FromData: []byte{5}, ToData: []byte{10}}).
		Is(expr.CmpOpEq, Field{load: quoted(0, 1)}, []byte{4<<4 | 5})
	return r.Append(quoted(ipv4Fragment, 2)(firstRegister)).Add(bitwise([]byte{laterFragment >> 8, laterFragment & 0xff}, []byte{0, 0})).
		compare(expr.CmpOpEq, []byte{0, 0})
}
