package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// Element is one element of one set, as a value. A set holds at most one
// element of a key.
type Element struct {
	Set *Set
	ElementKey
	dataLen uint8
	Data    [20]byte // of a map to values
	Verdict Verdict  // of a map to verdicts
	Comment string   // not in sets of many elements
	Life    *Life    // nil: it stays
	// Packets, of so many Bytes, looked the element up, in a set that is Counted, when it was read.
	Packets, Bytes uint64
}

// Life is how long an element lives after it was last used, and how long it has still.
type Life struct{ Timeout, Expires time.Duration }

// ElementKey identifies an element within its set.
type ElementKey struct {
	KeyLen uint8
	Key    [56]byte
}

// Verdict is what a verdict map does with a packet.
type Verdict struct {
	Code  int32 // NF_DROP, NFT_GOTO …
	Chain string
}

// Goto is the verdict that goes to a chain, and does not come back.
func Goto(chain string) Verdict { return Verdict{unix.NFT_GOTO, chain} }

// Jump is the verdict that jumps to a chain.
func Jump(chain string) Verdict { return Verdict{unix.NFT_JUMP, chain} }

var (
	Drop   = Verdict{Code: 0} // NF_DROP
	Return = Verdict{Code: unix.NFT_RETURN}
)

// Append appends bytes as they are; a field takes whole registers of four.
func (k *ElementKey) Append(b ...byte) {
	k.KeyLen += uint8(copy(k.Key[k.KeyLen:], b))
}

// AppendPort appends a 16-bit field, padded to a register.
func (k *ElementKey) AppendPort(p uint16) { k.Append(byte(p>>8), byte(p), 0, 0) }

// AppendUint32 appends an integer in host byte order.
func (k *ElementKey) AppendUint32(v uint32) {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	k.Append(b[:]...)
}

// AppendDestination appends address, protocol and port.
func (k *ElementKey) AppendDestination(f Family, addr netip.Addr, proto uint8, port uint16) {
	k.Append(f.Addr(addr)...)
	k.Append(proto, 0, 0, 0)
	k.AppendPort(port)
}

// Destination reads what AppendDestination has appended; n is the size of an address.
func Destination(b []byte, n int) (addr netip.Addr, proto uint8, port uint16) {
	addr, _ = netip.AddrFromSlice(b[:n])
	return addr, b[n], binary.BigEndian.Uint16(b[n+4:])
}

// AppendName appends the name of an interface.
func (k *ElementKey) AppendName(name string) {
	var b [16]byte // IFNAMSIZ
	copy(b[:], name)
	k.Append(b[:]...)
}

// SetAddr sets the data of a map to an address.
func (e *Element) SetAddr(f Family, to netip.Addr) { e.dataLen = uint8(copy(e.Data[:], f.Addr(to))) }

// SetData sets the data of a map to bytes as they are.
func (e *Element) SetData(b []byte) { e.dataLen = uint8(copy(e.Data[:], b)) }

// SetAddrPort sets the data of a map to address and port.
func (e *Element) SetAddrPort(f Family, to netip.AddrPort) {
	n := copy(e.Data[:], f.Addr(to.Addr()))
	binary.BigEndian.PutUint16(e.Data[n:], to.Port())
	e.dataLen = uint8(n + 4)
}

// Digest hashes all that the kernel holds of the element; the digest of a
// set's content is the exclusive or over its elements, so that it can be kept up
// to date at the cost of the change.
func (e *Element) Digest() uint64 {
	var buf [160]byte
	b := append(buf[:0], byte(e.Set.ID), e.KeyLen, 0, e.dataLen, byte(e.Verdict.Code)) // the zero is there in the notes of all releases
	b = append(b, e.Key[:e.KeyLen]...)
	b = append(b, e.Data[:e.dataLen]...)
	b = append(b, e.Verdict.Chain...)
	b = append(b, 0)
	b = append(b, e.Comment...)
	return xxhash.Sum64(b)
}

// SameValue reports whether two elements of one key hold the same.
func (e *Element) SameValue(o *Element) bool {
	return e.Data == o.Data && e.Verdict == o.Verdict && e.Comment == o.Comment
}

// Write appends the element to an open list. To delete one, its key is enough.
func (e *Element) Write(a *attr.Attrs, keyOnly bool) {
	elem := a.Begin(unix.NFTA_LIST_ELEM)
	first, last := e.ends()
	writeData(a, unix.NFTA_SET_ELEM_KEY, first)
	if last != nil {
		writeData(a, elementKeyEnd, last)
	}
	if !keyOnly {
		e.writeValue(a)
	}
	a.End(elem)
}

// ends are the key, or where it is one of ranges, their first and their last values.
func (e *Element) ends() (first, last []byte) {
	if !e.Set.Ranges {
		return e.Key[:e.KeyLen], nil
	}
	return e.Key[:e.KeyLen/2], e.Key[e.KeyLen/2 : e.KeyLen]
}

