package xdp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// A reference is what the program is to do, said in another way: by farms as they are declared.
type reference struct {
	mac    [6]byte // of the interface that frames arrive by
	in     int     // its index
	mtu    int     // of all interfaces
	farms  map[string]*state.Farm
	lists  map[string]*model.FarmList
	judges bool                   // all packets are looked up in the lists "denied", and "policy"
	known  map[string]bool        // connections that there are: flow
	macs   map[int][6]byte        // of interfaces
	knows  map[netip.Addr][6]byte // neighbours
	takes  map[int]bool           // interfaces that take frames
	far    map[netip.Addr]way     // to backends that get packets in IPIP
}

// way is how packets get to a network of others.
type way struct {
	router netip.Addr
	device int
	src    netip.Addr // of the balancer's own packets
}

// Verdicts of linux/bpf.h.
const (
	drop     = 1
	pass     = 2
	transmit = 3
	redirect = 4
)

// fate says what is to become of a frame, of which the program may change nothing that it passes
// on.
func (r *reference) fate(in []byte) (verdict uint32, out []byte, to *model.FarmBackend) {
	frame := bytes.Clone(in)
	if r.judges && r.denies(in) {
		return drop, in, nil
	}
	at := parseFrame(frame)
	if at == nil || [6]byte(frame[:6]) != r.mac {
		return pass, in, nil
	}
	for _, f := range r.farms {
		found, places := false, 0
		f.Each(func(addr netip.Addr, _ bool, p model.Protocol, ports model.PortSpan) {
			found = found || addr == at.dst && uint8(p) == at.proto && ports.First <= at.dport && at.dport <= ports.Last
			places += int(ports.Last-ports.First) + 1
		})
		if !found || f.InRanges() && places > 4096 {
			continue
		}
		slots := f.Table(at.dst.Is4()).Slots
		if at.isError && (f.Mode != model.DSR || len(slots) == 0) {
			continue
		}
		switch known, denied := r.onLists(f.Lists, source(in)); {
		case !known:
			return pass, in, nil
		case denied && slices.Contains(f.Lists, sourceRanges) && (at.proto == 132 || r.known[at.flow()]):
			return pass, in, nil
		case denied:
			return drop, in, nil
		}
		if f.Mode != model.DSR || len(slots) == 0 || at.unfinished {
			continue
		}
		slot := 0
		if len(slots) > 1 {
			slot = int(uint64(jhash(at.key(frame, f.PacketKey()), 0x51d1ce)) * uint64(len(slots)) >> 32)
		}
		b := &f.Backends[slots[slot]]
		device := f.Devices[slots[slot]]
		to := way{router: b.Addr, device: device}
		tunnelled := f.Tunnelled(int(slots[slot]))
		if tunnelled {
			to = r.far[b.Addr]
			at.length += 20
		}
		mac, known := r.knows[to.router]
		if device = to.device; !known || !r.takes[device] || at.length > r.mtu || *at.ttl <= 1 {
			return pass, in, nil
		}
		copy(frame, mac[:])
		own := r.macs[device]
		copy(frame[6:], own[:])
		*at.ttl--
		if at.dst.Is4() {
			follow(frame, uint16(*at.ttl+1)<<8, uint16(*at.ttl)<<8)
		}
		if tunnelled {
			frame = inIPIP(frame, to.src, b.Addr)
		}
		if device == r.in {
			return transmit, frame, b
		}
		return redirect, frame, b
	}
	return pass, in, nil
}

// denies says whether a packet is dropped whatever it is for.
func (r *reference) denies(frame []byte) bool {
	src := source(frame)
	if _, denied := r.onLists([]string{"denied"}, src); denied {
		return true
	}
	if _, denied := r.onLists([]string{"policy"}, src); !denied || [6]byte(frame[:6]) != r.mac {
		return false
	}
	ip, header, proto := frame[14:], 40, frame[20]
	if src.Is4() {
		header, proto = 20, frame[23]
		if ip[0] != 0x45 || binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			return false
		}
	}
	switch {
	case proto == 1 && src.Is4(), proto == 58 && src.Is6():
		return true
	case proto != 6 && proto != 17, len(ip) < header+4:
		return false
	}
	return !open(proto, binary.BigEndian.Uint16(ip[header+2:]), false) && !open(proto, binary.BigEndian.Uint16(ip[header:]), true)
}

