package hostile

import (
	"fmt"
	"net/netip"

	"sluice.dev/sluice/test/bench/cluster"
)

// addr is an address that no other object has. Neighbouring addresses have consecutive numbers.
func (d *dice) addr(six bool, i int) netip.Addr {
	if six {
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x68, 8: byte(d.number >> 16), 9: byte(d.number >> 8), 10: byte(d.number),
			12: byte(i >> 24), 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
	}
	// No other object here has addresses of 100.64.0.0/10.
	n := 100<<24 | 64<<16 | (d.number*4096+i)&(1<<22-1)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// serviceAddr is the object's own in the range of services.
func (d *dice) serviceAddr(six bool) netip.Addr {
	if six {
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x10, 12: byte(d.number >> 24), 13: byte(d.number >> 16), 14: byte(d.number >> 8), 15: byte(d.number)})
	}
	const first = 1 << 16 // other objects have those before
	return cluster.ServiceAddr(first + d.number%(1<<21))
}

// random is any address.
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

// prefixes returns network i of a list that is awkward in one of several ways.
type prefixes func(d *dice, six bool, i int) netip.Prefix

var prefixLists = []prefixes{
	// Each length in turn.
	func(d *dice, six bool, i int) netip.Prefix {
		a := d.random(six)
		return netip.PrefixFrom(a, i%(a.BitLen()+1)).Masked()
	},
	// Nested networks.
	func(d *dice, six bool, i int) netip.Prefix {
		a := d.addr(six, 0)
		return netip.PrefixFrom(a, i%(a.BitLen()+1)).Masked()
	},
	// Neighbours.
	func(d *dice, six bool, i int) netip.Prefix {
		a := d.addr(six, i)
		return netip.PrefixFrom(a, a.BitLen())
	},
	// Every other one: no two can be merged.
	func(d *dice, six bool, i int) netip.Prefix {
		a := d.addr(six, 2*i)
		return netip.PrefixFrom(a, a.BitLen()-i%2)
	},
	// Duplicates.
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

// inside are smaller networks within a network; none if it is a single address.
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

// portAt is port i of a list of ports that cannot be merged into ranges.
func portAt(i int) int { return 1 + 2*i%65535 }

// rangeAt is range i of a list of ranges that do not touch.
func rangeAt(i int) (first, last int) {
	first = 1 + 3*i%65533
	return first, first + 1
}

// portName is a container port's name.
func portName(i int) string { return fmt.Sprintf("p%d", i%100_000) }
