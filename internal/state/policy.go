package state

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// CutLabel is the bit of a connection's label that says that policy forbids it: what nft calls "ct
// label 127". Upkeep sets it, and the ruleset of every driver drops what carries it, in both
// directions.
const CutLabel = 127

// Label is a connection's label with these bits, as the kernel holds it: in words of its own byte
// order.
func Label(bits ...int) (l [16]byte) {
	for _, bit := range bits {
		word := l[bit/32*4:]
		binary.NativeEndian.PutUint32(word, binary.NativeEndian.Uint32(word)|1<<(bit%32))
	}
	return l
}

// CutByRuleLabel is the bit that a rule sets beside CutLabel where it is a rule that cuts a
// connection. It goes once the connection is counted.
const CutByRuleLabel = 125

// SetID names a set of addresses or of ports. It is a function of all names in use at the moment
// alone: a hash of 24 bits, moved on where two names share it; never 0.
type SetID uint32

// RulesID names Rules: a digest of all that they hold. "" names none: everything passes.
type RulesID string

// Rules are what a new connection is judged by at one end, in one direction. Ends with the same
// policies share them. Immutable.
type Rules struct {
	ID    RulesID
	Tiers []Tier
	// Default befalls what passed all tiers: Allow for pods, Deny for host endpoints.
	Default model.Action
}

// Declared are the policies that the rules were made of, sorted; none of nil.
func (r *Rules) Declared() []model.PolicyKey {
	all := map[model.PolicyKey]bool{}
	if r != nil {
		for _, t := range r.Tiers {
			for _, own := range t.Policies {
				all[own.Policy] = true
			}
		}
	}
	maps.DeleteFunc(all, func(k model.PolicyKey, _ bool) bool { return k.Kind == model.Failsafe })
	return slices.SortedFunc(maps.Keys(all), model.PolicyKey.Compare)
}

// Tier is a stage of Rules: the rules of its policies, one policy after the other. The first
// rule that matches decides; Pass goes to the next tier.
type Tier struct {
	Name     string
	Policies []*PolicyRules // that apply here, in their order: with Default Deny they are who isolates
	// Default befalls what no rule matched: Deny or Pass.
	Default model.Action
}

// Passes counts the rules that pass to the next tier.
func (t Tier) Passes() (n int) {
	for _, own := range t.Policies {
		for _, r := range own.Rules {
			if r.Action == model.Pass {
				n++
			}
		}
	}
	return n
}

// Failsafe reports whether the tier is of the failsafe ports, whose connections are always tracked.
func (t Tier) Failsafe() bool {
	return slices.ContainsFunc(t.Policies, func(own *PolicyRules) bool { return own.Policy.Kind == model.Failsafe })
}

// Stages splits tiers after each that has a rule which passes to the next. What follows a tier that
// passes nothing on is left out.
func Stages(tiers []Tier) (all [][]Tier) {
	var stage []Tier
	for i, t := range tiers {
		stage = append(stage, t)
		switch {
		case t.Passes() > 0 && i+1 < len(tiers):
			all = append(all, stage)
			stage = nil
		case t.Default == model.Deny:
			return append(all, stage)
		}
	}
	return append(all, stage)
}

// PolicyRules are the rules of one policy for one direction. Immutable: the Rules of all ends that
// the policy selects share them.
type PolicyRules struct {
	ID     string // a digest of all that follows
	Policy model.PolicyKey
	Rules  []Rule
}

// Rule is a declared rule with its peers resolved to sets. All that it asks for must hold.
type Rule struct {
	Name   string // "ingress[0]", or the rule's own name
	Action model.Action
	Family uint8 // 4 or 6: that family alone; 0: both

	Protocol, NotProtocol uint8 // 0: any
	ICMP, NotICMP         *model.ICMP

	Source, Destination End
}

// End is what a Rule asks of the source or the destination. All must hold.
type End struct {
	In    []Term // the address is in each of these
	NotIn []Term // and in none of these

	Ports    *Ports // nil: any, and protocols without ports too
	NotPorts *Ports
}

// Term is a union of sets of addresses.
type Term struct {
	Groups []SetID   // in Policy.Groups
	Lists  []ListRef // in Policy.Lists
}

// ListRef names a List, with the prefix lengths that are in it (ascending), which is what a
// driver's chains depend on: when they change, the RulesID does.
type ListRef struct {
	ID         SetID
	IPv4, IPv6 []uint8
}

// List is an immutable set of prefixes: masked, sorted, unique, may lie within each other.
// Prefixes of both families may be mixed.
type List struct {
	Name     string // for people: "GlobalNetworkSet bad", "10.0.0.0/8"
	Prefixes []netip.Prefix
}