// open says whether a port is one that no policy closes.
func open(proto uint8, port uint16, source bool) bool {
	return proto == 6 && !source && port == 80 || proto == 17 && !source && port > 100 && port < 130 || proto == 17 && source && port >= 1<<15
}

// testFailsafes are those ports.
func testFailsafes() *policies {
	p := &policies{}
	p.spare([]state.Rule{
		{Destination: state.End{Ports: &state.Ports{Ranges: []state.PortRange{{Protocol: model.TCP, First: 80, Last: 80}, {Protocol: model.UDP, First: 101, Last: 129}}}}},
		{Source: state.End{Ports: &state.Ports{Ranges: []state.PortRange{{Protocol: model.UDP, First: 1 << 15, Last: 1<<16 - 1}, {Protocol: model.SCTP, First: 1, Last: 9}}}}},
	})
	return p
}

// follow has the checksum of an IPv4 header follow a number in it, as RFC 1624 has it.
func follow(frame []byte, from, to uint16) {
	sum := uint32(^binary.BigEndian.Uint16(frame[24:])) + uint32(^from) + uint32(to)
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(frame[24:], ^uint16(sum))
}

// inIPIP is a frame with its IPv4 packet in another one, whose identification and checksum are
// zero.
func inIPIP(frame []byte, src, dst netip.Addr) []byte {
	inner := frame[14:]
	flags := binary.BigEndian.Uint16(inner[6:])
	follow(frame, flags, flags&^0x4000)
	binary.BigEndian.PutUint16(inner[6:], flags&^0x4000)
	tos := inner[1] & 3
	if tos == 3 {
		tos = 2
	}
	outer := binary.BigEndian.AppendUint16([]byte{0x45, tos}, binary.BigEndian.Uint16(inner[2:])+20)
	outer = append(outer, 0, 0, 0, 0, 64, 4, 0, 0)
	outer = append(append(outer, src.AsSlice()...), dst.AsSlice()...)
	return slices.Concat(frame[:14], outer, inner)
}

// source is where a packet of IP comes from, whatever it carries.
func source(frame []byte) netip.Addr {
	switch ip := frame[14:]; {
	case frame[12] == 0x08 && frame[13] == 0 && len(ip) >= 20 && ip[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(ip[12:]))
	case frame[12] == 0x86 && frame[13] == 0xdd && len(ip) >= 40 && ip[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(ip[8:]))
	}
	return netip.Addr{}
}

// onLists says whether a farm's lists have a source dropped; not known: the program is not to say.
func (r *reference) onLists(names []string, src netip.Addr) (known, denied bool) {
	lengths := map[string]bool{}
	for _, name := range names {
		for _, ranges := range r.lists[name].Ranges {
			for p := range ranges.Prefixes() {
				if p.Addr().Is4() == src.Is4() {
					lengths[fmt.Sprint(name, p.Bits())] = true
				}
			}
		}
	}
	if len(lengths) > 33 {
		return false, false
	}
	for _, name := range names {
		if l := r.lists[name]; slices.ContainsFunc(l.Ranges, func(a model.AddressRange) bool { return a.Contains(src) }) {
			return l.Allow || !l.Log, !l.Allow
		}
	}
	return true, false
}

// parsed is a packet of a transport protocol that is plain, and whole, or an ICMP error about what
// answers one.
type parsed struct {
	src, dst     netip.Addr
	sport, dport uint16
	proto        uint8
	isError      bool
	length       int
	ttl          *byte
	unfinished   bool // the sender's device was to write the checksum
}

