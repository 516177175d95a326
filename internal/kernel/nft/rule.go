package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// Rule is a sequence of expressions, built left to right as nft prints it, and encoded as it is
// built.
type Rule struct {
	Comment string
	exprs   attr.Attrs
	n       int // expressions
	// ends: what a map holds ends the chain for a packet; standIn is the same rule for the map that
	// stands in for it. See LookAgain.
	ends    bool
	standIn *Rule
	end     *int // of what is written, by this rule or another that began like it; nil: nothing is
}

// Expression is one nf_tables expression: its name and what writes its data.
type Expression struct {
	Name string
	Data func(*attr.Attrs)
}

// firstRegister is the first of the sixteen registers of four bytes in which a
// rule builds its keys.
const firstRegister = unix.NFT_REG32_00

// NewRule returns a rule without expressions; its comment may be in parts.
func NewRule(comment ...string) Rule { return Rule{Comment: strings.Join(comment, "")} }

// libExpr is an expression that google/nftables knows how to write.
func libExpr(e expr.Any) Expression {
	return Expression{Data: func(a *attr.Attrs) {
		b, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil { // only for values out of range, which no rule of ours has
			panic(fmt.Sprintf("marshal expression %T: %v", e, err))
		}
		a.B = append(a.B, b...)
	}}
}

func (r Rule) equal(o Rule) bool { return r.Comment == o.Comment && bytes.Equal(r.exprs.B, o.exprs.B) }

// Size is the number of expressions, and of the bytes that they take in a message.
func (r Rule) Size() (expressions, bytes int) { return r.n, len(r.exprs.B) }

// write appends the expression as an element of a rule's list.
func (e Expression) write(a *attr.Attrs) {
	elem := a.Begin(unix.NFTA_LIST_ELEM)
	if e.Name == "" {
		e.Data(a)
	} else {
		a.String(unix.NFTA_EXPR_NAME, e.Name)
		data := a.Begin(unix.NFTA_EXPR_DATA)
		e.Data(a)
		a.End(data)
	}
	a.End(elem)
}

// Write appends the attributes that create the rule.
func (r Rule) Write(a *attr.Attrs, table, chain string) {
	a.String(unix.NFTA_RULE_TABLE, table)
	a.String(unix.NFTA_RULE_CHAIN, chain)
	list := a.Begin(unix.NFTA_RULE_EXPRESSIONS)
	a.B = append(a.B, r.exprs.B...)
	a.End(list)
	putComment(a, unix.NFTA_RULE_USERDATA, r.Comment)
}

// Add appends expressions.
func (r Rule) Add(e ...expr.Any) Rule {
	for _, e := range e {
		r = r.Append(libExpr(e))
	}
	return r
}

// Append appends an expression. It leaves rules as they are that began like r: it copies what it
// has in common with them where one of them went on already.
func (r Rule) Append(e Expression) Rule {
	if r.end == nil || *r.end != len(r.exprs.B) {
		r.exprs.B, r.end = append(make([]byte, 0, len(r.exprs.B)+ruleRoom), r.exprs.B...), new(int)
	}
	e.write(&r.exprs)
	*r.end = len(r.exprs.B)
	r.n++
	return r
}

// ruleRoom is what most rules take, in bytes.
const ruleRoom = 512

// loadAt loads the fields into consecutive registers, and returns the register after them.
func (r *Rule) loadAt(reg uint32, fields []Field) uint32 {
	for _, f := range fields {
		if f.load != nil {
			*r = r.Append(f.load(reg))
		}
		if f.mask != nil {
			*r = r.Append(f.mask(reg))
		}
		reg += uint32(f.registers())
	}
	return reg
}

// compare goes on if the loaded register equals (or differs from) the value.
func (r Rule) compare(op expr.CmpOp, v []byte) Rule {
	return r.Add(&expr.Cmp{Op: op, Register: firstRegister, Data: v})
}

