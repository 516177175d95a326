package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
)

// unknownValueError is a value where nftlb goes on with another one. Whoever reads it leniently
// does that too; it is an error otherwise.
type unknownValueError struct {
	value, key string
	instead    string // empty: what was understood of it, without a word
	known      string
}

func (e *unknownValueError) Error() string {
	return fmt.Sprintf("unknown value %q; known are %s", e.value, e.known)
}

// warning is nftlb's.
func (e *unknownValueError) warning() string {
	return fmt.Sprintf("Parsing unknown value '%s' in '%s', using default '%s'", e.value, e.key, e.instead)
}

// readAddresses reads at most one address of each family; that of IPv4 comes first.
func readAddresses(text string) (all []netip.Addr, err error) {
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		one, err := model.ParseAddr(part)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(a netip.Addr) bool { return a.Is4() == one.Is4() }) {
			return nil, fmt.Errorf("%q has two addresses of one family", text)
		}
		all = append(all, one)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all, nil
}

func addressesText(all []netip.Addr) string {
	var texts []string
	for _, one := range all {
		texts = append(texts, one.String())
	}
	return strings.Join(texts, ",")
}

func readNumber(text string, least, most uint64) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%q is no whole number from %d to %d", text, least, most)
	}
	return n, nil
}

// readMark reads a hexadecimal number, with 0x or without; empty is 0.
func readMark(text string) (uint32, error) {
	digits := strings.TrimPrefix(strings.TrimPrefix(text, "0x"), "0X")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(digits, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is no hexadecimal number of 32 bits, such as 0x200", text)
	}
	return uint32(n), nil
}

func markText(mark uint32) string { return "0x" + strconv.FormatUint(uint64(mark), 16) }

var (
	perSecond = model.FarmRate{Per: time.Second}
	rateUnits = []word[time.Duration]{
		{"second", time.Second}, {"minute", time.Minute}, {"hour", time.Hour}, {"day", 24 * time.Hour}, {"week", 7 * 24 * time.Hour},
	}
)

// readRate reads "20" or "20/minute"; empty is 0.
func readRate(text string) (model.FarmRate, error) {
	number, unit, given := strings.Cut(text, "/")
	if !given {
		unit = "second"
	}
	per, ok := valueOf(rateUnits, unit)
	n, err := strconv.ParseUint(cmp.Or(number, "0"), 10, 32)
	if !ok || err != nil {
		return model.FarmRate{}, fmt.Errorf("%q is no rate such as 20/second; units are second, minute, hour, day and week", text)
	}
	return model.FarmRate{Packets: n, Per: per}, nil
}

func rateText(r model.FarmRate) string {
	return strconv.FormatUint(r.Packets, 10) + "/" + textOf(rateUnits, r.Per)
}

// readPorts reads "80,82-84"; empty and "0" are all ports. The result is sorted, and its spans
// neither overlap nor touch.
func readPorts(text string) ([]model.PortSpan, error) {
	if text == "" || text == "0" {
		return nil, nil
	}
	var spans []model.PortSpan
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
		if !ranged {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || first == 0 || first > last {
			return nil, fmt.Errorf("%q is no port from 1 to 65535 and no range such as 80-90", part)
		}
		spans = append(spans, model.PortSpan{First: uint16(first), Last: uint16(last)})
	}
	return mergePorts(spans), nil
}

func mergePorts(spans []model.PortSpan) []model.PortSpan {
	slices.SortFunc(spans, func(a, b model.PortSpan) int { return cmp.Compare(a.First, b.First) })
	merged := spans[:1]
	for _, s := range spans[1:] {
		if last := &merged[len(merged)-1]; int(s.First) <= int(last.Last)+1 {
			last.Last = max(last.Last, s.Last)
		} else {
			merged = append(merged, s)
		}
	}
	return merged
}

// readSet reads words with spaces, commas or dots between them. What it does not know is named in
// unknown.
func readSet[E ~uint8](words []word[E], text string) (set E, unknown string) {
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' || r == '.' }) {
		if v, ok := valueOf(words, part); ok {
			set |= v
		} else if part != "none" {
			unknown = part
		}
	}
	return set, unknown
}

// setText has a space after each word, as nftlb has it, except after one that is always the last.
func setText[E ~uint8](words []word[E], set E, spaced int) string {
	if set == 0 {
		return "none"
	}
	var b strings.Builder
	for i, w := range words {
		if set&w.value == 0 {
			continue
		}
		b.WriteString(w.text)
		if i < spaced {
			b.WriteByte(' ')
		}
	}
	return b.String()
}

func known[E comparable](words []word[E]) string {
	var texts []string
	for _, w := range words {
		texts = append(texts, w.text)
	}
	return strings.Join(texts, ", ")
}
