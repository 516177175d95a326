package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// resource is where an API serves objects.
type resource struct {
	group, version string // group "" is the core
	plural         string
}

// path is the resource's place below the API's address.
func (r resource) path() string {
	if r.group == "" {
		return "/api/" + r.version + "/" + r.plural
	}
	return "/apis/" + r.group + "/" + r.version + "/" + r.plural
}

// in is the resource's place in a namespace; "" is the cluster.
func (r resource) in(namespace string) string {
	if namespace == "" {
		return r.path()
	}
	return strings.TrimSuffix(r.path(), r.plural) + "namespaces/" + namespace + "/" + r.plural
}

// apiVersion is "v1", "projectcalico.org/v3".
func (r resource) apiVersion() string {
	if r.group == "" {
		return r.version
	}
	return r.group + "/" + r.version
}

// String returns "networkpolicies.networking.k8s.io", as the API's own messages do.
func (r resource) String() string {
	if r.group == "" {
		return r.plural
	}
	return r.plural + "." + r.group
}

// kind is what is to be known of a kind of objects to follow it.
type kind struct {
	kind model.Kind
	// places are where the API may serve it, the first that it does counts. A
	// kind of one place that is not optional is asked for unseen.
	places   []resource
	optional bool
	// minor says that an object at fault of which no good version is known is no reason to keep all that the
	// kernel has: at most its own service goes without some endpoints.
	minor  bool
	binary bool   // ask for protobuf
	fields string // a field selector: which objects to ask for
	decode func(resource, raw) object
}

// policyGroup serves ClusterNetworkPolicy; the groups that Calico's kinds are
// served under come in the order in which they are preferred.
const (
	policyGroup       = "policy.networking.k8s.io"
	calicoUserGroup   = "projectcalico.org"
	calicoStoredGroup = "crd.projectcalico.org"
)

// notFinished leaves out the pods that run no more and have no address.
const notFinished = "status.phase!=Succeeded,status.phase!=Failed"

// serviceKinds are what services are made of; policyKinds are what policies are.
func serviceKinds() []kind {
	return []kind{
		{kind: model.ServiceKind, places: core("services"), binary: true, decode: typed(kubeobj.Service, keepService)},
		{kind: model.EndpointSliceKind, places: []resource{{discoveryv1.GroupName, "v1", "endpointslices"}}, minor: true, binary: true,
			decode: typed(endpointSlice, keepSlice)},
		{kind: model.NodeKind, places: core("nodes"), minor: true, binary: true, decode: typed(kubeobj.Node, nil)},
	}
}

func policyKinds() []kind {
	kinds := []kind{
		{kind: model.NamespaceKind, places: core("namespaces"), binary: true, decode: typed(kubeobj.Namespace, nil)},
		{kind: model.PodKind, places: core("pods"), binary: true, fields: notFinished, decode: typed(kubeobj.Pod, keepPod)},
		{kind: model.ServiceAccountKind, places: core("serviceaccounts"), binary: true, decode: typed(kubeobj.ServiceAccount, nil)},
		{kind: model.NetworkPolicy, places: []resource{{"networking.k8s.io", "v1", "networkpolicies"}},
			decode: strictly(kubeobj.DecodeNetworkPolicy)},
		{kind: model.ClusterPolicy, places: []resource{{policyGroup, "v1alpha2", "clusternetworkpolicies"}}, optional: true,
			decode: strictly(kubeobj.DecodeClusterNetworkPolicy)},
	}
	for _, c := range []struct {
		kind         model.Kind
		name, plural string
	}{
		{model.TierKind, "Tier", "tiers"},
		{model.GlobalNetworkPolicy, "GlobalNetworkPolicy", "globalnetworkpolicies"},
		{model.CalicoPolicy, "NetworkPolicy", "networkpolicies"},
		{model.GlobalNetworkSet, "GlobalNetworkSet", "globalnetworksets"},
		{model.NamespacedNetworkSet, "NetworkSet", "networksets"},
		{model.HostEndpointKind, "HostEndpoint", "hostendpoints"},
	} {
		kinds = append(kinds, kind{kind: c.kind, optional: true, decode: calicoObject(c.name),
			places: []resource{{calicoUserGroup, "v3", c.plural}, {calicoStoredGroup, "v1", c.plural}}})
	}
	return kinds
}

func core(plural string) []resource {
	return []resource{{corev1.GroupName, "v1", plural}}
}
