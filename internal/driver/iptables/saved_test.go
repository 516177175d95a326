package iptables

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// saved prints an image as iptables-save does.
func saved(i *image) string {
	var b strings.Builder
	for _, table := range tables {
		fmt.Fprintf(&b, "*%s\n", table)
		var chains []chain
		for c := range i.chains {
			if c.table == table {
				chains = append(chains, c)
			}
		}
		slices.SortFunc(chains, func(a, b chain) int { return cmp.Compare(a.name, b.name) })
		for _, c := range chains {
			policy := "-"
			if c.builtin() {
				policy = "ACCEPT"
			}
			fmt.Fprintf(&b, ":%s %s [0:0]\n", c.name, policy)
		}
		for _, c := range chains {
			for _, r := range i.chains[c] {
				fmt.Fprintf(&b, "-A %s %s\n", c.name, r)
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// manyServices has services of four backends.
func manyServices(n int) *image {
	s := state.New()
	for k := range n {
		f := &state.Frontend{Reject: true}
		for b := range 4 {
			f.Backends = append(f.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(k >> 6), byte(k<<2 + b)}), 8080))
		}
		s.Services.Frontends[state.FrontendKey{Addr: addr(k), Protocol: model.TCP, Port: 80}] = f
	}
	i := newImage()
	family{}.whole(s.Services, i)
	return i
}

// What is read of our rules is what was written.
func TestParse(t *testing.T) {
	i := manyServices(1000)
	got, others := parse(saved(i))
	if !maps.EqualFunc(got, i.chains, slices.Equal) || others != 0 {
		t.Errorf("%d chains, and %d rules of others, of %d chains", len(got), others, len(i.chains))
	}
}

func BenchmarkParse(b *testing.B) {
	text := saved(manyServices(8000))
	b.ReportMetric(float64(strings.Count(text, "\n-A ")), "rules")
	b.ReportMetric(float64(strings.Count(text, "\n:")), "chains")
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		parse(text)
	}
}
