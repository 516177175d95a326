package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// element is one element of one set, as a value. A set holds at most one
// element of a key.
type element struct {
	set *set
	elementKey
	dataLen uint8
	data    [20]byte // of a map to values
	verdict verdict  // of a map to verdicts
	comment string   // not in sets of many elements
	life    *life    // nil: it stays
}

// life is how long an element lives after it was last used, and how long it has still.
type life struct{ whole, left time.Duration }

// elementKey identifies an element within its set.
type elementKey struct {
	keyLen, endLen uint8
	intervalEnd    bool // the key ends the interval that the key before it began
	key            [44]byte
	end            [40]byte // the last key of a range of concatenations
}

// verdict is what a verdict map does with a packet.
type verdict struct {
	code  int32 // NF_DROP, NFT_GOTO …
	chain string
}

func goTo(chain string) verdict { return verdict{unix.NFT_GOTO, chain} }

func jumpTo(chain string) verdict { return verdict{unix.NFT_JUMP, chain} }

var (
	dropIt   = verdict{code: 0} // NF_DROP
	returnIt = verdict{code: unix.NFT_RETURN}
)

func (k *elementKey) append(b ...byte) {
	k.keyLen += uint8(copy(k.key[k.keyLen:], b))
}

// appendPort appends a 16-bit field, padded to a register.
func (k *elementKey) appendPort(p uint16) { k.append(byte(p>>8), byte(p), 0, 0) }

// appendUint32 appends an integer in host byte order.
func (k *elementKey) appendUint32(v uint32) {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	k.append(b[:]...)
}

// appendFrontend appends address, protocol and port.
func (k *elementKey) appendFrontend(f family, addr netip.Addr, proto uint8, port uint16) {
	k.append(f.addr(addr)...)
	k.append(proto, 0, 0, 0)
	k.appendPort(port)
}

func (e *element) setData(f family, to netip.AddrPort) {
	n := copy(e.data[:], f.addr(to.Addr()))
	binary.BigEndian.PutUint16(e.data[n:], to.Port())
	e.dataLen = uint8(n + 4)
}

// frontend is the frontend that the element is about, if it is about one.
func (e *element) frontend() (k state.FrontendKey, ok bool) {
	if e.set.policy || int(e.keyLen) != keyLen(e.set.key) {
		return k, false // not of services; or someone else's, in a table without an owner
	}
	fields, b := e.set.key, e.key[:e.keyLen]
	if m := fields[0].magic; m == fieldSlot.magic || m == fieldMark.magic {
		fields, b = fields[1:], b[4:]
	}
	if len(fields) < 3 || fields[1].magic != fieldProto.magic {
		return k, false
	}
	return readFrontend(b, fields[0].size), true
}

// readFrontend reads what appendFrontend wrote; n is the size of an address.
func readFrontend(b []byte, n int) state.FrontendKey {
	addr, _ := netip.AddrFromSlice(b[:n])
	return state.FrontendKey{Addr: addr, Protocol: model.Protocol(b[n]), Port: binary.BigEndian.Uint16(b[n+4:])}
}

// digest hashes all that the kernel holds of the element; the digest of a
// set's content is the exclusive or over its elements, so that it can be kept up
// to date at the cost of the change.
func (e *element) digest() uint64 {
	var buf [160]byte
	b := append(buf[:0], byte(e.set.id), e.keyLen, e.endLen, e.dataLen, byte(e.verdict.code))
	b = append(b, e.key[:e.keyLen]...)
	b = append(b, e.end[:e.endLen]...)
	b = append(b, e.data[:e.dataLen]...)
	if e.intervalEnd {
		b = append(b, 1)
	}
	b = append(b, e.verdict.chain...)
	b = append(b, 0)
	b = append(b, e.comment...)
	return xxhash.Sum64(b)
}

// sameValue reports whether two elements of one key hold the same.
func (e *element) sameValue(o *element) bool {
	return e.data == o.data && e.verdict == o.verdict && e.comment == o.comment
}

