package nft

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// Family is what differs between IPv4 and IPv6.
type Family struct {
	Name         string // as nft calls it
	num          uint8  // NFPROTO_*
	Bits         int    // of an address
	Saddr, Daddr Field
	Transport    Field // the protocol; to be loaded from packets of the family alone
	Sport, Dport Field
	OrigSaddr    Field // of the connection as its client asked for it
	OrigDaddr    Field
	ReplySaddr   Field // of who answers the connection
}

// Field is a part of a key: how it is loaded from a packet, and how nft types
// it. Its length in a key is rounded up to registers of four bytes.
type Field struct {
	Datatype uint32 // nft's number of the datatype
	Size     int    // bytes
	host     bool   // in the host's byte order
	load     func(reg uint32) Expression
	mask     func(reg uint32) Expression // applied to what was loaded; nil: all of it counts
	udata    func(*userdata)             // what nft's typeof writes down for it

	base   expr.PayloadBase // where it stands in the packet, if a rule writes it
	offset uint32
}

func (f Field) registers() int { return (f.Size + 3) / 4 }

// nft's own numbers, from its datatypes, expressions and protocol
// descriptions; it stores them with a set to be able to list it.
const (
	typeFamily    = 2
	typeInteger   = 4
	typeIPv4Addr  = 7
	typeIPv6Addr  = 8
	typeEther     = 9
	typeProtocol  = 12
	typeService   = 13
	typeMark      = 19
	typeInterface = 20
	typeIfname    = 41

	udataExprNumgen  = 23
	udataExprPayload = 7
	udataExprMeta    = 9
	udataExprConcat  = 13

	udataProtoTransport = 11
	udataProtoIP        = 12
	udataProtoIP6       = 13
)

const (
	ipv4Protocol, ipv4Src, ipv4Dst = 9, 12, 16 // offsets in the header, RFC 791
	ipv6Protocol, ipv6Src, ipv6Dst = 6, 8, 24  // RFC 8200
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
	IPv4 = Family{
		Name: "ip", num: unix.NFPROTO_IPV4, Bits: 32,
		Saddr: addrField(typeIPv4Addr, 4, ipv4Src, udataProtoIP, 11), Daddr: addrField(typeIPv4Addr, 4, ipv4Dst, udataProtoIP, 12),
		Transport: Field{Datatype: typeProtocol, Size: 1, load: payload(expr.PayloadBaseNetworkHeader, ipv4Protocol, 1)}, // cheaper than meta
		Sport:     Sport, Dport: Dport,
		OrigSaddr: ctField(typeIPv4Addr, 4, ctSrcIP, ctDirOriginal), OrigDaddr: ctField(typeIPv4Addr, 4, ctDstIP, ctDirOriginal),
		ReplySaddr: ctField(typeIPv4Addr, 4, ctSrcIP, ctDirReply),
	}
	IPv6 = Family{
		Name: "ip6", num: unix.NFPROTO_IPV6, Bits: 128,
		Saddr: addrField(typeIPv6Addr, 16, ipv6Src, udataProtoIP6, 8), Daddr: addrField(typeIPv6Addr, 16, ipv6Dst, udataProtoIP6, 9), Transport: L4Proto,
		Sport: Sport, Dport: Dport,
		OrigSaddr: ctField(typeIPv6Addr, 16, ctSrcIP6, ctDirOriginal), OrigDaddr: ctField(typeIPv6Addr, 16, ctDstIP6, ctDirOriginal),
		ReplySaddr: ctField(typeIPv6Addr, 16, ctSrcIP6, ctDirReply),
	}

	L4Proto = Field{
		Datatype: typeProtocol, Size: 1,
		load: func(reg uint32) Expression { return libExpr(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}) },
		udata: func(u *userdata) {
			u.u32(0, udataExprMeta)
			u.put(1, new(userdata).with(func(d *userdata) { d.u32(0, uint32(expr.MetaKeyL4PROTO)) }))
		},
	}
	// NFProto is the packet's family: it is there in every packet.
	NFProto = Field{Datatype: typeFamily, Size: 1, load: func(reg uint32) Expression { return libExpr(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg}) }}
	Dport   = Field{
		Datatype: typeService, Size: 2,
		load:  payload(expr.PayloadBaseTransportHeader, 2, 2),
		udata: udataPayload(udataProtoTransport, 2),
		base:  expr.PayloadBaseTransportHeader, offset: 2,
	}
	// CtOrigDport is the port that the client asked for. A key that has it has the protocol, too:
	// no rule needs to ask for that first.
	CtOrigDport = ctField(typeService, 2, uint32(expr.CtKeyPROTODST), ctDirOriginal)
	// CtReplySport is the port that answers come from, likewise.
	CtReplySport = ctField(typeService, 2, uint32(expr.CtKeyPROTOSRC), ctDirReply)
	// CtOrigSport is the port that the client asked from, likewise.
	CtOrigSport = ctField(typeService, 2, uint32(expr.CtKeyPROTOSRC), ctDirOriginal)
	// Number is a number that rules put into the key themselves: a random one, or a constant.
	Number = Field{
		Datatype: typeInteger, Size: 4,
		udata: func(u *userdata) {
			u.u32(0, udataExprNumgen)
			u.put(1, new(userdata).with(func(d *userdata) { d.u32(0, 0); d.u32(1, 2); d.u32(2, 0) }))
		},
	}
	// IIF is the interface that a packet came in by, OIF the one it leaves by.
	IIF = deviceField(expr.MetaKeyIIF)
	OIF = deviceField(expr.MetaKeyOIF)
	// OIFName is the name of the interface that a packet leaves by.
	OIFName = Field{
		Datatype: typeIfname, Size: 16, host: true,
		load: func(reg uint32) Expression { return libExpr(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg}) },
	}
	Sport = Field{Datatype: typeService, Size: 2, load: payload(expr.PayloadBaseTransportHeader, 0, 2), udata: udataPayload(udataProtoTransport, 1), base: expr.PayloadBaseTransportHeader}
	// ICMPType is only compared, as is ICMP, which is type and code together.
	ICMPType = Field{Size: 1, load: payload(expr.PayloadBaseTransportHeader, 0, 1)}
	ICMP     = Field{Size: 2, load: payload(expr.PayloadBaseTransportHeader, 0, 2)}

	// VNI is that of a VXLAN packet, with the byte after it, which has to be zero. It is only
	// compared.
	VNI = Field{Size: 4, load: payload(expr.PayloadBaseTransportHeader, 12, 4)}
	// SCTPChunk is the type of an SCTP packet's first chunk. It is only compared with, in rules for
	// SCTP.
	SCTPChunk = Field{Size: 1, load: payload(expr.PayloadBaseTransportHeader, 12, 1)}

	Mark = Field{Datatype: typeMark, Size: 4, host: true}

	// Priority is that of a packet.
	Priority = Field{Datatype: typeMark, Size: 4, host: true, load: func(reg uint32) Expression { return libExpr(&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg}) }}

	// etherType is that of the frame, or of its VLAN tag where it has one. It is only compared.
	etherType = Field{Size: 2, load: payload(expr.PayloadBaseLLHeader, 12, 2)}

	// SrcMAC and DstMAC are the Ethernet addresses of a packet as it came in.
	SrcMAC = Field{Datatype: typeEther, Size: 6, load: payload(expr.PayloadBaseLLHeader, 6, 6)}
	DstMAC = Field{Datatype: typeEther, Size: 6, load: payload(expr.PayloadBaseLLHeader, 0, 6)}
)

