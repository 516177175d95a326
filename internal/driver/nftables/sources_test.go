package nftables

import "sluice.dev/sluice/internal/driver/nftables/nft"

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// The lengths that a packet is looked up under are those that ranges are written under, each once.
func TestSourceLengths(t *testing.T) {
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		lengths := sourceLengths(f)
		if len(lengths) != f.Bits/sourceStep {
			t.Errorf("%s: %d lengths: %v", f.Name, len(lengths), lengths)
		}
		for bits := range f.Bits + 1 {
			n := sourceLength(bits)
			if !slices.Contains(lengths, n) || n < bits || n-bits > sourceStep {
				t.Errorf("%s: /%d is written as /%d, of %v", f.Name, bits, n, lengths)
			}
		}
	}
}

// An address is found under one of the lengths exactly if a range holds it, whatever the ranges; no two of them share an element.
func TestSourcesAreWhatTheRangesHold(t *testing.T) {
	p := newProgram(false)
	r := rand.New(rand.NewPCG(5, 6))
	for round := range 2000 {
		fp := p.fam[round%2]
		random := func() netip.Addr {
			b := make([]byte, fp.ip.Bits/8)
			binary.BigEndian.PutUint16(b, uint16(r.Uint32())&0x0f03)
			binary.BigEndian.PutUint16(b[len(b)-2:], uint16(r.Uint32())&0xc0f0)
			a, _ := netip.AddrFromSlice(b)
			return a
		}
		var ranges []netip.Prefix
		for range 1 + r.IntN(6) {
			c := netip.PrefixFrom(random(), r.IntN(fp.ip.Bits+1)).Masked()
			if !slices.ContainsFunc(ranges, c.Overlaps) {
				ranges = append(ranges, c)
			}
		}
		k := state.FrontendKey{Addr: random(), Protocol: model.TCP, Port: 80}
		elements := map[nft.ElementKey]bool{}
		for _, c := range ranges {
			p.sourceElements(k, c, func(e *nft.Element) {
				if elements[e.ElementKey] {
					t.Fatalf("%v: %v occurs twice", ranges, e)
				}
				if got, ok := p.frontend(e); !ok || got != k {
					t.Fatalf("%v is said to be of %v, not of %v", e, got, k)
				}
				elements[e.ElementKey] = true
			})
		}
		for range 20 {
			a, found := random(), false
			for _, bits := range sourceLengths(fp.ip) {
				var e nft.Element
				e.AppendUint32(uint32(bits))
				e.AppendDestination(fp.ip, k.Addr, uint8(k.Protocol), k.Port)
				e.Append(fp.ip.Addr(netip.PrefixFrom(a, bits).Masked().Addr())...)
				found = found || elements[e.ElementKey]
			}
			if want := slices.ContainsFunc(ranges, func(c netip.Prefix) bool { return c.Contains(a) }); found != want {
				t.Fatalf("%v: %v is found: %v, want %v", ranges, a, found, want)
			}
		}
	}
}

// Only ranges that come or go are sent, and where one network takes another's place all the same, both are.
func TestSourcesChange(t *testing.T) {
	d := openIn(t, testNS(t), Options{})
	s := testState()
	adopt(t, d, s)
	k := vip("10.96.0.5")
	for _, ranges := range [][]netip.Prefix{prefixes("192.0.2.0/23"), prefixes("192.0.2.0/24", "198.51.100.0/25"), prefixes("198.51.100.0/24"), nil, prefixes("10.0.0.0/9", "10.128.0.0/9")} {
		f := *s.Services.Frontends[k]
		f.SourceRanges = ranges
		text := update(t, d, state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{k: &f}}})
		s = clone(s)
		s.Services.Frontends[k] = &f
		d.doubt = true // have it read everything
		if n, rest := adopt(t, d, s); n != 0 {
			t.Errorf("ranges %v: planned\n%sbut the kernel differs:\n%s", ranges, text, rest)
		}
	}
}

// nft lists a set whose keys begin with a number.
func TestSourcesAreListed(t *testing.T) {
	ns := testNS(t)
	adopt(t, openIn(t, ns, Options{}), testState())
	for set, want := range map[string]string{
		"ip-sources":  "0x00000018 . 10.96.0.5 . tcp . 80 . 192.0.2.0",
		"ip6-sources": "0x00000040 . fd00:96::5 . tcp . 80 . fd00:2::",
	} {
		out, err := ns.Run("nft", "list", "set", "inet", TableName, set)
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s%v", want, out, err)
		}
	}
}
