package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/state"
)

// entry is what one request sets in the kernel, or removes: a route, a neighbour or a forwarding
// entry. Entries are comparable, those wanted with those read.
type entry interface {
	fmt.Stringer
	// slot is what the kernel has one of, the entry without the rest: setting an entry replaces
	// another one in its slot.
	slot() any
	// on is the name of the device that has it; "": none.
	on() string
	// request sets or removes the entry. Replace: the slot is ours.
	request(set, replace bool, device int) message
}

// route is one of our routing protocol number.
type route struct {
	prefix netip.Prefix
	device string // "": packets are dropped
	via    netip.Addr
	metric uint32
	table  uint32
	odd    bool // it is of our number, but nothing that we make
}

// neighbour is a permanent one on a tunnel device.
type neighbour struct {
	device string
	addr   netip.Addr
	mac    state.MAC
}

// forward is an entry of a VXLAN device's forwarding table.
type forward struct {
	device string
	mac    state.MAC
	remote netip.Addr
}

func wantedRoute(to netip.Prefix, r *state.Route) entry {
	return route{prefix: to, device: r.Device, via: r.Via, metric: metric(to), table: unix.RT_TABLE_MAIN}
}

// metric is that of the route to a prefix, whatever its next hop: one of some that are as good as
// each other. The kernel seeks a route's next hop in a hash of metric and device, without the
// gateway, and takes ten times as long for 10,000 routes of one metric by one device.
func metric(to netip.Prefix) (m uint32) {
	for _, b := range to.Addr().AsSlice() {
		m ^= uint32(b)
	}
	return Metric + m%metrics
}

func wantedVTEP(k state.VTEPKey, v *state.VTEP) [2]entry {
	return [2]entry{forward{k.Device, v.MAC, v.Remote}, neighbour{k.Device, k.Gateway, v.MAC}}
}

// entries are those of VTEPs and routes, by their slots; nil values have none.
func entries(vteps map[state.VTEPKey]*state.VTEP, routes map[netip.Prefix]*state.Route) map[any]entry {
	all := make(map[any]entry, 2*len(vteps)+len(routes))
	for k, v := range vteps {
		if v != nil {
			for _, e := range wantedVTEP(k, v) {
				all[e.slot()] = e
			}
		}
	}
	for to, r := range routes {
		if r != nil {
			e := wantedRoute(to, r)
			all[e.slot()] = e
		}
	}
	return all
}

func (r route) slot() any  { return route{prefix: r.prefix, metric: r.metric, table: r.table} }
func (r route) on() string { return r.device }

// String is as ip route prints it.
func (r route) String() string {
	if r.device == "" {
		return fmt.Sprintf("route blackhole %s", r.prefix)
	}
	if !r.via.IsValid() {
		return fmt.Sprintf("route %s dev %s", r.prefix, r.device)
	}
	return fmt.Sprintf("route %s via %s dev %s", r.prefix, r.via, r.device)
}

func (n neighbour) slot() any  { return neighbour{device: n.device, addr: n.addr} }
func (n neighbour) on() string { return n.device }

// String is as ip neigh prints it.
func (n neighbour) String() string {
	return fmt.Sprintf("neighbour %s lladdr %s dev %s", n.addr, n.mac, n.device)
}

func (f forward) slot() any  { return f } // the kernel may have several of one MAC
func (f forward) on() string { return f.device }

// String is as bridge fdb prints it.
func (f forward) String() string {
	return fmt.Sprintf("forward %s dst %s dev %s", f.mac, f.remote, f.device)
}

