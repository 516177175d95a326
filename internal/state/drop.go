package state

// Drop is a reason why a packet is dropped: drivers log and count packets by it.
type Drop string

// The reasons. DropPolicy and DropHost are for people to look up in the Rules of the state.
const (
	DropSpoofed       Drop = "spoofed"        // from a pod's interface, but not with its address
	DropUnknownPod    Drop = "unknown-pod"    // to or from an address of this node's pods that no known pod has
	DropUnknownDevice Drop = "unknown-device" // from an interface of which nothing is known yet
	DropPolicy        Drop = "policy"         // by a pod's rules
	DropHost          Drop = "host"           // by a host endpoint's rules
	DropTunnel        Drop = "tunnel"         // VXLAN and the like from a pod, which could carry anyone's address
	DropCut           Drop = "cut"            // established, and forbidden since
	DropDenyList      Drop = "deny-list"      // on arrival
	DropForeignError  Drop = "foreign-error"  // an ICMP error from a pod, about a connection that is not known to be its own
	DropStray         Drop = "stray"          // a TCP segment from a pod, of no connection that is known
	DropSourceRanges  Drop = "source-ranges"  // to a load balancer, from outside of its source ranges
	DropForeignTunnel Drop = "foreign-tunnel" // to a tunnel of the pod network, from an address that is no node's
)