func parseFrame(frame []byte) *parsed {
	p, header := &parsed{}, 0
	if len(frame) < 14 {
		return nil
	}
	ip := frame[14:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		if header = 20; len(ip) < header || ip[0] != 0x45 || binary.BigEndian.Uint16(ip[6:])&^0xc000 != 0 {
			return nil
		}
		p.length, p.proto, p.ttl = int(binary.BigEndian.Uint16(ip[2:])), ip[9], &ip[8]
		p.src, p.dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	case 0x86dd:
		if header = 40; len(ip) < header || ip[0]>>4 != 6 {
			return nil
		}
		p.length, p.proto, p.ttl = header+int(binary.BigEndian.Uint16(ip[4:])), ip[6], &ip[7]
		p.src, p.dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	default:
		return nil
	}
	if p.proto == map[int]uint8{20: 1, 40: 58}[header] && p.length >= header && p.length <= len(ip) {
		return parseError(p, ip[header:p.length])
	}
	least, known := map[uint8]int{6: 20, 17: 8, 132: 12}[p.proto]
	if !known || p.length > len(ip) || p.length < header+least {
		return nil
	}
	transport := ip[header:]
	p.sport, p.dport = binary.BigEndian.Uint16(transport), binary.BigEndian.Uint16(transport[2:])
	if p.proto == 132 {
		p.unfinished = binary.BigEndian.Uint32(transport[8:]) == 0
		return p
	}
	sum := uint64(p.proto) + uint64(p.length-header)
	for _, a := range [][]byte{p.src.AsSlice(), p.dst.AsSlice()} {
		for ; len(a) > 0; a = a[2:] {
			sum += uint64(binary.BigEndian.Uint16(a))
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	p.unfinished = uint64(binary.BigEndian.Uint16(transport[map[uint8]int{6: 16, 17: 6}[p.proto]:])) == sum
	return p
}

// parseError has a packet be of the flow that the ICMP message in it is about.
func parseError(p *parsed, message []byte) *parsed {
	if len(message) < 8+24 || p.src.Is6() && len(message) < 8+44 {
		return nil
	}
	quoted, ports := message[8:], message[8+20:]
	if p.src.Is4() {
		if !slices.Contains([]byte{3, 4, 11, 12}, message[0]) || quoted[0] != 0x45 || binary.BigEndian.Uint16(quoted[6:])<<3 != 0 {
			return nil
		}
		p.proto, p.dst, p.src = quoted[9], netip.AddrFrom4([4]byte(quoted[12:])), netip.AddrFrom4([4]byte(quoted[16:]))
	} else {
		if ports = quoted[40:]; message[0] < 1 || message[0] > 4 || quoted[0]>>4 != 6 {
			return nil
		}
		p.proto, p.dst, p.src = quoted[6], netip.AddrFrom16([16]byte(quoted[8:])), netip.AddrFrom16([16]byte(quoted[24:]))
	}
	p.dport, p.sport, p.isError = binary.BigEndian.Uint16(ports), binary.BigEndian.Uint16(ports[2:]), true
	return p
}

// flow names the packet's flow.
func (p *parsed) flow() string {
	return fmt.Sprint(p.proto, netip.AddrPortFrom(p.src, p.sport), netip.AddrPortFrom(p.dst, p.dport))
}

// key is what nftables hashes: each field in as many words as it takes.
func (p *parsed) key(frame []byte, of model.FlowKey) (key []byte) {
	port := func(n uint16) []byte { return append(binary.BigEndian.AppendUint16(nil, n), 0, 0) }
	for i, field := range [][]byte{p.src.AsSlice(), p.dst.AsSlice(), port(p.sport), port(p.dport), append(bytes.Clone(frame[6:12]), 0, 0), append(bytes.Clone(frame[:6]), 0, 0)} {
		if of&(1<<i) != 0 {
			key = append(key, field...)
		}
	}
	return key
}

// jhash is the kernel's, as in linux/jhash.h.
func jhash(key []byte, seed uint32) uint32 {
	start := 0xdeadbeef + uint32(len(key)) + seed
	s := [3]uint32{start, start, start}
	rol := func(x uint32, n int) uint32 { return x<<n | x>>(32-n) }
	for len(key) > 12 {
		for i := range s {
			s[i] += binary.LittleEndian.Uint32(key[4*i:])
		}
		for i, n := range []int{4, 6, 8, 16, 19, 4} {
			a, b, c := &s[i%3], &s[(i+1)%3], &s[(i+2)%3]
			*a -= *c
			*a ^= rol(*c, n)
			*c += *b
		}
		key = key[12:]
	}
	if len(key) == 0 {
		return s[2]
	}
	tail := append(bytes.Clone(key), make([]byte, 12-len(key))...)
	for i := range s {
		s[i] += binary.LittleEndian.Uint32(tail[4*i:])
	}
	for i, n := range []int{14, 11, 25, 16, 4, 14, 24} { // c of b, a of c, b of a, …
		x, y := &s[(i+2)%3], &s[(i+1)%3]
		*x ^= *y
		*x -= rol(*y, n)
	}
	return s[2]
}
