// Package nft is nf_tables on the wire: messages and their attributes, transactions, sets with
// their elements, chains with their rules, and what the kernel holds of them. It knows nothing of
// services or policies.
package nft

import (
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"
)

// Attrs appends netlink attributes to a buffer. All integers of nf_tables are
// big endian; lengths and types of attributes are the host's.
type Attrs struct{ B []byte }

const attrHeader = 4

// begin opens a nested attribute and returns the offset to close it with.
func (a *Attrs) begin(typ uint16) int {
	at := len(a.B)
	a.header(typ|unix.NLA_F_NESTED, 0)
	return at
}

// end closes the nested attribute that begin opened.
func (a *Attrs) end(at int) {
	binary.NativeEndian.PutUint16(a.B[at:], uint16(len(a.B)-at))
}

func (a *Attrs) header(typ uint16, n int) {
	a.B = binary.NativeEndian.AppendUint16(a.B, uint16(attrHeader+n))
	a.B = binary.NativeEndian.AppendUint16(a.B, typ)
}

func (a *Attrs) bytes(typ uint16, v []byte) {
	a.header(typ, len(v))
	a.B = append(a.B, v...)
	a.pad()
}

// str appends a zero-terminated string.
func (a *Attrs) str(typ uint16, v string) {
	a.header(typ, len(v)+1)
	a.B = append(a.B, v...)
	a.B = append(a.B, 0)
	a.pad()
}

func (a *Attrs) u32(typ uint16, v uint32) {
	a.header(typ, 4)
	a.B = binary.BigEndian.AppendUint32(a.B, v)
}

func (a *Attrs) pad() {
	for len(a.B)%unix.NLA_ALIGNTO != 0 {
		a.B = append(a.B, 0)
	}
}

// EachAttr calls f for each attribute in b until f returns false; types come
// without their flags. Malformed remains end the walk.
func EachAttr(b []byte, f func(typ uint16, v []byte) bool) {
	for len(b) >= attrHeader {
		n := int(binary.NativeEndian.Uint16(b))
		typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if n < attrHeader || n > len(b) || !f(typ, b[attrHeader:n]) {
			return
		}
		b = b[min((n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
	}
}

// FindAttr returns the value of the first attribute of the type, or nil.
func FindAttr(b []byte, want uint16) (found []byte) {
	EachAttr(b, func(typ uint16, v []byte) bool {
		if typ == want {
			found = v
		}
		return typ != want
	})
	return found
}

// CString cuts a string attribute at its terminating zero.
func CString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func beUint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// NativeUint32 reads a number in host byte order, as user data and marks have it.
func NativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// userdata is the type-length-value format in which nft keeps comments and
// types for itself; the kernel stores it unread.
type userdata struct{ b []byte }

func (u *userdata) put(typ uint8, v []byte) {
	u.b = append(u.b, typ, uint8(len(v)))
	u.b = append(u.b, v...)
}

func (u *userdata) str(typ uint8, v string) { u.put(typ, append([]byte(v), 0)) }

// u32 is in host byte order, unlike nf_tables' own attributes.
func (u *userdata) u32(typ uint8, v uint32) {
	u.put(typ, binary.NativeEndian.AppendUint32(nil, v))
}

// MaxComment is the longest comment that nft reads back, in bytes.
const MaxComment = 127

// comment appends what nft shows as the comment of a table, chain, rule or element, unless it is
// empty. What is too long is cut.
func (a *Attrs) comment(typ uint16, text string) {
	if text != "" {
		var u userdata
		u.str(udataComment, strings.ToValidUTF8(text[:min(len(text), MaxComment)], ""))
		a.bytes(typ, u.b)
	}
}

// udataString returns the string of the given type in a userdata block.
func udataString(b []byte, want uint8) string {
	for len(b) >= 2 {
		n := int(b[1])
		if 2+n > len(b) {
			break
		}
		if b[0] == want {
			return CString(b[2 : 2+n])
		}
		b = b[2+n:]
	}
	return ""
}
