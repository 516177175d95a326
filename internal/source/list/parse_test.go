package list

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

func TestRead(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"comments alone", "# a\n; b\n\n \t\r\n", ""},
		{"addresses", "192.0.2.9\n192.0.2.1\n2001:db8::1\n10.0.0.1", "10.0.0.1/32 192.0.2.1/32 192.0.2.9/32 2001:db8::1/128"},
		{"a mask over the rest", "10.1.2.3/8\n2001:db8::1/32\n", "10.0.0.0/8 2001:db8::/32"},
		{"twice", "10.0.0.0/8\n10.0.0.1/8\n::ffff:10.0.0.0/104\n2001:db8::1\n2001:DB8:0::1/128", "10.0.0.0/8 2001:db8::1/128"},
		{"nested", "10.0.0.0/8\n10.0.0.0/16\n10.0.0.0\n", "10.0.0.0/8 10.0.0.0/16 10.0.0.0/32"},
		{"all", "0.0.0.0/0\n::/0", "0.0.0.0/0 ::/0"},
		{"comments behind", "192.0.2.0/24 ; SBL1\n\t192.0.3.0/24# x\r\n", "192.0.2.0/24 192.0.3.0/24"},
		{"byte order mark", "\ufeff192.0.2.1\n", "192.0.2.1/32"},
		{"mapped", "::ffff:192.0.2.1\n", "192.0.2.1/32"},
		{"ranges", "192.0.2.1-192.0.2.9\n192.0.3.0 - 192.0.3.255\n2001:db8::-2001:db8::2",
			"192.0.2.1/32 192.0.2.2/31 192.0.2.4/30 192.0.2.8/31 192.0.3.0/24 2001:db8::/127 2001:db8::2/128"},
		{"a range to the end", "255.255.255.254-255.255.255.255\n0.0.0.0-0.0.0.0", "0.0.0.0/32 255.255.255.254/31"},
		{"a range of all", "0.0.0.0-255.255.255.255", "0.0.0.0/0"},
		{"ipset", "create bad hash:net family inet hashsize 1024 maxelem 65536 timeout 0 counters comment bucketsize 12 initval 0x1\n" +
			`add bad 192.0.2.0/24 timeout 300 packets 0 bytes 0 comment "nomatch # ; it"` + "\nadd bad 198.51.100.7\n", "192.0.2.0/24 198.51.100.7/32"},
		{"ipset of ranges", "create r bitmap:ip range 192.0.2.0/24\nadd r 192.0.2.0-192.0.2.3\n", "192.0.2.0/30"},
		{"entries of an ipset alone", "add bad 192.0.2.1\n", "192.0.2.1/32"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Read(strings.NewReader(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if printed := join(got, " "); printed != c.want {
				t.Errorf("got  %s\nwant %s", printed, c.want)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a word", "10.0.0.1\nexample.com\n10.0.0.2\n", `line 2: "example.com" is no address, CIDR or range`},
		{"two addresses", "10.0.0.1 10.0.0.2", "line 1: "},
		{"a long mask", "10.0.0.0/33", "line 1: "},
		{"no mask", "10.0.0.0/", "line 1: "},
		{"octal", "010.0.0.1", "line 1: "},
		{"a zone", "fe80::1%eth0", "line 1: "},
		{"half a range", "10.0.0.1-", "line 1: "},
		{"two families", "10.0.0.1-2001:db8::1", "two families"},
		{"backwards", "10.0.0.2-10.0.0.1", "ends before it begins"},
		{"an exception", "add a 10.0.0.0/8\nadd a 10.1.0.0/16 comment \"x\" nomatch\n", "line 2: is an exception (nomatch)"},
		{"ports", "create a hash:ip,port family inet\nadd a 10.0.0.1,tcp:80\n", `line 1: a set of type "hash:ip,port"`},
		{"a netmask", "create a hash:ip family inet netmask 24\nadd a 10.0.0.0\n", "option netmask"},
		{"two sets", "create a hash:ip\nadd a 10.0.0.1\ncreate b hash:ip\nadd b 10.0.0.2\n", `line 3: belongs to the set "b"`},
		{"no entry", "add a\n", "line 1: "},
		{"a binary", "\x1f\x8b\x08\x00\n\x00\xff", "line 1: "},
		{"a long line", strings.Repeat("x", chunk+1), "line 1 has more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			nets, err := Read(strings.NewReader(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) || nets != nil {
				t.Errorf("got %v, error %v, want one with %q", nets, err, c.want)
			}
		})
	}
}

