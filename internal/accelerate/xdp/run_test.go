package xdp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	farm "sluice.dev/sluice/internal/balancer/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

var all = Stages{DSR: true, Drop: true}

// bench is a program at an interface, with farms and neighbours.
type bench struct {
	t    *testing.T
	host *world.Host
	reference
	program *program
}

func newBench(t *testing.T, farms ...*model.Farm) *bench {
	b := &bench{t: t, host: world.NewHost(t, "balancer")}
	far := world.NewHost(t, "far")
	b.host.Forward()
	b.reference = reference{mtu: 1500, farms: map[string]*state.Farm{}, macs: map[int][6]byte{}, knows: map[netip.Addr][6]byte{}, known: map[string]bool{}, takes: map[int]bool{}, far: map[netip.Addr]way{}}
	indexes := map[string]int{}
	for i, device := range []string{"front", "back", "silent"} {
		b.host.Join(device, far, device)
		b.host.Address(device, fmt.Sprintf("10.%d.0.1/24", i), fmt.Sprintf("fd0%d::1/64", i))
		l := b.host.Device(device).Attrs()
		indexes[device] = l.Index
		b.macs[l.Index] = [6]byte(l.HardwareAddr)
		b.takes[l.Index] = device != "silent"
		for n := 10; n < 13; n++ {
			for _, form := range []string{"10.%d.0.%d", "fd0%d::%d"} {
				a := fmt.Sprintf(form, i, n)
				b.host.Neighbour(device, far, device, a)
				b.knows[netip.MustParseAddr(a)] = [6]byte(far.Device(device).Attrs().HardwareAddr)
			}
		}
	}
	b.in, b.mac = indexes["front"], b.macs[indexes["front"]]
	for i, device := range []string{"front", "back", "silent"} {
		for n, router := range []string{"10.%d.0.10", "10.%d.0.99"} { // a neighbour that is known, and one that is not
			w := way{netip.MustParseAddr(fmt.Sprintf(router, i)), indexes[device], netip.MustParseAddr(fmt.Sprintf("10.%d.0.1", i))}
			to := netip.MustParseAddr(fmt.Sprintf("10.20.%d.%d", i, n))
			b.host.Route(to.String()+"/32", w.router.String())
			b.far[to] = w
		}
	}
	for _, f := range farms {
		b.farms[f.Name] = farm.Compile(f, func(a netip.Addr) int {
			for device, name := range []string{"front", "back", "silent"} {
				for _, form := range []string{"10.%d.0.0/24", "fd0%d::/64"} {
					if netip.MustParsePrefix(fmt.Sprintf(form, device)).Contains(a) {
						return indexes[name]
					}
				}
			}
			tunnel, _ := state.FarmTunnel(a)
			return tunnel
		})
	}
	var err error
	b.lists = testLists()
	l, lists := newLists(), map[string]*list{}
	t.Cleanup(func() { _ = l.close() })
	for name, list := range b.lists {
		lists[name] = farmList(list)
		if then, is := map[string]uint8{"denied": shown, "policy": unlessFailsafe, sourceRanges: unlessKnown}[name]; is {
			lists[name].then = then
		}
	}
	lists[denyList] = lists["denied"]
	if err := l.anew(lists); err != nil {
		t.Fatal(err)
	}
	if b.program, err = newProgram(all, l, all.sizeOf(b.farms, map[int]arrival{b.in: {}})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.program.close() })
	ways := map[uint32]bool{}
	for index, takes := range b.takes {
		if takes {
			ways[uint32(index)] = true
		}
	}
	var at link.Link
	b.host.In(func() error {
		if err := b.program.equip(map[uint32]bpfDevice{uint32(b.in): {Mac: b.mac, Returns: 1, Serves: 1}}, ways); err != nil {
			return err
		}
		at, err = link.AttachXDP(link.XDPOptions{Program: b.program.objs.Accelerate, Interface: b.in, Flags: link.XDPDriverMode})
		return err
	})
	t.Cleanup(func() { _ = at.Close() })
	if err := b.program.serve(b.farms); err != nil {
		t.Fatal(err)
	}
	return b
}

// run has the program judge a frame.
func (b *bench) run(frame []byte) (verdict uint32, out []byte) {
	out = make([]byte, len(frame)+256)
	o := ebpf.RunOptions{Data: frame, DataOut: out, Context: xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(b.in)}}
	verdict, err := b.program.objs.Accelerate.Run(&o)
	if err != nil {
		b.t.Error(err)
	}
	return verdict, o.DataOut
}

