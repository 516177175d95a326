package main

import (
	"net"
	"slices"
	"strconv"

	"github.com/spf13/pflag"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// addressFlags set which addresses and ports services may have.
func addressFlags(fl *pflag.FlagSet, c *compile.Config) {
	c.ReservedPorts = defaultReserved()
	fl.Var((*allowList)(&c.ExternalIPCIDRs), "external-ip-cidrs", "CIDRs in which services may have externalIPs; 'none' for no externalIPs (default: anywhere except addresses of nodes and the API server)")
	fl.Var((*allowList)(&c.LoadBalancerCIDRs), "load-balancer-cidrs", "CIDRs in which services may have load balancer addresses; 'none' for no such addresses (default: anywhere, as for externalIPs)")
	fl.Var((*prefixes)(&c.AllowNodeAddresses), "allow-node-addresses", "CIDRs of addresses of nodes and of the API server that services may use all the same, as externalIPs and load balancer addresses (default: none)")
	fl.Var((*portRanges)(&c.ReservedPorts), "reserved-ports", "ports that no service may have as a node port or at a node's address; 'none' to allow all")
}

// defaultReserved are the ports on which nodes must stay reachable: SSH, DHCP, BGP, etcd, Typha,
// the Kubernetes API and the kubelet, the health and metrics ports of Kubernetes' components and of
// this agent, and VXLAN, Geneve and WireGuard.
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

// allowList is a flag of CIDRs; nothing outside of them is allowed. Nil allows everything.
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

// listening returns the ports of the addresses on which the agent listens.
func listening(addresses ...string) portRanges {
	var ports portRanges
	for _, address := range addresses {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			continue // the agent does not listen there, or the address will be refused
		}
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			ports = ports.and(uint16(n))
		}
	}
	return ports
}
