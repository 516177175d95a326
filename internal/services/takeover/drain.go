package takeover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
)

// IPVS mode gives the node every service's address. Packets reach IPVS because the address is
// local, and connections of the node itself to a service have that address as their source, too.
// Before the device is deleted, local routes therefore replace its addresses: the addresses stay
// local, but new connections get the node's own address as their source. The routes are deleted
// once no connection needs them.

// routeProtocol marks these routes as ours (rtm_protocol; not one of those that routing daemons
// use).
const routeProtocol = 115

// addresses are those of the node's own devices, and those that kube-proxy's device adds or our
// routes stand in for.
func addresses() (host, own map[netip.Addr]bool, err error) {
	list, err := link.Here.Addresses()
	if err != nil {
		return nil, nil, err
	}
	device, err := link.Here.Index(proxyDevice)
	if err != nil {
		return nil, nil, err
	}
	host, own = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, a := range list {
		addr := a.Prefix.Addr()
		switch {
		case a.Link != device:
			host[addr] = true
		case !addr.IsLinkLocalUnicast():
			own[addr] = true
		}
	}
	replaced, err := link.Here.LocalRoutes(routeProtocol)
	for _, addr := range replaced {
		own[addr] = true
	}
	return host, own, err
}

// standIn is the local route that replaces an address of the device.
func standIn(addr netip.Addr) *netlink.Route {
	return &netlink.Route{
		Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Protocol: routeProtocol, Scope: unix.RT_SCOPE_HOST,
		Dst:      &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())},
		Priority: 1, // beside the address's own route, which has 0
	}
}

// replaceDevice replaces the device's addresses by routes, and deletes the device.
func (v *ipvsState) replaceDevice() error {
	if !v.device {
		return nil
	}
	lo, err := link.Here.Index("lo")
	if err != nil {
		return err
	}
	host, _, err := addresses()
	if err != nil {
		return err
	}
	for addr := range v.own {
		route := standIn(addr)
		route.LinkIndex, route.Src = lo, sourceFor(addr.Is4(), host)
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("add local route of %s: %w", addr, err)
		}
	}
	if err := netlink.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: proxyDevice}}); err != nil {
		return fmt.Errorf("delete device %s: %w", proxyDevice, err)
	}
	v.device = false
	return nil
}

// sourceFor is the address from which the node reaches others: that of its default route, or else
// any of its own.
func sourceFor(is4 bool, host map[netip.Addr]bool) net.IP {
	to := netip.MustParseAddr("2001:db8::1") // reserved for documentation, RFC 3849
	if is4 {
		to = netip.MustParseAddr("192.0.2.1") // RFC 5737
	}
	if r, err := link.Here.Route(to); err == nil {
		return r.Source.AsSlice()
	}
	for addr := range host {
		if addr.Is4() == is4 && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			return addr.AsSlice()
		}
	}
	return nil
}

// drainPoll is the interval at which open connections are counted.
const drainPoll = time.Second

// errUndrained is wrapped when connections did not end in time.
var errUndrained = errors.New("connections go on that need what kube-proxy has programmed")

// drainServers deletes each virtual server once it carries no connection. New connections don't
// come to IPVS any more, since they are translated before; deleting a virtual server would cut
// the connections that it carries.
func (v *ipvsState) drainServers(ctx context.Context, say func(string, ...any)) error {
	for told := -1; ; {
		if err := v.removeIdle(); err != nil || len(v.servers) == 0 {
			return err
		}
		if n := v.connections(); n != told {
			told = n
			say("IPVS still carries %s to %s, %s among them", model.Count(n, "connection"), model.Count(len(v.servers), "virtual server"), v.servers[0].key)
		}
		if !wake.Sleep(ctx, drainPoll) {
			return fmt.Errorf("%w: %d of IPVS to %s", errUndrained, v.connections(), model.Count(len(v.servers), "virtual server"))
		}
		next := &ipvsState{}
		if err := next.readServers(v.nodePorts()); err != nil {
			return err
		}
		v.servers = next.servers
	}
}

// removeIdle deletes the virtual servers that carry no connection.
func (v *ipvsState) removeIdle() error {
	if len(v.servers) == 0 {
		return nil
	}
	conn, err := openIPVS()
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, s := range v.servers {
		if s.conns > 0 {
			continue
		}
		if err := conn.DelService(s.Service); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete virtual server %s: %w", s.key, err)
		}
	}
	v.servers = slices.DeleteFunc(v.servers, func(s server) bool { return s.conns == 0 })
	return nil
}

// nodePorts are the ports of the virtual servers that are left.
func (v *ipvsState) nodePorts() map[uint16]bool {
	ports := map[uint16]bool{}
	for _, s := range v.servers {
		ports[s.key.Port] = true
	}
	return ports
}

// drainAddresses deletes the local routes once no connection has one of their addresses as its
// source.
func (v *ipvsState) drainAddresses(ctx context.Context, say func(string, ...any)) error {
	replaced, err := link.Here.LocalRoutes(routeProtocol)
	if err != nil || len(replaced) == 0 {
		return err
	}
	ct, err := conntrack.Open()
	if err != nil {
		return err
	}
	defer func() { _ = ct.Close() }()
	for told := -1; ; {
		n := 0
		err := ct.All(ctx, func(f *conntrack.Flow) {
			if v.own[f.Orig.Src.Addr().Unmap()] {
				n++
			}
		})
		if err != nil {
			return fmt.Errorf("list connections: %w", err)
		}
		if n == 0 {
			break
		}
		if n != told {
			told = n
			say("%d connections of the node itself have a service's address as their own", n)
		}
		if !wake.Sleep(ctx, drainPoll) {
			return fmt.Errorf("%w: %d of the node itself, whose own address is a service's; end them by restarting what runs on the host's network", errUndrained, n)
		}
	}
	for _, addr := range replaced {
		if err := netlink.RouteDel(standIn(addr)); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete local route of %s: %w", addr, err)
		}
	}
	return nil
}