// xdpContext mirrors struct xdp_md of linux/bpf.h.
type xdpContext struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// agree fails the test unless program and reference agree about a frame. Once a second for each
// backend, a packet goes by the base: so the program is asked again if it passes one on.
func (b *bench) agree(frame []byte) (verdict uint32) {
	b.t.Helper()
	want, after, _ := b.fate(frame)
	got, out := b.run(frame)
	for range 9 {
		if got != pass || want == pass {
			break
		}
		got, out = b.run(frame)
	}
	if len(out) == len(frame)+20 && world.Checksum(out[14:34]) == 0 { // of an outer header, whose identification is random
		clear(out[14+4 : 14+6])
		clear(out[14+10 : 14+12])
	}
	if got != want || !bytes.Equal(out, after) {
		b.t.Errorf("frame\n%sverdict %d, want %d\n%s; want\n%s", hex.Dump(frame), got, want, hex.Dump(out), hex.Dump(after))
	}
	return got
}

// inNamespace runs f where the program runs, on a thread of its own, so that f cannot end the test.
func (b *bench) inNamespace(f func()) { b.host.In(func() error { f(); return nil }) }

// packet is a frame to the interface.
func (b *bench) packet(src, dst string, proto uint8, sport, dport uint16, payload int) []byte {
	from, to := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	frame := append(bytes.Clone(b.mac[:]), 2, 0, 0, 0, 0, 9)
	transport := append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, sport), dport), make([]byte, map[uint8]int{6: 16, 17: 4, 132: 8}[proto]+payload)...)
	switch proto {
	case 6:
		transport[12], transport[13], transport[16] = 5<<4, 2, 0xab
	case 17:
		binary.BigEndian.PutUint16(transport[4:], uint16(len(transport)))
	case 132:
		transport[8] = 0xcd
	}
	if from.Is4() {
		frame = append(frame, 0x08, 0x00, 0x45, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(20+len(transport)))
		frame = append(frame, 0, 1, 0x40, 0, 64, proto, 0, 0)
		frame = append(append(frame, from.AsSlice()...), to.AsSlice()...)
		binary.BigEndian.PutUint16(frame[24:], world.Checksum(frame[14:34]))
	} else {
		frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(len(transport)))
		frame = append(frame, proto, 64)
		frame = append(append(frame, from.AsSlice()...), to.AsSlice()...)
	}
	return append(frame, transport...)
}

// about is a frame of an ICMP error of a type, from an address, about an answer to a packet.
func (b *bench) about(packet []byte, from string, typ byte) []byte {
	ip := bytes.Clone(packet[14:])
	frame := append(bytes.Clone(b.mac[:]), 2, 0, 0, 0, 0, 9)
	frame = append(frame, packet[12:14]...)
	addresses, ports, length, outer := 12, 20, 4, []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 60, 1, 0, 0}
	if ip[0]>>4 == 6 {
		addresses, ports, length, outer = 8, 40, 16, []byte{0x60, 0, 0, 0, 0, 0, 58, 60}
	}
	swap := func(at, n int) {
		for i := range n {
			ip[at+i], ip[at+n+i] = ip[at+n+i], ip[at+i]
		}
	}
	swap(addresses, length)
	swap(ports, 2)
	frame = append(append(append(frame, outer...), netip.MustParseAddr(from).AsSlice()...), ip[addresses:addresses+length]...)
	frame = append(append(frame, typ, 0, 0, 0, 0, 0, 5, 0x14), ip...)
	if ip[0]>>4 == 6 {
		binary.BigEndian.PutUint16(frame[18:], uint16(len(frame)-54))
	} else {
		binary.BigEndian.PutUint16(frame[16:], uint16(len(frame)-14))
		binary.BigEndian.PutUint16(frame[24:], world.Checksum(frame[14:34]))
	}
	return frame
}

// unfinished has the checksum of a packet be as the sender's device is to complete it.
func unfinished(f []byte) {
	from, transport, proto := 26, 34, f[23]
	if f[12] == 0x86 {
		from, transport, proto = 22, 54, f[20]
	}
	sum := uint32(proto) + uint32(len(f)-transport)
	for i := from; i < transport; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	switch at := transport + map[uint8]int{6: 16, 17: 6, 132: 8}[proto]; proto {
	case 132:
		clear(f[at : at+4])
	default:
		sum = sum&0xffff + sum>>16
		binary.BigEndian.PutUint16(f[at:], uint16(sum&0xffff+sum>>16))
	}
}

