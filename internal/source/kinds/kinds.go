// Package kinds is the table of the kinds of objects that come from Kubernetes: where an API serves
// each kind, what manifests call it, and how its objects become values of the model. Whoever adds a
// kind adds a line here, its type in package model and its translation; the sources and the store
// take it from there.
package kinds

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/calico"
	"sluice.dev/sluice/internal/source/fault"
	"sluice.dev/sluice/internal/source/kubeobj"
	"sluice.dev/sluice/internal/source/metallb"
)

// Kind is what a source has to know of a kind of objects.
type Kind struct {
	Kind model.Kind
	// Name is what the API and manifests call it.
	Name string
	// Places are where the API may serve it. The first that it does counts.
	Places     []Resource
	Namespaced bool
	// ForServices says that services are made of it, and not only policies.
	ForServices bool
	// ForFabric says that the pod network between nodes is made of it, and nothing else.
	ForFabric bool
	// ForAddresses says that it is about addresses of services from pools, and nothing else.
	ForAddresses bool
	// ForBGP says that it is about BGP, and nothing else. Of MetalLB's kinds none is: they are
	// about addresses.
	ForBGP bool
	// Optional says that the API need not serve it.
	Optional bool
	// Minor says that an object at fault of which no good version is known is no reason to keep all
	// that the kernel has: at most its own service goes without some endpoints.
	Minor bool
	// Typed says that its objects are read as Kubernetes' own Go types, from JSON or protobuf, and
	// that fields that those do not have are passed over. Objects of other kinds are read from JSON
	// alone, and refused if they have a field that is not known.
	Typed bool
	// Conditions says that the status of its objects has conditions.
	Conditions bool
	// Fields is a field selector: which objects to ask the API for.
	Fields string
	// Decode translates an object. It returns nil where nothing of the object can be used, and what
	// is wrong with it.
	Decode func(Text) (model.Object, error)
}

// Text is an object as somebody wrote it.
type Text struct {
	Data     []byte
	Protobuf bool  // Data is protobuf, without its envelope; otherwise it is JSON
	Also     error // what is wrong with the text that JSON was made of; nil: nothing
	// Namespace is that of a namespaced object that names none.
	Namespace string
	// IgnoreRefused has a policy that cannot be taken as it is written be model.Policy.Ignored.
	IgnoreRefused bool
}

// The groups that policies are served under.
const (
	policyGroup  = "policy.networking.k8s.io"
	CalicoGroup  = "projectcalico.org"     // as users write Calico's objects
	CalicoStored = "crd.projectcalico.org" // as Calico stores them
	MetalLBGroup = "metallb.io"
)

// DefaultNamespace is that of namespaced objects in manifests that name none.
const DefaultNamespace = "default"

