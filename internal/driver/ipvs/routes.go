package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/state"
)

// IPVS takes packets on their way in to the node itself. Routes of type local make packets for
// services such. (The node's own packets meet IPVS on their way out; but those for a backend on the
// node would leave it without such a route, and refusals would not find their way back.)

// The routing protocol numbers (rtm_protocol) of our routes, all of which are in the table named
// local.
const (
	RouteProtocol     = 84 // to services
	FarmRouteProtocol = 85 // to farms
)

const loopback = 1 // index of the interface lo in each network namespace

// via is what a route says of the node's own packets: their source, and how large they may be. It
// is what the node's other routes give them.
type via struct {
	source netip.Addr
	mtu    int
}

// routes are the addresses that have one.
type routes map[netip.Addr]via

// usesRoute reports whether a frontend's address needs a route: it is not one of the node's own.
func usesRoute(f *state.Frontend) bool { return f != nil && f.Kind != state.NodePort }

// usesOf counts the frontends that use each address.
func usesOf(s *state.Services) map[netip.Addr]int {
	uses := map[netip.Addr]int{}
	for k, f := range s.Frontends {
		if usesRoute(f) {
			uses[k.Addr]++
		}
	}
	return uses
}

// routeChange is what is added or changed, and what is removed.
type routeChange struct{ add, remove routes }

func (r routes) changeTo(now routes) routeChange {
	c := routeChange{routes{}, routes{}}
	for a, v := range now {
		if was, is := r[a]; !is || was != v {
			c.add[a] = v
		}
	}
	for a, v := range r {
		if _, stays := now[a]; !stays {
			c.remove[a] = v
		}
	}
	return c
}

func (c routeChange) len() int { return len(c.add) + len(c.remove) }

func (r routes) text(verb string) (text string) {
	for _, a := range slices.SortedFunc(maps.Keys(r), netip.Addr.Compare) {
		text += fmt.Sprintf("%s local route %s\n", verb, a)
	}
	return text
}

// router programs the routes of a protocol number.
type router struct {
	h        *netlink.Handle
	protocol int
}

// open opens its socket in the calling thread's network namespace.
func (r *router) open() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open routing socket: %w", err)
	}
	r.h = h
	return nil
}

// anywhere are addresses that no network has (RFC 5737, RFC 3849): the way to them is the way to
// all that the node knows nothing else of, such as services.
var anywhere = map[bool]netip.Addr{true: netip.MustParseAddr("192.0.2.1"), false: netip.MustParseAddr("2001:db8::1")}

// way is how the node's own packets leave; nothing is said where there is no way.
func (r router) way(is4 bool) (v via, err error) {
	found, err := r.h.RouteGet(anywhere[is4].AsSlice())
	if err != nil || len(found) == 0 || found[0].Src == nil {
		return v, nil // unreachable, or the family is not in use
	}
	source, _ := netip.AddrFromSlice(found[0].Src)
	l, err := r.h.LinkByIndex(found[0].LinkIndex)
	if err != nil {
		return v, fmt.Errorf("read the interface of the default route: %w", err)
	}
	return via{source.Unmap(), l.Attrs().MTU}, nil
}

// fill gives the routes what they say of the node's own packets.
func (r router) fill(all routes) error {
	ways := map[bool]via{}
	for a := range all {
		is4 := a.Is4()
		if _, asked := ways[is4]; !asked {
			v, err := r.way(is4)
			if err != nil {
				return err
			}
			ways[is4] = v
		}
		all[a] = ways[is4]
	}
	return nil
}

// moved reports whether the node's own packets leave another way than the routes say.
func (r router) moved(all routes) (bool, error) {
	asked := map[bool]bool{}
	for a, v := range all {
		if asked[a.Is4()] {
			continue
		}
		if now, err := r.way(a.Is4()); err != nil || now != v {
			return err == nil, err
		}
		if asked[a.Is4()] = true; len(asked) == 2 {
			break
		}
	}
	return false, nil
}

// read lists our routes.
func (r router) read() (routes, error) {
	found := routes{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: netlink.RouteProtocol(r.protocol)}
		list, err := link.Dump(func() ([]netlink.Route, error) {
			return r.h.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return nil, fmt.Errorf("list local routes: %w", err)
		}
		for _, one := range list {
			if one.Dst == nil {
				continue
			}
			if a, ok := netip.AddrFromSlice(one.Dst.IP); ok {
				source, _ := netip.AddrFromSlice(one.Src)
				found[a.Unmap()] = via{source.Unmap(), one.MTU}
			}
		}
	}
	return found, nil
}

func (r router) request(a netip.Addr, v via) *netlink.Route {
	route := &netlink.Route{
		Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Protocol: netlink.RouteProtocol(r.protocol), Scope: netlink.SCOPE_HOST, LinkIndex: loopback,
		Dst:      &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		Priority: r.protocol, // beside the route of an address that the node has, which comes first
	}
	if v.source.IsValid() {
		route.Src, route.MTU = v.source.AsSlice(), v.mtu
	}
	return route
}

// add adds routes, or changes them.
func (r router) add(all routes) error {
	for a, v := range all {
		if err := r.h.RouteReplace(r.request(a, v)); err != nil {
			return fmt.Errorf("add local route %s: %w", a, err)
		}
	}
	return nil
}

func (r router) remove(all routes) error {
	for a := range all {
		if err := r.h.RouteDel(r.request(a, via{})); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete local route %s: %w", a, err)
		}
	}
	return nil
}

// purge removes all routes of the protocol number.
func (r router) purge() error {
	all, err := r.read()
	if err != nil {
		return err
	}
	return r.remove(all)
}

// routing is the routes that there are, and what they are for.
type routing struct {
	router router
	uses   map[netip.Addr]int // by how many virtual servers each address is used that has a route
	routes routes
}

// planRoutes plans the routes of addresses that so many virtual servers more use. Done is to be
// called once the plan is carried out.
func (x *routing) planRoutes(touched map[netip.Addr]int) (c routeChange, done func(), err error) {
	c = routeChange{routes{}, routes{}}
	for a, n := range touched {
		switch v, has := x.routes[a]; {
		case !has && x.uses[a]+n > 0:
			c.add[a] = via{}
		case has && x.uses[a]+n == 0:
			c.remove[a] = v
		}
	}
	done = func() {
		for a, n := range touched {
			if x.uses[a] += n; x.uses[a] == 0 {
				delete(x.uses, a)
			}
		}
		for a := range c.remove {
			delete(x.routes, a)
		}
		maps.Copy(x.routes, c.add)
	}
	return c, done, x.router.fill(c.add)
}

// adoptRoutes plans what makes of the routes that were found those of addresses that are used so
// often.
func (x *routing) adoptRoutes(found routes, uses map[netip.Addr]int) (c routeChange, done func(), err error) {
	wanted := routes{}
	for a := range uses {
		wanted[a] = via{}
	}
	if err := x.router.fill(wanted); err != nil {
		return c, nil, err
	}
	return found.changeTo(wanted), func() { x.uses, x.routes = uses, wanted }, nil
}
