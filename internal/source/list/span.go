package list

import (
	"fmt"
	"iter"
	"net/netip"

	"sluice.dev/sluice/internal/model"
)

// span adds the addresses of a range, both ends included.
func (p *parser) span(text, from, to string) error {
	first, err := model.ParseAddr(from)
	last, err2 := model.ParseAddr(to)
	switch {
	case err != nil || err2 != nil:
		return fmt.Errorf("%.90q is no range such as 192.0.2.1-192.0.2.9", text)
	case first.Is4() != last.Is4():
		return fmt.Errorf("the range %.90q has ends of two families", text)
	case last.Less(first):
		return fmt.Errorf("the range %.90q ends before it begins", text)
	}
	for prefix := range prefixes(first, last) {
		p.add(prefix)
	}
	return nil
}

// prefixes yields the fewest prefixes that hold just the addresses from first
// to last: each is the largest that begins where the one before it ended.
func prefixes(first, last netip.Addr) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for at := first; at.IsValid() && !last.Less(at); {
			bits := at.BitLen()
			for bits > 0 {
				wider := netip.PrefixFrom(at, bits-1)
				if wider.Masked().Addr() != at || last.Less(lastOf(wider)) {
					break
				}
				bits--
			}
			prefix := netip.PrefixFrom(at, bits)
			if !yield(prefix) {
				return
			}
			at = lastOf(prefix).Next()
		}
	}
}

// lastOf returns the last address of a masked prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
