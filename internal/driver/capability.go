package driver

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Capability is something that a state may ask for, or its users may rely on, and that not every
// driver can do. Capabilities are or-ed.
type Capability uint

// The capabilities. Without Services a driver carries out no services, without Policy no policy,
// without Fabric no tunnels and routes, without
// Farms no farms of a balancer.
const (
	Services        Capability = 1 << iota // TCP and UDP to backends, whatever kind of address was asked for
	SCTP                                   // services over SCTP
	Affinity                               // clients stay on their backends
	SourceRanges                           // loadBalancerSourceRanges
	LocalTraffic                           // externalTrafficPolicy: Local
	ClientAddress                          // backends see the client's address, except for what is masqueraded
	LargeDatagrams                         // the node's own over IPv6 to services may be larger than a packet
	SharedPorts                            // one source port leads to a service and, at once, to its endpoint itself
	InPackets                              // this node's clients are masqueraded as others are, and sent to another endpoint while one does not answer
	Outgoing                               // pods reach what is outside with the node's address, as Options.Fabric says
	Policy                                 // of pods
	HostPolicy                             // of the node's own interfaces
	UntrackedPolicy                        // doNotTrack, and deny lists: before connection tracking
	Fragments                              // what a pod sends is checked before fragments are put together
	Errors                                 // ICMP errors of every kind pass through services
	Fabric                                 // tunnels and routes to the pods of other nodes
	Farms                                  // virtual services of a balancer
	Survives                               // what was programmed works while no process of ours runs
	Outlasts                               // connections go on when what was programmed is removed
	AuditsCheaply                          // Tampered tells
	Keeps                                  // Adopt can keep what Keep names

	All = 1<<iota - 1
)

var capabilityNames = []struct {
	of   Capability
	name string
}{
	{Services, "services"}, {SCTP, "SCTP"}, {Affinity, "session affinity"}, {SourceRanges, "source ranges"},
	{LocalTraffic, "externalTrafficPolicy: Local"}, {ClientAddress, "the client's address"}, {LargeDatagrams, "datagrams larger than a packet from the node itself, over IPv6"},
	{SharedPorts, "one source port to a service and at once to its endpoint"}, {InPackets, "translation of packets of this node's clients"}, {Outgoing, "the node's address for what pods send to the outside"},
	{Policy, "network policy"}, {HostPolicy, "policy of host endpoints"},
	{UntrackedPolicy, "policy before connection tracking"}, {Fragments, "checking fragments before they are put together"}, {Errors, "ICMP errors of every kind through services"}, {Fabric, "pod networks between nodes"}, {Farms, "farms of a balancer"}, {Survives, "working while no agent runs"}, {Outlasts, "connections that go on when it is removed"},
	{AuditsCheaply, "noticing at once what others change"}, {Keeps, "keeping what cannot be read"},
}

// String names the capabilities, parted by commas.
func (c Capability) String() string {
	var names []string
	for _, n := range capabilityNames {
		if c&n.of != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ", ")
}

// Capabilities are what a driver declares of itself, so that it is known before it is chosen.
type Capabilities struct {
	Name string // of the driver: "nftables"
	Can  Capability
	// AtInput: services take connections where those for the node itself end, and send them on as
	// the node's own.
	AtInput bool

	Counter    Counter    // nil: the driver counts nothing
	Rememberer Rememberer // nil: it cannot tell of clients that it keeps on their backends
	Lister     Lister     // nil: it cannot tell what an agent that has ended left in the kernel
	Offloader  Offloader  // nil: no connection passes by what judges packets
	Settler    Settler    // nil: what follows from a plan is done when it was applied
	Rejudger   Rejudger   // nil: packets of established connections are let pass until these are labelled
	Answerer   Answerer   // nil: it does not tell of connections whose answers pass meanwhile
}

// Counter counts what becomes of packets and connections. Its methods are safe for concurrent use
// with those of the Driver.
type Counter interface {
	// PolicyCounters returns a counter for each policy that is programmed,
	// sorted by policy.
	PolicyCounters(ctx context.Context) ([]PolicyCounter, error)
	// DropCounts returns how many packets were dropped for each reason, those included that
	// were not sent to DropGroup, since the ruleset is in the kernel.
	DropCounts(ctx context.Context) (map[state.Drop]uint64, error)
}

// Rememberer keeps clients on their backends.
type Rememberer interface {
	// Remembered returns how many clients of services with session affinity the kernel remembered
	// when the driver last looked. It is safe for concurrent use.
	Remembered() Remembered
}

// Remembered counts clients, of each frontend apart.
type Remembered struct {
	IPv4      int `json:"ipv4"`
	IPv6      int `json:"ipv6"`
	Most      int `json:"most"`      // that the kernel can remember of a family
	Forgotten int `json:"forgotten"` // since the driver was opened, to make room for others
}