func (e *Element) writeValue(a *attr.Attrs) {
	switch {
	case e.Set.Verdict:
		data := a.Begin(unix.NFTA_SET_ELEM_DATA)
		v := a.Begin(unix.NFTA_DATA_VERDICT)
		a.Uint32(unix.NFTA_VERDICT_CODE, uint32(e.Verdict.Code))
		if e.Verdict.Chain != "" {
			a.String(unix.NFTA_VERDICT_CHAIN, e.Verdict.Chain)
		}
		a.End(v)
		a.End(data)
	case e.dataLen > 0:
		writeData(a, unix.NFTA_SET_ELEM_DATA, e.Data[:e.dataLen])
	}
	putComment(a, unix.NFTA_SET_ELEM_USERDATA, e.Comment)
	if e.Life != nil {
		a.Bytes(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(e.Life.Timeout.Milliseconds())))
		a.Bytes(unix.NFTA_SET_ELEM_EXPIRATION, binary.BigEndian.AppendUint64(nil, uint64(e.Life.Expires.Milliseconds())))
	}
}

func writeData(a *attr.Attrs, typ uint16, v []byte) {
	at := a.Begin(typ)
	a.Bytes(unix.NFTA_DATA_VALUE, v)
	a.End(at)
}

// ReadElement decodes an element of a set from its attributes.
func ReadElement(s *Set, b []byte) Element {
	e := Element{Set: s}
	if left := attr.Find(b, unix.NFTA_SET_ELEM_EXPIRATION); left != nil {
		e.Life = &Life{readMilliseconds(attr.Find(b, unix.NFTA_SET_ELEM_TIMEOUT)), readMilliseconds(left)}
	}
	for typ, v := range attr.All(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.KeyLen = uint8(copy(e.Key[:], attr.Find(v, unix.NFTA_DATA_VALUE)))
		case elementKeyEnd: // it comes after the key
			e.Append(attr.Find(v, unix.NFTA_DATA_VALUE)...)
		case unix.NFTA_SET_ELEM_DATA:
			if d := attr.Find(v, unix.NFTA_DATA_VALUE); d != nil {
				e.dataLen = uint8(copy(e.Data[:], d))
			}
			if d := attr.Find(v, unix.NFTA_DATA_VERDICT); d != nil {
				e.Verdict.Code = int32(attr.Uint32(attr.Find(d, unix.NFTA_VERDICT_CODE)))
				e.Verdict.Chain = attr.Text(attr.Find(d, unix.NFTA_VERDICT_CHAIN))
			}
		case unix.NFTA_SET_ELEM_EXPR:
			counter := attr.Find(v, unix.NFTA_EXPR_DATA)
			e.Packets, e.Bytes = attr.Uint64(attr.Find(counter, unix.NFTA_COUNTER_PACKETS)), attr.Uint64(attr.Find(counter, unix.NFTA_COUNTER_BYTES))
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = udataString(v, udataComment)
		}
	}
	return e
}

func readMilliseconds(b []byte) time.Duration {
	return time.Duration(attr.Uint64(b)) * time.Millisecond
}

// String prints the element as nft does.
func (e *Element) String() string {
	var b strings.Builder
	first, last := e.ends()
	b.WriteString(formatKey(e.Set.Key, first))
	if last != nil {
		b.WriteString(" to " + formatKey(e.Set.Key, last))
	}
	if e.Comment != "" {
		fmt.Fprintf(&b, " comment %q", e.Comment)
	}
	switch {
	case e.Verdict.Code == unix.NFT_RETURN:
		b.WriteString(" : return")
	case e.Verdict.Code == unix.NFT_JUMP:
		b.WriteString(" : jump " + e.Verdict.Chain)
	case e.Verdict.Chain != "":
		b.WriteString(" : goto " + e.Verdict.Chain)
	case e.Set.Verdict:
		b.WriteString(" : drop")
	case e.dataLen > 0:
		b.WriteString(" : " + formatKey(e.Set.Data, e.Data[:e.dataLen]))
	}
	return b.String()
}

func formatKey(fields []Field, b []byte) string {
	var parts []string
	for _, f := range fields {
		n := 4 * f.registers()
		if n > len(b) {
			break
		}
		parts = append(parts, formatField(f, b[:n]))
		b = b[n:]
	}
	return strings.Join(parts, " . ")
}

func formatField(f Field, b []byte) string {
	switch f.Datatype {
	case L4Proto.Datatype:
		switch b[0] {
		case unix.IPPROTO_TCP:
			return "tcp"
		case unix.IPPROTO_UDP:
			return "udp"
		case unix.IPPROTO_SCTP:
			return "sctp"
		}
		return fmt.Sprint(b[0])
	case Dport.Datatype:
		return fmt.Sprint(binary.BigEndian.Uint16(b))
	case Number.Datatype, Mark.Datatype, IIF.Datatype:
		return fmt.Sprint(binary.NativeEndian.Uint32(b))
	case OIFName.Datatype:
		return attr.Text(b)
	}
	a, _ := netip.AddrFromSlice(b)
	return a.String()
}
