package model

import (
	"iter"
	"net/netip"
	"time"
)

// IPAddressPool is a MetalLB IPAddressPool: addresses that are given to Services of type
// LoadBalancer.
type IPAddressPool struct {
	Name    Name
	Created time.Time // see Birth
	Labels  map[string]string
	Ranges  []AddressRange

	ManualOnly bool // autoAssign is false: only Services that ask for the pool or an address get one
	AvoidBuggy bool // gives out no IPv4 address that ends in .0 or .255
	// Priority is that of serviceAllocation: 1 comes first, 0 last. Confined says that there is a
	// serviceAllocation: such a pool comes before the others.
	Priority int
	Confined bool
	// Which Services may have an address: those in Namespaces or one that NamespaceSelector selects
	// (any, where neither says anything) that Services selects. An empty NamespaceSelector selects
	// none.
	Namespaces        []string
	NamespaceSelector Selector
	Services          Selector
}

// Advertised says which addresses an advertisement of MetalLB is about, and which nodes announce
// them.
type Advertised struct {
	// Pools of its namespace, by name, and those whose labels PoolSelector selects; all of the
	// namespace, if neither says anything.
	Pools        []string
	PoolSelector Selector
	Nodes        Selector
	Services     Selector // by the labels of Services
}

// Of yields those of some pools that the advertisement, which is in a namespace, is about, in no
// order. One that it names and selects comes twice.
func (a *Advertised) Of(namespace string, pools map[Name]*IPAddressPool) iter.Seq[*IPAddressPool] {
	return func(yield func(*IPAddressPool) bool) {
		for _, name := range a.Pools {
			if p := pools[Name{Namespace: namespace, Name: name}]; p != nil && !yield(p) {
				return
			}
		}
		if len(a.Pools) > 0 && a.PoolSelector.IsZero() {
			return
		}
		for _, p := range pools {
			if p.Name.Namespace == namespace && (a.PoolSelector.IsZero() || a.PoolSelector.Matches(LabelMap(p.Labels))) && !yield(p) {
				return
			}
		}
	}
}

// MaxAdverts is how many advertisements of a kind count for a pool, the oldest: for each of its
// addresses they are asked about each node.
const MaxAdverts = 64

// AddAdvert adds an advertisement to those of a pool, unless it was the last to be added; false:
// there are MaxAdverts already.
func AddAdvert[T comparable](all []T, ad T) (_ []T, fits bool) {
	switch n := len(all); {
	case n > 0 && all[n-1] == ad:
		return all, true
	case n == MaxAdverts:
		return all, false
	}
	return append(all, ad), true
}

// L2Advertisement is a MetalLB L2Advertisement: addresses that one of some nodes answers for by ARP
// and NDP.
type L2Advertisement struct {
	Name    Name
	Created time.Time // see Birth
	Advertised
	Interfaces []string // none: all that have a subnet
	Preferred  []PreferredNodes
}

// PreferredNodes come before others by the sum of their weights.
type PreferredNodes struct {
	Weight int
	Nodes  Selector
}

// BGPAdvertisement is a MetalLB BGPAdvertisement.
type BGPAdvertisement struct {
	Name    Name
	Created time.Time // see Birth
	Advertised
	Length4, Length6 int // of the prefixes that are announced
	LocalPref        uint32
	Communities      []string // "64500:1", "large:64500:1:2", or an alias of a Community
	Peers            []string // names of BGPPeers; none: all
}

// MetalLBPeer is a MetalLB BGPPeer.
type MetalLBPeer struct {
	Name                                 Name
	Created                              time.Time // see Birth
	MyASN                                uint32
	PeerASN                              uint32 // 0: Dynamic says which
	Dynamic                              string // "internal" or "external"
	Address, Source                      netip.Addr
	Port                                 uint16
	HoldTime, KeepaliveTime, ConnectTime time.Duration // 0: the speaker's own
	RouterID                             netip.Addr
	Nodes                                Selector
	Password                             string
	PasswordSecret                       SecretRef // in place of Password
	GracefulRestart, MultiHop, DualStack bool
}

// Community is a MetalLB Community: names of communities.
type Community struct {
	Name    Name
	Aliases map[string]string
}

// BFDProfile is a MetalLB BFDProfile. None is ever in force: there is no BFD here.
type BFDProfile struct{ Name Name }
