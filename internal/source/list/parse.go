package list

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
)

const (
	// chunk is how much of a file is in memory at a time; no line may be as long.
	chunk = 256 << 10
	// maxNets bounds what a list holds; few lines can be many networks, as ranges.
	maxNets = 16 << 20
	// maxTold bounds how many broken lines an error names.
	maxTold = 5
)

// BrokenError says that a list has lines that can't be read.
type BrokenError struct {
	Lines  int      // how many
	First  int      // the number of the first, from 1
	Broken []string // the first few, as `line 3: "x" is no address …`
}

// Error names the first few lines and says how many there are.
func (e *BrokenError) Error() string {
	text := strings.Join(e.Broken, "; ")
	if more := e.Lines - len(e.Broken); more > 0 {
		text += "; and " + model.Count(more, "more broken line")
	}
	return text
}

// Read reads a list: a line for each address, CIDR or range a-b, of both
// families, with comments that begin with '#' or ';'; or what "ipset save NAME"
// prints of a set of type hash:net, hash:ip or bitmap:ip. The result is masked,
// sorted and unique; of a list with broken lines there is none, but a *BrokenError.
//
// An ipset's time-outs, counters and comments are passed over; an entry with
// nomatch, which excepts addresses from others, is a broken line.
func Read(r io.Reader) ([]netip.Prefix, error) {
	var p parser
	buf := make([]byte, chunk)
	for kept := 0; ; {
		n, err := io.ReadFull(r, buf[kept:])
		last := err == io.EOF || err == io.ErrUnexpectedEOF
		if err != nil && !last {
			return nil, fmt.Errorf("read list: %w", err)
		}
		have := buf[:kept+n]
		end := len(have)
		if !last {
			if end = bytes.LastIndexByte(have, '\n') + 1; end == 0 {
				return nil, fmt.Errorf("read list: line %d has more than %d bytes: this is no list of addresses", p.number+1, chunk)
			}
		}
		p.lines(string(have[:end]))
		if len(p.v4)+len(p.v6) > maxNets {
			return nil, fmt.Errorf("read list: it comes to more than %d networks; split it", maxNets)
		}
		if last {
			return p.result()
		}
		kept = copy(buf, have[end:])
	}
}

// parser collects what the lines of one list come to.
type parser struct {
	v4     []uint64 // address and prefix length, so that they sort fast
	v6     []netip.Prefix
	number int    // of the line
	set    string // the name of the ipset, once there is one
	broken BrokenError
}

// lines reads whole lines. What it keeps doesn't refer to text.
func (p *parser) lines(text string) {
	if p.number == 0 {
		text = strings.TrimPrefix(text, "\ufeff")
	}
	for len(text) > 0 {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		p.number++
		if err := p.line(strings.TrimSpace(line)); err != nil {
			p.fault(err)
		}
	}
}

func (p *parser) fault(err error) {
	if p.broken.Lines++; p.broken.Lines == 1 {
		p.broken.First = p.number
	}
	if len(p.broken.Broken) < maxTold {
		p.broken.Broken = append(p.broken.Broken, fmt.Sprintf("line %d: %v", p.number, err))
	}
}

func (p *parser) line(line string) error {
	if strings.HasPrefix(line, "add ") || strings.HasPrefix(line, "create ") {
		return p.saved(line)
	}
	if i := strings.IndexAny(line, "#;"); i >= 0 {
		line = strings.TrimSpace(line[:i])
	}
	if line == "" {
		return nil
	}
	return p.entry(line)
}

// entry reads an address, a CIDR or a range.
func (p *parser) entry(text string) error {
	if from, to, ok := strings.Cut(text, "-"); ok {
		return p.span(text, strings.TrimSpace(from), strings.TrimSpace(to))
	}
	if strings.IndexByte(text, '/') >= 0 {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			p.add(model.UnmapPrefix(prefix))
			return nil
		}
	} else if a, err := model.ParseAddr(text); err == nil {
		p.add(netip.PrefixFrom(a, a.BitLen()))
		return nil
	}
	return fmt.Errorf("%.60q is no address, CIDR or range, such as 192.0.2.1, 192.0.2.0/24 or 192.0.2.1-192.0.2.9", text)
}

// add takes a prefix that need not be masked.
func (p *parser) add(prefix netip.Prefix) {
	prefix = prefix.Masked()
	if !prefix.Addr().Is4() {
		p.v6 = append(p.v6, prefix)
		return
	}
	a := prefix.Addr().As4()
	p.v4 = append(p.v4, uint64(a[0])<<32|uint64(a[1])<<24|uint64(a[2])<<16|uint64(a[3])<<8|uint64(prefix.Bits()))
}

// result puts all together.
func (p *parser) result() ([]netip.Prefix, error) {
	if p.broken.Lines > 0 {
		return nil, &p.broken
	}
	slices.Sort(p.v4)
	p.v4 = slices.Compact(p.v4)
	slices.SortFunc(p.v6, compareMasked)
	p.v6 = slices.Compact(p.v6)
	nets := make([]netip.Prefix, 0, len(p.v4)+len(p.v6))
	for _, v := range p.v4 {
		a := netip.AddrFrom4([4]byte{byte(v >> 32), byte(v >> 24), byte(v >> 16), byte(v >> 8)})
		nets = append(nets, netip.PrefixFrom(a, int(v&0xff)))
	}
	return append(nets, p.v6...), nil
}

// compareMasked is netip.Prefix.Compare for masked prefixes of one family,
// which needn't be masked again at each look.
func compareMasked(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}
