package link

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
)

// attempts bounds how often a dump is repeated that was interrupted by a change.
const attempts = 10

// Reader asks the kernel about one network namespace. It is safe for concurrent use.
type Reader struct{ h *netlink.Handle }

// Here reads the network namespace of the thread that asks, through a socket for each question.
var Here = &Reader{&netlink.Handle{}}

// Open returns a Reader of the calling thread's network namespace, whichever thread asks it later.
func Open() (*Reader, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open routing socket: %w", err)
	}
	return &Reader{h}, nil
}

// Close releases the Reader's socket.
func (r *Reader) Close() { r.h.Close() }

// Interface is a network interface.
type Interface struct {
	Index  int
	Name   string
	Type   string // "veth", "bridge", …
	Master int    // index of the bridge or bond that the interface is a port of; 0: none
	// Ethernet: what it receives are frames of Ethernet.
	Ethernet bool
}

func interfaceOf(l netlink.Link) Interface {
	a := l.Attrs()
	return Interface{a.Index, a.Name, l.Type(), a.MasterIndex, a.EncapType == "ether"}
}

// Interfaces lists the interfaces in the kernel's order.
func (r *Reader) Interfaces() ([]Interface, error) {
	links, err := r.links()
	if err != nil {
		return nil, err
	}
	all := make([]Interface, len(links))
	for i, l := range links {
		all[i] = interfaceOf(l)
	}
	return all, nil
}

// Interface returns the interface with the index.
func (r *Reader) Interface(index int) (Interface, error) {
	l, err := r.h.LinkByIndex(index)
	if err != nil {
		return Interface{}, fmt.Errorf("find interface %d: %w", index, err)
	}
	return interfaceOf(l), nil
}

// Name returns the name of the interface with the index.
func (r *Reader) Name(index int) (string, error) {
	i, err := r.Interface(index)
	return i.Name, err
}

// Index returns the index of the interface with the name; 0: there is none.
func (r *Reader) Index(name string) (int, error) {
	l, err := r.h.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find interface %s: %w", name, err)
	}
	return l.Attrs().Index, nil
}

// Address is an address of an interface.
type Address struct {
	Prefix netip.Prefix // the address with the length of its subnet's prefix
	Link   int          // index of the interface
	Global bool         // it is good for more than its link and its host
}

// Addresses lists the addresses of all interfaces, link-local ones included, IPv4 first.
func (r *Reader) Addresses() ([]Address, error) {
	found, err := r.addrs()
	if err != nil {
		return nil, err
	}
	all := make([]Address, 0, len(found))
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			ones, _ := a.Mask.Size()
			all = append(all, Address{netip.PrefixFrom(addr.Unmap(), ones), a.LinkIndex, a.Scope == unix.RT_SCOPE_UNIVERSE})
		}
	}
	return all, nil
}

// HostAddresses lists the addresses of all interfaces but link-local ones, each with the length of
// its subnet's prefix, once and sorted.
func (r *Reader) HostAddresses() ([]netip.Prefix, error) {
	all, err := r.Addresses()
	if err != nil {
		return nil, err
	}
	var host []netip.Prefix
	for _, a := range all {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			host = append(host, a.Prefix)
		}
	}
	slices.SortFunc(host, netip.Prefix.Compare)
	return slices.Compact(host), nil
}

// Underlay lists the addresses of all interfaces but link-local ones and those of the loopback,
// with what else packets to other nodes depend on, sorted.
func (r *Reader) Underlay() ([]model.HostAddress, error) {
	found, err := r.addrs()
	if err != nil {
		return nil, err
	}
	links, err := r.links()
	if err != nil {
		return nil, err
	}
	about := map[int]*netlink.LinkAttrs{}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback == 0 {
			about[l.Attrs().Index] = l.Attrs()
		}
	}
	sources := sourcesOf(found)
	var host []model.HostAddress
	for _, a := range found {
		if l, p := about[a.LinkIndex], subnet(a); l != nil && !p.Addr().IsLinkLocalUnicast() {
			h := model.HostAddress{Prefix: p, Device: l.Name, MTU: l.MTU}
			h.Source = sources[leaving{a.LinkIndex, p.Addr().Is4()}] == p
			host = append(host, h)
		}
	}
	slices.SortFunc(host, func(a, b model.HostAddress) int {
		return cmp.Or(a.Prefix.Compare(b.Prefix), strings.Compare(a.Device, b.Device))
	})
	return host, nil
}

