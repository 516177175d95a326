package nft

import (
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// The expressions in this file name the registers that they read and write: a rule with several
// look-ups builds the key of one from the result of another. There are sixteen registers of four
// bytes, 0 to 15; a field takes as many as it is long.

func register(n int) uint32 { return firstRegister + uint32(n) }

// Load loads the fields into registers from at on.
func (r Rule) Load(at int, fields ...Field) Rule {
	r.loadAt(register(at), fields)
	return r
}

// Registers is the number of registers that the fields take.
func Registers(fields ...Field) (n int) {
	for _, f := range fields {
		n += f.registers()
	}
	return n
}

// Find goes on if the map has the key at the register, with its data from to on.
func (r Rule) Find(s *Set, at, to int) Rule {
	r.ends = !s.Dynamic && !s.Ranges
	return r.Add(&expr.Lookup{SourceRegister: register(at), SetName: s.Name, SetID: s.ID, IsDestRegSet: true, DestRegister: register(to)})
}

// FindIn goes on if the map has the key with the packet's addresses, protocol and port, and the set
// has (or has not) the destination's with what was found, which is at the register to, behind them.
//
// nft lists no key that has the result of a look-up in it, whose length it does not know, and
// aborts (netlink_parse_concat_expr, seen in nft 1.0.6). So the register where the key begins is
// loaded with as many bytes of the packet, before it is loaded together with the one before: nft
// takes these for the key, and lists "@nh,0,160".
func (r Rule) FindIn(f Family, m, s *Set, not bool) (_ Rule, to int) {
	addr := f.Daddr.registers()
	bytes := 4 * uint32(Registers(s.Key...))
	whole := Field{Size: int(bytes), load: payload(expr.PayloadBaseNetworkHeader, 0, bytes)}
	both := Field{Size: 2 * f.Daddr.Size, load: payload(expr.PayloadBaseNetworkHeader, f.Saddr.offset, 2*uint32(f.Daddr.Size))}
	to = Registers(m.Key...)
	r = r.Load(addr, whole).Load(0, both, L4Proto, Dport).Find(m, 0, to)
	if not {
		return r.HasNot(s, addr), to
	}
	return r.Has(s, addr), to
}

// Has goes on if the set has the key at the register.
func (r Rule) Has(s *Set, at int) Rule {
	return r.Add(&expr.Lookup{SourceRegister: register(at), SetName: s.Name, SetID: s.ID})
}

// HasNot goes on if the set does not have the key at the register.
func (r Rule) HasNot(s *Set, at int) Rule {
	return r.Add(&expr.Lookup{SourceRegister: register(at), SetName: s.Name, SetID: s.ID, Invert: true})
}

// Follow does what the map of verdicts says for the key at the register, and goes on if it says
// nothing.
func (r Rule) Follow(s *Set, at int) Rule {
	one := r.FollowAnd(s, at)
	if one.ends = !s.Ranges; s.StandIn != nil {
		one.standIn = new(r.FollowAnd(s.StandIn, at))
	}
	return one
}

// FollowAnd does the same for a map whose verdicts jump, and goes on.
func (r Rule) FollowAnd(s *Set, at int) Rule {
	return r.Add(&expr.Lookup{SourceRegister: register(at), SetName: s.Name, SetID: s.ID, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT})
}

// Number writes a number into a register, as Constant does: as a hash modulo one plus the number.
func (r Rule) Number(at int, n uint32) Rule {
	r.loadAt(register(at), []Field{NFProto})
	return r.Add(&expr.Hash{SourceRegister: register(at), DestRegister: register(at), Length: 1, Modulus: 1, Offset: n, Type: expr.HashTypeJenkins})
}

// SetPriority has the packet's priority be the number at a register. What a map holds can be used
// in a later rule so: nft cannot list a key that has the result of a look-up in it, and aborts
// (netlink_parse_concat_expr, seen in nft 1.0.6).
func (r Rule) SetPriority(from int) Rule {
	return r.Add(&expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: register(from)})
}

