package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// readRange reads an address, a prefix or a range a-b.
func readRange(text string) (model.AddressRange, error) {
	if from, to, ok := strings.Cut(text, "-"); ok {
		first, err1 := model.ParseAddr(strings.TrimSpace(from))
		last, err2 := model.ParseAddr(strings.TrimSpace(to))
		if err1 == nil && err2 == nil && first.BitLen() == last.BitLen() && first.Compare(last) <= 0 {
			return model.AddressRange{First: first, Last: last}, nil
		}
	} else if strings.IndexByte(text, '/') >= 0 {
		if p, err := model.ParsePrefix(text); err == nil {
			return prefixRange(p), nil
		}
	} else if a, err := model.ParseAddr(text); err == nil {
		return model.AddressRange{First: a, Last: a}, nil
	}
	return model.AddressRange{}, fmt.Errorf("%.60q is no address, prefix or range, such as 192.0.2.1, 192.0.2.0/24 or 192.0.2.1-192.0.2.9", text)
}

func prefixRange(p netip.Prefix) model.AddressRange {
	return model.AddressRange{First: p.Addr(), Last: model.Last(p)}
}

// rangeText writes an address, a prefix where it is one, or a range.
func rangeText(r model.AddressRange) string {
	if r.First == r.Last {
		return r.First.String()
	}
	var only netip.Prefix
	n := 0
	for p := range r.Prefixes() {
		if n++; n > 1 {
			return r.String()
		}
		only = p
	}
	return only.String()
}

// add puts ranges among the elements; those that touch become one.
func (p *policy) add(ranges []model.AddressRange) {
	all := slices.Concat(p.elements, ranges)
	slices.SortFunc(all, func(a, b model.AddressRange) int { return a.First.Compare(b.First) })
	merged := all[:0]
	for _, r := range all {
		if n := len(merged); n > 0 && touches(merged[n-1], r) {
			if merged[n-1].Last.Less(r.Last) {
				merged[n-1].Last = r.Last
			}
			continue
		}
		merged = append(merged, r)
	}
	p.elements = merged
}

// touches reports whether nothing lies between a range and one that does not begin before it.
func touches(a, b model.AddressRange) bool {
	if a.First.BitLen() != b.First.BitLen() {
		return false
	}
	next := a.Last.Next()
	return !next.IsValid() || next.Compare(b.First) >= 0
}

// drop removes an element that is just the range.
func (p *policy) drop(r model.AddressRange) bool {
	i, ok := slices.BinarySearchFunc(p.elements, r, func(a, b model.AddressRange) int { return a.First.Compare(b.First) })
	if !ok || p.elements[i] != r {
		return false
	}
	p.elements = slices.Concat(p.elements[:i], p.elements[i+1:])
	return true
}