// Family goes on if the packet is of the family.
func (r Rule) Family(f Family) Rule {
	return r.Add(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: firstRegister}).compare(expr.CmpOpEq, []byte{f.num})
}

// Proto goes on if the packet is of the transport protocol.
func (r Rule) Proto(p uint8) Rule {
	return r.Add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister}).compare(expr.CmpOpEq, []byte{p})
}

// NotProto goes on if the packet is of another transport protocol.
func (r Rule) NotProto(p uint8) Rule {
	return r.Add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister}).compare(expr.CmpOpNeq, []byte{p})
}

// CtState goes on if the packet is in one of the states to its connection.
func (r Rule) CtState(states uint32) Rule { return r.ct(expr.CtKeySTATE, states, expr.CmpOpNeq) }

// NotCtState goes on if the packet is in none of the states to its connection.
func (r Rule) NotCtState(states uint32) Rule { return r.ct(expr.CtKeySTATE, states, expr.CmpOpEq) }

// ctStatusDNAT is IPS_DST_NAT of the connection's status.
const ctStatusDNAT = 1 << 5

// NotDNAT goes on if the connection's destination was not changed.
func (r Rule) NotDNAT() Rule { return r.ct(expr.CtKeySTATUS, ctStatusDNAT, expr.CmpOpEq) }

// Translated goes on if the connection's destination was changed.
func (r Rule) Translated() Rule { return r.ct(expr.CtKeySTATUS, ctStatusDNAT, expr.CmpOpNeq) }

// Refused goes on with what refuses a connection: a reset that is the first answer to it, upon
// which connection tracking has ended it already, or an ICMP error about one that has no answer
// yet.
func (r Rule) Refused() Rule {
	const seenReply, dying = 1 << 1, 1 << 9 // IPS_… of linux/netfilter/nf_conntrack_common.h
	return r.Add(&expr.Ct{Key: expr.CtKeySTATUS, Register: firstRegister}, bitwise(hostUint32(seenReply|dying), hostUint32(0))).
		compare(expr.CmpOpNeq, hostUint32(seenReply)).Reply()
}

// Original goes on if the packet goes the way of the connection's first one.
func (r Rule) Original() Rule { return r.direction(ctDirOriginal) }

// Reply goes on if the packet goes, or is an error that goes, to who opened the connection.
func (r Rule) Reply() Rule { return r.direction(ctDirReply) }

func (r Rule) direction(is byte) Rule {
	return r.Add(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: firstRegister}).compare(expr.CmpOpEq, []byte{is})
}

func (r Rule) ct(key expr.CtKey, bits uint32, op expr.CmpOp) Rule {
	mask := binary.NativeEndian.AppendUint32(nil, bits)
	zero := make([]byte, 4)
	return r.Add(&expr.Ct{Key: key, Register: firstRegister}, bitwise(mask, zero)).compare(op, zero)
}

// CtPackets goes on if the connection has had so many packets, in both directions. A rule with it
// has the kernel count those of all connections that begin from then on
// (net.netfilter.nf_conntrack_acct); those from before have none.
func (r Rule) CtPackets(from, to uint64) Rule {
	count := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	return r.Add(&expr.Ct{Key: expr.CtKeyPKTS, Register: firstRegister},
		&expr.Byteorder{SourceRegister: firstRegister, DestRegister: firstRegister, Op: expr.ByteorderHton, Len: 8, Size: 8},
		&expr.Range{Op: expr.CmpOpEq, Register: firstRegister, FromData: count(from), ToData: count(to)})
}

// CtLabel goes on if the connection's label equals (or differs from) the value; a label is one bit
// of sixteen bytes.
func (r Rule) CtLabel(op expr.CmpOp, label []byte) Rule {
	return r.Add(&expr.Ct{Key: expr.CtKeyLABELS, Register: firstRegister}, bitwise(label, make([]byte, len(label)))).compare(op, label)
}