// testFarms are farms of every kind that the program serves, and of some that it does not.
func testFarms() (all []*model.Farm) {
	add := func(name string, port uint16, scheduler model.FarmScheduler, by model.FlowKey, backends ...string) *model.Farm {
		f := &model.Farm{Name: name, Mode: model.DSR, Scheduler: scheduler, HashBy: by}
		for _, a := range []string{"10.9.0.1", "fd09::1"} {
			addr := netip.MustParseAddr(a)
			f.Addresses = append(f.Addresses, model.FarmAddress{Addr: addr, IPv4: addr.Is4(), IPv6: addr.Is6(),
				Protocols: []model.Protocol{model.TCP, model.UDP, model.SCTP}, Ports: []model.PortSpan{{First: port, Last: port}}})
		}
		for i, a := range backends {
			f.Backends = append(f.Backends, model.FarmBackend{Name: fmt.Sprint(i), Addr: netip.MustParseAddr(a), Weight: i + 1, Priority: 1})
		}
		all = append(all, f)
		return f
	}
	behind := []string{"10.1.0.10", "fd01::10", "10.1.0.11", "fd01::11", "10.1.0.12", "fd01::12"}
	add("turns", 80, model.RoundRobin, 0, behind...)
	add("one", 81, model.SymHash, 0, behind[:2]...)
	add("back", 82, model.RoundRobin, 0, "10.0.0.10", "fd00::10", "10.1.0.10", "fd01::10")
	add("unknown", 83, model.RoundRobin, 0, "10.1.0.99", "fd01::99")
	add("silent", 84, model.RoundRobin, 0, "10.2.0.10", "fd02::10")
	add("symmetric", 85, model.SymHash, 0, behind...)
	add("down", 86, model.RoundRobin, 0, behind[:2]...).Backends[0].State = model.BackendDown
	add("listed", 87, model.RoundRobin, 0, behind...).Lists = []string{"bad"}
	add("excepted", 90, model.RoundRobin, 0, behind...).Lists = []string{"good", "none", "bad"}
	add("logged", 91, model.RoundRobin, 0, behind...).Lists = []string{"logged"}
	add("many", 92, model.RoundRobin, 0, behind...).Lists = []string{"many"}
	listed := add("snat-listed", 93, model.RoundRobin, 0, behind...)
	listed.Mode, listed.Lists = model.SNAT, []string{"bad"}
	add("closed", 94, model.RoundRobin, 0).Lists = []string{"good", sourceRanges}
	add("snat", 88, model.RoundRobin, 0, behind...).Mode = model.SNAT
	for name, ports := range map[string]model.PortSpan{"range": {First: 300, Last: 310}, "wide": {First: 2000, Last: 2999}} {
		f := add(name, ports.First, model.RoundRobin, 0, behind...)
		f.Addresses[0].Ports[0], f.Addresses[1].Ports[0] = ports, ports
	}
	add("far", 95, model.RoundRobin, 0, "10.20.0.0", "fd00::10", "10.20.1.0", "fd01::10", "10.1.0.10", "10.20.0.0")
	add("far-unknown", 96, model.RoundRobin, 0, "10.20.0.1", "fd00::10")
	add("far-silent", 97, model.RoundRobin, 0, "10.20.2.0", "fd00::10")
	add("far-nowhere", 98, model.RoundRobin, 0, "10.21.0.1", "fd00::10")
	add("far-listed", 99, model.Maglev, model.SrcIP, "10.20.1.0", "fd00::10").Lists = []string{"bad"}
	for by := model.FlowKey(1); by < 64; by++ {
		add(fmt.Sprintf("hash-%d", by), 100+uint16(by), model.Hash, by, behind...)
	}
	add("maglev", 200, model.Maglev, model.SrcIP|model.SrcPort, behind...)
	return all
}

