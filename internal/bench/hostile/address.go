package hostile

import (
	"fmt"
	"net/netip"

	"sluice.dev/sluice/internal/bench/cluster"
)

// addr is an address that nobody else has; neighbours have numbers that follow each other.
func (d *dice) addr(six bool, i int) netip.Addr {
	if six {
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x68, 8: byte(d.number >> 16), 9: byte(d.number >> 8), 10: byte(d.number),
			12: byte(i >> 24), 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
	}
	// 100.64.0.0/10 is nobody's here.
	n := 100<<24 | 64<<16 | (d.number*4096+i)&(1<<22-1)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// serviceAddr is the object's own in the range of services.
func (d *dice) serviceAddr(six bool) netip.Addr {
	if six {
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x10, 12: byte(d.number >> 24), 13: byte(d.number >> 16), 14: byte(d.number >> 8), 15: byte(d.number)})
	}
	const first = 1 << 16 // those before are others'
	return cluster.ServiceAddr(first + d.number%(1<<21))
}

// random is any address at all.
func (d *dice) random(six bool) netip.Addr {
	var b [16]byte
	for i := range b {
		b[i] = byte(d.IntN(256))
	}
	if six {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[:4]))
}

// prefix is one of a number in a list of ways to make lists of networks awkward.
type prefixes func(d *dice, six bool, i int) netip.Prefix

var prefixLists = []prefixes{
	// Each length, and so on from the start.
	func(d *dice, six bool, i int) netip.Prefix {
		a := d.random(six)
		return netip.PrefixFrom(a, i%(a.BitLen()+1)).Masked()
	},
	// One within the other.
	func(d *dice, six bool, i int) netip.Prefix {
		a := d.addr(six, 0)
		return netip.PrefixFrom(a, i%(a.BitLen()+1)).Masked()
	},
	// Neighbours.
	func(d *dice, six bool, i int) netip.Prefix {
		a := d.addr(six, i)
		return netip.PrefixFrom(a, a.BitLen())
	},
	// Every other one: no two are one network.
	func(d *dice, six bool, i int) netip.Prefix {
		a := d.addr(six, 2*i)
		return netip.PrefixFrom(a, a.BitLen()-i%2)
	},
	// The same again and again.
	func(d *dice, six bool, i int) netip.Prefix { return netip.PrefixFrom(d.addr(six, 0), 24).Masked() },
	// Anything.
	func(d *dice, six bool, i int) netip.Prefix {
		a := d.random(six)
		return netip.PrefixFrom(a, d.IntN(a.BitLen()+1)).Masked()
	},
	// Everything.
	func(d *dice, six bool, i int) netip.Prefix {
		a := d.random(six)
		return netip.PrefixFrom(a, i%2).Masked()
	},
}

// nets are networks of one family.
func (d *dice) nets(least, most int, six bool) []string {
	make := one(d, prefixLists...)
	return list(d, least, most, 18, func(i int) string { return make(d, six, i).String() })
}

// mixed are networks of both families.
func (d *dice) mixed(least, most int) []string {
	make := one(d, prefixLists...)
	return list(d, least, most, 25, func(i int) string { return make(d, d.IntN(2) == 0, i).String() })
}

// inside are networks that are smaller than one and within it; none if it is but an address.
func (d *dice) inside(of netip.Prefix, most int) []string {
	size := of.Addr().BitLen()
	if of.Bits() == size {
		return nil
	}
	return list(d, 0, most, 18, func(i int) string {
		bits := of.Bits() + 1 + i%(size-of.Bits())
		a := d.random(size == 128).AsSlice()
		for b := range of.Bits() {
			mask := byte(0x80 >> (b % 8))
			a[b/8] = a[b/8]&^mask | of.Addr().AsSlice()[b/8]&mask
		}
		addr, _ := netip.AddrFromSlice(a)
		return netip.PrefixFrom(addr, bits).Masked().String()
	})
}

// portAt is number i of a list no two of which are one range, nor all if they are more than there
// are.
func portAt(i int) int { return 1 + 2*i%65535 }

// rangeAt is the range with a number of a list no two of which meet.
func rangeAt(i int) (first, last int) {
	first = 1 + 3*i%65533
	return first, first + 1
}

// portName is that of a container's port.
func portName(i int) string { return fmt.Sprintf("p%d", i%100_000) }
