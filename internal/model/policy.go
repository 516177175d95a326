package model

import (
	"net/netip"
	"slices"
	"time"
)

// Policy is one network policy of any API, in common terms: Kubernetes'
// NetworkPolicy v1, ClusterNetworkPolicy v1beta1, Calico's NetworkPolicy and
// GlobalNetworkPolicy v3.
//
// The tiers are walked in ascending order, the policies of a tier in ascending
// order, the rules of a policy as they are written. The first rule that matches
// and is not Log decides: Allow and Deny for good, Pass for the rest of the
// tier. Where no rule of a tier matched, the tier's default befalls what at
// least one of its policies selects and applies to. What passes all tiers is allowed for
// a pod, and denied for a host endpoint.
type Policy struct {
	Key   PolicyKey
	Tier  string  // the name of a Tier
	Order float64 // within the tier, ascending; +Inf where none is given. Ties go by Key.Name as it is written, then by kind

	Subject Selector // whom it applies to: pods and, where its labels allow it, host endpoints

	// Ingress and Egress are the directions it applies to. A direction that it applies to and has
	// no rule for isolates its subjects there, in tiers that deny by default.
	Ingress, Egress           bool
	IngressRules, EgressRules []PolicyRule

	// IgnoresIngress and IgnoresEgress: it was written with rules for a direction that its types
	// leave out.
	IgnoresIngress, IgnoresEgress bool

	// For host endpoints: Calico's applyOnForward, doNotTrack and preDNAT.
	ApplyOnForward, DoNotTrack, PreDNAT bool

	// Refused says why the policy could not be taken as it is written and has
	// no good version from before. A NetworkPolicy, whose rules can only allow, isolates what it
	// selects in the directions it applies to, and has what could be read of its rules. One of
	// another kind has none, and denies all there in front of all tiers, whatever else applies.
	Refused string
	// Ignored has a refused policy deny nothing: it is as if it were not there.
	Ignored bool
}

// StandIn implements StandIn.
func (p *Policy) StandIn() string {
	switch {
	case p.Refused == "":
		return ""
	case p.Ignored:
		return InForceNothing
	case p.Key.Kind != NetworkPolicy:
		return InForceDeny
	case len(p.IngressRules)+len(p.EgressRules) > 0:
		return InForceIsolateRest
	}
	return InForceIsolate
}

// Services yields the Services that its rules name, some perhaps more than once.
func (p *Policy) Services(yield func(Name) bool) {
	for _, r := range slices.Concat(p.IngressRules, p.EgressRules) {
		for _, e := range []*RuleEnd{&r.Source, &r.Destination} {
			for _, peer := range slices.Concat(slices.Concat(e.Peers...), e.NotPeers) {
				if peer.Service != (Name{}) && !yield(peer.Service) {
					return
				}
			}
			for _, port := range slices.Concat(e.Ports, e.NotPorts) {
				if port.Service != (Name{}) && !yield(port.Service) {
					return
				}
			}
		}
	}
}

// Refuse implements StandIn.
func (p *Policy) Refuse(why error) {
	p.Refused, p.IngressRules, p.EgressRules = why.Error(), nil, nil
}

// Action is what a rule does with what it matches.
type Action uint8

// The actions of rules. Log writes to the kernel's log and goes on.
const (
	Allow Action = iota
	Deny
	Pass
	Log
)

// String returns "allow", "deny", "pass" or "log".
func (a Action) String() string { return [...]string{"allow", "deny", "pass", "log"}[a] }

// PolicyRule matches new connections; all that is set must hold.
type PolicyRule struct {
	Name   string // as people find it in the object: "ingress[0]", or its own name
	Action Action
	Family uint8 // 4 or 6: that family alone; 0: both

	Protocol, NotProtocol uint8 // IP protocol numbers; 0: any
	ICMP, NotICMP         *ICMP // with Protocol 1 (IPv4) or 58 (IPv6)

	Source, Destination RuleEnd
}

// ICMP is a type and, where Code is not negative, a code.
type ICMP struct {
	Type uint8
	Code int16
}

// RuleEnd is what a rule asks of one end of a connection. All that is set must hold.
type RuleEnd struct {
	Peers    [][]Peer // of each list, one must hold the address; no list: any address
	NotPeers []Peer   // none of these may hold it

	Ports    []PolicyPort // one must match; nil: any, and protocols without ports too
	NotPorts []PolicyPort // none may match
}

// Peer holds addresses: those of pods, network sets and host endpoints that a selector
// selects, those of the endpoints of a Service, or those in Nets and in none of Except.
type Peer struct {
	Selector Selector // zero: Service or Nets count
	Service  Name     // zero: Nets count
	Nets     []netip.Prefix
	Except   []netip.Prefix // each within one of Nets
}

