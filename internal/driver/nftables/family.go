package nftables

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// family is what differs between IPv4 and IPv6 in the program.
type family struct {
	name         string // prefix of the names of sets and chains
	num          uint8  // NFPROTO_*
	bits         int    // of an address
	saddr, daddr field
	origSaddr    field // of the connection as its client asked for it
	origDaddr    field
	replySaddr   field // of who answers the connection
}

// field is a part of a key: how it is loaded from a packet, and how nft types
// it. Its length in a key is rounded up to registers of four bytes.
type field struct {
	name  string // nft's name of the datatype
	magic uint32 // nft's number of the datatype
	size  int    // bytes
	host  bool   // in the host's byte order
	load  func(reg uint32) expression
	mask  func(reg uint32) expression // applied to what was loaded; nil: all of it counts
	udata func(*userdata)             // what nft's typeof writes down for it
}

func (f field) registers() int { return (f.size + 3) / 4 }

// nft's own numbers, from its datatypes, expressions and protocol
// descriptions; it stores them with a set to be able to list it.
const (
	udataExprNumgen  = 23
	udataExprPayload = 7
	udataExprMeta    = 9
	udataExprConcat  = 13

	udataProtoTransport = 11
	udataProtoIP        = 12
	udataProtoIP6       = 13
)

const (
	ipv4Src, ipv4Dst = 12, 16 // offsets in the header, RFC 791
	ipv6Src, ipv6Dst = 8, 24  // RFC 8200
)

// Keys of the ct expression that google/nftables lacks (linux/netfilter/nf_tables.h).
const (
	ctSrcIP  = 19
	ctDstIP  = 20
	ctSrcIP6 = 21
	ctDstIP6 = 22

	ctDirOriginal = 0
	ctDirReply    = 1
)

var (
	ipv4 = family{
		name: "ip", num: unix.NFPROTO_IPV4, bits: 32,
		saddr: addrField("ipv4_addr", 7, 4, ipv4Src, udataProtoIP, 11), daddr: addrField("ipv4_addr", 7, 4, ipv4Dst, udataProtoIP, 12),
		origSaddr: ctField("ipv4_addr", 7, 4, ctSrcIP, ctDirOriginal), origDaddr: ctField("ipv4_addr", 7, 4, ctDstIP, ctDirOriginal),
		replySaddr: ctField("ipv4_addr", 7, 4, ctSrcIP, ctDirReply),
	}
	ipv6 = family{
		name: "ip6", num: unix.NFPROTO_IPV6, bits: 128,
		saddr: addrField("ipv6_addr", 8, 16, ipv6Src, udataProtoIP6, 8), daddr: addrField("ipv6_addr", 8, 16, ipv6Dst, udataProtoIP6, 9),
		origSaddr: ctField("ipv6_addr", 8, 16, ctSrcIP6, ctDirOriginal), origDaddr: ctField("ipv6_addr", 8, 16, ctDstIP6, ctDirOriginal),
		replySaddr: ctField("ipv6_addr", 8, 16, ctSrcIP6, ctDirReply),
	}

	fieldProto = field{
		name: "inet_proto", magic: 12, size: 1,
		load: func(reg uint32) expression { return libExpr(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}) },
		udata: func(u *userdata) {
			u.u32(0, udataExprMeta)
			u.put(1, new(userdata).with(func(d *userdata) { d.u32(0, uint32(expr.MetaKeyL4PROTO)) }))
		},
	}
	// fieldFamily is there in every packet.
	fieldFamily = field{name: "nf_proto", magic: 2, size: 1, load: func(reg uint32) expression { return libExpr(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg}) }}
	fieldDport  = field{
		name: "inet_service", magic: 13, size: 2,
		load:  payload(expr.PayloadBaseTransportHeader, 2, 2),
		udata: udataPayload(udataProtoTransport, 2),
	}
	// fieldOrigDport is the port that the client asked for. A key that has it has the protocol, too: no rule needs to ask for that first.
	fieldOrigDport = ctField("inet_service", 13, 2, uint32(expr.CtKeyPROTODST), ctDirOriginal)
	// fieldSlot is the place of a backend in its frontend's list; each pick
	// rule draws it in its own way.
	fieldSlot = field{
		name: "integer", magic: 4, size: 4,
		udata: func(u *userdata) {
			u.u32(0, udataExprNumgen)
			u.put(1, new(userdata).with(func(d *userdata) { d.u32(0, 0); d.u32(1, 2); d.u32(2, 0) }))
		},
	}
	fieldMark = field{name: "mark", magic: 19, size: 4, host: true}
)

// origFrontend is the key of the frontend that a translated connection's client asked for.
func (f family) origFrontend() []field {
	return []field{f.origDaddr, fieldProto, fieldOrigDport}
}

// addr is an address as it stands in a key.
func (f family) addr(a netip.Addr) []byte {
	if f.bits == 32 {
		b := a.As4()
		return b[:]
	}
	b := a.As16()
	return b[:]
}

func addrField(name string, magic uint32, size int, offset, udataProto, udataField uint32) field {
	return field{name: name, magic: magic, size: size,
		load:  payload(expr.PayloadBaseNetworkHeader, offset, uint32(size)),
		udata: udataPayload(udataProto, udataField)}
}

func payload(base expr.PayloadBase, offset, size uint32) func(uint32) expression {
	return func(reg uint32) expression {
		return libExpr(&expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: size})
	}
}

func udataPayload(proto, typ uint32) func(*userdata) {
	return func(u *userdata) {
		u.u32(0, udataExprPayload)
		u.put(1, new(userdata).with(func(d *userdata) { d.u32(0, proto); d.u32(1, typ) }))
	}
}

// ctField is a part of one of the connection's directions.
func ctField(name string, magic uint32, size int, key uint32, direction byte) field {
	return field{name: name, magic: magic, size: size, load: func(reg uint32) expression {
		return expression{"ct", func(a *attrs) {
			a.u32(unix.NFTA_CT_KEY, key)
			a.u32(unix.NFTA_CT_DREG, reg)
			a.bytes(unix.NFTA_CT_DIRECTION, []byte{direction})
		}}
	}}
}

// with lets f write and returns what it wrote.
func (u *userdata) with(f func(*userdata)) []byte {
	f(u)
	return u.b
}