// Fullest is the larger number of the two families, in percent of the most.
func (r Remembered) Fullest() int { return 100 * max(r.IPv4, r.IPv6) / max(1, r.Most) }

// Offloader has established connections pass by what judges packets (Options.FlowOffload).
type Offloader interface {
	// Recall has the packets of all connections judged again. Those that are let pass go by it
	// again later. It is safe for concurrent use.
	Recall(ctx context.Context) error
}

// Settler does in the background what follows from plans for clients: those are forgotten whom it
// kept on backends that are gone.
type Settler interface {
	// Settle returns once that is done for all plans that were applied before. It is safe for
	// concurrent use.
	Settle(ctx context.Context) error
}

// JudgeAgain is how long packets of established connections are judged again, unless somebody ends
// it before: longer than it takes to find all connections of a large table.
const JudgeAgain = 10 * time.Second

// MostAgain is for how many addresses at once drivers do that; for more, they judge all packets
// again.
const MostAgain = 4096

// MostAnswering is how many connections of a family an Answerer tells of, about.
const MostAnswering = 4 * MostAgain

// Rejudger has packets of established connections judged again that a change of policy is about:
// those that go the way of the first one. That ends by itself after JudgeAgain.
type Rejudger interface {
	// Calm ends it now, as all connections that are forbidden are labelled. It is safe for
	// concurrent use.
	Calm(ctx context.Context) error
}

// Answerer tells of connections whose answers pass while packets are judged again: answers are not.
type Answerer interface {
	// Answering yields connections of UDP of which packets have passed meanwhile that go the other
	// way than the first: by one of their two tuples, as the client asked or as answers come. What
	// it yields may be no connection. It is safe for concurrent use.
	Answering(ctx context.Context, yield func(from, to netip.AddrPort)) error
}

// Lister tells which frontends the kernel holds without knowing any desired state: of an agent that
// runs, or of one that has ended.
type Lister interface {
	// Frontends returns each frontend that the kernel holds, with whether its new
	// connections are sent to backends (they are refused or dropped otherwise). It is empty
	// where the driver has programmed nothing.
	Frontends(ctx context.Context) (map[state.FrontendKey]bool, error)
}

// Lacks returns what a state asks for that the driver cannot do, by the object that asks for it: a
// service, a policy that applies on this node, a host endpoint or a deny list.
func (c Capabilities) Lacks(s *state.State) map[model.Ref]Capability {
	lacks := map[model.Ref]Capability{}
	need := func(of Capability, objects ...model.Ref) {
		for _, object := range objects {
			if missing := of &^ c.Can; missing != 0 {
				lacks[object] |= missing
			}
		}
	}
	if s.Services != nil && c.Can&ofServices != ofServices {
		for k, f := range s.Services.Frontends {
			need(neededBy(k, f), model.Ref{Kind: model.ServiceKind, Name: f.Service})
		}
	}
	if p := s.Policy; p != nil && c.Can&ofPolicy != ofPolicy {
		for _, w := range p.Workloads {
			need(Policy, p.Rules[w.Ingress].Declared()...)
			need(Policy, p.Rules[w.Egress].Declared()...)
		}
		for _, h := range p.Hosts {
			need(Policy|HostPolicy, model.Ref{Kind: model.HostEndpointKind, Name: model.Name{Name: h.Name}})
			for _, id := range h.RulesIDs() {
				need(Policy|HostPolicy, p.Rules[*id].Declared()...)
			}
			need(UntrackedPolicy, p.Rules[h.UntrackedIn].Declared()...)
			need(UntrackedPolicy, p.Rules[h.UntrackedOut].Declared()...)
		}
		for _, l := range p.Denied.Lists {
			need(Policy|UntrackedPolicy, model.Ref{Kind: "list", Name: model.Name{Name: l.Name}})
		}
	}
	return lacks
}

// Issues says of each object what it asks for that the driver cannot do.
func (c Capabilities) Issues(s *state.State) (issues []model.Issue) {
	for object, of := range c.Lacks(s) {
		issue := object.Issue(fmt.Sprintf("the driver %s cannot do what it asks for: %s", c.Name, of))
		if issue.InForce = model.InForceRest; of&(Services|Policy) != 0 {
			issue.InForce = model.InForceNothing
		}
		issues = append(issues, issue)
	}
	return issues
}

// What services and policies may ask for.
const (
	ofServices = Services | SCTP | Affinity | SourceRanges | LocalTraffic
	ofPolicy   = Policy | HostPolicy | UntrackedPolicy
)

func neededBy(k state.FrontendKey, f *state.Frontend) Capability {
	need := Services
	if k.Protocol == model.SCTP {
		need |= SCTP
	}
	if f.Affinity > 0 {
		need |= Affinity
	}
	if len(f.SourceRanges) > 0 {
		need |= SourceRanges
	}
	if f.LocalOnly {
		need |= LocalTraffic
	}
	return need
}
