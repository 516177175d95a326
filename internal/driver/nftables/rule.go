package nftables

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// rule is a sequence of expressions, built left to right as nft prints it, and encoded as it is built.
type rule struct {
	comment string
	exprs   attrs
	n       int  // expressions
	end     *int // of what is written, by this rule or another that began like it; nil: nothing is
}

// expression is one nf_tables expression: its name and what writes its data.
type expression struct {
	name string
	data func(*attrs)
}

// firstRegister is the first of the sixteen registers of four bytes in which a
// rule builds its keys.
const firstRegister = unix.NFT_REG32_00

func newRule(comment string) rule { return rule{comment: comment} }

// libExpr is an expression that google/nftables knows how to write.
func libExpr(e expr.Any) expression {
	return expression{data: func(a *attrs) {
		b, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil { // only for values out of range, which the program has none of
			panic(fmt.Sprintf("marshal expression %T: %v", e, err))
		}
		a.b = append(a.b, b...)
	}}
}

// write appends the expression as an element of a rule's list.
func (e expression) write(a *attrs) {
	elem := a.begin(unix.NFTA_LIST_ELEM)
	if e.name == "" {
		e.data(a)
	} else {
		a.str(unix.NFTA_EXPR_NAME, e.name)
		data := a.begin(unix.NFTA_EXPR_DATA)
		e.data(a)
		a.end(data)
	}
	a.end(elem)
}

func (r rule) add(e ...expr.Any) rule {
	for _, e := range e {
		r = r.append(libExpr(e))
	}
	return r
}

// append leaves rules as they are that began like r: it copies what it has in common with them where one of them
// went on already.
func (r rule) append(e expression) rule {
	if r.end == nil || *r.end != len(r.exprs.b) {
		r.exprs.b, r.end = append(make([]byte, 0, len(r.exprs.b)+ruleRoom), r.exprs.b...), new(int)
	}
	e.write(&r.exprs)
	*r.end = len(r.exprs.b)
	r.n++
	return r
}

// ruleRoom is what most rules take, in bytes.
const ruleRoom = 512

// load loads the fields into consecutive registers from firstRegister on, and
// returns the register after them.
func (r *rule) load(fields []field) uint32 {
	return r.loadAt(firstRegister, fields)
}

func (r *rule) loadAt(reg uint32, fields []field) uint32 {
	for _, f := range fields {
		if f.load != nil {
			*r = r.append(f.load(reg))
		}
		if f.mask != nil {
			*r = r.append(f.mask(reg))
		}
		reg += uint32(f.registers())
	}
	return reg
}

// compare goes on if the loaded register equals (or differs from) the value.
func (r rule) compare(op expr.CmpOp, v []byte) rule {
	return r.add(&expr.Cmp{Op: op, Register: firstRegister, Data: v})
}

func (r rule) family(f family) rule {
	return r.add(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: firstRegister}).compare(expr.CmpOpEq, []byte{f.num})
}

func (r rule) proto(p uint8) rule {
	return r.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister}).compare(expr.CmpOpEq, []byte{p})
}

func (r rule) notProto(p uint8) rule {
	return r.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister}).compare(expr.CmpOpNeq, []byte{p})
}

func (r rule) ct(key expr.CtKey, bits uint32, op expr.CmpOp) rule {
	mask := binary.NativeEndian.AppendUint32(nil, bits)
	zero := make([]byte, 4)
	return r.add(&expr.Ct{Key: key, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: mask, Xor: zero}).
		compare(op, zero)
}

// ctStatusDNAT is IPS_DST_NAT of the connection's status.
const ctStatusDNAT = 1 << 5

// untranslated goes on if the connection's destination was not changed.
func (r rule) untranslated() rule { return r.ct(expr.CtKeySTATUS, ctStatusDNAT, expr.CmpOpEq) }

// invalid goes on if connection tracking could make nothing of the packet.
func (r rule) invalid() rule {
	return r.ct(expr.CtKeySTATE, expr.CtStateBitINVALID, expr.CmpOpNeq)
}

// fromNode goes on if the source is (or is not) an address of the node.
func (r rule) fromNode(yes bool) rule {
	return r.local(&expr.Fib{Register: firstRegister, FlagSADDR: true, ResultADDRTYPE: true}, yes)
}

func (r rule) local(address *expr.Fib, yes bool) rule {
	op := expr.CmpOpNeq
	if yes {
		op = expr.CmpOpEq
	}
	return r.add(address).compare(op, binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL))
}

// in goes on if the key is in the set.
func (r rule) in(key []field, s *set) rule {
	r.load(key)
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.name, SetID: s.id})
}