// Number is the family as it stands in a key.
func (f Family) Number() []byte { return []byte{f.num, 0, 0, 0} }

// Addr is an address as it stands in a key.
func (f Family) Addr(a netip.Addr) []byte {
	if f.Bits == 32 {
		b := a.As4()
		return b[:]
	}
	b := a.As16()
	return b[:]
}

func addrField(datatype uint32, size int, offset, udataProto, udataField uint32) Field {
	return Field{Datatype: datatype, Size: size,
		load:  payload(expr.PayloadBaseNetworkHeader, offset, uint32(size)),
		udata: udataPayload(udataProto, udataField), base: expr.PayloadBaseNetworkHeader, offset: offset}
}

func payload(base expr.PayloadBase, offset, size uint32) func(uint32) Expression {
	return func(reg uint32) Expression {
		return libExpr(&expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: size})
	}
}

func udataPayload(proto, typ uint32) func(*userdata) {
	return func(u *userdata) {
		u.u32(0, udataExprPayload)
		u.put(1, new(userdata).with(func(d *userdata) { d.u32(0, proto); d.u32(1, typ) }))
	}
}

func deviceField(key expr.MetaKey) Field {
	return Field{
		Datatype: typeInterface, Size: 4, host: true,
		load: func(reg uint32) Expression { return libExpr(&expr.Meta{Key: key, Register: reg}) },
	}
}

// Masked is the field with all bits after the first so many zero.
func Masked(f Field, bits int) Field {
	if bits == 8*f.Size {
		return f
	}
	mask := make([]byte, f.Size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	f.mask = func(reg uint32) Expression {
		return libExpr(&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(f.Size), Mask: mask, Xor: make([]byte, f.Size)})
	}
	return f
}

// Version is 4 or 6.
func (f Family) Version() int {
	if f.Bits == IPv4.Bits {
		return 4
	}
	return 6
}

// ctField is a part of one of the connection's directions.
func ctField(datatype uint32, size int, key uint32, direction byte) Field {
	return Field{Datatype: datatype, Size: size, load: func(reg uint32) Expression {
		return Expression{"ct", func(a *attr.Attrs) {
			a.Uint32(unix.NFTA_CT_KEY, key)
			a.Uint32(unix.NFTA_CT_DREG, reg)
			a.Bytes(unix.NFTA_CT_DIRECTION, []byte{direction})
		}}
	}}
}

// with lets f write and returns what it wrote.
func (u *userdata) with(f func(*userdata)) []byte {
	f(u)
	return u.b
}
