package established

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/mdlayher/netlink"
	routing "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/test/world"
)

var mutations = flag.Int("mutations", 20_000, "so many packets that are not as they should be")

// tuple is how a packet of a connection looks on one side of the node.
type tuple struct{ src, dst netip.AddrPort }

// frame makes a packet, with the checksum that it is to have.
func (t tuple) frame(protocol byte, mac []byte, payload int) []byte {
	var l4 []byte
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, t.src.Port()), t.dst.Port())
	if protocol == unix.IPPROTO_TCP {
		l4 = append(ports, 1, 2, 3, 4, 5, 6, 7, 8, 5<<4, 0x10, 1, 0, 0, 0, 0, 0)
	} else {
		l4 = append(ports, 0, byte(8+payload), 0, 0)
	}
	l4 = append(l4, bytes.Repeat([]byte{'x'}, payload)...)
	src, dst := t.src.Addr().AsSlice(), t.dst.Addr().AsSlice()
	eth := append(append([]byte(nil), mac...), 2, 0, 0, 0, 0, 9)
	var ip []byte
	if t.src.Addr().Is4() {
		eth = append(eth, 0x08, 0x00)
		ip = append([]byte{0x45, 0, 0, byte(20 + len(l4)), 0, 7, 0x40, 0, 64, protocol, 0, 0}, append(src, dst...)...)
		binary.BigEndian.PutUint16(ip[10:], ^residue(ip))
	} else {
		eth = append(eth, 0x86, 0xdd)
		ip = append([]byte{0x60, 0, 0, 0, 0, byte(len(l4)), protocol, 64}, append(src, dst...)...)
	}
	f := append(append(eth, ip...), l4...)
	p, _ := read(f)
	sum := ^p.residue()
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(f[p.check:], sum)
	return f
}

