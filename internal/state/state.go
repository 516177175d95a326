// Package state is the desired state of one node, in parts: flat, comparable values that the
// compiler writes and reconcilers read.
//
// A *Frontend is immutable once published, so that compiler and drivers share
// it. Everything in here is a function of the current objects alone, never of
// the order in which they arrived.
package state

import (
	"cmp"
	"maps"
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

	// SourceRanges, when not empty, are the only sources that may connect: masked, sorted, none
	// within another. The node may when a range holds the address that it connects from; the key's
	// own address is among them where a range holds one of the node's, for a node that has the
	// key's address itself.
	SourceRanges []netip.Prefix
	// Affinity keeps a client address on its backend for so long after its last new connection; 0:
	// off.
	Affinity time.Duration
	// IPVSScheduler is how IPVS chooses a backend; "": as the node says.
	IPVSScheduler string
}

// Has reports whether a sorted list of endpoints, such as those of a Frontend, has one.
func Has(sorted []netip.AddrPort, endpoint netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(sorted, endpoint, netip.AddrPort.Compare)
	return found
}

// External reports whether the frontend faces the outside: NodePort,
// LoadBalancer, ExternalIP. External frontends that are not LocalOnly are
// masqueraded always.
func (f *Frontend) External() bool { return f.Kind != ClusterIP }

// Equal reports whether two frontends ask for the same in the kernel and show the same to people.
func (f *Frontend) Equal(o *Frontend) bool {
	return f == o || f != nil && o != nil &&
		f.Service == o.Service && f.Port == o.Port && f.Kind == o.Kind && f.Reject == o.Reject &&
		f.LocalOnly == o.LocalOnly && f.Affinity == o.Affinity && f.IPVSScheduler == o.IPVSScheduler &&
		slices.Equal(f.Backends, o.Backends) && slices.Equal(f.Local, o.Local) &&
		slices.Equal(f.Alive, o.Alive) && slices.Equal(f.Serving, o.Serving) &&
		slices.Equal(f.SourceRanges, o.SourceRanges)
}

// Settings are the node-wide parameters of services. All prefix lists are masked, sorted and
// unique.
type Settings struct {
	// ServiceCIDRs: an address in here that no service has is dropped.
	ServiceCIDRs []netip.Prefix
	// ClusterCIDRs: the sources that count as pods. Connections to ClusterIPs
	// from anywhere else are masqueraded. Empty: nothing is known, and only
	// what is masqueraded for other reasons is.
	ClusterCIDRs []netip.Prefix
	// LocalCIDRs: the sources that count as this node's own pods, so that replies to them pass here
	// anyway. A subset of ClusterCIDRs, or equal where the node's own are unknown.
	LocalCIDRs []netip.Prefix
	// MasqueradeAll masquerades every translated connection.
	MasqueradeAll bool
	// OutgoingCIDRs: connections from these sources are masqueraded if they go to an address that
	// is in none of PoolCIDRs, the addresses of all pods.
	OutgoingCIDRs, PoolCIDRs []netip.Prefix
	// SNAT are the addresses that connections to services get in place of a client's, where they
	// leave by these interfaces. By others they are masqueraded, and so go on only as long as they
	// leave by the same one. Sorted.
	SNAT []SNAT
	// Tunnels are the ends of this node's tunnels. Sorted.
	Tunnels []TunnelEnd
	// Untracked leaves the outer packets of Tunnels, from and to other nodes, out of connection
	// tracking.
	Untracked bool
}

// TunnelEnd is where packets from the other ends of a tunnel are taken, except for WireGuard, which
// knows whose they are.
type TunnelEnd struct {
	Addr netip.Addr // IPIP: where they arrive; VXLAN: of its outer family
	Port uint16     // VXLAN: the UDP port, whatever the address; 0: IPIP
}

// Compare orders by address, and then by port.
func (e TunnelEnd) Compare(o TunnelEnd) int {
	return cmp.Or(e.Addr.Compare(o.Addr), cmp.Compare(e.Port, o.Port))
}

// SNAT is the address of an interface; one of each family at the most.
type SNAT struct {
	Device string
	Addr   netip.Addr
}

// Compare orders by interface, and then by address.
func (s SNAT) Compare(o SNAT) int {
	return cmp.Or(cmp.Compare(s.Device, o.Device), s.Addr.Compare(o.Addr))
}

