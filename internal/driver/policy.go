package driver

import (
	"sluice.dev/sluice/internal/model"
)

// DropGroup is the nflog group to which a driver sends the headers of packets
// that it drops, some hundred a second at the most. The prefix of a message is
// DropPrefix and the Drop.
const (
	DropGroup  = 0x51c
	DropPrefix = "sluice "
)

// ClaimGroup is the nflog group that the one agent of a network namespace holds. Nothing is sent to it.
const ClaimGroup = 0x51d

// Drop is a reason why a packet was dropped.
type Drop string

// The reasons. ByPolicy and ByHost are for people to look up in the programs of the state.
const (
	Spoofed       Drop = "spoofed"        // from a pod's interface, but not with its address
	UnknownPod    Drop = "unknown-pod"    // to or from an address of this node's pods that no known pod has
	UnknownDevice Drop = "unknown-device" // from an interface of which nothing is known yet
	ByPolicy      Drop = "policy"         // a pod's program
	ByHost        Drop = "host"           // a host endpoint's program
	Tunnel        Drop = "tunnel"         // VXLAN and the like from a pod, which could carry anyone's address
	Cut           Drop = "cut"            // established, and forbidden since
	DenyListed    Drop = "deny-list"      // at its arrival
	ForeignError  Drop = "foreign-error"  // an ICMP error from a pod, about a connection that is not known to be its own
)

// PolicyCounter is what a policy has decided, in connections (packets, where
// connections are not tracked), since it was first programmed.
type PolicyCounter struct {
	Policy          model.PolicyKey
	Allowed, Denied uint64
}
