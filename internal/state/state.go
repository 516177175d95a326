// Package state is the desired state of one node: flat, comparable values that
// the compiler writes and drivers read.
//
// A *Frontend is immutable once published, so that compiler and drivers share
// it. Everything in here is a function of the current objects alone, never of
// the order in which they arrived.
package state

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
)

// FrontendKey is what a client addresses: one address, transport and port.
// NodePorts appear once for each of the node's chosen addresses.
type FrontendKey struct {
	Addr     netip.Addr
	Protocol model.Protocol
	Port     uint16
}

// Compare orders keys by address, protocol and port.
func (k FrontendKey) Compare(o FrontendKey) int {
	if c := k.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	if c := cmp.Compare(k.Protocol, o.Protocol); c != 0 {
		return c
	}
	return cmp.Compare(k.Port, o.Port)
}

// String returns "TCP 10.0.0.1:80".
func (k FrontendKey) String() string {
	return k.Protocol.String() + " " + netip.AddrPortFrom(k.Addr, k.Port).String()
}

// Kind says how a frontend came to be.
type Kind uint8

// The kinds of frontends. All but ClusterIP are external.
const (
	ClusterIP Kind = iota
	ExternalIP
	LoadBalancer
	NodePort
)

// String returns the Kubernetes spelling of the kind.
func (k Kind) String() string {
	return [...]string{"ClusterIP", "ExternalIP", "LoadBalancer", "NodePort"}[k]
}

// Frontend is what happens to new connections to one FrontendKey.
type Frontend struct {
	Service model.Name
	Port    string // the service port's name, for people; may be empty
	Kind    Kind

	// Backends are balanced over uniformly: sorted, unique, of the key's
	// family. Where LocalOnly is set they serve pods and the node itself only.
	Backends []netip.AddrPort
	// Reject says what befalls a connection that finds no backend: true, it
	// is refused at once (TCP reset, ICMP port unreachable); false, dropped
	// (the service has endpoints, but a Local policy keeps us from using them).
	Reject bool

	// LocalOnly (externalTrafficPolicy Local): a connection from outside the
	// cluster is balanced over Local, with its client address kept, and dropped if
	// Local is empty (rejected, if Backends is empty too and Reject is set).
	LocalOnly bool
	Local     []netip.AddrPort // sorted, unique; subset of the node's own endpoints

	// Alive are the endpoints whose established connections may go on though
	// they get no new ones: every endpoint in any slice in any condition, and
	// every existing Pod the service selects. Sorted, unique, a superset of
	// Serving. Stateful connections (TCP, SCTP) to an endpoint that leaves Alive are cut.
	Alive []netip.AddrPort
	// Serving are the endpoints whose UDP flows may go on: every one that is
	// ready or serving, wherever it is, whatever policies and topology say of new flows,
	// and whether it terminates or not. Sorted, unique, a superset of Backends and Local. UDP
	// flows to an endpoint that leaves Serving are cut, as kube-proxy does it.
	Serving []netip.AddrPort

	// SourceRanges, when not empty, are the only sources that may connect: masked,
	// sorted, none within another. The node may when a range holds the address that it connects from;
	// the key's own address is among them where a range holds one of the node's, for a node
	// that has the key's address itself.
	SourceRanges []netip.Prefix
	// Affinity keeps a client address on its backend for so long after its last new connection; 0: off.
	Affinity time.Duration
}

// External reports whether the frontend faces the outside: NodePort,
// LoadBalancer, ExternalIP. External frontends that are not LocalOnly are
// masqueraded always.
func (f *Frontend) External() bool { return f.Kind != ClusterIP }

// Equal reports whether two frontends ask for the same in the kernel and show the same to people.
func (f *Frontend) Equal(o *Frontend) bool {
	return f == o || f != nil && o != nil &&
		f.Service == o.Service && f.Port == o.Port && f.Kind == o.Kind && f.Reject == o.Reject &&
		f.LocalOnly == o.LocalOnly && f.Affinity == o.Affinity &&
		slices.Equal(f.Backends, o.Backends) && slices.Equal(f.Local, o.Local) &&
		slices.Equal(f.Alive, o.Alive) && slices.Equal(f.Serving, o.Serving) &&
		slices.Equal(f.SourceRanges, o.SourceRanges)
}