// testLists are the lists that these farms name.
func testLists() map[string]*model.FarmList {
	all := map[string]*model.FarmList{"none": {Name: "none"}}
	add := func(name string, prefixes ...string) *model.FarmList {
		l := &model.FarmList{Name: name}
		for _, text := range prefixes {
			p := netip.MustParsePrefix(text)
			l.Ranges = append(l.Ranges, model.AddressRange{First: p.Addr(), Last: model.Last(p)})
		}
		slices.SortFunc(l.Ranges, func(a, b model.AddressRange) int { return a.First.Compare(b.First) })
		all[name] = l
		return l
	}
	add("bad", "192.0.2.0/24", "192.0.3.7/32", "203.0.113.64/27", "2001:db8:bad::/48", "2001:db8::9/128", "2001:db8:0:0:8000::/65")
	add("good", "192.0.2.128/25", "2001:db8:bad:1::/64").Allow = true
	add("logged", "192.0.2.0/24", "2001:db8:bad::/48").Log = true
	add("denied", "192.0.3.8/32", "203.0.113.64/28", "2001:db8::8/128")
	add("policy", "192.0.2.0/24", "192.0.3.0/29", "2001:db8:bad::/48", "2001:db8::/125")
	add(sourceRanges, "0.0.0.0/0", "::/0")
	many := &model.FarmList{Name: "many", Ranges: []model.AddressRange{{First: netip.MustParseAddr("192.0.0.1"), Last: netip.MustParseAddr("192.255.255.254")}, {First: netip.MustParseAddr("2001:db8::1"), Last: netip.MustParseAddr("2001:db8:ffff:ffff:ffff:ffff:ffff:fffe")}}}
	all["many"] = many
	return all
}

// TestLists has sources on lists, and beside them, meet their fate.
func TestLists(t *testing.T) {
	t.Parallel()
	b := newBench(t, testFarms()...)
	b.inNamespace(func() {
		for _, tt := range []struct {
			src  string
			port uint16
			want uint32
		}{
			{"192.0.2.1", 87, drop}, {"192.0.2.255", 87, drop}, {"192.0.3.7", 87, drop}, {"203.0.113.95", 87, drop},
			{"192.0.3.8", 87, redirect}, {"203.0.113.96", 87, redirect}, {"203.0.113.63", 87, redirect},
			{"2001:db8:bad::1", 87, drop}, {"2001:db8:bad:ffff::", 87, drop}, {"2001:db8::9", 87, drop}, {"2001:db8:0:0:8000::7", 87, drop},
			{"2001:db8::8", 87, redirect}, {"2001:db8:bae::1", 87, redirect}, {"2001:db8:0:0:7fff::7", 87, redirect},
			{"192.0.2.1", 90, drop}, {"192.0.2.128", 90, redirect}, {"2001:db8:bad:1::1", 90, redirect}, {"2001:db8:bad:2::1", 90, drop},
			{"192.0.2.1", 91, pass}, {"192.0.1.1", 91, redirect}, {"2001:db8:bad::1", 91, pass},
			{"192.0.2.1", 92, drop}, {"198.51.100.1", 92, redirect}, {"2001:db8::1", 92, pass}, {"2001:db9::1", 92, pass},
			{"192.0.2.1", 93, drop}, {"192.0.1.1", 93, pass}, {"2001:db8:bad::1", 93, drop},
			{"192.0.2.128", 94, pass}, {"2001:db8:bad:1::1", 94, pass},
			{"192.0.2.1", 80, redirect},
		} {
			dst := "10.9.0.1"
			if netip.MustParseAddr(tt.src).Is6() {
				dst = "fd09::1"
			}
			for _, proto := range []uint8{6, 17, 132} {
				if got := b.agree(b.packet(tt.src, dst, proto, 4000, tt.port, 0)); got != tt.want {
					t.Errorf("from %s to port %d, protocol %d: verdict %d, want %d", tt.src, tt.port, proto, got, tt.want)
				}
			}
		}
	})
	for of, n := range b.program.read() {
		if of == (driver.Backend{Name: "bad"}) && n.Times < 30 {
			t.Errorf("the list has dropped %d packets", n.Times)
		}
	}
}