// Ports is a union of port ranges and of ports to which pods give one of some names. Immutable.
type Ports struct {
	ID     SetID // of Ranges; 0 if there are none
	Ranges []PortRange
	Named  []SetID // in Policy.NamedPorts: address, protocol and port are in one of them
}

// PortRange is a range of ports of one protocol, both ends included. The ranges of a Ports are
// sorted and do not overlap.
type PortRange struct {
	Protocol    model.Protocol
	First, Last uint16
}

// Holds reports whether a port of a protocol is in the range.
func (r PortRange) Holds(protocol model.Protocol, port uint16) bool {
	return r.Protocol == protocol && r.First <= port && port <= r.Last
}

// NamedPort is a port to which a pod gives a name.
type NamedPort struct {
	Addr     netip.Addr
	Protocol model.Protocol
	Port     uint16
}

// Workload is an address of a pod of this node. Immutable.
type Workload struct {
	Pod             model.Name
	Device          int  // index of the interface that leads to it; 0: not known, and nothing that it sends passes
	Bridged         bool // others are behind the interface too
	Ingress, Egress RulesID
}

// RulesIDs are the fields that name the workload's rules.
func (w *Workload) RulesIDs() []*RulesID { return []*RulesID{&w.Ingress, &w.Egress} }

// Host is a network interface of the node that a host endpoint covers. Immutable.
type Host struct {
	Name   string // of the host endpoint
	Device string // the interface's name

	// Input and Output judge connections to and from the node itself, both ways of Forward those
	// that pass through it, PreDNAT all that come in before services are translated. Untracked are
	// stateless: they judge each packet before connection tracking, and what they allow is not
	// tracked.
	Input, Output             RulesID
	ForwardIn, ForwardOut     RulesID
	PreDNAT                   RulesID
	UntrackedIn, UntrackedOut RulesID
}

// RulesIDs are the fields that name the host's rules.
func (h *Host) RulesIDs() []*RulesID {
	return []*RulesID{&h.Input, &h.Output, &h.ForwardIn, &h.ForwardOut, &h.PreDNAT, &h.UntrackedIn, &h.UntrackedOut}
}

// Denied are addresses whose packets are dropped where they arrive, before
// connection tracking.
type Denied struct {
	Devices []Device // interfaces that exist, sorted
	Lists   []*List  // not those of Policy.Lists: an address may be in several
}

// Device is a network interface.
type Device struct {
	Index int
	Name  string
}

// Policy is the part of the State that says what may pass.
type Policy struct {
	Rules      map[RulesID]*Rules
	Workloads  map[netip.Addr]*Workload
	Hosts      map[int]*Host // by index of the interface
	Groups     map[SetID]map[netip.Addr]struct{}
	NamedPorts map[SetID]map[NamedPort]struct{}
	PortSets   map[SetID]*Ports // of Ports.ID
	Lists      map[SetID]*List
	Denied     Denied

	// PodDevices are interfaces that lead to one pod each: what comes from there must have that
	// pod's address.
	PodDevices map[int]struct{}
	// HostDevices are the node's own interfaces. What comes from an interface that is
	// neither is dropped: nobody knows yet whose it is.
	HostDevices map[int]struct{}
	// PodTunnels lets pods send what tunnels carry. It does not change while a driver lives.
	PodTunnels bool
	// PodCIDRs are the addresses of this node's pods, masked and sorted: what goes to or comes from
	// one that is no Workload is dropped, as its policies are not known yet.
	PodCIDRs []netip.Prefix
}

// NewPolicy returns an empty Policy.
func NewPolicy() *Policy {
	return &Policy{
		Rules:       map[RulesID]*Rules{},
		Workloads:   map[netip.Addr]*Workload{},
		Hosts:       map[int]*Host{},
		Groups:      map[SetID]map[netip.Addr]struct{}{},
		NamedPorts:  map[SetID]map[NamedPort]struct{}{},
		PortSets:    map[SetID]*Ports{},
		Lists:       map[SetID]*List{},
		PodDevices:  map[int]struct{}{},
		HostDevices: map[int]struct{}{},
	}
}

// PolicyDelta is a change of Policy: what is named is set, or removed where the value is nil or
// false; what is not named stays.
type PolicyDelta struct {
	Rules       map[RulesID]*Rules
	Workloads   map[netip.Addr]*Workload
	Hosts       map[int]*Host
	Groups      map[SetID]map[netip.Addr]bool // a group that loses its last member is gone
	NamedPorts  map[SetID]map[NamedPort]bool
	PortSets    map[SetID]*Ports
	Lists       map[SetID]*List
	Denied      *Denied
	PodDevices  map[int]bool
	HostDevices map[int]bool
	PodCIDRs    *[]netip.Prefix
}