// ClearPriority has the packet's priority be zero, by way of the last register.
func (r Rule) ClearPriority() Rule {
	const last = 15
	return r.Add(&expr.Immediate{Register: register(last), Data: hostUint32(0)}).SetPriority(last)
}

// MarkConnection gives the connection a mark.
func (r Rule) MarkConnection(mark uint32) Rule {
	return r.Add(&expr.Immediate{Register: firstRegister, Data: hostUint32(mark)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: firstRegister, SourceRegister: true})
}

// Random writes a random number below n into a register.
func (r Rule) Random(at int, n uint32) Rule {
	return r.Add(&expr.Numgen{Register: register(at), Type: unix.NFT_NG_RANDOM, Modulus: n})
}

// Next writes into a register a number that is one more at each packet, and below n.
func (r Rule) Next(at int, n uint32) Rule {
	return r.Add(&expr.Numgen{Register: register(at), Type: unix.NFT_NG_INCREMENTAL, Modulus: n})
}

// Jhash writes a hash of some bytes from a register on into another one, below n.
func (r Rule) Jhash(from, bytes, to int, n, seed uint32) Rule {
	return r.Add(&expr.Hash{SourceRegister: register(from), Length: uint32(bytes), DestRegister: register(to), Modulus: n, Seed: seed, Type: expr.HashTypeJenkins})
}

// Symhash writes a hash that both directions of a flow share into a register, below n.
func (r Rule) Symhash(to int, n uint32) Rule {
	return r.Append(Expression{"hash", func(a *attr.Attrs) {
		a.Uint32(unix.NFTA_HASH_DREG, register(to))
		a.Uint32(unix.NFTA_HASH_MODULUS, n)
		a.Uint32(unix.NFTA_HASH_TYPE, unix.NFT_HASH_SYM)
	}})
}

// Destination translates to the address at a register and the port at another; -1: the port stays.
func (r Rule) Destination(f Family, addr, port int) Rule {
	return r.nat(expr.NATTypeDestNAT, f, addr, port)
}

// Source translates the source to the address at a register, with a random port.
func (r Rule) Source(f Family, addr int) Rule { return r.nat(expr.NATTypeSourceNAT, f, addr, -1) }

func (r Rule) nat(typ expr.NATType, f Family, addr, port int) Rule {
	e := &expr.NAT{Type: typ, Family: uint32(f.num), RegAddrMin: register(addr), FullyRandom: typ == expr.NATTypeSourceNAT}
	if port >= 0 {
		e.RegProtoMin = register(port)
	}
	return r.Add(e)
}

// Learn adds the key from a register on to a map, with the data from another one on, for a time;
// where the key is there already, it renews the time and leaves the data.
func (r Rule) Learn(s *Set, key, data int, d time.Duration) Rule {
	return r.Add(&expr.Dynset{SrcRegKey: register(key), SrcRegData: register(data), SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: d})
}

// Over goes on if packets with the key from a register on come more often than the rate, and
// forgets the key after the time-out.
func (r Rule) Over(s *Set, key int, packets uint64, per time.Duration, burst uint32, d time.Duration) Rule {
	over := rate(packets, per, burst)
	over.Over = true
	return r.limited(s, key, over, d)
}

// WithinEach goes on with no more packets of the key from a register on than the rate, and with
// none if the set is full. It forgets the key after the time-out.
func (r Rule) WithinEach(s *Set, key int, packets uint64, per time.Duration, burst uint32, d time.Duration) Rule {
	return r.limited(s, key, rate(packets, per, burst), d)
}

func rate(packets uint64, per time.Duration, burst uint32) *expr.Limit {
	return &expr.Limit{Type: expr.LimitTypePkts, Rate: packets, Unit: expr.LimitTime(per / time.Second), Burst: burst}
}

func (r Rule) limited(s *Set, key int, limit *expr.Limit, d time.Duration) Rule {
	return r.Add(&expr.Dynset{SrcRegKey: register(key), SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: d, Exprs: []expr.Any{limit}})
}

// Within goes on with no more packets than the rate.
func (r Rule) Within(packets uint64, per time.Duration, burst uint32) Rule {
	return r.Add(rate(packets, per, burst))
}

