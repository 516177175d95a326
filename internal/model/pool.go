package model

import "net/netip"

// IPPool is a Calico IPPool: how packets between pods with addresses of a range travel from node to
// node.
type IPPool struct {
	Name  string
	CIDR  netip.Prefix
	IPIP  Encapsulate
	VXLAN Encapsulate // not Never beside IPIP

	NATOutgoing      bool // what pods send to addresses of no pool gets the node's address
	BlockSize        int  // bits of the prefixes that nodes get
	Nodes            Selector
	Disabled         bool // gives out no addresses; packets travel as it says all the same
	DisableBGPExport bool
	OfServices       bool // pods have none of its addresses, load balancers do
}

// Encapsulate says when packets travel in a tunnel.
type Encapsulate uint8

// When packets travel in a tunnel. CrossSubnet: to nodes that are not on a subnet of this one's.
const (
	Never Encapsulate = iota
	CrossSubnet
	Always
)

// String returns the spelling of Calico's API.
func (e Encapsulate) String() string { return [...]string{"Never", "CrossSubnet", "Always"}[e] }

// HostAddress is an address of an interface of this node's.
type HostAddress struct {
	Prefix netip.Prefix `json:"prefix"` // the address with the length of its subnet's prefix
	Device string       `json:"device"`
	MTU    int          `json:"mtu"` // of the device
	// Source says that the kernel masquerades what leaves by the device with this address, wherever
	// that goes. No address of a family is one where that depends on it.
	Source bool `json:"-"`
}
