package model

import (
	"cmp"
	"encoding/json"
	"strings"
)

// Kind names a kind of objects, as Kubernetes spells it where it has the kind, with the group where
// two have it: "NetworkPolicy.projectcalico.org", as kubectl does.
type Kind string

// The kinds of objects.
const (
	ServiceKind        Kind = "Service"
	EndpointSliceKind  Kind = "EndpointSlice"
	PodKind            Kind = "Pod"
	NodeKind           Kind = "Node"
	NamespaceKind      Kind = "Namespace"
	ServiceAccountKind Kind = "ServiceAccount"
	TierKind           Kind = "Tier"
	HostEndpointKind   Kind = "HostEndpoint"
	IPPoolKind         Kind = "IPPool"
	BlockAffinityKind  Kind = "BlockAffinity"

	BGPConfigurationKind Kind = "BGPConfiguration"
	BGPPeerKind          Kind = "BGPPeer"
	BGPFilterKind        Kind = "BGPFilter"

	// MetalLB's. Calico has a BGPPeer, too.
	IPAddressPoolKind    Kind = "IPAddressPool"
	L2AdvertisementKind  Kind = "L2Advertisement"
	BGPAdvertisementKind Kind = "BGPAdvertisement"
	MetalLBPeerKind      Kind = "BGPPeer.metallb.io"
	CommunityKind        Kind = "Community"
	BFDProfileKind       Kind = "BFDProfile"

	// A Policy is of one of these.
	NetworkPolicy       Kind = "NetworkPolicy"
	ClusterPolicy       Kind = "ClusterNetworkPolicy"
	CalicoPolicy        Kind = "NetworkPolicy.projectcalico.org"
	GlobalNetworkPolicy Kind = "GlobalNetworkPolicy"
	// Failsafe is of what no API declares: the ports of the node that no host endpoint closes.
	Failsafe Kind = "failsafe"

	// A NetworkSet is of one of these. AddressList is a text file of addresses.
	GlobalNetworkSet     Kind = "GlobalNetworkSet"
	NamespacedNetworkSet Kind = "NetworkSet"
	AddressList          Kind = "AddressList"

	// AttachmentKind is of what no API declares: the interfaces of this node's pods, as who made
	// them says.
	AttachmentKind Kind = "attachment"
)

// The kinds whose objects have the same Go type, *Policy and *NetworkSet.
var (
	PolicyKinds     = []Kind{NetworkPolicy, ClusterPolicy, CalicoPolicy, GlobalNetworkPolicy}
	NetworkSetKinds = []Kind{NamespacedNetworkSet, GlobalNetworkSet, AddressList}
)

// Ref names an object. It also names what else can be at fault, as "interface eth0" or
// "kubeconfig": Kind says what it is then. The zero Ref names nothing.
type Ref struct {
	Kind Kind
	Name Name
}

// A PolicyKey is the Ref of a Policy, and a NetworkSetKey that of a NetworkSet.
type (
	PolicyKey     = Ref
	NetworkSetKey = Ref
)

// String returns "Service shop/web" or "Node worker-1", and the kind alone where there is no name.
func (r Ref) String() string {
	if r.Name == (Name{}) {
		return string(r.Kind)
	}
	return string(r.Kind) + " " + r.Name.String()
}

// MarshalText writes what String returns.
func (r Ref) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText wrote, of objects and of what else there is.
func (r *Ref) UnmarshalText(text []byte) error {
	kind, name, _ := strings.Cut(string(text), " ")
	*r = Ref{Kind: Kind(kind), Name: Name{Name: name}}
	if namespace, name, ok := strings.Cut(name, "/"); ok && namespace != "" {
		r.Name = Name{Namespace: namespace, Name: name}
	}
	return nil
}

// refJSON is a Ref in JSON.
type refJSON struct {
	APIVersion string `json:"apiVersion,omitempty"` // of a kind that is not read
	Kind       Kind   `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name,omitempty"`
}

// Unread is the Kind of objects that Sluice does not read, with the version of their API.
func Unread(apiVersion, kind string) Kind { return Kind(apiVersion + unread + kind) }

