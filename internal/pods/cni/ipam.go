package cni

import (
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"sluice.dev/sluice/internal/kernel/netns"
)

// ipam gives containers their addresses. Its errors are of the specification.
type ipam interface {
	// add gives a container addresses that nobody else on the node has. If it fails, none is given.
	add(args *skel.CmdArgs) (lease, error)
	// del takes a container's addresses back. What it does not have is taken back already.
	del(args *skel.CmdArgs) error
	// check reports whether a container still has addresses.
	check(args *skel.CmdArgs, addrs []netip.Addr) error
	// gc takes back what belongs to no container of a list, and calls lost for each of those that
	// it finds.
	gc(valid []types.GCAttachment, lost func(types.GCAttachment) error) error
	// status reports whether there is an address for another container, and of which families
	// addresses are.
	status() (is4, is6 bool, err error)
}

// lease is what a container is given.
type lease struct {
	ips    []*current.IPConfig // networks and gateways in it are for the result alone: containers are routed
	routes []*types.Route
	dns    types.DNS
}

// ipam returns what the configuration names: host-local is built in.
func (c *config) ipam(stdin []byte, node *netns.NS) ipam {
	if c.IPAM.Type == "host-local" {
		return &hostLocal{network: c.Name, stdin: stdin, node: node}
	}
	return &delegate{kind: c.IPAM.Type, version: c.CNIVersion, stdin: stdin, node: node}
}

// taken is the error where an address that was asked for is another's.
func taken(a netip.Addr, by string) *types.Error {
	return fault(types.ErrTryAgainLater, fmt.Sprintf("give %s: %s has it: ask for another, or for none", a, by), nil)
}

// addrs are the addresses of a lease.
func (l *lease) addrs() (addrs []netip.Addr) {
	for _, ip := range l.ips {
		addrs = append(addrs, addrOf(ip.Address.IP))
	}
	return addrs
}