// Counted goes on if there are more than n connections with the key from a register on.
func (r Rule) Counted(s *Set, key int, n uint32) Rule {
	limit := &expr.Connlimit{Count: n, Flags: expr.NFT_CONNLIMIT_F_INV}
	return r.Add(&expr.Dynset{SrcRegKey: register(key), SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_ADD, Exprs: []expr.Any{limit}})
}

// Untracked leaves the packet out of connection tracking.
func (r Rule) Untracked() Rule { return r.Add(&expr.Notrack{}) }

// WriteAddress has the packet go to, or come from, the address at a register. Checksums follow.
func (r Rule) WriteAddress(field Field, f Family, from int) Rule {
	e := field.write(register(from))
	if f.Bits == IPv4.Bits {
		e.CsumType, e.CsumOffset = expr.CsumTypeInet, ipv4Checksum
	}
	e.CsumFlags = unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR
	return r.Append(payloadWrite(e))
}

// WritePort is WriteAddress for the port of a packet of the transport protocol: TCP, UDP or SCTP;
// 0: of one without a checksum.
func (r Rule) WritePort(field Field, from int, proto uint8) Rule {
	e := field.write(register(from))
	e.CsumType, e.CsumOffset = expr.CsumTypeInet, checksums[proto]
	switch proto {
	case 0:
		e.CsumType = expr.CsumTypeNone
	case unix.IPPROTO_SCTP:
		e.CsumType = csumTypeSCTP
	}
	return r.Append(payloadWrite(e))
}

// MayFragment clears the bit of an IPv4 packet that forbids to fragment it.
func (r Rule) MayFragment() Rule {
	return r.Add(
		&expr.Payload{DestRegister: firstRegister, Base: expr.PayloadBaseNetworkHeader, Offset: ipv4Fragment, Len: 2},
		bitwise([]byte{0xbf, 0xff}, []byte{0, 0}),
		&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: firstRegister, Base: expr.PayloadBaseNetworkHeader, Offset: ipv4Fragment, Len: 2,
			CsumType: expr.CsumTypeInet, CsumOffset: ipv4Checksum,
		})
}

// Unsummed goes on if the packet, which is of UDP, has no checksum (RFC 768).
func (r Rule) Unsummed() Rule {
	sum := Field{load: payload(expr.PayloadBaseTransportHeader, checksums[unix.IPPROTO_UDP], 2)}
	return r.Is(expr.CmpOpEq, sum, []byte{0, 0})
}

// checksums are the offsets of checksums in the headers of protocols (RFC 9293, 768 and 9260).
var checksums = map[uint8]uint32{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6, unix.IPPROTO_SCTP: 8}

// csumTypeSCTP is NFT_PAYLOAD_CSUM_SCTP of linux/netfilter/nf_tables.h: CRC32c.
const csumTypeSCTP = 2

// Offsets in the header of IPv4 (RFC 791).
const (
	ipv4Fragment = 6 // flags, and the fragment's place
	ipv4Checksum = 10
)

// payloadWrite writes what google/nftables writes for a payload statement, and the flags where
// there is no checksum of the network header.
func payloadWrite(e *expr.Payload) Expression {
	return Expression{"payload", func(a *attr.Attrs) {
		a.Uint32(unix.NFTA_PAYLOAD_SREG, e.SourceRegister)
		a.Uint32(unix.NFTA_PAYLOAD_BASE, uint32(e.Base))
		a.Uint32(unix.NFTA_PAYLOAD_OFFSET, e.Offset)
		a.Uint32(unix.NFTA_PAYLOAD_LEN, e.Len)
		a.Uint32(unix.NFTA_PAYLOAD_CSUM_TYPE, uint32(e.CsumType))
		a.Uint32(unix.NFTA_PAYLOAD_CSUM_OFFSET, e.CsumOffset)
		a.Uint32(unix.NFTA_PAYLOAD_CSUM_FLAGS, e.CsumFlags)
	}}
}

// write writes the field, which is one of the packet's own, from a register.
func (f Field) write(from uint32) *expr.Payload {
	return &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: from, Base: f.base, Offset: f.offset, Len: uint32(f.Size)}
}