// write appends the element to an open list. To delete one, its key is enough.
func (e *element) write(a *attrs, keyOnly bool) {
	elem := a.begin(unix.NFTA_LIST_ELEM)
	if e.intervalEnd {
		a.u32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	writeData(a, unix.NFTA_SET_ELEM_KEY, e.key[:e.keyLen])
	if e.endLen > 0 {
		writeData(a, setElemKeyEnd, e.end[:e.endLen])
	}
	if !keyOnly {
		e.writeValue(a)
	}
	a.end(elem)
}

func (e *element) writeValue(a *attrs) {
	switch {
	case e.set.verdict:
		data := a.begin(unix.NFTA_SET_ELEM_DATA)
		v := a.begin(unix.NFTA_DATA_VERDICT)
		a.u32(unix.NFTA_VERDICT_CODE, uint32(e.verdict.code))
		if e.verdict.chain != "" {
			a.str(unix.NFTA_VERDICT_CHAIN, e.verdict.chain)
		}
		a.end(v)
		a.end(data)
	case e.dataLen > 0:
		writeData(a, unix.NFTA_SET_ELEM_DATA, e.data[:e.dataLen])
	}
	if e.comment != "" {
		var u userdata
		u.str(udataComment, e.comment)
		a.bytes(unix.NFTA_SET_ELEM_USERDATA, u.b)
	}
	if e.life != nil {
		a.bytes(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(e.life.whole.Milliseconds())))
		a.bytes(unix.NFTA_SET_ELEM_EXPIRATION, binary.BigEndian.AppendUint64(nil, uint64(e.life.left.Milliseconds())))
	}
}

func writeData(a *attrs, typ uint16, v []byte) {
	at := a.begin(typ)
	a.bytes(unix.NFTA_DATA_VALUE, v)
	a.end(at)
}

// readElement decodes an element of a set from its attributes.
func readElement(s *set, b []byte) element {
	e := element{set: s}
	if left := findAttr(b, unix.NFTA_SET_ELEM_EXPIRATION); left != nil {
		e.life = &life{readMilliseconds(findAttr(b, unix.NFTA_SET_ELEM_TIMEOUT)), readMilliseconds(left)}
	}
	eachAttr(b, func(typ uint16, v []byte) bool {
		switch typ {
		case unix.NFTA_SET_ELEM_FLAGS:
			e.intervalEnd = beUint32(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_KEY:
			e.keyLen = uint8(copy(e.key[:], findAttr(v, unix.NFTA_DATA_VALUE)))
		case setElemKeyEnd:
			e.endLen = uint8(copy(e.end[:], findAttr(v, unix.NFTA_DATA_VALUE)))
		case unix.NFTA_SET_ELEM_DATA:
			if d := findAttr(v, unix.NFTA_DATA_VALUE); d != nil {
				e.dataLen = uint8(copy(e.data[:], d))
			}
			if d := findAttr(v, unix.NFTA_DATA_VERDICT); d != nil {
				e.verdict.code = int32(beUint32(findAttr(d, unix.NFTA_VERDICT_CODE)))
				e.verdict.chain = cString(findAttr(d, unix.NFTA_VERDICT_CHAIN))
			}
		case unix.NFTA_SET_ELEM_USERDATA:
			e.comment = udataString(v, udataComment)
		}
		return true
	})
	return e
}

func readMilliseconds(b []byte) time.Duration {
	if len(b) < 8 {
		return 0
	}
	return time.Duration(binary.BigEndian.Uint64(b)) * time.Millisecond
}

// String prints the element as nft does.
func (e *element) String() string {
	var b strings.Builder
	b.WriteString(formatKey(e.set.key, e.key[:e.keyLen]))
	if e.endLen > 0 {
		b.WriteString(" to " + formatKey(e.set.key, e.end[:e.endLen]))
	}
	if e.intervalEnd {
		b.WriteString(" (end of range)")
	}
	if e.comment != "" {
		fmt.Fprintf(&b, " comment %q", e.comment)
	}
	switch {
	case e.verdict.code == unix.NFT_RETURN:
		b.WriteString(" : return")
	case e.verdict.code == unix.NFT_JUMP:
		b.WriteString(" : jump " + e.verdict.chain)
	case e.verdict.chain != "":
		b.WriteString(" : goto " + e.verdict.chain)
	case e.set.verdict:
		b.WriteString(" : drop")
	case e.dataLen > 0:
		b.WriteString(" : " + formatKey(e.set.data, e.data[:e.dataLen]))
	}
	return b.String()
}

func formatKey(fields []field, b []byte) string {
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

func formatField(f field, b []byte) string {
	switch f.magic {
	case fieldProto.magic:
		switch b[0] {
		case unix.IPPROTO_TCP:
			return "tcp"
		case unix.IPPROTO_UDP:
			return "udp"
		case unix.IPPROTO_SCTP:
			return "sctp"
		}
		return fmt.Sprint(b[0])
	case fieldDport.magic:
		return fmt.Sprint(binary.BigEndian.Uint16(b))
	case fieldSlot.magic, fieldMark.magic, fieldDevice.magic:
		return fmt.Sprint(binary.NativeEndian.Uint32(b))
	}
	a, _ := netip.AddrFromSlice(b)
	return a.String()
}