// TestNode has packets meet what a node drops: by deny lists, doNotTrack policies and source
// ranges.
func TestNode(t *testing.T) {
	t.Parallel()
	b := newBench(t, testFarms()...)
	b.inNamespace(func() {
		b.judge()
		for _, proto := range []uint8{6, 17} {
			b.know(proto, "198.51.100.7:4001", "10.9.0.1:94")
			b.know(proto, "[2001:db8:1::7]:4001", "[fd09::1]:94")
		}
		for _, tt := range []struct {
			src, dst     string
			proto        uint8
			sport, dport uint16
			want         uint32
		}{
			{"192.0.3.8", "10.9.0.1", 6, 4000, 80, drop}, // on a deny list, which spares no port
			{"192.0.3.8", "10.9.0.9", 132, 4000, 9, drop},
			{"2001:db8::8", "fd09::9", 17, 40000, 101, drop},
			{"192.0.2.1", "10.9.0.9", 6, 4000, 443, drop}, // by a policy
			{"192.0.2.1", "10.9.0.9", 6, 4000, 80, pass},
			{"192.0.2.1", "10.9.0.9", 6, 40000, 443, drop},
			{"192.0.2.1", "10.9.0.9", 17, 4000, 443, drop},
			{"192.0.2.1", "10.9.0.9", 17, 40000, 443, pass},
			{"192.0.2.1", "10.9.0.9", 17, 4000, 101, pass},
			{"192.0.2.1", "10.9.0.9", 17, 4000, 100, drop},
			{"192.0.2.1", "10.9.0.9", 17, 4000, 129, pass},
			{"192.0.2.1", "10.9.0.9", 17, 4000, 130, drop},
			{"192.0.2.1", "10.9.0.9", 132, 4000, 443, pass}, // its ports are not known here
			{"192.0.2.1", "10.9.0.9", 1, 4000, 443, drop},
			{"192.0.2.1", "10.9.0.9", 58, 4000, 443, pass},
			{"2001:db8:bad::1", "fd09::9", 58, 4000, 443, drop},
			{"2001:db8:bad::1", "fd09::9", 0, 4000, 443, pass}, // more headers
			{"2001:db8:bad::1", "fd09::9", 6, 4000, 443, drop},
			{"2001:db8:bad::1", "fd09::9", 6, 4000, 80, pass},
			{"192.0.2.129", "10.9.0.1", 17, 40000, 94, pass}, // a load balancer's
			{"192.0.2.1", "10.9.0.1", 17, 40000, 94, drop},
			{"198.51.100.7", "10.9.0.1", 17, 4000, 94, drop},
			{"198.51.100.7", "10.9.0.1", 6, 4000, 94, drop},
			{"198.51.100.7", "10.9.0.1", 17, 4001, 94, pass}, // a connection from before
			{"198.51.100.7", "10.9.0.1", 6, 4001, 94, pass},
			{"198.51.100.7", "10.9.0.1", 132, 4000, 94, pass}, // SCTP's connections are not known here
			{"2001:db8:1::7", "fd09::1", 6, 4000, 94, drop},
			{"2001:db8:1::7", "fd09::1", 6, 4001, 94, pass},
			{"2001:db8:1::7", "fd09::1", 17, 4001, 94, pass},
			{"2001:db8:1::7", "fd09::1", 17, 4002, 94, drop},
		} {
			if got := b.agree(b.packet(tt.src, tt.dst, tt.proto, tt.sport, tt.dport, 9)); got != tt.want {
				t.Errorf("%+v: verdict %d", tt, got)
			}
		}
		elsewhere := b.packet("192.0.2.1", "10.9.0.9", 6, 4000, 443, 0)
		elsewhere[0] = 6
		if got := b.agree(elsewhere); got != pass {
			t.Errorf("for another machine: verdict %d", got)
		}
	})
}

