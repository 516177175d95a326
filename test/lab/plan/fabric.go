package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// Fabric is how nodes reach each other's pods: as the agents' flag --fabric has it, or "", by
// routes that the lab sets.
type Fabric string

// These are the modes that a lab knows. With BGP and CrossSubnet the nodes are on two subnets in
// turn, and a router joins these. With BGP it learns the pods' addresses from the nodes, and tells
// each what it has learned from the others; otherwise it knows no pods.
const (
	Native      Fabric = "native"
	BGP         Fabric = "bgp"
	VXLAN       Fabric = "vxlan"
	IPIP        Fabric = "ipip"
	CrossSubnet Fabric = "cross-subnet"
)

// Fabrics lists the modes.
var Fabrics = []Fabric{Native, BGP, VXLAN, IPIP, CrossSubnet}

// String returns the mode.
func (f Fabric) String() string { return string(f) }

// Subnets is the number of subnets that the nodes are on.
func (f Fabric) Subnets() int {
	if f == CrossSubnet || f == BGP {
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

// AS is that of the nodes and of the router, with BGP.
const AS = 64512

// Objects are those by which the agents know what else than their flags the mode takes, each an
// object of the API: the router is the peer of all nodes, which are none of each other.
func (f Fabric) Objects() (list []Policy) {
	if f != BGP {
		return nil
	}
	add := func(kind, name, spec string) {
		object := fmt.Sprintf(`{"apiVersion": "projectcalico.org/v3", "kind": %q, "metadata": {"name": %q}, "spec": %s}`, kind, name, spec)
		list = append(list, Policy{APIVersion: "projectcalico.org/v3", Kind: kind, Name: name, Object: json.RawMessage(object)})
	}
	add("BGPConfiguration", "default", fmt.Sprintf(`{"asNumber": %d, "nodeToNodeMeshEnabled": false}`, AS))
	for _, ip := range RouterIPs(0) {
		name := Router + "-ipv4"
		if ip.Is6() {
			name = Router + "-ipv6"
		}
		add("BGPPeer", name, fmt.Sprintf(`{"peerIP": %q, "asNumber": %d}`, ip, AS))
	}
	return list
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
