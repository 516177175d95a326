package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	moby "github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/netns"
)

// IPVS is the kernel's IPVS as a balancer by hand: a virtual server for each service, which chooses
// backends in turns and translates (ipvsadm -m), without connection tracking of its own
// (net.ipv4.vs.conntrack, which is 0 by default).
type IPVS struct{}

// Name implements Dataplane.
func (IPVS) Name() string { return "IPVS" }

// Limit implements Dataplane.
func (IPVS) Limit() (int, string) { return 0, "" }

// NodePorts implements Dataplane.
func (IPVS) NodePorts() bool { return false }

// Target implements Dataplane.
func (IPVS) Target(_ cluster.Cluster, first, count int) inject.Target { return services(first, count) }

// Load implements Dataplane.
func (v IPVS) Load(_ context.Context, node *netns.NS, c cluster.Cluster) (*Loaded, error) {
	begin := time.Now()
	err := errors.Join(takeServices(node), node.Do(func() error {
		h, err := moby.New("")
		if err != nil {
			return err
		}
		defer h.Close()
		for i := range c.Services {
			s := &moby.Service{
				Address: net.IP(cluster.ServiceAddr(i).AsSlice()), Port: cluster.ServicePort, Protocol: unix.IPPROTO_TCP,
				AddressFamily: unix.AF_INET, SchedName: "rr", Netmask: 0xffffffff,
			}
			if err := h.NewService(s); err != nil {
				return err
			}
			for j := range c.Endpoints {
				at := c.Endpoint(i, j)
				d := &moby.Destination{
					Address: net.IP(at.Addr().AsSlice()), Port: at.Port(), Weight: 1,
					AddressFamily: unix.AF_INET, ConnectionFlags: moby.ConnectionFlagMasq,
				}
				if err := h.NewDestination(s, d); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", v.Name(), err)
	}
	return loaded(time.Since(begin), "netlink"), nil
}

// takeServices makes the services' addresses the node's own: IPVS sees what is for the node alone.
func takeServices(node *netns.NS) error {
	lo, err := node.LinkByName("lo")
	if err != nil {
		return err
	}
	dst, err := netlink.ParseIPNet(cluster.Services.String())
	if err != nil {
		return err
	}
	return node.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST})
}