// TestFrames has single frames meet their fate, in both families.
func TestFrames(t *testing.T) {
	t.Parallel()
	b := newBench(t, testFarms()...)
	set := func(at int, to ...byte) func([]byte) { return func(f []byte) { copy(f[at:], to) } }
	b.inNamespace(func() {
		for _, ip := range []struct{ src, dst string }{{"198.51.100.7", "10.9.0.1"}, {"2001:db8::7", "fd09::1"}} {
			is4 := netip.MustParseAddr(ip.src).Is4()
			ttl, header := 14+7, 40
			if is4 {
				ttl, header = 14+8, 20
			}
			for _, tt := range []struct {
				what string
				port uint16
				want uint32
				with func([]byte)
			}{
				{"a farm", 80, redirect, nil},
				{"one backend, whatever the scheduler", 81, redirect, nil},
				{"neighbour unknown", 83, pass, nil},
				{"interface that takes no frames", 84, pass, nil},
				{"the symmetric hash", 85, redirect, nil},
				{"lists", 87, redirect, nil},
				{"another mode", 88, pass, nil},
				{"a range", 300, redirect, nil},
				{"in a range", 307, redirect, nil},
				{"the end of a range", 310, redirect, nil},
				{"behind a range", 311, pass, nil},
				{"a wide range", 2000, pass, nil},
				{"no farm", 79, pass, nil},
				{"Maglev", 200, redirect, nil},
				{"TTL 1", 80, pass, set(ttl, 1)},
				{"TTL 2", 80, redirect, set(ttl, 2)},
				{"TTL 0", 80, pass, set(ttl, 0)},
				{"for others", 80, pass, set(0, 2, 0, 0, 0, 0, 8)},
				{"broadcast", 80, pass, set(0, 255, 255, 255, 255, 255, 255)},
				{"VLAN", 80, pass, set(12, 0x81, 0)},
				{"ICMP", 80, pass, func(f []byte) { f[map[bool]int{true: 23, false: 20}[is4]] = 1 }},
				{"checksum left to the sender's device", 80, pass, unfinished},
				{"longer than the frame", 80, pass, func(f []byte) { f[map[bool]int{true: 17, false: 19}[is4]]++ }},
				{"shorter than the headers", 80, pass, func(f []byte) { f[map[bool]int{true: 17, false: 19}[is4]] = 7 }},
			} {
				for _, proto := range []uint8{6, 17, 132} {
					frame := b.packet(ip.src, ip.dst, proto, 40000, tt.port, 0)
					if tt.with != nil {
						tt.with(frame)
					}
					if got := b.agree(frame); got != tt.want {
						t.Errorf("%s, protocol %d, %s: verdict %d, want %d", ip.dst, proto, tt.what, got, tt.want)
					}
				}
			}
			for port := uint16(101); port < 164; port++ { // each way of hashing
				for sport := range uint16(20) {
					if got := b.agree(b.packet(ip.src, ip.dst, 17, 5000+sport, port, 3)); got != redirect {
						t.Errorf("%s, port %d: verdict %d", ip.dst, port, got)
					}
				}
			}
			ways := map[uint32]bool{}
			for sport := range uint16(50) {
				ways[b.agree(b.packet(ip.src, ip.dst, 17, sport, 82, 3))] = true
			}
			if !ways[transmit] || !ways[redirect] || len(ways) != 2 {
				t.Errorf("%s: backends at both interfaces get verdicts %v", ip.dst, ways)
			}
			for payload, want := range map[int]uint32{1500 - header - 8: redirect, 1500 - header - 7: pass} {
				if got := b.agree(b.packet(ip.src, ip.dst, 17, 7, 80, payload)); got != want {
					t.Errorf("%s, %d bytes: verdict %d, want %d", ip.dst, payload, got, want)
				}
			}
		}
		frame := func(with ...byte) []byte {
			f := b.packet("198.51.100.7", "10.9.0.1", 17, 7, 80, 64)
			copy(f[14+6:], with[1:])
			f[14] = with[0]
			return f
		}
		for what, f := range map[string][]byte{"options": frame(0x46, 0x40), "first fragment": frame(0x45, 0x20), "other fragment": frame(0x45, 0, 9)} {
			if got := b.agree(f); got != pass {
				t.Errorf("%s: verdict %d", what, got)
			}
		}
	})
}

// TestFar has packets go to backends on other networks in IPIP.
func TestFar(t *testing.T) {
	t.Parallel()
	b := newBench(t, testFarms()...)
	const src, dst = "198.51.100.7", "10.9.0.1"
	b.inNamespace(func() {
		lengths := map[int]bool{}
		for sport := range uint16(100) {
			for _, proto := range []uint8{6, 17, 132} {
				frame := b.packet(src, dst, proto, sport, 95, 10)
				b.agree(frame)
				_, out := b.run(frame)
				lengths[len(out)-len(frame)] = true
			}
		}
		if !lengths[0] || !lengths[20] || len(lengths) != 2 {
			t.Errorf("packets of a farm with both kinds of backends are longer by %v", lengths)
		}
		for _, tt := range []struct {
			what    string
			port    uint16
			payload int
			want    uint32
			with    func([]byte)
		}{
			{"alone", 99, 0, redirect, nil},
			{"neighbour unknown", 96, 0, pass, nil},
			{"interface that takes no frames", 97, 0, pass, nil},
			{"no route", 98, 0, pass, nil},
			{"as long as the way allows", 99, 1500 - 20 - 20 - 8, redirect, nil},
			{"longer", 99, 1500 - 20 - 20 - 7, pass, nil},
			{"TTL 1", 99, 0, pass, func(f []byte) { f[22] = 1 }},
			{"may be fragmented", 99, 0, redirect, func(f []byte) { f[20] = 0 }},
			{"congested", 99, 0, redirect, func(f []byte) { f[15] = 0xff }},
			{"ECN", 99, 0, redirect, func(f []byte) { f[15] = 0x19 }},
			{"checksum left to the sender's device", 99, 0, pass, unfinished},
		} {
			frame := b.packet(src, dst, 17, 4000, tt.port, tt.payload)
			if tt.with != nil {
				tt.with(frame)
			}
			if got := b.agree(frame); got != tt.want {
				t.Errorf("%s: verdict %d, want %d", tt.what, got, tt.want)
			}
		}
		if got := b.agree(b.about(b.packet(src, dst, 6, 4000, 99, 0), "198.51.100.1", 3)); got != redirect {
			t.Errorf("an ICMP error: verdict %d", got)
		}
		if got := b.agree(b.packet("192.0.2.1", dst, 17, 4000, 99, 0)); got != drop {
			t.Errorf("from a list: verdict %d", got)
		}
	})
}