// About is what a change of policy may have made forbidden, or allowed: the connections of these
// addresses, or all.
type About struct {
	All       bool
	Addresses map[netip.Addr]struct{}
}

// Empty reports whether it is none.
func (a About) Empty() bool { return !a.All && len(a.Addresses) == 0 }

// Merge adds what another change is about.
func (a *About) Merge(o About) {
	a.All = a.All || o.All
	for addr := range o.Addresses {
		a.add(addr)
	}
}

func (a *About) add(addr netip.Addr) {
	if a.Addresses == nil {
		a.Addresses = map[netip.Addr]struct{}{}
	}
	a.Addresses[addr] = struct{}{}
}

// About is what the change is about, where before is what it changes.
func (d PolicyDelta) About(before *Policy) (about About) {
	if len(before.Rules)+len(d.Rules) == 0 {
		return about
	}
	about.All = len(d.Lists)+len(d.Hosts) > 0
	for a := range d.Workloads {
		about.add(a)
	}
	for _, members := range d.Groups {
		for a := range members {
			about.add(a)
		}
	}
	for _, ports := range d.NamedPorts {
		for n := range ports {
			about.add(n.Addr)
		}
	}
	return about
}

// MayForbid is what the change is about, except for pods that are not known afterwards: these
// forbid no connection that there is.
func (d PolicyDelta) MayForbid(before *Policy) About {
	about := d.About(before)
	for a, w := range d.Workloads {
		if w == nil || w.Device == 0 {
			delete(about.Addresses, a)
		}
	}
	return about
}

// Len is the number of named changes; each member of a group counts.
func (d PolicyDelta) Len() int {
	n := len(d.Rules) + len(d.Workloads) + len(d.Hosts) + len(d.PortSets) + len(d.Lists) + len(d.PodDevices) + len(d.HostDevices)
	for _, g := range d.Groups {
		n += len(g)
	}
	for _, g := range d.NamedPorts {
		n += len(g)
	}
	if d.Denied != nil {
		n++
	}
	if d.PodCIDRs != nil {
		n++
	}
	return n
}

// Apply changes p by d.
func (p *Policy) Apply(d PolicyDelta) {
	applyMap(p.Rules, d.Rules)
	applyMap(p.Workloads, d.Workloads)
	applyMap(p.Hosts, d.Hosts)
	applyMap(p.PortSets, d.PortSets)
	applyMap(p.Lists, d.Lists)
	applyMembers(p.Groups, d.Groups)
	applyMembers(p.NamedPorts, d.NamedPorts)
	applySet(p.PodDevices, d.PodDevices)
	applySet(p.HostDevices, d.HostDevices)
	if d.Denied != nil {
		p.Denied = *d.Denied
	}
	if d.PodCIDRs != nil {
		p.PodCIDRs = *d.PodCIDRs
	}
}

// Clone returns a copy that Apply changes apart from p; nil of nil.
func (p *Policy) Clone() *Policy {
	if p == nil {
		return nil
	}
	c := *p
	c.Rules, c.Workloads, c.Hosts = maps.Clone(p.Rules), maps.Clone(p.Workloads), maps.Clone(p.Hosts)
	c.PortSets, c.Lists = maps.Clone(p.PortSets), maps.Clone(p.Lists)
	c.PodDevices, c.HostDevices = maps.Clone(p.PodDevices), maps.Clone(p.HostDevices)
	c.Groups, c.NamedPorts = cloneMembers(p.Groups), cloneMembers(p.NamedPorts)
	return &c
}

func cloneMembers[M comparable](groups map[SetID]map[M]struct{}) map[SetID]map[M]struct{} {
	c := make(map[SetID]map[M]struct{}, len(groups))
	for id, members := range groups {
		c[id] = maps.Clone(members)
	}
	return c
}

func applyMap[K comparable, V any](m map[K]*V, d map[K]*V) {
	for k, v := range d {
		if v == nil {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
}

func applyMembers[K, M comparable](groups map[K]map[M]struct{}, d map[K]map[M]bool) {
	for k, members := range d {
		g := groups[k]
		if g == nil {
			g = map[M]struct{}{}
			groups[k] = g
		}
		applySet(g, members)
		if len(g) == 0 {
			delete(groups, k)
		}
	}
}