// notIn goes on if the key is not in the set.
func (r rule) notIn(key []field, s *set) rule {
	r.load(key)
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.name, SetID: s.id, Invert: true})
}

// vmap does what the map says for the key, and goes on if it has none.
func (r rule) vmap(key []field, s *set) rule {
	r.load(key)
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.name, SetID: s.id, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT})
}

// dnat translates to what the map holds for the key, if it does.
func (r rule) dnat(f family, s *set, key ...field) rule {
	r.load(key)
	return r.translate(f, s)
}

// pick translates to the backend in a random slot out of n.
func (r rule) pick(f family, n uint32, s *set) rule {
	if n == 1 {
		r = r.constant(0)
	} else {
		r = r.add(&expr.Numgen{Register: firstRegister, Type: unix.NFT_NG_RANDOM, Modulus: n})
	}
	r.load(s.key)
	return r.translate(f, s)
}

// constant puts a number into the first register. It is written as a hash modulo one: nft can list that in a
// key, which it can not an immediate value, and it touches no memory that processors share, as a counter modulo one does.
func (r rule) constant(n uint32) rule {
	const scratch = firstRegister + 8
	r.loadAt(scratch, []field{fieldFamily})
	return r.add(&expr.Hash{SourceRegister: scratch, DestRegister: firstRegister, Length: 1, Modulus: 1, Offset: n, Type: expr.HashTypeJenkins})
}

func (r rule) translate(f family, s *set) rule {
	return r.add(
		&expr.Lookup{SourceRegister: firstRegister, SetName: s.name, SetID: s.id, IsDestRegSet: true, DestRegister: firstRegister},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.num), RegAddrMin: firstRegister, RegProtoMin: firstRegister + uint32(f.daddr.registers())},
	)
}

// forget removes what is remembered of the client and the frontend it asked for.
func (r rule) forget(f family, s *set) rule {
	return r.dynset(f, s, dynsetDelete, 0)
}

// remember stores where the client was sent, for the time-out.
func (r rule) remember(f family, s *set, d time.Duration) rule {
	return r.dynset(f, s, unix.NFT_DYNSET_OP_UPDATE, d)
}

func (r rule) dynset(f family, s *set, op uint32, d time.Duration) rule {
	data := r.load(append([]field{f.origSaddr}, f.origFrontend()...))
	r.loadAt(data, []field{f.daddr, fieldDport})
	return r.add(&expr.Dynset{SrcRegKey: firstRegister, SrcRegData: data, SetName: s.name, SetID: s.id, Operation: op, Timeout: d})
}

// remembered goes on if the map holds a backend for the client and the frontend it asked for: one whose address is not zero, as
// kernels before 6.5 take no look-up of a map's key alone. (nft lists the zero as of an invalid type.)
func (r rule) remembered(f family, s *set) rule {
	r.load(append([]field{f.origSaddr}, f.origFrontend()...))
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.name, SetID: s.id, IsDestRegSet: true, DestRegister: firstRegister}).
		compare(expr.CmpOpNeq, make([]byte, f.bits/8))
}

// Of a map of affinity, a frontend may fill 1/learnBurst at once, and 1/learnRate more over the time-out.
const (
	learnBurst = 16
	learnRate  = 2
)

// learnsTooMuch goes on if the frontend has learnt its share of a map of so many clients.
func (r rule) learnsTooMuch(f family, s *set, size uint32, d time.Duration) rule {
	r.load(f.origFrontend())
	limit := &expr.Limit{Type: expr.LimitTypePkts, Rate: max(1, uint64(size/learnRate)/uint64(d/time.Second)), Unit: expr.LimitTimeSecond, Burst: size / learnBurst, Over: true}
	return r.add(&expr.Dynset{SrcRegKey: firstRegister, SetName: s.name, SetID: s.id, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: d, Exprs: []expr.Any{limit}})
}

// masquerade takes a random source port: predictable ones collide under load, and can be guessed.
func (r rule) masquerade() rule { return r.add(&expr.Masq{FullyRandom: true}) }

func (r rule) rejectTCP() rule {
	return r.add(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
}

// reject answers with ICMP or ICMPv6 "port unreachable".
func (r rule) reject() rule {
	return r.add(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH})
}

func (r rule) drop() rule   { return r.add(&expr.Verdict{Kind: expr.VerdictDrop}) }
func (r rule) accept() rule { return r.add(&expr.Verdict{Kind: expr.VerdictAccept}) }

func (r rule) jump(to string) rule {
	return r.add(&expr.Verdict{Kind: expr.VerdictJump, Chain: to})
}