// TestQuotes has ICMP errors meet the fate of the packets whose answers they are about.
func TestQuotes(t *testing.T) {
	t.Parallel()
	b := newBench(t, testFarms()...)
	b.inNamespace(func() {
		for _, ip := range []struct {
			src, dst, router, listed string
			errors                   []byte
			proto                    int
		}{
			{"198.51.100.7", "10.9.0.1", "198.51.100.1", "192.0.2.1", []byte{3, 4, 11, 12}, 23},
			{"2001:db8::7", "fd09::1", "2001:db8::1", "2001:db8:bad::1", []byte{1, 2, 3, 4}, 20},
		} {
			for typ := range byte(140) {
				want := uint32(pass)
				if slices.Contains(ip.errors, typ) {
					want = redirect
				}
				if got := b.agree(b.about(b.packet(ip.src, ip.dst, 6, 4000, 80, 0), ip.router, typ)); got != want {
					t.Errorf("%s, type %d: verdict %d, want %d", ip.dst, typ, got, want)
				}
			}
			quoted := 14 + 20 + 8
			if ip.proto == 20 {
				quoted = 14 + 40 + 8
			}
			for _, tt := range []struct {
				what string
				from string
				port uint16
				want uint32
				with func(f []byte) []byte
			}{
				{"no farm", ip.router, 79, pass, nil},
				{"Maglev", ip.router, 200, redirect, nil},
				{"another mode", ip.router, 88, pass, nil},
				{"a range", ip.router, 305, redirect, nil},
				{"a wide range", ip.router, 2500, pass, nil},
				{"neighbour unknown", ip.router, 83, pass, nil},
				{"another mode, with a list", ip.listed, 93, pass, nil},
				{"from a list", ip.listed, 87, drop, nil},
				{"from none, about a client on one", ip.router, 87, redirect, func(f []byte) []byte {
					return b.about(b.packet(ip.listed, ip.dst, 6, 4000, 87, 0), ip.router, ip.errors[1])
				}},
				{"TTL 1", ip.router, 80, pass, func(f []byte) []byte { f[map[int]int{23: 22, 20: 21}[ip.proto]] = 1; return f }},
				{"another protocol", ip.router, 80, pass, func(f []byte) []byte { f[ip.proto] = 17; return f }},
				{"of another protocol", ip.router, 80, pass, func(f []byte) []byte { f[quoted+ip.proto-14] = 1; return f }},
				{"no version", ip.router, 80, pass, func(f []byte) []byte { f[quoted] ^= 0xf0; return f }},
				{"cut off", ip.router, 80, pass, func(f []byte) []byte { return f[:quoted+ip.proto] }},
			} {
				frame := b.about(b.packet(ip.src, ip.dst, 6, 4000, tt.port, 0), tt.from, ip.errors[1])
				if tt.with != nil {
					frame = tt.with(frame)
				}
				if got := b.agree(frame); got != tt.want {
					t.Errorf("%s, %s: verdict %d, want %d", ip.dst, tt.what, got, tt.want)
				}
			}
			for port := uint16(101); port < 164; port++ { // each way of hashing
				for sport := range uint16(20) {
					packet := b.packet(ip.src, ip.dst, 17, 5000+sport, port, 3)
					_, _, one := b.fate(packet)
					frame := b.about(packet, ip.router, ip.errors[1])
					if _, _, other := b.fate(frame); b.agree(frame) != redirect || one != other {
						t.Errorf("%s, port %d: backend %v, of what it is about %v", ip.dst, port, other, one)
					}
				}
			}
		}
		for what, with := range map[string][]byte{"options": {0x46, 0}, "first fragment": {0x45, 0x20}, "later fragment": {0x45, 0, 9}} {
			frame := b.about(b.packet("198.51.100.7", "10.9.0.1", 17, 4000, 80, 64), "198.51.100.1", 3)
			frame[42] = with[0]
			copy(frame[42+6:], with[1:])
			if got, want := b.agree(frame), map[bool]uint32{true: redirect, false: pass}[what == "first fragment"]; got != want {
				t.Errorf("%s: verdict %d", what, got)
			}
		}
	})
}

