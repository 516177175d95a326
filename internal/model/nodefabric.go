package model

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"time"
)

// NodeFabric is what Calico's annotations of a Node say of how its pods are reached, where that is
// more than the Node itself says. What is zero they do not say.
type NodeFabric struct {
	IPv4, IPv6          netip.Addr // that packets to its pods travel to
	VXLAN, VXLAN6, IPIP netip.Addr // of its tunnel devices
	MAC, MAC6           MAC        // of its VXLAN devices
	WireGuard           PublicKey
	AS                  uint32     // for BGP
	Cluster             netip.Addr // an IPv4 address: the node is a route reflector of the cluster
}

// MAC is an Ethernet address.
type MAC [6]byte

// String returns "66:01:02:03:04:05".
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// PublicKey is that of a node for WireGuard.
type PublicKey [32]byte

// String returns it in base64, as wg prints it.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Key returns the node's key for WireGuard; zero: it has none.
func (n *Node) Key() PublicKey {
	if n.Fabric == nil {
		return PublicKey{}
	}
	return n.Fabric.WireGuard
}

// Address is the address of a family that packets to the node's pods travel to, and that its BGP
// sessions have: the one that Calico's annotation names, or else the node's first; invalid if there
// is none that can be used.
func (n *Node) Address(is4 bool) netip.Addr {
	if f := n.Fabric; f != nil {
		said := f.IPv6
		if is4 {
			said = f.IPv4
		}
		if said.IsValid() && Unusable(said) == "" {
			return said
		}
	}
	for _, a := range n.IPs {
		if a = a.Unmap(); a.Is4() == is4 && Unusable(a) == "" {
			return a
		}
	}
	return netip.Addr{}
}

// BlockAffinity is one of Calico: a block of addresses that pods of a node have. One that is being
// taken from its node, or is for something else than pods, has no Node.
type BlockAffinity struct {
	Name string
	CIDR netip.Prefix
	Node string
}

// Path is the way from this node to another one, as packets between their pods take it.
type Path struct {
	Node   string
	To     netip.Addr
	Device string // of this node, that they leave by
	MTU    int    // of the device
}

// FarEnd is where the way from this node to pods of another one ends, and what answers there.
type FarEnd struct {
	Node    string
	Device  string     // of this node, that packets leave by
	Uplink  string     // the interface that those of a tunnel leave by then; "": it is not known
	Remote  netip.Addr // the node's address
	To      netip.Addr // the address of the tunnel there; without a tunnel the node's
	Carrier Carrier    // what a tunnel's packets are to the network between; none: no tunnel
}

// Carrier is what packets of a tunnel are to the network between its ends.
type Carrier struct {
	Name     string // of the tunnel: "VXLAN"; "": there is none
	Protocol uint8  // of IP
	Port     uint16 // UDP's; 0 without ports
}

// String is "UDP 4789 (VXLAN)" or "protocol 4 (IPIP)"; "" without a tunnel.
func (c Carrier) String() string {
	switch {
	case c.Name == "":
		return ""
	case c.Port == 0:
		return fmt.Sprintf("protocol %d (%s)", c.Protocol, c.Name)
	}
	return fmt.Sprintf("UDP %d (%s)", c.Port, c.Name)
}

// Heard is what is known of whether a far end answers.
type Heard struct {
	Last   time.Time `json:"last,omitzero"` // when it did; zero: never
	Missed int       `json:"missed"`        // how often it has not since, in a row
	// Why is what this node's kernel, or the network, says of packets without an answer; it has no
	// names or addresses. "": nothing.
	Why string `json:"why,omitempty"`
}

// Silent reports whether a far end has not answered three times in a row.
func (h Heard) Silent() bool { return h.Missed >= 3 }
