package plan

import (
	"encoding/json"
	"fmt"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// Policy is an object of a policy API. The lab hands it to the agents as its manifest has it.
type Policy struct {
	APIVersion, Kind string
	Namespace, Name  string // Namespace is empty for what belongs to the whole cluster
	Object           json.RawMessage
}

// The groups of the policy APIs.
const (
	networkingGroup    = "networking.k8s.io"
	clusterPolicyGroup = "policy.networking.k8s.io"
	calicoGroup        = "projectcalico.org"
	calicoStoredGroup  = "crd.projectcalico.org" // the same kinds, as Calico keeps them in a cluster
)

// scope says which objects a group's kind has: each of one namespace, or of the whole cluster.
type scope uint8

const (
	notPolicy scope = iota
	namespaced
	clusterWide
)

// policyScope knows the kinds that are passed on to the agents. All versions of a kind are: which
// ones it takes is the agent's to say.
func policyScope(apiVersion, kind string) scope {
	group, _, _ := strings.Cut(apiVersion, "/")
	switch group {
	case networkingGroup:
		if kind == "NetworkPolicy" {
			return namespaced
		}
	case clusterPolicyGroup:
		if kind == "ClusterNetworkPolicy" {
			return clusterWide
		}
	case calicoGroup, calicoStoredGroup:
		switch kind {
		case "NetworkPolicy", "NetworkSet":
			return namespaced
		case "Tier", "GlobalNetworkPolicy", "GlobalNetworkSet", "HostEndpoint":
			return clusterWide
		}
	}
	return notPolicy
}

// policy adds an object of a policy API.
func (o *Objects) policy(p Policy) error {
	if p.IsNetworkPolicy() {
		if _, err := p.NetworkPolicy(); err != nil {
			return err
		}
	}
	if policyScope(p.APIVersion, p.Kind) == namespaced {
		p.Namespace = orDefault(p.Namespace)
	} else {
		p.Namespace = ""
	}
	o.Policies = append(o.Policies, p)
	return nil
}

// IsNetworkPolicy says whether p is Kubernetes' own NetworkPolicy.
func (p *Policy) IsNetworkPolicy() bool {
	return p.Kind == "NetworkPolicy" && p.APIVersion == networkingv1.SchemeGroupVersion.String()
}

// NetworkPolicy decodes Kubernetes' own NetworkPolicy; the error says what in it is of the wrong type.
func (p *Policy) NetworkPolicy() (*networkingv1.NetworkPolicy, error) {
	np := new(networkingv1.NetworkPolicy)
	if err := json.Unmarshal(p.Object, np); err != nil {
		return nil, err
	}
	np.Namespace = orDefault(np.Namespace)
	return np, nil
}

// Resource names p's kind, for messages and files: "networkpolicy.networking.k8s.io".
func (p *Policy) Resource() string {
	group, _, _ := strings.Cut(p.APIVersion, "/")
	return fmt.Sprintf("%s.%s", strings.ToLower(p.Kind), group)
}
