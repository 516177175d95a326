// Package attr writes and reads netlink attributes. Writing cannot fail, and takes no allocation
// beside the buffer: there are a hundred thousand messages at a start.
package attr

import (
	"bytes"
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Attrs appends attributes to a buffer. Numbers are big endian, as netfilter has them; lengths and
// types of attributes are the host's.
type Attrs struct{ B []byte }

const header = unix.NLA_HDRLEN

// Begin opens a nested attribute and returns the offset to close it with.
func (a *Attrs) Begin(typ uint16) int {
	at := len(a.B)
	a.header(typ|unix.NLA_F_NESTED, 0)
	return at
}

// End closes the nested attribute that Begin opened.
func (a *Attrs) End(at int) {
	binary.NativeEndian.PutUint16(a.B[at:], uint16(len(a.B)-at))
}

func (a *Attrs) header(typ uint16, n int) {
	a.B = binary.NativeEndian.AppendUint16(a.B, uint16(header+n))
	a.B = binary.NativeEndian.AppendUint16(a.B, typ)
}

// Bytes appends bytes as they are.
func (a *Attrs) Bytes(typ uint16, v []byte) {
	a.header(typ, len(v))
	a.B = append(a.B, v...)
	a.pad()
}

// String appends a zero-terminated string.
func (a *Attrs) String(typ uint16, v string) {
	a.header(typ, len(v)+1)
	a.B = append(a.B, v...)
	a.B = append(a.B, 0)
	a.pad()
}

// Uint8 appends a byte.
func (a *Attrs) Uint8(typ uint16, v uint8) {
	a.header(typ, 1)
	a.B = append(a.B, v)
	a.pad()
}

// Uint16 appends a number of two bytes.
func (a *Attrs) Uint16(typ, v uint16) {
	a.header(typ, 2)
	a.B = binary.BigEndian.AppendUint16(a.B, v)
	a.pad()
}

// Uint32 appends a number of four bytes.
func (a *Attrs) Uint32(typ uint16, v uint32) {
	a.header(typ, 4)
	a.B = binary.BigEndian.AppendUint32(a.B, v)
}

func (a *Attrs) pad() {
	for len(a.B)%unix.NLA_ALIGNTO != 0 {
		a.B = append(a.B, 0)
	}
}

// All yields the attributes in b; types come without their flags. Malformed remains end it.
func All(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= header {
			n := int(binary.NativeEndian.Uint16(b))
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if n < header || n > len(b) || !yield(typ, b[header:n]) {
				return
			}
			b = b[min((n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
		}
	}
}

// Find returns the value of the first attribute of the type, or nil.
func Find(b []byte, want uint16) []byte {
	for typ, v := range All(b) {
		if typ == want {
			return v
		}
	}
	return nil
}

// Text cuts a string attribute at its terminating zero.
func Text(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// Uint32 reads a number of four bytes; 0 where there are fewer.
func Uint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// Uint64 reads a number of eight bytes; 0 where there are fewer.
func Uint64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