// All are the kinds, in the order in which a source tells of them.
var All = []Kind{
	{Kind: model.ServiceKind, Name: "Service", Places: core("services"), Namespaced: true, ForServices: true, Typed: true, Conditions: true, Decode: typed(kubeobj.Service)},
	{
		Kind: model.EndpointSliceKind, Name: "EndpointSlice", Places: []Resource{{"discovery.k8s.io", "v1", "endpointslices"}},
		Namespaced: true, ForServices: true, Minor: true, Typed: true, Decode: typed(kubeobj.EndpointSlice),
	},
	{Kind: model.NodeKind, Name: "Node", Places: core("nodes"), ForServices: true, Minor: true, Typed: true, Decode: typed(kubeobj.Node)},
	{Kind: model.NamespaceKind, Name: "Namespace", Places: core("namespaces"), Typed: true, Decode: typed(kubeobj.Namespace)},
	{
		Kind: model.PodKind, Name: "Pod", Places: core("pods"), Namespaced: true, Typed: true, Decode: typed(kubeobj.Pod),
		Fields: "status.phase!=Succeeded,status.phase!=Failed", // those run no more and have no address
	},
	{Kind: model.ServiceAccountKind, Name: "ServiceAccount", Places: core("serviceaccounts"), Namespaced: true, Typed: true, Decode: typed(kubeobj.ServiceAccount)},
	{
		Kind: model.NetworkPolicy, Name: "NetworkPolicy", Places: []Resource{{"networking.k8s.io", "v1", "networkpolicies"}},
		Namespaced: true, Decode: policy(model.NetworkPolicy, kubeobj.DecodeNetworkPolicy),
	},
	{
		Kind: model.ClusterPolicy, Name: "ClusterNetworkPolicy", // of the same shape in both versions
		Places:   []Resource{{policyGroup, "v1beta1", "clusternetworkpolicies"}, {policyGroup, "v1alpha2", "clusternetworkpolicies"}},
		Optional: true, Conditions: true, Decode: policy(model.ClusterPolicy, kubeobj.DecodeClusterNetworkPolicy),
	},
	{Kind: model.TierKind, Name: "Tier", Places: calicos("tiers"), Optional: true, Decode: strict(calico.Tier)},
	{Kind: model.GlobalNetworkPolicy, Name: "GlobalNetworkPolicy", Places: calicos("globalnetworkpolicies"), Optional: true, Decode: policy(model.GlobalNetworkPolicy, calico.GlobalNetworkPolicy)},
	{Kind: model.CalicoPolicy, Name: "NetworkPolicy", Places: calicos("networkpolicies"), Namespaced: true, Optional: true, Decode: policy(model.CalicoPolicy, calico.NetworkPolicy)},
	{Kind: model.GlobalNetworkSet, Name: "GlobalNetworkSet", Places: calicos("globalnetworksets"), Optional: true, Decode: strict(calico.GlobalNetworkSet)},
	{Kind: model.NamespacedNetworkSet, Name: "NetworkSet", Places: calicos("networksets"), Namespaced: true, Optional: true, Decode: strict(calico.NetworkSet)},
	{Kind: model.HostEndpointKind, Name: "HostEndpoint", Places: calicos("hostendpoints"), Optional: true, Decode: strict(calico.HostEndpoint)},
	{Kind: model.IPPoolKind, Name: "IPPool", Places: calicos("ippools"), ForFabric: true, Optional: true, Decode: strict(calico.IPPool)},
	{Kind: model.BlockAffinityKind, Name: "BlockAffinity", Places: calicos("blockaffinities"), ForFabric: true, Optional: true, Minor: true, Decode: strict(calico.BlockAffinity)},
	{Kind: model.BGPConfigurationKind, Name: "BGPConfiguration", Places: calicos("bgpconfigurations"), ForBGP: true, Optional: true, Decode: strict(calico.BGPConfiguration)},
	{Kind: model.BGPPeerKind, Name: "BGPPeer", Places: calicos("bgppeers"), ForBGP: true, Optional: true, Decode: strict(calico.BGPPeer)},
	{Kind: model.BGPFilterKind, Name: "BGPFilter", Places: calicos("bgpfilters"), ForBGP: true, Optional: true, Decode: strict(calico.BGPFilter)},
	metallbs("v1beta1", "IPAddressPool", model.IPAddressPoolKind, strict(metallb.IPAddressPool)),
	metallbs("v1beta1", "L2Advertisement", model.L2AdvertisementKind, strict(metallb.L2Advertisement)),
	metallbs("v1beta1", "BGPAdvertisement", model.BGPAdvertisementKind, strict(metallb.BGPAdvertisement)),
	metallbs("v1beta2", "BGPPeer", model.MetalLBPeerKind, strict(metallb.BGPPeer)),
	metallbs("v1beta1", "Community", model.CommunityKind, strict(metallb.Community)),
	metallbs("v1beta1", "BFDProfile", model.BFDProfileKind, strict(metallb.BFDProfile)),
}

func core(plural string) []Resource { return []Resource{{"", "v1", plural}} }

