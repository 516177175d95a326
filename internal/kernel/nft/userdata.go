// Package nft is nf_tables on the wire: messages and their attributes, transactions, sets with
// their elements, chains with their rules, and what the kernel holds of them. It knows nothing of
// services or policies.
package nft

import (
	"encoding/binary"
	"strings"

	"sluice.dev/sluice/internal/kernel/attr"
)

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

// putComment appends what nft shows as the comment of a table, chain, rule or element, unless it is
// empty. What is too long is cut.
func putComment(a *attr.Attrs, typ uint16, text string) {
	if text != "" {
		var u userdata
		u.str(udataComment, strings.ToValidUTF8(text[:min(len(text), MaxComment)], ""))
		a.Bytes(typ, u.b)
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
			return attr.Text(b[2 : 2+n])
		}
		b = b[2+n:]
	}
	return ""
}
