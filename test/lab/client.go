package lab

import (
	"net/netip"

	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// The network between a client and the outside host: what is of no other network of a lab.
var clientNetworks = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30"), netip.MustParsePrefix("fd00:192:2::/64")}

// Client makes a host behind the outside one, which routes for it: on no network of the nodes, as
// most clients of clusters are. It is gone with the lab. The caller closes it.
func (l *Lab) Client() (*netns.NS, error) {
	outside, err := netns.Open(l.NodeNS(plan.Outside))
	if err != nil {
		return nil, err
	}
	defer outside.Close()
	ns, err := newNS(l.NodeNS("client"))
	if err != nil {
		return nil, err
	}
	if err := l.joinClient(ns, outside); err != nil {
		return nil, firstError(err, ns.Close())
	}
	return ns, nil
}

func (l *Lab) joinClient(ns, outside *netns.NS) error {
	if err := forward(outside); err != nil {
		return err
	}
	if err := netns.Veth(ns, uplink, outside, "client"); err != nil {
		return err
	}
	var hosts []*netns.NS // that have a way back: all others have one by the outside host
	if l.Kubernetes != nil {
		control, err := netns.Open(l.NodeNS(plan.Control))
		if err != nil {
			return err
		}
		defer control.Close()
		hosts = append(hosts, control)
	}
	for i, network := range clientNetworks {
		gateway := network.Addr().Next()
		if err := outside.Address("client", netip.PrefixFrom(gateway, network.Bits())); err != nil {
			return err
		}
		if err := ns.Address(uplink, netip.PrefixFrom(gateway.Next(), network.Bits())); err != nil {
			return err
		}
		if err := route(ns, netip.PrefixFrom(unspecified(gateway), 0), gateway); err != nil {
			return err
		}
		for _, h := range hosts {
			if err := route(h, network, l.Cluster.OutsideIPs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