func calicos(plural string) []Resource {
	return []Resource{{CalicoGroup, "v3", plural}, {CalicoStored, "v1", plural}}
}

// metallbs is a kind of MetalLB's. The API has it under its name in small letters, in the plural.
func metallbs(version, name string, kind model.Kind, decode func(Text) (model.Object, error)) Kind {
	plural := strings.Replace(strings.ToLower(name)+"s", "ys", "ies", 1)
	return Kind{
		Kind: kind, Name: name, Places: []Resource{{MetalLBGroup, version, plural}},
		Namespaced: true, ForAddresses: true, Optional: true, Decode: decode,
		Minor: kind != model.IPAddressPoolKind, // Services of a pool that cannot be read keep their addresses
	}
}

// Find returns what is to be known of a kind, nil for one that does not come from Kubernetes.
func Find(kind model.Kind) *Kind {
	for i := range All {
		if All[i].Kind == kind {
			return &All[i]
		}
	}
	return nil
}

// object is a pointer to a type of the model.
type object[T any] interface {
	*T
	model.Object
}

// orNil makes no object an Object that is nil.
func orNil[T any, P object[T]](o P, err error) (model.Object, error) {
	if o == nil {
		return nil, err
	}
	return o, err
}

// strict makes a decoder of a translation from JSON.
func strict[T any, P object[T]](translate func([]byte, error) (P, error)) func(Text) (model.Object, error) {
	return func(t Text) (model.Object, error) { return orNil(translate(t.Data, t.Also)) }
}

// policy makes a decoder of a translation of policies.
func policy(kind model.Kind, translate func([]byte, error) (*model.Policy, error)) func(Text) (model.Object, error) {
	return func(t Text) (model.Object, error) {
		p, err := translate(t.Data, t.Also)
		if t.IgnoreRefused && err != nil && (p == nil || p.Refused != "") {
			p = ignored(kind, p, t)
			p.Refuse(err)
		}
		if p == nil || p.Key.Name.Name == "" {
			return nil, err
		}
		return p, err
	}
}

// ignored returns a policy that stands for nothing, in place of a refused one, of which there may
// be nothing.
func ignored(kind model.Kind, p *model.Policy, t Text) *model.Policy {
	if p == nil {
		var o struct{ Metadata model.Name }
		_ = json.Unmarshal(t.Data, &o) // without a name there is nothing to say
		p = &model.Policy{Key: model.PolicyKey{Kind: kind, Name: o.Metadata}, Tier: model.DefaultTier.Name}
		if kind == model.NetworkPolicy || kind == model.CalicoPolicy {
			p.Key.Name.Namespace = cmp.Or(o.Metadata.Namespace, t.Namespace, DefaultNamespace)
		}
	}
	p.Ignored, p.Subject = true, model.Or()
	return p
}

// typed makes a decoder of a translation of one of Kubernetes' types.
func typed[K, T any, PK interface {
	*K
	metav1.Object
	Unmarshal([]byte) error
}, P object[T]](translate func(*K) (P, error)) func(Text) (model.Object, error) {
	return func(t Text) (model.Object, error) {
		o := PK(new(K))
		if err := t.decode(o); err != nil {
			return nil, err
		}
		// Many objects share a namespace, and so they share the string.
		o.SetNamespace(unique.Make(cmp.Or(o.GetNamespace(), t.Namespace)).Value())
		return orNil(translate((*K)(o)))
	}
}

// decode fills one of Kubernetes' types.
func (t Text) decode(into interface{ Unmarshal([]byte) error }) error {
	if t.Protobuf {
		return into.Unmarshal(t.Data)
	}
	err := kjson.UnmarshalCaseSensitivePreserveInts(t.Data, into)
	if field, reason, ok := fault.Misfit(t.Data, err); ok && field != "" {
		return errors.New(field + ": " + reason)
	}
	return err
}