// SetCtLabel gives the connection the label.
func (r Rule) SetCtLabel(label []byte) Rule {
	return r.Add(&expr.Immediate{Register: firstRegister, Data: label},
		&expr.Ct{Key: expr.CtKeyLABELS, Register: firstRegister, SourceRegister: true})
}

// Mark goes on if the bits of the packet's mark equal (or differ from) the value.
func (r Rule) Mark(op expr.CmpOp, bits, v uint32) Rule {
	return r.Add(&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister}, bitwise(hostUint32(bits), hostUint32(0))).compare(op, hostUint32(v))
}

// SetMark changes the bits of the packet's mark.
func (r Rule) SetMark(bits, v uint32) Rule {
	return r.Add(&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister}, bitwise(hostUint32(^bits), hostUint32(v)),
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: firstRegister})
}

// bitwise makes of the first register (it & mask) ^ xor.
func bitwise(mask, xor []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: uint32(len(mask)), Mask: mask, Xor: xor}
}

func hostUint32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Is goes on if the field equals (or differs from) the value.
func (r Rule) Is(op expr.CmpOp, f Field, v []byte) Rule {
	return r.Append(f.load(firstRegister)).compare(op, v)
}

// Between goes on if the field is in the range.
func (r Rule) Between(f Field, from, to []byte) Rule {
	return r.Append(f.load(firstRegister)).Add(&expr.Range{Op: expr.CmpOpEq, Register: firstRegister, FromData: from, ToData: to})
}

// ICMPType goes on if the type of an ICMP message is in the range.
func (r Rule) ICMPType(from, to byte) Rule { return r.Between(ICMPType, []byte{from}, []byte{to}) }

// Device goes on if the packet came in (or leaves) by the interface.
func (r Rule) Device(by Field, index uint32) Rule { return r.Is(expr.CmpOpEq, by, hostUint32(index)) }

// WrongWay goes on if the way back to the source does not lead through the interface that the
// packet came in by.
func (r Rule) WrongWay() Rule {
	return r.Add(&expr.Fib{Register: firstRegister, FlagSADDR: true, FlagIIF: true, FlagPRESENT: true, ResultOIF: true}).
		compare(expr.CmpOpEq, []byte{0})
}

// FromNode goes on if the source is (or is not) an address of the node.
func (r Rule) FromNode(yes bool) Rule {
	op := expr.CmpOpNeq
	if yes {
		op = expr.CmpOpEq
	}
	return r.Add(&expr.Fib{Register: firstRegister, FlagSADDR: true, ResultADDRTYPE: true}).compare(op, hostUint32(unix.RTN_LOCAL))
}

// In goes on if the key is in the set.
func (r Rule) In(s *Set, key ...Field) Rule {
	return r.Load(0, key...).Has(s, 0)
}

// NotIn goes on if the key is not in the set.
func (r Rule) NotIn(s *Set, key ...Field) Rule {
	return r.Load(0, key...).HasNot(s, 0)
}

// Lookup goes on if the number and the fields are in the set (or are not).
func (r Rule) Lookup(id uint32, s *Set, not bool, fields ...Field) Rule {
	if r = r.Constant(id).Load(1, fields...); not {
		return r.HasNot(s, 0)
	}
	return r.Has(s, 0)
}

// Vmap does what the map says for the key, and goes on if it has none.
func (r Rule) Vmap(s *Set, key ...Field) Rule {
	return r.Load(0, key...).Follow(s, 0)
}

// Pick translates to the backend in a random slot out of n.
func (r Rule) Pick(f Family, n uint32, s *Set) Rule {
	if n == 1 {
		r = r.Constant(0)
	} else {
		r = r.Random(0, n)
	}
	r = r.Load(0, s.Key...).Find(s, 0, 0).Destination(f, 0, f.Daddr.registers())
	r.ends = n == 1 // of others, the next rule draws anew
	return r
}

