package main

import (
	"net"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// addressFlags say which addresses and ports services may have.
type addressFlags struct {
	allowed                    prefixes
	externalIPs, loadBalancers allowList
	reserved                   portRanges
}

func (f *addressFlags) register(cmd *cobra.Command) {
	f.reserved = defaultReserved()
	fl := cmd.Flags()
	fl.Var(&f.externalIPs, "external-ip-cidrs", "where services may have externalIPs; 'none' for nowhere (default: anywhere, but for addresses of nodes and the API server)")
	fl.Var(&f.loadBalancers, "load-balancer-cidrs", "where services may have load balancers' addresses; 'none' for nowhere (default: anywhere, as for externalIPs)")
	fl.Var(&f.allowed, "allow-node-addresses", "CIDRs of those addresses of nodes and of the API server that services may have as externalIPs and load balancers' addresses (default: none)")
	fl.Var(&f.reserved, "reserved-ports", "ports of nodes that no service may have, as a node port or at a node's address; 'none' for none")
}

// configure fills the compiler's configuration.
func (f *addressFlags) configure(c *compile.Config) {
	c.AllowNodeAddresses = f.allowed
	c.ExternalIPCIDRs, c.LoadBalancerCIDRs = f.externalIPs, f.loadBalancers
	c.ReservedPorts = f.reserved
}

// defaultReserved are ports that nodes have to be reached at: SSH, DHCP, BGP, etcd, Typha, the
// Kubernetes API and the kubelet, the health and metrics of Kubernetes' parts and of this agent,
// and VXLAN, Geneve and WireGuard.
func defaultReserved() portRanges {
	list := portRanges{
		{Protocol: model.TCP, First: 2379, Last: 2380}, {Protocol: model.TCP, First: 10248, Last: 10250}, {Protocol: model.TCP, First: 10256, Last: 10259},
		{Protocol: model.UDP, First: 51820, Last: 51821},
	}.and(22, 179, 5473, 6443)
	for _, port := range []uint16{68, 546, 4789, 6081, 8472} {
		list = append(list, state.PortRange{Protocol: model.UDP, First: port, Last: port})
	}
	return list
}

// has reports whether a port is in one of the ranges.
func (f portRanges) has(protocol model.Protocol, port uint16) bool {
	return slices.ContainsFunc(f, func(r state.PortRange) bool { return r.Holds(protocol, port) })
}

// allowList is a flag of CIDRs outside of which nothing is allowed. Nil: everything is.
type allowList prefixes

// String implements pflag.Value.
func (a *allowList) String() string {
	if *a != nil && len(*a) == 0 {
		return "none"
	}
	return (*prefixes)(a).String()
}

// Set implements pflag.Value.
func (a *allowList) Set(list string) error {
	if *a == nil {
		*a = allowList{}
	}
	if list == "none" {
		return nil
	}
	return (*prefixes)(a).Set(list)
}

// Type implements pflag.Value.
func (a *allowList) Type() string { return "CIDRs" }

// listening returns the ports of addresses that the agent listens on.
func listening(addresses ...string) portRanges {
	var ports portRanges
	for _, address := range addresses {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			continue // it is not listened on, or will be refused
		}
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			ports = ports.and(uint16(n))
		}
	}
	return ports
}