// PolicyPort is a range of ports, the ports that pods give a name, or the endpoints of a Service:
// their addresses together with the ports on which they serve it. All endpoints count, in any
// condition.
type PolicyPort struct {
	Protocol    Protocol // 0: that of the rule, or any
	First, Last uint16   // inclusive; 0 to 65535 for all ports of the protocol
	Name        string   // a container port's name; First and Last are 0 then
	Service     Name     // a Service; all else is 0 then
}

// Tier is a group of policies that are judged together.
type Tier struct {
	Name        string
	Order       float64 // ascending; +Inf where none is given. Ties go by name
	DefaultPass bool    // what no rule matched goes on to the next tier; otherwise it is denied

	// Refused says why the tier could not be taken as it is written and has no good version from
	// before: its policies deny all that they select then.
	Refused string
}

// StandIn implements StandIn.
func (t *Tier) StandIn() string {
	if t.Refused == "" {
		return ""
	}
	return InForceTier
}

// Refuse implements StandIn.
func (t *Tier) Refuse(why error) { *t = Tier{Name: t.Name, Refused: why.Error()} }

// Fault says of a policy of the tier that the tier is refused and why, or nothing.
func (t *Tier) Fault() string {
	if t.Refused == "" {
		return ""
	}
	return "spec.tier: Tier " + t.Name + " cannot be read (" + t.Refused + "): mend it"
}

// NetworkPolicyOrder is the order of Kubernetes' NetworkPolicies in DefaultTier, among Calico's
// policies. Calico gives them the same.
const NetworkPolicyOrder = 1000

// The tiers that are always there, with the orders that Calico gives them.
var (
	AdminTier    = Tier{Name: "kube-admin", Order: 1_000, DefaultPass: true}
	DefaultTier  = Tier{Name: "default", Order: 1_000_000}
	BaselineTier = Tier{Name: "kube-baseline", Order: 10_000_000, DefaultPass: true}
)

// BuiltInTiers are the tiers that are always there.
var BuiltInTiers = [...]*Tier{&AdminTier, &DefaultTier, &BaselineTier}

// BuiltInTier returns the one of that name, nil if there is none.
func BuiltInTier(name string) *Tier {
	for _, t := range BuiltInTiers {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// NetworkSet is a labelled list of networks that selectors select as peers.
type NetworkSet struct {
	Key    NetworkSetKey
	Labels map[string]string
	// Nets are masked, sorted (netip.Prefix.Compare) and unique; they may lie within each other. Up
	// to millions: nobody copies them.
	Nets []netip.Prefix

	// Refused says why the set could not be taken as it is written and has no
	// good version from before: Nets are what could be read of it then, and nobody knows what
	// else belongs into it.
	Refused string
}

// StandIn implements StandIn.
func (s *NetworkSet) StandIn() string {
	if s.Refused == "" {
		return ""
	}
	if len(s.Nets) > 0 {
		return InForceDoubtRest
	}
	return InForceDoubt
}

// Refuse implements StandIn.
func (s *NetworkSet) Refuse(why error) { s.Refused = why.Error() }

// HostEndpoint is an interface of a node that policies select by its labels.
type HostEndpoint struct {
	Name      string
	Created   time.Time // see Birth
	Node      string
	Interface string // "*": all of the node's own; "": the one that has one of Addresses
	Addresses []netip.Addr
	Labels    map[string]string
	// DefaultAllow: what no policy selects is allowed (Calico's profile
	// projectcalico-default-allow). Otherwise it is denied.
	DefaultAllow bool
}

// Links is what a node's kernel says of its interfaces and of the way to its
// pods. It is a snapshot, sorted throughout.
type Links struct {
	Links []Link // by Index
	// Routes are the connected routes without a gateway that lead to others than the node itself: a
	// host route (/32, /128) to a pod, or the subnet of a bridge. Sorted by Prefix, then Link.
	Routes []LinkRoute
	Local  []netip.Addr // the node's own addresses: those of all Links, sorted, unique
}

// Link is a network interface.
type Link struct {
	Index  int
	Name   string
	Bridge bool
	// Pod: it leads to a single network namespace by host routes. Host: it is the node's own: it
	// has an address, a subnet or a gateway, or is no veth. Neither: nothing is known of it yet.
	Pod, Host bool
	Alias     string // what its maker says of it
	// Addresses are its own, sorted; IPv6 link-local ones are left out, as every link has one.
	Addresses []netip.Addr
}

// LinkRoute says that a prefix is reached through a link, without a gateway.
type LinkRoute struct {
	Prefix netip.Prefix
	Link   int
}