func TestReadTellsTheFirstFew(t *testing.T) {
	_, err := Read(strings.NewReader("10.0.0.1\n" + strings.Repeat("x\n", 20)))
	broken, ok := errors.AsType[*BrokenError](err)
	if !ok || broken.Lines != 20 || broken.First != 2 || len(broken.Broken) != maxTold {
		t.Fatalf("got %#v", err)
	}
	if text := err.Error(); !strings.HasSuffix(text, "and 15 more broken lines") || !strings.Contains(text, "line 6: ") {
		t.Error(text)
	}
}

// TestReadAcrossChunks reads lines that are cut by the end of a chunk.
func TestReadAcrossChunks(t *testing.T) {
	want := random(3*chunk/14, 0.5)
	text := join(want, "\n")
	if len(text) < 2*chunk {
		t.Fatal("too short for the test")
	}
	got, err := Read(strings.NewReader(text))
	if err != nil || !slices.Equal(got, sorted(want)) {
		t.Errorf("%d of %d networks, error %v", len(got), len(want), err)
	}
	_, err = Read(strings.NewReader(text + "\nx"))
	if broken, ok := errors.AsType[*BrokenError](err); !ok || broken.First != len(want)+1 {
		t.Errorf("the broken line behind %d others: %v", len(want), err)
	}
}

// TestPrefixesOfRanges holds random short ranges against counting.
func TestPrefixesOfRanges(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b := [4]byte{10, 0, byte(r.IntN(256)), byte(r.IntN(256))}
		first := netip.AddrFrom4(b)
		n := r.IntN(600)
		want, last := map[netip.Addr]bool{first: true}, first
		for range n {
			last = last.Next()
			want[last] = true
		}
		got, prefixesSeen := map[netip.Addr]bool{}, 0
		for p := range (model.AddressRange{First: first, Last: last}).Prefixes() {
			if prefixesSeen++; p != p.Masked() {
				t.Fatalf("%s is not masked", p)
			}
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				got[a] = true
			}
		}
		if !reflect.DeepEqual(got, want) || prefixesSeen > 20 {
			t.Fatalf("%s-%s: %d addresses in %d prefixes, want %d", first, last, len(got), prefixesSeen, len(want))
		}
	}
}

// FuzzRead reads anything: it never panics, and what it accepts is in order
// and comes back as it was when it is printed and read again.
func FuzzRead(f *testing.F) {
	for _, text := range []string{"10.0.0.0/8 # x\n::/0;\n", "10.0.0.1-10.0.0.77\n::1-::ffff", "create a hash:net\nadd a 10.0.0.0/8 comment \"a\" nomatch",
		"\ufeff1.2.3.4\r\n\r\n", "::ffff:1.2.3.4/95\n::ffff:1.2.3.4/97", "add\nadd \nadd a b c", "fe80::1%x-fe80::2", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		nets, err := Read(strings.NewReader(text))
		if err != nil {
			if nets != nil {
				t.Fatalf("%d networks beside %v", len(nets), err)
			}
			return
		}
		for i, p := range nets {
			if p != p.Masked() || i > 0 && nets[i-1].Compare(p) >= 0 {
				t.Fatalf("%s is not masked, or out of order", p)
			}
		}
		again, err := Read(strings.NewReader(join(nets, "\n")))
		if err != nil || !slices.Equal(nets, again) {
			t.Fatalf("%v came back as %v, %v", nets, again, err)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	for _, c := range []struct {
		name string
		v6   float64
		line string
	}{{"ipv4", 0, "%s\n"}, {"mixed", 0.5, "%s\n"}, {"ipset", 0, "add bad %s timeout 0\n"}} {
		b.Run(c.name, func(b *testing.B) {
			var text strings.Builder
			for _, p := range random(1_000_000, c.v6) {
				fmt.Fprintf(&text, c.line, p)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Read(strings.NewReader(text.String())); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// random makes networks, a share of them IPv6.
func random(n int, v6 float64) []netip.Prefix {
	r := rand.New(rand.NewPCG(3, 4))
	nets := make([]netip.Prefix, n)
	for i := range nets {
		if r.Float64() < v6 {
			a := netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), 15: byte(r.Uint32())})
			nets[i] = netip.PrefixFrom(a, 128)
			continue
		}
		v := r.Uint32()
		nets[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), 24+r.IntN(9)).Masked()
	}
	return nets
}

func sorted(nets []netip.Prefix) []netip.Prefix {
	nets = slices.Clone(nets)
	slices.SortFunc(nets, netip.Prefix.Compare)
	return slices.Compact(nets)
}

func join(nets []netip.Prefix, separator string) string {
	var b strings.Builder
	for i, p := range nets {
		if i > 0 {
			b.WriteString(separator)
		}
		b.WriteString(p.String())
	}
	return b.String()
}
