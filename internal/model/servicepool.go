package model

import (
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

// MaxAdverts is how many advertisements of a kind count for a pool, the oldest: for each of its
// addresses they are asked about each node.
const MaxAdverts = 64

// Pools are IPAddressPools, among which advertisements find those that they are about. They are
// immutable.
type Pools map[string]*poolsOf

// poolsOf are the pools of a namespace.
type poolsOf struct {
	list   []*IPAddressPool
	places map[string]int // by their names
	labels *Population
}

// NewPools returns the pools that are in a list.
func NewPools(list []*IPAddressPool) Pools {
	pools := Pools{}
	for _, p := range list {
		of := pools[p.Name.Namespace]
		if of == nil {
			of = &poolsOf{places: map[string]int{}}
			pools[p.Name.Namespace] = of
		}
		of.places[p.Name.Name], of.list = len(of.list), append(of.list, p)
	}
	for _, of := range pools {
		labels := make([]LabelMap, len(of.list))
		for i, p := range of.list {
			labels[i] = p.Labels
		}
		of.labels = NewPopulation(labels)
	}
	return pools
}

// PoolSearch finds pools until it has found enough for each.
type PoolSearch struct {
	pools Pools
	left  map[string]Places // by namespaces; none: all
}

// Search returns a PoolSearch that has found nothing yet.
func (p Pools) Search() *PoolSearch { return &PoolSearch{p, map[string]Places{}} }

// Find calls f with each pool that an advertisement of a namespace is about, once. That is not
// found again for which f returns true.
func (s *PoolSearch) Find(namespace string, a *Advertised, f func(*IPAddressPool) (enough bool)) {
	of := s.pools[namespace]
	if of == nil {
		return
	}
	left, known := s.left[namespace]
	if !known {
		left = of.labels.None()
		left.Join(of.labels.All())
		s.left[namespace] = left
	}
	find := func(i int) {
		if f(of.list[i]) {
			left.Remove(i)
		}
	}
	selected := Places(nil)
	switch {
	case !a.PoolSelector.IsZero():
		selected = of.labels.Selected(a.PoolSelector)
	case len(a.Pools) == 0:
		selected = of.labels.All()
	}
	for i := range left.Common(selected) {
		find(i)
	}
	var named map[int]bool // that were found by their names
	for _, name := range a.Pools {
		if i, is := of.places[name]; is && left.Has(i) && !selected.Has(i) && !named[i] {
			if named == nil {
				named = map[int]bool{}
			}
			named[i] = true
			find(i)
		}
	}
}

// Share calls add for each pool with the first MaxAdverts of the advertisements that are about it,
// in their order, and excess with the next.
func Share[T interface {
	Ref() Ref
	About() *Advertised
}](p Pools, adverts []T, add, excess func(*IPAddressPool, T)) {
	counts, search := map[*IPAddressPool]int{}, p.Search()
	for _, ad := range adverts {
		search.Find(ad.Ref().Name.Namespace, ad.About(), func(p *IPAddressPool) bool {
			if counts[p] == MaxAdverts {
				excess(p, ad)
				return true
			}
			counts[p]++
			add(p, ad)
			return false
		})
	}
}

// About is the advertisement's part that all kinds have.
func (a *Advertised) About() *Advertised { return a }

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