var frames = flag.Int("frames", 100_000, "how many frames TestMutations makes")

// TestMutations has the program meet frames that are right but for some bits, bytes or their
// length.
func TestMutations(t *testing.T) {
	t.Parallel()
	b := newBench(t, testFarms()...)
	n := *frames
	r := rand.New(rand.NewPCG(1, 2))
	var verdicts [5]int
	b.inNamespace(func() {
		for i := 0; i < n && !t.Failed(); i++ {
			if i == n/2 {
				b.judge()
				b.know(17, "198.51.100.7:4001", "10.9.0.1:94")
				b.know(6, "[2001:db8::7]:4001", "[fd09::1]:94")
			}
			verdicts[b.agree(b.mutant(r))]++
		}
	})
	t.Logf("%d frames: %d passed on, %d dropped, %d sent back, %d forwarded", n, verdicts[pass], verdicts[drop], verdicts[transmit], verdicts[redirect])
	if verdicts[redirect] < n/5 || verdicts[pass] < n/5 {
		t.Errorf("verdicts: %v", verdicts)
	}
}

// judge has all packets be looked up in lists from now on.
func (b *bench) judge() {
	b.judges = true
	if err := b.program.judge(map[int]arrival{b.in: {serves: true, denies: true, policies: []string{"policy"}}}, testFailsafes().failsafes[:]); err != nil {
		b.t.Error(err)
	}
}

// know has there be a connection.
func (b *bench) know(proto uint8, src, dst string) {
	from, to := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	ends := netlink.IPTuple{Protocol: proto, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice(), SrcPort: from.Port(), DstPort: to.Port()}
	answers := netlink.IPTuple{Protocol: proto, SrcIP: ends.DstIP, DstIP: ends.SrcIP, SrcPort: ends.DstPort, DstPort: ends.SrcPort}
	family := uint8(unix.AF_INET6)
	if from.Addr().Is4() {
		family = unix.AF_INET
	}
	flow := netlink.ConntrackFlow{FamilyType: family, Forward: ends, Reverse: answers, TimeOut: 600}
	if proto == unix.IPPROTO_TCP {
		flow.ProtoInfo = &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_ESTABLISHED}
	}
	if err := netlink.ConntrackCreate(netlink.ConntrackTable, netlink.InetFamily(family), &flow); err != nil {
		b.t.Error(err)
	}
	b.known[(&parsed{src: from.Addr(), dst: to.Addr(), sport: from.Port(), dport: to.Port(), proto: proto}).flow()] = true
}

// mutant makes a frame.
func (b *bench) mutant(r *rand.Rand) []byte {
	src, dst := "198.51.100.7", "10.9.0.1"
	if r.IntN(2) == 0 {
		src, dst = "2001:db8::7", "fd09::1"
	}
	switch r.IntN(6) {
	case 0:
		src = map[bool]string{true: "192.0.2.", false: "2001:db8:bad::"}[dst == "10.9.0.1"] + fmt.Sprint(r.IntN(256))
	case 1:
		src = map[bool]string{true: "192.0.3.", false: "2001:db8::"}[dst == "10.9.0.1"] + fmt.Sprint(r.IntN(10))
	}
	ports := []uint16{80, 94, 81, 82, 83, 84, 85, 86, 87, 87, 87, 88, 89, 300, 309, 311, 2000, 90, 90, 91, 92, 93, 95, 95, 95, 95, 96, 97, 98, 99, 99, 200, 201}
	port := ports[r.IntN(len(ports))]
	if r.IntN(2) == 0 {
		port = 100 + uint16(r.IntN(66))
	}
	f := b.packet(src, dst, []uint8{6, 17, 132}[r.IntN(3)], []uint16{4001, uint16(r.Uint32())}[r.IntN(2)], port, r.IntN(40))
	switch r.IntN(20) {
	case 0:
		unfinished(f)
	case 1, 2, 3, 4:
		f = b.about(f, src, byte(r.IntN(14)))
	}
	for range r.IntN(4) {
		switch r.IntN(5) {
		case 0:
			f[r.IntN(len(f))] ^= 1 << r.IntN(8)
		case 1:
			f[r.IntN(len(f))] = byte(r.Uint32())
		case 2: // in the headers that count most
			f[min(12+r.IntN(12), len(f)-1)] = byte(r.IntN(2) * r.IntN(256))
		case 3:
			f = f[:max(14, len(f)-r.IntN(30))]
		case 4:
			f = append(f, make([]byte, r.IntN(30))...)
		}
	}
	return f
}