// Settings are the node-wide parameters of the program. All prefix lists are
// masked, sorted and unique.
type Settings struct {
	// ServiceCIDRs: an address in here that no service has is dropped.
	ServiceCIDRs []netip.Prefix
	// ClusterCIDRs: the sources that count as pods. Connections to ClusterIPs
	// from anywhere else are masqueraded. Empty: nothing is known, and only
	// what is masqueraded for other reasons is.
	ClusterCIDRs []netip.Prefix
	// LocalCIDRs: the sources that count as this node's own pods, so that
	// replies to them pass here anyway. A subset of ClusterCIDRs, or equal where the node's own are unknown.
	LocalCIDRs []netip.Prefix
	// MasqueradeAll masquerades every translated connection.
	MasqueradeAll bool
}

// Equal reports whether the settings are the same.
func (s Settings) Equal(o Settings) bool {
	return s.MasqueradeAll == o.MasqueradeAll && slices.Equal(s.ServiceCIDRs, o.ServiceCIDRs) &&
		slices.Equal(s.ClusterCIDRs, o.ClusterCIDRs) && slices.Equal(s.LocalCIDRs, o.LocalCIDRs)
}

// HealthCheck is what a healthCheckNodePort answers for one service. It is
// served by the agent, not by a driver.
type HealthCheck struct {
	Service        model.Name
	Port           uint16
	LocalEndpoints int // ready endpoints of the service on this node
}

// State is all that one node's kernel should hold.
type State struct {
	Settings  Settings
	Frontends map[FrontendKey]*Frontend
	// ClusterIPs are the addresses of proxied services; a port that no
	// frontend defines is rejected there.
	ClusterIPs map[netip.Addr]struct{}
	// OtherIPs are the addresses of services that another program serves: they
	// are let through, though they lie in a service CIDR.
	OtherIPs map[netip.Addr]struct{}
	// Hairpins are the addresses of endpoints on this node: a connection
	// that comes from one and is balanced back to the same is masqueraded.
	Hairpins map[netip.Addr]struct{}
	// HealthChecks by service.
	HealthChecks map[model.Name]HealthCheck
	// Policy is what may pass; nil: the node's policy is not Sluice's business.
	Policy *Policy
}

// New returns an empty State without policy.
func New() *State {
	return &State{
		Frontends:    map[FrontendKey]*Frontend{},
		ClusterIPs:   map[netip.Addr]struct{}{},
		OtherIPs:     map[netip.Addr]struct{}{},
		Hairpins:     map[netip.Addr]struct{}{},
		HealthChecks: map[model.Name]HealthCheck{},
	}
}

// Delta is a change of State: what is named is set, or removed where the value
// is nil or false; what is not named stays.
type Delta struct {
	Settings     *Settings
	Frontends    map[FrontendKey]*Frontend
	ClusterIPs   map[netip.Addr]bool
	OtherIPs     map[netip.Addr]bool
	Hairpins     map[netip.Addr]bool
	HealthChecks map[model.Name]*HealthCheck
	Policy       PolicyDelta
}

// Len is the number of named changes; 0 means nothing to do.
func (d Delta) Len() int {
	n := len(d.Frontends) + len(d.ClusterIPs) + len(d.OtherIPs) + len(d.Hairpins) + len(d.HealthChecks) + d.Policy.Len()
	if d.Settings != nil {
		n++
	}
	return n
}

// Apply changes s by d. A driver may leave HealthChecks nil: it does not serve them.
func (s *State) Apply(d Delta) {
	if s.HealthChecks == nil && len(d.HealthChecks) > 0 {
		s.HealthChecks = map[model.Name]HealthCheck{}
	}
	if d.Settings != nil {
		s.Settings = *d.Settings
	}
	applyMap(s.Frontends, d.Frontends)
	applySet(s.ClusterIPs, d.ClusterIPs)
	applySet(s.OtherIPs, d.OtherIPs)
	applySet(s.Hairpins, d.Hairpins)
	for n, h := range d.HealthChecks {
		if h == nil {
			delete(s.HealthChecks, n)
		} else {
			s.HealthChecks[n] = *h
		}
	}
	if s.Policy != nil {
		s.Policy.Apply(d.Policy)
	}
}

func applySet[K comparable](set map[K]struct{}, d map[K]bool) {
	for k, in := range d {
		if in {
			set[k] = struct{}{}
		} else {
			delete(set, k)
		}
	}
}

// Remembered is where another program has sent a client of a service with session affinity.
type Remembered struct {
	Service  model.Name // zero: any that has the backend
	Port     string     // the service port's name; it counts if Service does
	Protocol model.Protocol
	Client   netip.Addr
	Backend  netip.AddrPort
	Left     time.Duration // until it would be forgotten; 0: unknown, the service's whole time-out then
}
