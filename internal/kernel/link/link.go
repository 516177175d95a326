// Package link reads interfaces, addresses and routes from the kernel, for all of the project:
//
//   - Reader answers single questions: interfaces, addresses, the route to an address, default routes;
//   - Links says which interface leads to a pod and which is the node's own;
//   - WatchLinks and WatchAddresses tell of changes;
//   - Neighbours has the kernel ask for Ethernet addresses.
//
// It changes nothing else. Pods are found by the host route to their address, which every CNI makes
// that routes its pods. A watch reads everything again after a change: what it tells depends on
// what is there, never on the order of events.
package link

import (
	"cmp"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
)

// Links returns the links with what leads to pods, sorted by index.
func (r *Reader) Links() (model.Links, error) {
	links, err := r.links()
	if err != nil {
		return model.Links{}, err
	}
	addrs, err := r.addrs()
	if err != nil {
		return model.Links{}, err
	}
	routes, err := r.routes(&netlink.Route{}, 0)
	if err != nil {
		return model.Links{}, err
	}
	return classify(links, addrs, routes), nil
}

// facts are what speaks for a link being a pod's or the node's own.
type facts struct {
	addrs   []netip.Addr
	pod     bool // a host route to another's address
	subnet  bool // others than one namespace are behind it
	gateway bool // a gateway is
	exit    bool // a default route leads there
}

// classify makes the snapshot.
func classify(links []netlink.Link, addrs []netlink.Addr, routes []netlink.Route) model.Links {
	var all model.Links
	about := map[int]*facts{}
	bridges := map[int]bool{}
	for _, l := range links {
		about[l.Attrs().Index] = &facts{}
		bridges[l.Attrs().Index] = l.Type() == "bridge"
	}
	local := map[netip.Addr]bool{}
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		f := about[a.LinkIndex]
		if addr = addr.Unmap(); !ok || f == nil || addr.Is6() && addr.IsLinkLocalUnicast() {
			continue
		}
		local[addr] = true
		f.addrs = append(f.addrs, addr)
		f.subnet = f.subnet || wide(a)
	}
	for _, r := range routes {
		if f := about[r.LinkIndex]; f != nil {
			if to, ok := f.learn(r, local); ok {
				all.Routes = append(all.Routes, model.LinkRoute{Prefix: to, Link: r.LinkIndex})
			}
		}
	}
	for _, l := range links {
		all.Links = append(all.Links, about[l.Attrs().Index].link(l, bridges[l.Attrs().MasterIndex]))
	}
	for a := range local {
		all.Local = append(all.Local, a)
	}
	slices.SortFunc(all.Local, netip.Addr.Compare)
	slices.SortFunc(all.Links, func(a, b model.Link) int { return cmp.Compare(a.Index, b.Index) })
	slices.SortFunc(all.Routes, func(a, b model.LinkRoute) int {
		return cmp.Or(a.Prefix.Compare(b.Prefix), cmp.Compare(a.Link, b.Link))
	})
	all.Routes = slices.Compact(all.Routes) // the same with another metric
	return all
}

// wide says whether an address puts others on its link: a subnet, or a peer.
func wide(a netlink.Addr) bool {
	ones, bits := a.Mask.Size()
	return ones != bits || a.Peer != nil && !a.Peer.IP.Equal(a.IP)
}

// learn notes what a route says of its link, and returns its prefix if it is connected and leads
// to others than the node itself.
func (f *facts) learn(r netlink.Route, local map[netip.Addr]bool) (to netip.Prefix, ok bool) {
	if r.Type != unix.RTN_UNICAST {
		return to, false
	}
	to, isDefault := prefix(r.Dst)
	switch {
	case to.Addr().Is6() && to.Addr().IsLinkLocalUnicast(), local[to.Addr()] && to.IsSingleIP():
		return to, false
	case isDefault:
		f.exit = true
		return to, false
	case len(r.Gw) > 0 || r.Via != nil:
		f.gateway = true
		return to, false
	case to.IsSingleIP():
		f.pod = true
	default:
		f.subnet = true
	}
	return to, true
}

// prefix reads a route's destination; no destination is a default route.
func prefix(n *net.IPNet) (p netip.Prefix, isDefault bool) {
	if n == nil {
		return p, true
	}
	a, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones).Masked(), ones == 0
}

// link decides. An end of a pair is a pod's if its host routes are all that is behind it; an
// address of the node's own, if it is no wider, does not matter (the ptp plugin gives its gateway's
// to every pair), nor do networks that are reached through a pod. A default route never leads
// through a pod. An end that is a port of a bridge receives nothing of its own, and is neither.
func (f *facts) link(l netlink.Link, port bool) model.Link {
	m := model.Link{Index: l.Attrs().Index, Name: l.Attrs().Name, Bridge: l.Type() == "bridge", Alias: l.Attrs().Alias, Addresses: f.addrs}
	slices.SortFunc(m.Addresses, netip.Addr.Compare)
	m.Addresses = slices.Compact(m.Addresses)
	if port {
		return m
	}
	pair := slices.Contains([]string{"veth", "netkit", "tuntap"}, l.Type())
	m.Pod = pair && f.pod && !f.subnet && !f.exit
	m.Host = !m.Pod && (!pair || f.subnet || f.gateway || f.exit || len(f.addrs) > 0)
	return m
}