// needsIPv6 reports whether the kernel takes an entry only on a device that has IPv6.
func needsIPv6(e entry) bool {
	switch e := e.(type) {
	case route:
		return e.prefix.Addr().Is6()
	case neighbour:
		return e.addr.Is6()
	}
	return false
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

const setFlags = netlink.Request | netlink.Create | netlink.Replace

// onlink is the flag of a next hop that no subnet of its device has. The kernel knows it of a
// link-local one, and of a device without neighbours.
func onlink(via netip.Addr) uint32 {
	if !via.IsValid() || via.IsLinkLocalUnicast() {
		return 0
	}
	return unix.RTNH_F_ONLINK
}

func (r route) request(set, replace bool, device int) message {
	h := netlink.Header{Type: unix.RTM_DELROUTE, Flags: netlink.Request}
	scope, kind, flags := byte(unix.RT_SCOPE_NOWHERE), byte(0), uint32(0) // any
	if set {
		h.Type = unix.RTM_NEWROUTE
		if h.Flags |= netlink.Create | netlink.Excl; replace {
			h.Flags = setFlags
		}
		scope, kind = unix.RT_SCOPE_UNIVERSE, unix.RTN_BLACKHOLE
		if r.device != "" {
			kind, flags = unix.RTN_UNICAST, onlink(r.via)
		}
	}
	a := attr.Attrs{B: []byte{family(r.prefix.Addr()), byte(r.prefix.Bits()), 0, 0, unix.RT_TABLE_UNSPEC, RouteProtocol, scope, kind}}
	a.B = append(a.B, number(flags)...)
	a.Bytes(unix.RTA_TABLE, number(r.table))
	a.Bytes(unix.RTA_DST, r.prefix.Addr().AsSlice())
	a.Bytes(unix.RTA_PRIORITY, number(r.metric))
	if r.via.IsValid() {
		a.Bytes(unix.RTA_GATEWAY, r.via.AsSlice())
	}
	if r.device != "" {
		a.Bytes(unix.RTA_OIF, number(uint32(device)))
	}
	return message{Header: h, Data: a.B}
}

func (n neighbour) request(set, _ bool, device int) message {
	return neighbourRequest(set, family(n.addr), device, 0, n.addr, n.mac)
}

func (f forward) request(set, _ bool, device int) message {
	return neighbourRequest(set, unix.AF_BRIDGE, device, unix.NTF_SELF, f.remote, f.mac)
}

func neighbourRequest(set bool, family byte, device int, flags byte, to netip.Addr, mac state.MAC) message {
	h := netlink.Header{Type: unix.RTM_DELNEIGH, Flags: netlink.Request}
	if set {
		h.Type, h.Flags = unix.RTM_NEWNEIGH, setFlags
	}
	a := attr.Attrs{B: append([]byte{family, 0, 0, 0}, number(uint32(device))...)}
	a.B = append(binary.NativeEndian.AppendUint16(a.B, unix.NUD_PERMANENT), flags, 0)
	a.Bytes(unix.NDA_DST, to.AsSlice())
	a.Bytes(unix.NDA_LLADDR, mac[:])
	return message{Header: h, Data: a.B}
}

// readRoute reads a route of an answer or a notification; name names devices. One that is not
// ours, as its protocol number says, has no device.
func readRoute(body []byte, name func(int) string) (r route, ours bool) {
	if len(body) < unix.SizeofRtMsg {
		return r, false
	}
	bits, kind := int(body[1]), body[7]
	flags := binary.NativeEndian.Uint32(body[8:])
	r.table = uint32(body[4])
	dst, device := netip.IPv4Unspecified(), 0
	if body[0] == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	for typ, value := range attr.All(body[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(value)
		case unix.RTA_GATEWAY:
			r.via, _ = netip.AddrFromSlice(value)
		case unix.RTA_OIF:
			device = int(binary.NativeEndian.Uint32(value))
		case unix.RTA_PRIORITY:
			r.metric = binary.NativeEndian.Uint32(value)
		case unix.RTA_TABLE:
			r.table = binary.NativeEndian.Uint32(value)
		}
	}
	r.prefix = netip.PrefixFrom(dst, bits)
	ours = body[5] == RouteProtocol
	switch {
	case !ours:
	case kind == unix.RTN_UNICAST && device != 0 && flags&unix.RTNH_F_ONLINK == onlink(r.via):
		r.device = name(device)
	default:
		r.odd = kind != unix.RTN_BLACKHOLE
	}
	return r, ours
}

// readNeighbour reads a neighbour or forwarding entry of an answer or a notification. Ours are
// permanent.
func readNeighbour(body []byte, name func(int) string) (e entry, permanent bool) {
	if len(body) < unix.SizeofNdMsg {
		return nil, false
	}
	var addr netip.Addr
	var mac state.MAC
	for typ, value := range attr.All(body[unix.SizeofNdMsg:]) {
		switch typ {
		case unix.NDA_DST:
			addr, _ = netip.AddrFromSlice(value)
		case unix.NDA_LLADDR:
			copy(mac[:], value)
		}
	}
	device := name(int(binary.NativeEndian.Uint32(body[4:])))
	permanent = binary.NativeEndian.Uint16(body[8:])&unix.NUD_PERMANENT != 0
	if body[0] == unix.AF_BRIDGE {
		return forward{device, mac, addr}, permanent
	}
	return neighbour{device, addr, mac}, permanent
}
