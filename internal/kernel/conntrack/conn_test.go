package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/netlink"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// port is a frontend on any address.
func port(n uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, n) }

// testNS makes a namespace that ends with the test.
func testNS(t testing.TB) *netns.NS {
	t.Helper()
	return world.NewHost(t, "ct").NS
}

// testConn opens a Conn in the namespace.
func testConn(t testing.TB, ns *netns.NS) *Conn {
	t.Helper()
	var c *Conn
	err := ns.Do(func() (err error) {
		c, err = Open()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// entry is a flow to be put into the table; without to, it is not translated.
type entry struct {
	proto    model.Protocol
	from, at string
	to       string
}

func (e entry) String() string { return fmt.Sprintf("%v %s %s %s", e.proto, e.from, e.at, e.to) }

// message asks the kernel to create the entry. The kernel itself translates it, as a DNAT rule
// would.
func (e entry) message() netlink.Message {
	const (
		ctaTimeout = 7
		ctaNatDst  = 13
		natV4Min   = 1
		natProto   = 3
		natV6Min   = 4
		natPortMin = 1
		natPortMax = 2
	)
	orig := Tuple{Src: ap(e.from), Dst: ap(e.at)}
	family := familyV4
	if orig.Src.Addr().Is6() {
		family = familyV6
	}
	return message(msgNew, netlink.Create|netlink.Excl, family, func(a *attr.Attrs) {
		putTuple(a, ctaTupleOrig, orig, e.proto, wholeTuple)
		putTuple(a, ctaTupleReply, Tuple{Src: orig.Dst, Dst: orig.Src}, e.proto, wholeTuple)
		a.Uint32(ctaTimeout, 600)
		a.Uint32(ctaStatus, StatusConfirmed|StatusSeenReply)
		if e.to == "" {
			return
		}
		to := ap(e.to)
		nat := a.Begin(ctaNatDst)
		putAddr(a, natV4Min, natV6Min, to.Addr())
		ports := a.Begin(natProto)
		a.Uint16(natPortMin, to.Port())
		a.Uint16(natPortMax, to.Port())
		a.End(ports)
		a.End(nat)
	})
}

// create puts entries into the namespace's table.
func create(t testing.TB, c *Conn, entries ...entry) {
	t.Helper()
	nl, err := c.dial()
	if err != nil {
		t.Fatal(err)
	}
	for batch := range slices.Chunk(entries, 100) {
		var ms []netlink.Message
		for _, e := range batch {
			ms = append(ms, e.message())
		}
		ms[len(ms)-1].Header.Flags |= netlink.Acknowledge
		if _, err := nl.SendMessages(ms); err != nil {
			t.Fatal(err)
		}
		if _, err := nl.Receive(); err != nil {
			t.Fatalf("create connection tracking entry: %v", err)
		}
	}
}

// entryOf is what a flow is as an entry.
func entryOf(f *Flow) entry {
	e := entry{proto: f.Protocol, from: f.Orig.Src.String(), at: f.Orig.Dst.String()}
	if f.Translated() {
		e.to = f.Reply.Src.String()
	}
	return e
}

// flows lists the table as entries, sorted.
func flows(t testing.TB, c *Conn) []string {
	t.Helper()
	var got []string
	_, err := c.Sweep(t.Context(), func(f Flow) bool {
		got = append(got, entryOf(&f).String())
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	return got
}

// table is a little of everything.
var table = []entry{
	{model.UDP, "10.1.0.1:1000", "10.96.0.1:53", "10.2.0.1:5353"},
	{model.UDP, "10.1.0.1:1001", "10.96.0.1:53", "10.2.0.2:5353"},
	{model.UDP, "10.1.0.1:1002", "10.96.0.1:53", ""},
	{model.UDP, "10.1.0.1:1000", "10.96.0.1:54", "10.2.0.1:5353"},
	{model.UDP, "10.1.0.1:1000", "10.96.0.2:53", "10.2.0.1:5353"},
	{model.UDP, "10.1.0.9:1000", "10.2.0.1:5353", ""},
	{model.TCP, "10.1.0.1:1000", "10.96.0.1:53", "10.2.0.1:5353"},
	{model.TCP, "10.1.0.1:1000", "192.168.0.1:30053", "10.2.0.1:5353"},
	{model.TCP, "10.1.0.2:1000", "192.168.0.2:30053", "10.2.0.2:5353"},
	{model.SCTP, "10.1.0.1:1000", "10.96.0.1:53", "10.2.0.1:5353"},
	{model.UDP, "[fd01::1]:1000", "[fd96::1]:53", "[fd02::1]:5353"},
	{model.UDP, "[fd01::1]:1001", "[fd96::1]:53", "[fd02::2]:5353"},
	{model.TCP, "[fd01::1]:1000", "[fd00::1]:30053", "[fd02::1]:5353"},
	{model.SCTP, "[fd01::1]:1000", "[fd96::1]:53", "[fd02::1]:5353"},
}

func TestEachAndDelete(t *testing.T) {
	none := netip.AddrPort{}
	tests := map[string]struct {
		filters []Filter
		gone    []int // in table
	}{
		"frontend to backend":         {[]Filter{{Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: ap("10.2.0.1:5353")}}, []int{0}},
		"frontend to backend, v6":     {[]Filter{{Protocol: model.UDP, Frontend: ap("[fd96::1]:53"), Backend: ap("[fd02::2]:5353")}}, []int{11}},
		"v4 written as v6":            {[]Filter{{Protocol: model.UDP, Frontend: ap("[::ffff:10.96.0.1]:53"), Backend: ap("[::ffff:10.2.0.1]:5353")}}, []int{0}},
		"frontend, untranslated also": {[]Filter{{Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: none}}, []int{0, 1, 2}},
		"untranslated alone":          {[]Filter{{Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: ap("10.96.0.1:53")}}, []int{2}},
		"frontend, v6":                {[]Filter{{Protocol: model.UDP, Frontend: ap("[fd96::1]:53"), Backend: none}}, []int{10, 11}},
		"backend, not direct flows":   {[]Filter{{Protocol: model.UDP, Frontend: none, Backend: ap("10.2.0.1:5353")}}, []int{0, 3, 4}},
		"backend of TCP":              {[]Filter{{Protocol: model.TCP, Frontend: none, Backend: ap("10.2.0.1:5353")}}, []int{6, 7}},
		"SCTP":                        {[]Filter{{Protocol: model.SCTP, Frontend: ap("10.96.0.1:53"), Backend: none}}, []int{9}},
		"SCTP, v6":                    {[]Filter{{Protocol: model.SCTP, Frontend: none, Backend: ap("[fd02::1]:5353")}}, []int{13}},
		"port, both families":         {[]Filter{{Protocol: model.TCP, Frontend: port(30053), Backend: none}}, []int{7, 8, 12}},
		"port to backend":             {[]Filter{{Protocol: model.TCP, Frontend: port(30053), Backend: ap("10.2.0.2:5353")}}, []int{8}},
		"several": {[]Filter{
			{Protocol: model.UDP, Frontend: ap("10.96.0.2:53"), Backend: none},
			{Protocol: model.TCP, Frontend: port(30053), Backend: ap("[fd02::1]:5353")},
			{Protocol: model.SCTP, Frontend: none, Backend: ap("10.2.0.1:5353")},
		}, []int{4, 9, 12}},
		"overlapping": {[]Filter{
			{Protocol: model.UDP, Frontend: ap("[fd96::1]:53"), Backend: none},
			{Protocol: model.UDP, Frontend: none, Backend: ap("[fd02::1]:5353")},
			{Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: none},
			{Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: ap("10.2.0.1:5353")},
		}, []int{0, 1, 2, 10, 11}},
		"twice the same":           {[]Filter{{Protocol: model.SCTP, Frontend: ap("10.96.0.1:53"), Backend: none}, {Protocol: model.SCTP, Frontend: ap("10.96.0.1:53"), Backend: none}}, []int{9}},
		"nothing there":            {[]Filter{{Protocol: model.UDP, Frontend: ap("10.96.0.9:53"), Backend: none}}, nil},
		"no filter":                {nil, nil},
		"empty filter":             {[]Filter{{}}, nil},
		"protocol alone":           {[]Filter{{Protocol: model.UDP}}, nil},
		"frontend without port":    {[]Filter{{Protocol: model.UDP, Frontend: ap("10.96.0.1:0"), Backend: none}}, nil},
		"backend without port":     {[]Filter{{Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: ap("10.2.0.1:0")}}, nil},
		"backend without address":  {[]Filter{{Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: port(5353)}}, nil},
		"backend of other family":  {[]Filter{{Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: ap("[fd02::1]:5353")}}, nil},
		"protocol without entries": {[]Filter{{Protocol: model.Protocol(136), Frontend: ap("10.96.0.1:53"), Backend: none}}, nil},
	}
	// Filters that match nothing, enough of them to be searched for in one dump.
	var padding []Filter
	for i := range uint16(fewFilters) {
		padding = append(padding, Filter{Protocol: model.UDP, Frontend: ap("10.99.0.1:53"), Backend: netip.AddrPortFrom(netip.MustParseAddr("10.2.0.9"), i+1)})
	}
	for name, tt := range tests {
		for how, dumps := range map[string]struct {
			copies int
			others []Filter
		}{"a dump for each": {0, nil}, "one dump for a few": {copiesPerWalk, nil}, "one dump for many": {0, padding}} {
			filters := slices.Concat(tt.filters, dumps.others)
			if len(newIndex(filters).requests()) == 1 && dumps.copies > 0 {
				continue // the same as a dump for each
			}
			t.Run(name+"/"+how, func(t *testing.T) {
				c := testConn(t, testNS(t))
				c.copies = dumps.copies
				create(t, c, table...)
				var wanted, matched []string
				for _, i := range tt.gone {
					wanted = append(wanted, table[i].String())
				}
				if err := c.Each(t.Context(), filters, func(f *Flow) { matched = append(matched, entryOf(f).String()) }); err != nil {
					t.Fatal(err)
				}
				slices.Sort(wanted)
				slices.Sort(matched)
				if !slices.Equal(matched, wanted) {
					t.Errorf("these match:\n%q\nwant\n%q", matched, wanted)
				}
				n, err := c.Delete(t.Context(), filters, nil)
				if err != nil {
					t.Fatal(err)
				}
				var want []string
				for i, e := range table {
					if !slices.Contains(tt.gone, i) {
						want = append(want, e.String())
					}
				}
				slices.Sort(want)
				if got := flows(t, c); !slices.Equal(got, want) || n != len(tt.gone) {
					t.Errorf("deleted %d; left\n%q\nwant\n%q", n, got, want)
				}
			})
		}
	}
}

// TestDeleteSpares leaves alone what the caller wants to stay, though a filter matches it.
func TestDeleteSpares(t *testing.T) {
	c := testConn(t, testNS(t))
	create(t, c, table...)
	spare := func(f *Flow) bool { return f.Reply.Src == ap("10.2.0.1:5353") }
	n, err := c.Delete(t.Context(), []Filter{{Protocol: model.UDP, Frontend: ap("10.96.0.1:53")}}, spare)
	if n != 2 || err != nil {
		t.Errorf("deleted %d, %v; want 2", n, err)
	}
	if got := flows(t, c); !slices.Contains(got, table[0].String()) || len(got) != len(table)-2 {
		t.Errorf("left %q", got)
	}
}

func TestKernelSelects(t *testing.T) {
	c := testConn(t, testNS(t))
	create(t, c, table...)
	read := func(m netlink.Message) (n int) {
		t.Helper()
		if err := c.exchange(m, func([]byte) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := read(dumpFiltered(Filter{Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: ap("10.2.0.1:5353")}, familyV4)); n != 1 {
		t.Errorf("kernel handed out %d entries for one frontend and backend, want 1", n)
	}
	if n := read(dumpFiltered(Filter{Protocol: model.TCP, Frontend: port(30053)}, familyV6)); n != 1 {
		t.Errorf("kernel handed out %d entries for a port, want 1", n)
	}
	if n := read(dumpFiltered(Filter{Protocol: model.UDP, Backend: ap("[fd02::2]:5353")}, familyV6)); n != 2 {
		t.Errorf("kernel handed out %d entries for a port of IPv6 backends, want 2", n)
	}
	if n := read(dumpAll(StatusDNAT)); n != len(table)-2 {
		t.Errorf("kernel handed out %d translated entries, want %d", n, len(table)-2)
	}
}

// TestFewestDumps: a dump walks the table of the whole machine, however few entries there are.
func TestFewestDumps(t *testing.T) {
	c := testConn(t, testNS(t))
	three := newIndex([]Filter{
		{Protocol: model.UDP, Frontend: ap("10.96.0.1:53")}, {Protocol: model.UDP, Frontend: ap("10.96.0.2:53")}, {Protocol: model.TCP, Frontend: ap("10.96.0.1:53")},
	}).requests()
	check := func(when string, dumps []netlink.Message, want int) {
		t.Helper()
		if got := c.fewest(dumps); len(got) != want {
			t.Errorf("%s: %d dumps, want %d", when, len(got), want)
		}
	}
	check("no entries", three, 0)
	create(t, c, table...)
	check("some entries", three, 1)
	check("one filter", three[:1], 1)
	c.copies = len(table)/2 - 1
	check("entries that take longer to copy than two walks", three, 3)
}

// TestDeleteSparesNewEntry shows that a flow is not deleted if it went to another backend
// after it was read.
func TestDeleteSparesNewEntry(t *testing.T) {
	c := testConn(t, testNS(t))
	create(t, c, table[0])
	var old Flow
	if _, err := c.Sweep(t.Context(), func(f Flow) bool { old = f; return false }); err != nil {
		t.Fatal(err)
	}
	if n, err := c.deleteFlows([]Flow{old}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	replaced := table[0]
	replaced.to = table[1].to
	create(t, c, replaced)
	if n, err := c.deleteFlows([]Flow{old, old}); n != 0 || err != nil {
		t.Errorf("deleted %d, %v; want none", n, err)
	}
	if got := flows(t, c); !slices.Equal(got, []string{replaced.String()}) {
		t.Errorf("left %q", got)
	}
}

func TestSweep(t *testing.T) {
	c := testConn(t, testNS(t))
	create(t, c, table...)
	n, err := c.Sweep(t.Context(), func(f Flow) bool {
		if f.Translated() != (f.Status&StatusDNAT != 0) {
			t.Errorf("%+v: translated is %v", f, f.Translated())
		}
		return f.Protocol == model.UDP && f.Family == familyV4 && f.Status&StatusDNAT != 0
	})
	if err != nil || n != 4 {
		t.Errorf("swept %d, %v; want 4", n, err)
	}
	if got := flows(t, c); len(got) != len(table)-4 {
		t.Errorf("left %q", got)
	}
}

func TestStaysInNamespace(t *testing.T) {
	a, b := testConn(t, testNS(t)), testConn(t, testNS(t))
	create(t, a, table...)
	create(t, b, table...)
	if n, err := a.Sweep(t.Context(), func(Flow) bool { return true }); n != len(table) || err != nil {
		t.Fatal(n, err)
	}
	a.hangUp() // what it dials again must be in the same namespace
	for c, want := range map[*Conn]int{a: 0, b: len(table)} {
		if n, err := c.Count(); n != want || err != nil {
			t.Errorf("count %d, %v; want %d", n, err, want)
		}
	}
}

func TestErrors(t *testing.T) {
	c := testConn(t, testNS(t))
	create(t, c, table...)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	f := []Filter{{Protocol: model.UDP, Frontend: ap("10.96.0.1:53")}}
	if n, err := c.Delete(ended, f, nil); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %d, %v", n, err)
	}
	fault := errors.New("fault")
	if err := c.exchange(dumpAll(0), func([]byte) error { return fault }); !errors.Is(err, fault) {
		t.Errorf("fault while reading: %v", err)
	}
	if n, err := c.Delete(t.Context(), f, nil); n != 3 || err != nil {
		t.Errorf("after a fault: %d, %v", n, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Delete(t.Context(), f, nil); err == nil {
		t.Error("deleted after Close")
	}
}

// TestDeleteThousands is the cut of a busy backend: a third of the table.
func TestDeleteThousands(t *testing.T) {
	const all, doomed = 30_000, 10_000
	c := testConn(t, testNS(t))
	begin := time.Now()
	create(t, c, thousands(all, doomed)...)
	t.Logf("created %d entries in %v", all, time.Since(begin))
	filter := Filter{Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: ap("10.2.0.1:5353")}
	begin = time.Now()
	n, err := c.Delete(t.Context(), []Filter{filter}, nil)
	t.Logf("deleted %d of %d entries in %v", n, all, time.Since(begin))
	if n != doomed || err != nil {
		t.Errorf("deleted %d, %v; want %d", n, err, doomed)
	}
	if n, err := c.Count(); n != all-doomed || err != nil {
		t.Errorf("left %d, %v; want %d", n, err, all-doomed)
	}
}

// thousands makes n entries of which the first few lead to one backend.
func thousands(n, few int) []entry {
	entries := make([]entry, n)
	for i := range entries {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 16), byte(i >> 8)}), uint16(1000+i%256))
		entries[i] = entry{model.UDP, from.String(), "10.96.0.1:53", "10.2.0.1:5353"}
		if i >= few {
			entries[i].to = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, 1, byte(i % 100)}), 5353).String()
		}
	}
	return entries
}

// BenchmarkDelete measures a cut that finds nothing in a table of 30,000
// entries, by the number of filters.
func BenchmarkDelete(b *testing.B) {
	c := testConn(b, testNS(b))
	create(b, c, thousands(30_000, 0)...)
	for _, n := range []int{1, fewFilters, fewFilters + 1, 1000} {
		var filters []Filter
		for i := range n {
			filters = append(filters, Filter{Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: netip.AddrPortFrom(netip.MustParseAddr("10.3.0.1"), uint16(i+1))})
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := c.Delete(b.Context(), filters, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestForeignProtocols reads entries that have no ports.
func TestForeignProtocols(t *testing.T) {
	const (
		ctaTimeout  = 7
		icmp        = 1
		icmpID      = 4
		icmpType    = 5
		icmpCode    = 6
		echoRequest = 8
	)
	c := testConn(t, testNS(t))
	nl, err := c.dial()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []uint8{icmp, 253} {
		m := message(msgNew, netlink.Create|netlink.Acknowledge, familyV4, func(a *attr.Attrs) {
			for i, typ := range []uint16{ctaTupleOrig, ctaTupleReply} {
				tuple := a.Begin(typ)
				ip := a.Begin(ctaTupleIP)
				a.Bytes(uint16(ctaIPv4Src+i), []byte{10, 0, 0, 1})
				a.Bytes(uint16(ctaIPv4Dst-i), []byte{10, 0, 0, 2})
				a.End(ip)
				proto := a.Begin(ctaTupleProto)
				a.Uint8(ctaProtoNum, p)
				if p == icmp {
					a.Uint16(icmpID, 77)
					a.Uint8(icmpType, echoRequest*uint8(1-i))
					a.Uint8(icmpCode, 0)
				}
				a.End(proto)
				a.End(tuple)
			}
			a.Uint32(ctaTimeout, 60)
		})
		if _, err := nl.Send(m); err != nil {
			t.Fatal(err)
		}
		if _, err := nl.Receive(); err != nil {
			t.Fatal(err)
		}
	}
	create(t, c, table[0])
	if got := flows(t, c); len(got) != 3 {
		t.Errorf("read %q, want 3 entries", got)
	}
	if n, err := c.Delete(t.Context(), []Filter{{Protocol: model.UDP, Frontend: ap("10.96.0.1:53")}}, nil); n != 1 || err != nil {
		t.Errorf("deleted %d, %v; want 1", n, err)
	}
	if got := flows(t, c); len(got) != 2 {
		t.Errorf("left %q, want 2 entries", got)
	}
}

func FuzzDecodeFlow(f *testing.F) {
	for _, e := range table {
		f.Add(e.message().Data)
	}
	f.Add([]byte{})
	f.Add(binary.NativeEndian.AppendUint16([]byte{2, 0, 0, 0}, 9))
	f.Fuzz(func(t *testing.T, data []byte) {
		flow, ok, err := decodeFlow(data)
		if err != nil || !ok {
			return
		}
		if !flow.Orig.Dst.IsValid() || !flow.Reply.Src.IsValid() {
			t.Errorf("decoded %+v without its addresses", flow)
		}
	})
}

// TestDeleteBurst deletes the flows of hundreds of backends at once.
func TestDeleteBurst(t *testing.T) {
	conn := testConn(t, testNS(t))
	const all, gone = 600, 500
	var entries []entry
	var filters []Filter
	for i := range uint16(all) {
		at, to := netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), 1000+i), netip.AddrPortFrom(netip.MustParseAddr("10.2.0.1"), 1000+i)
		entries = append(entries, entry{model.TCP, "10.1.0.1:1000", at.String(), to.String()})
		if i < gone {
			filters = append(filters, Filter{Protocol: model.TCP, Frontend: at, Backend: to})
		}
	}
	create(t, conn, entries...)
	if n, err := conn.Delete(t.Context(), filters, nil); n != gone || err != nil {
		t.Errorf("deleted %d, %v; want %d", n, err, gone)
	}
	if n, err := conn.Count(); n != all-gone || err != nil {
		t.Errorf("left %d, %v; want %d", n, err, all-gone)
	}
}
