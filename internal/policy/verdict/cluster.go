package verdict

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Cluster is what is known of the nodes that a connection may pass.
type Cluster struct {
	Here  string           // the node that is asked
	Nodes map[string]*Node // by name

	// Home returns the node that has an address as its own, as its pod's, or in its range of pod
	// addresses; "": none. Object returns the pod or node that has it; the zero Ref: none.
	Home   func(netip.Addr) string
	Object func(netip.Addr) model.Ref
}

// Node is a node as its agent has it, or would have it.
type Node struct {
	State *state.State // without a Policy it allows all that services do
	// Route returns the way to an address, where State does not tell it.
	Route func(netip.Addr) Way
	// Uplinks are the interfaces that may lead to where Route names none. Which of them does is not
	// known.
	Uplinks []int
	// Others says what the rules of other programs on the node do with a connection, in the order
	// in which it meets them; nil: they are not known.
	Others func(Crossing) []Step
	// Hidden are what the node reads from files of its own, and nobody here knows.
	Hidden Hidden
}

// Hidden says what of a node is not known.
type Hidden struct {
	DenyLists bool // what it drops at its uplinks
	Lists     bool // lists that policies of the ends in question ask for
}

// Way is how a node reaches an address.
type Way struct {
	Device  int          // the index of the interface; 0: not known
	Own     bool         // the address is the node's own
	Sources []netip.Addr // of the node's, that a packet may have as its source there if it has no other; none: not known
}

// Crossing is a new connection's way through a node.
type Crossing struct {
	Asked, Flow      Flow // before and after services are translated
	In, Out          int  // indexes of interfaces; 0: not known
	FromNode, ToNode bool // the node itself is an end of it
}

// policy is the node's policy, or an empty one.
func (n *Node) policy() *state.Policy {
	if n.State.Policy == nil {
		return state.NewPolicy()
	}
	return n.State.Policy
}

// way returns how the node reaches an address; that of a pod of its own is known in its state.
func (n *Node) way(to netip.Addr) Way {
	if w := n.policy().Workloads[to]; w != nil {
		return Way{Device: w.Device}
	}
	if n.Route == nil {
		return Way{}
	}
	return n.Route(to)
}

// sources are the addresses of the node's that a flow may have as its source, if it is the node's
// own or masqueraded; none: not known.
func (n *Node) sources(f Flow) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(n.way(f.Destination).Sources), func(a netip.Addr) bool { return a.Is4() != f.Source.Is4() })
}

// devices are the interfaces of which one leads to the address.
func (n *Node) devices(to netip.Addr) []int {
	way := n.way(to)
	if way.Device == 0 && !way.Own && len(n.Uplinks) > 0 && n.policy().Workloads[to] == nil {
		return n.Uplinks
	}
	return []int{way.Device}
}