// Constant puts a number into the first register, written as a hash modulo one plus the number: nft
// cannot list an immediate value in a key, and a counter modulo one writes to memory that
// processors share.
func (r Rule) Constant(n uint32) Rule {
	const scratch = firstRegister + 8
	r.loadAt(scratch, []Field{NFProto})
	return r.Add(&expr.Hash{SourceRegister: scratch, DestRegister: firstRegister, Length: 1, Modulus: 1, Offset: n, Type: expr.HashTypeJenkins})
}

// Delete removes the key from a map that packets fill.
func (r Rule) Delete(s *Set, key, data []Field) Rule { return r.dynset(dynsetDelete, s, 0, key, data) }

// Update stores the data under the key for the time-out; where the key is there already, it renews
// the time and leaves the data.
func (r Rule) Update(s *Set, d time.Duration, key, data []Field) Rule {
	return r.dynset(unix.NFT_DYNSET_OP_UPDATE, s, d, key, data)
}

func (r Rule) dynset(op uint32, s *Set, d time.Duration, key, values []Field) Rule {
	data := r.loadAt(firstRegister, key)
	if r.loadAt(data, values); len(values) == 0 {
		data = 0
	}
	return r.Add(&expr.Dynset{SrcRegKey: firstRegister, SrcRegData: data, SetName: s.Name, SetID: s.ID, Operation: op, Timeout: d})
}

// HasData goes on if the map holds data for the key whose first bytes, as many as zero has, are not
// zero. (Kernels before 6.5 take no look-up of a map's key alone. nft lists the zero as of an
// invalid type.)
func (r Rule) HasData(s *Set, zero []byte, key []Field) Rule {
	return r.Load(0, key...).Find(s, 0, 0).compare(expr.CmpOpNeq, zero)
}

// OverLimit goes on if packets with the key came more often than the rate, and forgets the key
// after the time-out.
func (r Rule) OverLimit(s *Set, rate uint64, burst uint32, d time.Duration, key []Field) Rule {
	return r.Load(0, key...).Over(s, 0, rate, time.Second, burst, d)
}

// Count has a named counter count the packet.
func (r Rule) Count(name string) Rule { return r.Add(&expr.Objref{Type: objectCounter, Name: name}) }

// Masquerade takes a random source port: predictable ones collide under load, and can be guessed.
func (r Rule) Masquerade() Rule { return r.Add(&expr.Masq{FullyRandom: true}) }

// SNAT translates the source to what the map holds for the key, if it does, with a random port as
// Masquerade. The connection may leave by another interface later: a masqueraded one is dropped
// then.
func (r Rule) SNAT(f Family, s *Set, key ...Field) Rule {
	return r.Load(0, key...).Find(s, 0, 0).Source(f, 0)
}

// RejectTCP answers with a reset.
func (r Rule) RejectTCP() Rule {
	return r.Add(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
}

// Reject answers with ICMP or ICMPv6 "port unreachable".
func (r Rule) Reject() Rule {
	return r.Add(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH})
}

// Drop ends the packet.
func (r Rule) Drop() Rule { return r.Add(&expr.Verdict{Kind: expr.VerdictDrop}) }

// Accept ends the base chain; the packet goes on to the next.
func (r Rule) Accept() Rule { return r.Add(&expr.Verdict{Kind: expr.VerdictAccept}) }

// Jump goes on in a chain, and behind this rule when that ends or returns.
func (r Rule) Jump(to string) Rule {
	return r.Add(&expr.Verdict{Kind: expr.VerdictJump, Chain: to})
}

// Goto goes on in a chain, and when that ends or returns, where the chain of this rule was jumped
// to.
func (r Rule) Goto(to string) Rule {
	return r.Add(&expr.Verdict{Kind: expr.VerdictGoto, Chain: to})
}

// Return goes back to where the chain was jumped to.
func (r Rule) Return() Rule { return r.Add(&expr.Verdict{Kind: expr.VerdictReturn}) }