// Protocol is Family for tables of the family netdev.
func (r Rule) Protocol(f Family) Rule {
	return r.Add(&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: firstRegister}).compare(expr.CmpOpEq, f.inEthernet())
}

// Untagged is Protocol for frames of Ethernet, and goes on only if the frame is of no VLAN.
func (r Rule) Untagged(f Family) Rule { return r.Is(expr.CmpOpEq, etherType, f.inEthernet()) }

// inEthernet is the family's number in frames of Ethernet.
func (f Family) inEthernet() []byte {
	if f.Bits == IPv4.Bits {
		return []byte{0x08, 0x00}
	}
	return []byte{0x86, 0xdd}
}

// PacketType goes on if the packet is of a type: unix.PACKET_….
func (r Rule) PacketType(typ byte) Rule {
	return r.Add(&expr.Meta{Key: expr.MetaKeyPKTTYPE, Register: firstRegister}).compare(expr.CmpOpEq, []byte{typ})
}

// Forward hands the packet to the neighbour at the address in a register, through the interface
// whose index is in another one: the kernel looks up its hardware address. For tables of the family
// netdev.
func (r Rule) Forward(f Family, device, addr int) Rule {
	return r.Append(Expression{"fwd", func(a *attr.Attrs) {
		a.Uint32(fwdDevice, register(device))
		a.Uint32(fwdAddr, register(addr))
		a.Uint32(fwdFamily, uint32(f.num))
	}})
}

// Attributes of the fwd expression (linux/netfilter/nf_tables.h).
const (
	fwdDevice = 1
	fwdAddr   = 2
	fwdFamily = 3
)

// SYNProxy answers the client in the backend's place, and takes what it acknowledges.
func (r Rule) SYNProxy() Rule {
	return r.Add(&expr.SynProxy{Mss: 1460, Wscale: 7, Timestamp: true, SackPerm: true})
}

// Logged writes the packet's header to the kernel's log, after a prefix.
func (r Rule) Logged(prefix string) Rule {
	return r.Add(&expr.Log{Key: 1 << unix.NFTA_LOG_PREFIX, Data: []byte(prefix)})
}

// LoggedTo sends so many of the packet's first bytes to an nflog group.
func (r Rule) LoggedTo(group uint16, bytes uint32) Rule {
	return r.Add(&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN, Group: group, Snaplen: bytes})
}

// Helper gives the connection the helper object of a name.
func (r Rule) Helper(name string) Rule {
	return r.Add(&expr.Objref{Type: objectHelper, Name: name})
}

// Of linux/netfilter/nf_tables.h: NFT_OBJECT_CT_HELPER and its attributes.
const (
	objectHelper   = 3
	helperName     = 1
	helperProtocol = 3
)

// TCPFlags goes on if those of the flags that are in mask are just set.
func (r Rule) TCPFlags(mask, set byte) Rule {
	flags := payload(expr.PayloadBaseTransportHeader, 13, 1)(firstRegister)
	return r.Proto(unix.IPPROTO_TCP).Append(flags).Add(bitwise([]byte{mask}, []byte{0})).compare(expr.CmpOpEq, []byte{set})
}

// RefusedSYN goes on if the packet, which is of TCP, is a reset that answers a SYN: its sequence
// number is zero (RFC 9293, section 3.10.7.1). Others are told by that alone.
func (r Rule) RefusedSYN() Rule {
	const rstACK = 0x14
	sequence := Field{load: payload(expr.PayloadBaseTransportHeader, 4, 4)}
	flags := Field{load: payload(expr.PayloadBaseTransportHeader, 13, 1)}
	return r.Is(expr.CmpOpEq, sequence, make([]byte, 4)).Is(expr.CmpOpEq, flags, []byte{rstACK})
}

// ToNode goes on if the destination is an address of the node.
func (r Rule) ToNode() Rule {
	return r.Add(&expr.Fib{Register: firstRegister, FlagDADDR: true, ResultADDRTYPE: true}).compare(expr.CmpOpEq, hostUint32(unix.RTN_LOCAL))
}