// residue is the sum of words.
func residue(parts ...[]byte) uint16 {
	var sum uint32
	for _, b := range parts {
		for len(b) > 1 {
			sum += uint32(binary.BigEndian.Uint16(b))
			b = b[2:]
		}
		if len(b) > 0 {
			sum += uint32(b[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// packet is what a frame holds that could go the short way.
type packet struct {
	f        []byte
	is4      bool
	protocol byte
	l4, end  int // where the header above IP begins, and where the packet ends
	check    int // where its checksum is
	tuple
}

// read returns what a frame holds; false: nothing that the program may take.
func read(f []byte) (p packet, plain bool) {
	if len(f) < 14+20+8 {
		return p, false
	}
	p.f = f
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x0800:
		p.is4, p.protocol, p.l4 = true, f[23], 34
		p.end = 14 + int(binary.BigEndian.Uint16(f[16:]))
		if f[14] != 0x45 || binary.BigEndian.Uint16(f[20:])&0x3fff != 0 || f[22] <= 1 {
			return p, false
		}
		p.src, p.dst = address(f[26:30]), address(f[30:34])
	case 0x86dd:
		if len(f) < 14+40+8 || f[14]>>4 != 6 || f[21] <= 1 || binary.BigEndian.Uint16(f[18:]) == 0 {
			return p, false
		}
		p.protocol, p.l4 = f[20], 54
		p.end = 54 + int(binary.BigEndian.Uint16(f[18:]))
		p.src, p.dst = address(f[22:38]), address(f[38:54])
	default:
		return p, false
	}
	if p.end > len(f) {
		return p, false
	}
	port := func(at int, a *netip.AddrPort) { *a = netip.AddrPortFrom(a.Addr(), binary.BigEndian.Uint16(f[at:])) }
	switch p.protocol {
	case unix.IPPROTO_TCP:
		if len(f) < p.l4+20 || f[p.l4+12]>>4 < 5 || p.end < p.l4+int(f[p.l4+12]>>4)*4 || f[p.l4+13]&0x17 != 0x10 {
			return p, false
		}
		p.check = p.l4 + 16
	case unix.IPPROTO_UDP:
		if p.end < p.l4+8 {
			return p, false
		}
		p.check = p.l4 + 6
	default:
		return p, false
	}
	port(p.l4, &p.src)
	port(p.l4+2, &p.dst)
	return p, true
}

func address(b []byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, 0)
}

// residue is what the checksum above IP leaves: all ones, if it is right.
func (p packet) residue() uint16 {
	size := make([]byte, 4)
	binary.BigEndian.PutUint16(size, uint16(p.end-p.l4))
	size[3] = p.protocol
	return residue(p.src.Addr().AsSlice(), p.dst.Addr().AsSlice(), size, p.f[p.l4:p.end])
}

// TestMutated has the program judge packets of connections that exist, and what becomes of these by
// chance: it takes what is plain, translates that as the entry says, changes nothing else, and
// leaves a checksum as right or wrong as it was.
func TestMutated(t *testing.T) {
	t.Parallel()
	host := world.NewHost(t, "node")
	host.Forward()
	pods := map[string]*world.Host{}
	for i, name := range []string{"a", "b"} {
		pods[name] = world.NewPod(host, name, []string{"10.1.0.1", "10.1.0.2"}[i], []string{"fd00:1::1", "fd00:1::2"}[i])
	}
	program, err := load()
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{program: program}
	t.Cleanup(func() { _ = d.program.Close() })
	a, b := host.Device("a").Attrs(), host.Device("b").Attrs()
	for _, at := range []int{a.Index, b.Index} {
		if err := d.program.Devices.Put(uint32(at), bpfDevice{Direct: 1, Strict: 1}); err != nil {
			t.Fatal(err)
		}
	}
	host.In(func() error {
		_, err := sysctl.Set(filepath.Join(t.TempDir(), "sysctls"), Sysctls)
		return errors.Join(err, d.tune(), d.program.PausedUntil.Set(uint64(0)))
	})
	type entry struct {
		protocol byte
		was, is  tuple
	}
	var entries []entry
	for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		for _, s := range [][3]string{
			{"10.1.0.1:1001", "198.51.100.1:80", "10.1.0.2:8080"}, {"[fd00:1::1]:1001", "[2001:db8::1]:80", "[fd00:1::2]:8080"},
			{"10.1.0.1:1002", "10.1.0.2:80", "10.1.0.2:80"}, {"[fd00:1::1]:1002", "[fd00:1::2]:80", "[fd00:1::2]:80"},
		} {
			client, service, server := netip.MustParseAddrPort(s[0]), netip.MustParseAddrPort(s[1]), netip.MustParseAddrPort(s[2])
			host.In(func() error { return track(protocol, client, service, server) })
			entries = append(entries, entry{protocol, tuple{client, service}, tuple{client, server}})
		}
	}
	known := map[byte]map[tuple]tuple{unix.IPPROTO_TCP: {}, unix.IPPROTO_UDP: {}}
	for _, e := range entries {
		known[e.protocol][e.was] = e.is
	}
	random := rand.New(rand.NewPCG(1, 2))
	taken := 0
	host.In(func() error {
		for i := range *mutations {
			e := entries[random.IntN(len(entries))]
			f := e.was.frame(e.protocol, a.HardwareAddr, random.IntN(60))
			for range random.IntN(4) * (i % 2) { // half of them are as they should be
				f[12+random.IntN(len(f)-12)] = byte(random.IntN(256))
			}
			if random.IntN(20) == 0 {
				f = f[:34+random.IntN(len(f)-34)]
			}
			if binary.BigEndian.Uint16(f[12:]) == 0x86dd && len(f) < 54 {
				continue // the kernel runs no program with it
			}
			in := a.Index
			if random.IntN(20) == 0 {
				in = b.Index
			}
			p, plain := read(f)
			is, tracked := known[p.protocol][p.tuple]
			out := make([]byte, len(f)+256)
			o := ebpf.RunOptions{Data: f, DataOut: out, Context: skContext{Ifindex: uint32(in)}}
			verdict, err := d.program.Established.Run(&o)
			if err != nil {
				return fmt.Errorf("%x: %w", f, err)
			}
			want := plain && tracked && in == a.Index
			if takes := int32(verdict) == redirected; takes != want {
				t.Errorf("%x: taken: %v, want %v", f, takes, want)
				continue
			}
			if !want {
				if !bytes.Equal(o.DataOut, f) {
					t.Errorf("%x: left to the kernel as %x", f, o.DataOut)
				}
				continue
			}
			taken++
			after, still := read(o.DataOut)
			expect := bytes.Clone(f)
			copy(expect, o.DataOut[:12]) // the neighbours'
			ttl, src := 22, 26
			if !p.is4 {
				ttl, src = 21, 22
			}
			expect[ttl]--
			n := copy(expect[src:], is.src.Addr().AsSlice())
			copy(expect[src+n:], is.dst.Addr().AsSlice())
			binary.BigEndian.PutUint16(expect[p.l4:], is.src.Port())
			binary.BigEndian.PutUint16(expect[p.l4+2:], is.dst.Port())
			copy(expect[p.check:p.check+2], o.DataOut[p.check:])
			if p.is4 {
				copy(expect[24:26], o.DataOut[24:])
			}
			none := p.protocol == unix.IPPROTO_UDP && f[p.check] == 0 && f[p.check+1] == 0
			switch {
			case !bytes.Equal(o.DataOut, expect) || !still && o.DataOut[ttl] > 1:
				t.Errorf("%x: became %x, want %x", f, o.DataOut, expect)
			case none && (o.DataOut[p.check] != 0 || o.DataOut[p.check+1] != 0):
				t.Errorf("%x: has a checksum: %x", f, o.DataOut)
			case !none && still && !same(after.residue(), p.residue()):
				t.Errorf("%x: its checksum is off by %x, and then by %x: %x", f, p.residue(), after.residue(), o.DataOut)
			case p.is4 && !same(residue(f[14:34]), residue(o.DataOut[14:34])):
				t.Errorf("%x: its header's checksum is off by %x, and then by %x", f, residue(f[14:34]), residue(o.DataOut[14:34]))
			}
		}
		return nil
	})
	if taken < *mutations/4 {
		t.Errorf("%d of %d packets were taken", taken, *mutations)
	}
	timeouts(t, host, len(entries))
}

// timeouts checks that connections whose packets were taken last as long as they do in the kernel
// after such packets, and no longer.
func timeouts(t *testing.T, host *world.Host, connections int) {
	t.Helper()
	for _, family := range []routing.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := host.ConntrackTableList(routing.ConntrackTable, family)
		if err != nil {
			t.Fatal(err)
		}
		connections -= len(flows)
		for _, f := range flows {
			is := func(seconds uint32) bool { return f.TimeOut <= seconds && f.TimeOut > seconds-60 }
			if f.Forward.Protocol == unix.IPPROTO_UDP && !is(120) || f.Forward.Protocol == unix.IPPROTO_TCP && !is(300) && !is(432_000) {
				t.Errorf("%v", f)
			}
		}
	}
	if connections != 0 {
		t.Errorf("%d connections are gone", connections)
	}
}

// track has the kernel know a connection that is established, translated to the server.
func track(protocol byte, client, service, server netip.AddrPort) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	// Numbers of linux/netfilter/nfnetlink_conntrack.h.
	family, addresses := byte(unix.AF_INET), uint16(1)
	if client.Addr().Is6() {
		family, addresses = unix.AF_INET6, 3
	}
	a := attr.Attrs{B: []byte{family, unix.NFNETLINK_V0, 0, 0}}
	for i, ends := range [][2]netip.AddrPort{{client, service}, {server, client}} {
		tuple := a.Begin(uint16(1 + i))
		ip := a.Begin(1)
		a.Bytes(addresses, ends[0].Addr().AsSlice())
		a.Bytes(addresses+1, ends[1].Addr().AsSlice())
		a.End(ip)
		proto := a.Begin(2)
		a.Uint8(1, protocol)
		a.Uint16(2, ends[0].Port())
		a.Uint16(3, ends[1].Port())
		a.End(proto)
		a.End(tuple)
	}
	a.Uint32(3, conntrack.StatusSeenReply|conntrack.StatusAssured|conntrack.StatusConfirmed)
	a.Uint32(7, 3600) // seconds
	if protocol == unix.IPPROTO_TCP {
		info := a.Begin(4)
		tcp := a.Begin(1)
		a.Uint8(1, 3) // established
		a.End(tcp)
		a.End(info)
	}
	_, err = c.Execute(netlink.Message{Header: netlink.Header{
		Type: unix.NFNL_SUBSYS_CTNETLINK << 8, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl,
	}, Data: a.B})
	return err
}

// redirected is TC_ACT_REDIRECT of linux/pkt_cls.h.
const redirected = 7

// same compares sums of ones' complement, which has two zeros.
func same(a, b uint16) bool { return a%0xffff == b%0xffff }

// skContext mirrors the beginning of struct __sk_buff of linux/bpf.h.
type skContext struct {
	Len, PktType, Mark, QueueMapping, Protocol, VlanPresent, VlanTci, VlanProto, Priority, IngressIfindex, Ifindex uint32
	Rest                                                                                                           [37]uint32
}
