package model

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// SecretRef names a value in a Secret. The zero SecretRef names none.
type SecretRef struct {
	Namespace string // "": that of the agent
	Name, Key string
}

// String returns "namespace/name[key]".
func (r SecretRef) String() string {
	return Name{r.Namespace, r.Name}.String() + "[" + r.Key + "]"
}

// BGPConfiguration is a Calico BGPConfiguration: "default" is for all nodes, and "node.NAME" has
// what one node has instead. What is zero it does not say.
type BGPConfiguration struct {
	Name string
	AS   uint32
	Port uint16 // to listen on

	NoMesh       bool // nodes are not each other's peers by themselves
	MeshPassword SecretRef
	MeshRestart  time.Duration // how long peers keep routes of one that is away
	NodeIP       bool          // listens on the node's own addresses alone

	// The ranges of services' addresses that are announced. EachLoadBalancerIP has those of load
	// balancers announced one by one, and not their ranges.
	ClusterIPs, ExternalIPs, LoadBalancerIPs []netip.Prefix
	EachLoadBalancerIP                       bool

	Communities    map[string]string // by name: "64500:1", "large:64500:1:2"
	Advertisements []PrefixAdvertisement
}

// The names of BGPConfigurations: that of all nodes, and what comes before the name of one node.
const (
	BGPDefault    = "default"
	BGPNodePrefix = "node."
)

// PrefixAdvertisement says with which communities routes within a prefix are announced.
type PrefixAdvertisement struct {
	CIDR        netip.Prefix
	Communities []string // "64500:1", "large:64500:1:2", or a name
}

// BGPPeer is a Calico BGPPeer. Of Node and Nodes at most one is there; neither: all nodes. Of
// Address and Peers exactly one is.
type BGPPeer struct {
	Name    string
	Created time.Time // see Birth
	Node    string
	Nodes   Selector // zero: see Node

	Address netip.Addr
	Port    uint16 // 0: that of the node with the address, or 179
	AS      uint32
	Peers   Selector // nodes; zero: see Address

	LocalAS     uint32 // 0: the node's
	Password    SecretRef
	AnySource   bool          // sessions come from whatever address the kernel chooses, not from the node's
	Restart     time.Duration // 0: as for all
	Keepalive   time.Duration // 0: the speaker's own
	KeepNextHop bool          // of what is passed on, also to peers of another AS
	AllowOwnAS  uint8
	Security    uint8 // TTL security: how many hops away the peer may be; 0: none
	Filters     []string
	OneWay      bool // nodes that are peers by Address are not peers in return
}

// BGPFilter is a Calico BGPFilter. The first rule that holds decides.
type BGPFilter struct {
	Name           string
	Import, Export []BGPFilterRule
}

// BGPFilterRule accepts or rejects routes of one family.
type BGPFilterRule struct {
	Accept   bool
	IPv6     bool
	CIDR     netip.Prefix // invalid: any
	Match    BGPMatch
	Min, Max int    // lengths of prefixes that hold, with BGPIn; 0: the CIDR's own, and an address's
	Learned  bool   // holds for what was learned from peers alone
	PeerType string // "eBGP" or "iBGP": for such peers alone
}

// BGPMatch says how a route has to be to a rule's CIDR.
type BGPMatch uint8

// How a route has to be to a rule's CIDR.
const (
	BGPIn BGPMatch = iota // the same, or within it
	BGPNotIn
	BGPEqual
	BGPNotEqual
)

// String returns the spelling of Calico's API.
func (m BGPMatch) String() string { return [...]string{"In", "NotIn", "Equal", "NotEqual"}[m] }

// ParseAS reads the number of an AS, as in 64512 or 1.10.
func ParseAS(text string) (uint32, error) {
	high, low, dotted := strings.Cut(text, ".")
	if !dotted {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n == 0 {
			return 0, fmt.Errorf("%q is no AS number such as 64512 or 1.10", text)
		}
		return uint32(n), nil
	}
	h, err1 := strconv.ParseUint(high, 10, 16)
	l, err2 := strconv.ParseUint(low, 10, 16)
	if err1 != nil || err2 != nil || h+l == 0 {
		return 0, fmt.Errorf("%q is no AS number such as 64512 or 1.10", text)
	}
	return uint32(h<<16 | l), nil
}

// ParseCommunity reads a community as Calico writes it, "64500:1" or "64500:1:2" (a large one), and
// returns it as BGPConfiguration has it.
func ParseCommunity(text string) (string, error) {
	parts := strings.Split(text, ":")
	bits, prefix := 16, ""
	if len(parts) == 3 {
		bits, prefix = 32, "large:"
	}
	ok := len(parts) == 2 || len(parts) == 3
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, bits)
		ok = ok && err == nil
		parts[i] = strconv.FormatUint(n, 10)
	}
	if !ok {
		return "", fmt.Errorf("%q is no community such as 64500:1 or 64500:1:2", text)
	}
	return prefix + strings.Join(parts, ":"), nil
}
