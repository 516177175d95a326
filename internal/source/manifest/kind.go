package manifest

import (
	"strings"

	"sluice.dev/sluice/internal/model"
)

// listKind stands for the kinds that hold others.
const listKind = model.Kind("List")

// typeOf is an apiVersion and a kind.
type typeOf struct{ apiVersion, kind string }

// kubernetesKinds are the objects of Kubernetes' own that get read.
var kubernetesKinds = map[typeOf]model.Kind{
	{"v1", "Service"}:                         model.ServiceKind,
	{"v1", "Pod"}:                             model.PodKind,
	{"v1", "Node"}:                            model.NodeKind,
	{"v1", "Namespace"}:                       model.NamespaceKind,
	{"v1", "ServiceAccount"}:                  model.ServiceAccountKind,
	{"discovery.k8s.io/v1", "EndpointSlice"}:  model.EndpointSliceKind,
	{"networking.k8s.io/v1", "NetworkPolicy"}: model.NetworkPolicy,
	{"policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"}: model.ClusterPolicy,
}

// calicoVersions are those in which people write Calico's objects, and in which
// Calico stores them.
var calicoVersions = [...]string{"projectcalico.org/v3", "crd.projectcalico.org/v1"}

// calicoKinds are the objects of Calico's that get read, by the names it gives them.
var calicoKinds = map[model.Kind]string{
	model.CalicoPolicy:         "NetworkPolicy",
	model.GlobalNetworkPolicy:  "GlobalNetworkPolicy",
	model.TierKind:             "Tier",
	model.NamespacedNetworkSet: "NetworkSet",
	model.GlobalNetworkSet:     "GlobalNetworkSet",
	model.HostEndpointKind:     "HostEndpoint",
}

// kinds are all objects that get read, and the lists of them; item is the
// kind of a typed list's items, which mostly don't say theirs.
var kinds = func() map[typeOf]kindEntry {
	all := map[typeOf]kindEntry{{"v1", "List"}: {kind: listKind}}
	add := func(t typeOf, kind model.Kind) {
		all[t] = kindEntry{kind: kind}
		all[typeOf{t.apiVersion, t.kind + "List"}] = kindEntry{kind: listKind, item: t.kind}
	}
	for t, kind := range kubernetesKinds {
		add(t, kind)
	}
	for kind, name := range calicoKinds {
		for _, version := range calicoVersions {
			add(typeOf{version, name}, kind)
		}
	}
	return all
}()

type kindEntry struct {
	kind model.Kind
	item string
}

// ours are the kinds' bare names, to tell another group's "Service" apart.
var ours = func() map[string]bool {
	names := make(map[string]bool)
	for t, entry := range kinds {
		names[t.kind] = entry.kind != listKind
	}
	return names
}()

// unread tells, of a kind that isn't read, whether it is a policy: nobody should
// think that it is in force. The result says what it has to be written as.
func unread(apiVersion, kind string) (instead string, ok bool) {
	group, _, _ := strings.Cut(apiVersion, "/")
	switch {
	case group == "extensions" && kind == "NetworkPolicy":
		return "networking.k8s.io/v1", true
	case group == "policy.networking.k8s.io" && (kind == "AdminNetworkPolicy" || kind == "BaselineAdminNetworkPolicy"):
		return "a ClusterNetworkPolicy of policy.networking.k8s.io/v1alpha2", true
	}
	for _, version := range [...]string{"networking.k8s.io/v1", "policy.networking.k8s.io/v1alpha2", calicoVersions[0], calicoVersions[1]} {
		if _, read := kinds[typeOf{version, kind}]; read && strings.HasPrefix(version, group+"/") {
			return version, true
		}
	}
	return "", false
}

// isNamespaced tells whether objects of a kind live in a namespace.
func isNamespaced(kind model.Kind) bool {
	switch kind {
	case model.NodeKind, model.NamespaceKind, model.ClusterPolicy, model.GlobalNetworkPolicy,
		model.TierKind, model.GlobalNetworkSet, model.HostEndpointKind:
		return false
	}
	return true
}
