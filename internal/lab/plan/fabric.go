package plan

import "net/netip"

// Fabric is how nodes reach each other's pods: as the agents' flag --fabric has it, or "", by
// routes that the lab sets.
type Fabric string

// These are the modes that a lab knows. With CrossSubnet the nodes are on two subnets in turn, and
// a router that knows no pods joins these.
const (
	Native      Fabric = "native"
	VXLAN       Fabric = "vxlan"
	IPIP        Fabric = "ipip"
	CrossSubnet Fabric = "cross-subnet"
)

// Fabrics lists the modes.
var Fabrics = []Fabric{Native, VXLAN, IPIP, CrossSubnet}

// String returns the mode.
func (f Fabric) String() string { return string(f) }

// Subnets is the number of subnets that the nodes are on.
func (f Fabric) Subnets() int {
	if f == CrossSubnet {
		return 2
	}
	return 1
}

// MTU is that of pods, for which the tunnels of both families leave room; 0: that of the underlay.
func (f Fabric) MTU() int {
	switch f {
	case VXLAN, CrossSubnet:
		return underlayMTU - 70
	case IPIP:
		return underlayMTU - 20
	}
	return 0
}

// underlayMTU is the kernel's default.
const underlayMTU = 1500

// Source is the address that a node's own packets to pods of another one have, of the family of a
// pod's address: where they travel in a tunnel, that of the node's tunnel.
func (c *Cluster) Source(from, to *Node, pod netip.Addr) netip.Addr {
	tunnel := c.Fabric == VXLAN || c.Fabric == IPIP && pod.Is4() || c.Fabric == CrossSubnet && from.Subnet != to.Subnet
	for i, a := range from.IPs {
		switch {
		case a.Is4() != pod.Is4():
		case tunnel && from != to:
			return from.PodCIDRs[i].Addr()
		default:
			return a
		}
	}
	return netip.Addr{}
}