// Segment is an Ethernet interface with a carrier, by which neighbours of the node are reached.
type Segment struct {
	Index int
	Name  string
	MAC   [6]byte
	// IPv4 and IPv6: it has a subnet of that family, other than a link-local one.
	IPv4, IPv6 bool
}

// Segments lists the node's segments, sorted by index. Ports of bridges and bonds are none.
func (r *Reader) Segments() ([]Segment, error) {
	links, err := r.links()
	if err != nil {
		return nil, err
	}
	addrs, err := r.Addresses()
	if err != nil {
		return nil, err
	}
	var all []Segment
	for _, l := range links {
		a := l.Attrs()
		const needed = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_BROADCAST
		if a.RawFlags&(needed|unix.IFF_LOOPBACK) != needed || a.MasterIndex != 0 || len(a.HardwareAddr) != 6 {
			continue
		}
		s := Segment{Index: a.Index, Name: a.Name, MAC: [6]byte(a.HardwareAddr)}
		for _, on := range addrs {
			if on.Link != a.Index || on.Prefix.IsSingleIP() || on.Prefix.Addr().IsLinkLocalUnicast() {
				continue
			}
			s.IPv4, s.IPv6 = s.IPv4 || on.Prefix.Addr().Is4(), s.IPv6 || on.Prefix.Addr().Is6()
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Segment) int { return cmp.Compare(a.Index, b.Index) })
	return all, nil
}

// Routing lists the names of the interfaces at which packets arrive that the node routes, sorted:
// all but the loopback, ports of bridges and bonds, and those that carry VLANs, at which packets of
// other interfaces are seen.
func (r *Reader) Routing() ([]string, error) {
	links, err := r.links()
	return routing(links), err
}