// Equal reports whether the settings are the same.
func (s Settings) Equal(o Settings) bool {
	return s.MasqueradeAll == o.MasqueradeAll && s.Untracked == o.Untracked && slices.Equal(s.ServiceCIDRs, o.ServiceCIDRs) &&
		slices.Equal(s.ClusterCIDRs, o.ClusterCIDRs) && slices.Equal(s.LocalCIDRs, o.LocalCIDRs) &&
		slices.Equal(s.OutgoingCIDRs, o.OutgoingCIDRs) && slices.Equal(s.PoolCIDRs, o.PoolCIDRs) && slices.Equal(s.SNAT, o.SNAT) &&
		slices.Equal(s.Tunnels, o.Tunnels)
}

// State is what one node's kernel should hold, in parts. Each part is a value of its own that its
// own reconciler keeps the kernel in step with. A part that is nil is not Sluice's business, or
// left as it is.
type State struct {
	Services *Services
	Policy   *Policy
	Fabric   *Fabric
	Farms    *Farms
}

// New returns a State of services that are none, without policy, fabric and farms.
func New() *State { return &State{Services: NewServices()} }

// Delta is a change of a State: of each part what is named is set, or removed where the value is
// nil or false; what is not named stays.
type Delta struct {
	Services ServicesDelta
	Policy   PolicyDelta
	Fabric   FabricDelta
	Farms    FarmsDelta
}

// Len is the number of named changes; 0 means nothing to do.
func (d Delta) Len() int { return d.Services.Len() + d.Policy.Len() + d.Fabric.Len() + d.Farms.Len() }

// Apply changes the parts that s has by d.
func (s *State) Apply(d Delta) {
	if s.Services != nil {
		s.Services.Apply(d.Services)
	}
	if s.Policy != nil {
		s.Policy.Apply(d.Policy)
	}
	if s.Fabric != nil {
		s.Fabric.Apply(d.Fabric)
	}
	if s.Farms != nil {
		s.Farms.Apply(d.Farms)
	}
}

// Clone returns a copy that Apply changes apart from s.
func (s *State) Clone() *State {
	return &State{Services: s.Services.Clone(), Policy: s.Policy.Clone(), Fabric: s.Fabric.Clone(), Farms: s.Farms.Clone()}
}

// Services is the part of the State that says where new connections to services go.
type Services struct {
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
	// Peers are the addresses of other nodes: what Settings.Tunnels take comes from them alone.
	// None where there is no Fabric.
	Peers map[netip.Addr]struct{}
}

// NewServices returns empty Services.
func NewServices() *Services {
	return &Services{
		Frontends:  map[FrontendKey]*Frontend{},
		ClusterIPs: map[netip.Addr]struct{}{},
		OtherIPs:   map[netip.Addr]struct{}{},
		Hairpins:   map[netip.Addr]struct{}{},
		Peers:      map[netip.Addr]struct{}{},
	}
}

// ServicesDelta is a change of Services.
type ServicesDelta struct {
	Settings   *Settings
	Frontends  map[FrontendKey]*Frontend
	ClusterIPs map[netip.Addr]bool
	OtherIPs   map[netip.Addr]bool
	Hairpins   map[netip.Addr]bool
	Peers      map[netip.Addr]bool
}

// Len is the number of named changes.
func (d ServicesDelta) Len() int {
	n := len(d.Frontends) + len(d.ClusterIPs) + len(d.OtherIPs) + len(d.Hairpins) + len(d.Peers)
	if d.Settings != nil {
		n++
	}
	return n
}

// Apply changes s by d.
func (s *Services) Apply(d ServicesDelta) {
	if d.Settings != nil {
		s.Settings = *d.Settings
	}
	applyMap(s.Frontends, d.Frontends)
	applySet(s.ClusterIPs, d.ClusterIPs)
	applySet(s.OtherIPs, d.OtherIPs)
	applySet(s.Hairpins, d.Hairpins)
	applySet(s.Peers, d.Peers)
}

// Clone returns a copy that Apply changes apart from s; nil of nil.
func (s *Services) Clone() *Services {
	if s == nil {
		return nil
	}
	return &Services{
		Settings: s.Settings, Frontends: maps.Clone(s.Frontends),
		ClusterIPs: maps.Clone(s.ClusterIPs), OtherIPs: maps.Clone(s.OtherIPs), Hairpins: maps.Clone(s.Hairpins),
		Peers: maps.Clone(s.Peers),
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