const unread = " " // which neither an API's version nor its kinds have

// MarshalJSON writes {"kind": …, "namespace": …, "name": …}, and "apiVersion" of a kind that is not
// read. As a key of a JSON object, a Ref is the text of MarshalText.
func (r Ref) MarshalJSON() ([]byte, error) {
	j := refJSON{Kind: r.Kind, Namespace: r.Name.Namespace, Name: r.Name.Name}
	if version, kind, has := strings.Cut(string(r.Kind), unread); has && strings.Contains("/"+version, "/v") {
		j.APIVersion, j.Kind = version, Kind(kind)
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *Ref) UnmarshalJSON(text []byte) error {
	var j refJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	*r = Ref{j.Kind, Name{j.Namespace, j.Name}}
	if j.APIVersion != "" {
		r.Kind = Unread(j.APIVersion, string(j.Kind))
	}
	return nil
}

// Compare orders by kind, then name.
func (r Ref) Compare(o Ref) int {
	if c := cmp.Compare(r.Kind, o.Kind); c != 0 {
		return c
	}
	return r.Name.Compare(o.Name)
}

// Issue is a fault of the object.
func (r Ref) Issue(reason string) Issue {
	return Issue{Object: r, Reason: reason}
}

// Object is a version of an object: a pointer to one of the types of this package.
type Object interface {
	// Ref says which object it is.
	Ref() Ref
}

// Ref implements Object, as those below do.
func (s *Service) Ref() Ref { return Ref{ServiceKind, s.Name} }

// Ref implements Object.
func (s *EndpointSlice) Ref() Ref { return Ref{EndpointSliceKind, s.Name} }

// Ref implements Object.
func (p *Pod) Ref() Ref { return Ref{PodKind, p.Name} }

// Ref implements Object.
func (n *Node) Ref() Ref { return Ref{NodeKind, Name{Name: n.Name}} }

// Ref implements Object.
func (n *Namespace) Ref() Ref { return Ref{NamespaceKind, Name{Name: n.Name}} }

// Ref implements Object.
func (a *ServiceAccount) Ref() Ref { return Ref{ServiceAccountKind, a.Name} }

// Ref implements Object.
func (t *Tier) Ref() Ref { return Ref{TierKind, Name{Name: t.Name}} }

// Ref implements Object.
func (h *HostEndpoint) Ref() Ref { return Ref{HostEndpointKind, Name{Name: h.Name}} }

// Ref implements Object.
func (p *IPPool) Ref() Ref { return Ref{IPPoolKind, Name{Name: p.Name}} }

// Ref implements Object.
func (b *BlockAffinity) Ref() Ref { return Ref{BlockAffinityKind, Name{Name: b.Name}} }

// Ref implements Object.
func (c *BGPConfiguration) Ref() Ref { return Ref{BGPConfigurationKind, Name{Name: c.Name}} }

// Ref implements Object.
func (p *BGPPeer) Ref() Ref { return Ref{BGPPeerKind, Name{Name: p.Name}} }

// Ref implements Object.
func (b *BGPFilter) Ref() Ref { return Ref{BGPFilterKind, Name{Name: b.Name}} }

// Ref implements Object.
func (p *IPAddressPool) Ref() Ref { return Ref{IPAddressPoolKind, p.Name} }

// Ref implements Object.
func (a *L2Advertisement) Ref() Ref { return Ref{L2AdvertisementKind, a.Name} }

// Ref implements Object.
func (a *BGPAdvertisement) Ref() Ref { return Ref{BGPAdvertisementKind, a.Name} }

// Ref implements Object.
func (p *MetalLBPeer) Ref() Ref { return Ref{MetalLBPeerKind, p.Name} }

// Ref implements Object.
func (c *Community) Ref() Ref { return Ref{CommunityKind, c.Name} }

// Ref implements Object.
func (p *BFDProfile) Ref() Ref { return Ref{BFDProfileKind, p.Name} }

// Ref implements Object.
func (p *Policy) Ref() Ref { return p.Key }

// Ref implements Object.
func (s *NetworkSet) Ref() Ref { return s.Key }