func routing(links []netlink.Link) (names []string) {
	carriers := map[int]bool{}
	for _, l := range links {
		if l.Type() == "vlan" {
			carriers[l.Attrs().ParentIndex] = true
		}
	}
	for _, l := range links {
		if a := l.Attrs(); a.Flags&net.FlagLoopback == 0 && a.MasterIndex == 0 && !carriers[a.Index] {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Route is the way that packets take to an address.
type Route struct {
	Link    int        // index of the interface; 0: there is no way
	Local   bool       // the address is the node's own
	Gateway netip.Addr // invalid: the address is on the link
	Source  netip.Addr // that the node sends from; invalid in the way of packets that come in
}

// Route asks for the way of the node's own packets to an address. Where there is none, it returns
// the zero Route and the kernel's error, such as "network is unreachable".
func (r *Reader) Route(to netip.Addr) (Route, error) { return r.RouteFrom(netip.Addr{}, to, 0) }

// RouteFrom is Route for packets from an address that come in by the interface of an index; 0: the
// node sends them, and an invalid address is the one that the kernel chooses. That forwarding is
// off is EHOSTUNREACH, and what the reverse path filter drops EINVAL or EXDEV.
func (r *Reader) RouteFrom(from, to netip.Addr, in int) (Route, error) {
	found, err := r.h.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{SrcAddr: from.AsSlice(), IifIndex: in})
	if err != nil {
		return Route{}, err
	}
	if len(found) == 0 {
		return Route{}, unix.ENETUNREACH
	}
	gateway, _ := netip.AddrFromSlice(found[0].Gw)
	source, _ := netip.AddrFromSlice(found[0].Src)
	return Route{found[0].LinkIndex, found[0].Type == unix.RTN_LOCAL, gateway.Unmap(), source.Unmap()}, nil
}

// Down returns the state of an interface that carries nothing, such as "lower-layer-down"; "": it
// does, as far as it tells.
func (r *Reader) Down(index int) string {
	l, err := r.h.LinkByIndex(index)
	if err != nil {
		return ""
	}
	switch state := l.Attrs().OperState; state {
	case netlink.OperDown, netlink.OperLowerLayerDown, netlink.OperNotPresent:
		return state.String()
	}
	return ""
}

// DefaultRoute is one hop of a default route of the main table.
type DefaultRoute struct {
	Device     string
	Advertised bool // learnt by IPv6 router advertisement
}

// DefaultRoutes lists the default routes of both families, without those that lead nowhere.
func (r *Reader) DefaultRoutes() ([]DefaultRoute, error) {
	routes, err := r.routes(&netlink.Route{}, 0)
	if err != nil {
		return nil, err
	}
	var all []DefaultRoute
	for _, route := range routes {
		if _, isDefault := prefix(route.Dst); !isDefault {
			continue
		}
		hops := []int{route.LinkIndex} // 0: of several hops, or unreachable
		for _, hop := range route.MultiPath {
			hops = append(hops, hop.LinkIndex)
		}
		for _, index := range hops {
			if index == 0 {
				continue
			}
			name, err := r.Name(index)
			if err != nil {
				return nil, fmt.Errorf("read default route: %w", err)
			}
			if name != "lo" { // of an unreachable one
				all = append(all, DefaultRoute{name, route.Protocol == unix.RTPROT_RA})
			}
		}
	}
	return all, nil
}

// Uplinks names the interfaces at which packets arrive that come by default routes, sorted: in
// place of a bond its ports, and in place of a VLAN what carries it.
func (r *Reader) Uplinks() ([]string, error) {
	routes, err := r.DefaultRoutes()
	if err != nil {
		return nil, err
	}
	links, err := r.links()
	return uplinks(links, routes), err
}

// Streams returns how much of a stream of TCP over IPv4 an interface takes as one packet, in bytes,
// and how much it could; 0: the kernel does not say.
func (r *Reader) Streams(name string) (now, most int, err error) {
	l, err := r.h.LinkByName(name)
	if err != nil {
		return 0, 0, err
	}
	return int(l.Attrs().GSOIPv4MaxSize), int(l.Attrs().TSOMaxSize), nil
}

func uplinks(links []netlink.Link, routes []DefaultRoute) (names []string) {
	var arrive func(netlink.Link)
	arrive = func(at netlink.Link) {
		below := slices.DeleteFunc(slices.Clone(links), func(l netlink.Link) bool {
			port := at.Type() == "bond" && l.Attrs().MasterIndex == at.Attrs().Index
			carrier := at.Type() == "vlan" && l.Attrs().Index == at.Attrs().ParentIndex
			return !port && !carrier
		})
		if len(below) == 0 {
			names = append(names, at.Attrs().Name)
		}
		for _, l := range below {
			arrive(l)
		}
	}
	for _, l := range links {
		if slices.ContainsFunc(routes, func(d DefaultRoute) bool { return d.Device == l.Attrs().Name }) {
			arrive(l)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// LocalRoutes lists the destinations of the local table's routes that a program has made under its
// routing protocol number (rtm_protocol).
func (r *Reader) LocalRoutes(protocol int) ([]netip.Addr, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: netlink.RouteProtocol(protocol)}
	routes, err := r.routes(filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	for _, route := range routes {
		to, _ := prefix(route.Dst)
		all = append(all, to.Addr())
	}
	return all, nil
}

func (r *Reader) links() ([]netlink.Link, error) {
	links, err := Dump(r.h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return links, nil
}

func (r *Reader) addrs() ([]netlink.Addr, error) {
	addrs, err := ofBoth(func(family int) ([]netlink.Addr, error) { return r.h.AddrList(nil, family) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return addrs, nil
}

// routes lists those that pass the filter, of the main table unless it names another.
func (r *Reader) routes(filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	routes, err := ofBoth(func(family int) ([]netlink.Route, error) { return r.h.RouteListFiltered(family, filter, mask) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routes, nil
}

// ofBoth dumps what there is of IPv4, then of IPv6.
func ofBoth[T any](list func(family int) ([]T, error)) (all []T, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := Dump(func() ([]T, error) { return list(family) })
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// Dump repeats a dump that was interrupted. A kernel without a family has nothing of it.
func Dump[T any](list func() ([]T, error)) ([]T, error) {
	for range attempts - 1 {
		all, err := list()
		switch {
		case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
			return nil, nil
		case !errors.Is(err, netlink.ErrDumpInterrupted):
			return all, err
		}
	}
	return list()
}
