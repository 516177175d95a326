package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// Policy is an object of a policy API. The lab passes it to the agents as its manifest has it.
type Policy struct {
	APIVersion, Kind string
	Namespace, Name  string // Namespace is empty for cluster-scoped objects
	Object           json.RawMessage

	// The object, if it is one of these kinds and versions and is valid.
	NetworkPolicy *networkingv1.NetworkPolicy
	ClusterPolicy *policyv1beta1.ClusterNetworkPolicy
}

// These are the groups of the policy APIs.
const (
	networkingGroup    = "networking.k8s.io"
	clusterPolicyGroup = "policy.networking.k8s.io"
	calicoGroup        = "projectcalico.org"
	calicoStoredGroup  = "crd.projectcalico.org" // the same kinds, as Calico keeps them in a cluster
)

// scope says whether the objects of a group's kind belong to a namespace or to the whole cluster.
type scope uint8

const (
	notPolicy scope = iota
	namespaced
	clusterWide
)

// policyScope knows the kinds that are passed on to the agents, in all their versions: the agent
// decides which ones it accepts.
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
		case "Tier", "GlobalNetworkPolicy", "GlobalNetworkSet", "HostEndpoint", "IPPool", "BlockAffinity", "BGPConfiguration", "BGPPeer", "BGPFilter":
			return clusterWide
		}
	}
	return notPolicy
}

// PolicyKinds are the resources of the policy APIs as an API server names them, each with the kind
// of its objects.
var PolicyKinds = map[string]string{
	"networking.k8s.io/v1/networkpolicies":                     "NetworkPolicy",
	"policy.networking.k8s.io/v1beta1/clusternetworkpolicies":  "ClusterNetworkPolicy",
	"policy.networking.k8s.io/v1alpha2/clusternetworkpolicies": "ClusterNetworkPolicy",
	"projectcalico.org/v3/tiers":                               "Tier",
	"projectcalico.org/v3/networkpolicies":                     "NetworkPolicy",
	"projectcalico.org/v3/globalnetworkpolicies":               "GlobalNetworkPolicy",
	"projectcalico.org/v3/networksets":                         "NetworkSet",
	"projectcalico.org/v3/globalnetworksets":                   "GlobalNetworkSet",
	"projectcalico.org/v3/hostendpoints":                       "HostEndpoint",
	"crd.projectcalico.org/v1/tiers":                           "Tier",
	"crd.projectcalico.org/v1/networkpolicies":                 "NetworkPolicy",
	"crd.projectcalico.org/v1/globalnetworkpolicies":           "GlobalNetworkPolicy",
	"crd.projectcalico.org/v1/networksets":                     "NetworkSet",
	"crd.projectcalico.org/v1/globalnetworksets":               "GlobalNetworkSet",
	"crd.projectcalico.org/v1/hostendpoints":                   "HostEndpoint",
}

// Judges reports whether the object decides by itself, or with those of other kinds, what passes.
func (p *Policy) Judges() bool {
	switch p.Kind {
	case "Tier", "NetworkSet", "GlobalNetworkSet", "IPPool", "BlockAffinity", "BGPConfiguration", "BGPPeer", "BGPFilter":
		return false
	}
	return true
}

// NewPolicy reads an object of a policy API. The error says why it is invalid.
func NewPolicy(apiVersion, kind, namespace, name string, object json.RawMessage) (Policy, error) {
	var o Objects
	if err := o.policy(Policy{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name, Object: object}); err != nil {
		return Policy{}, err
	}
	return o.Policies[0], nil
}

// policy adds an object of a policy API.
func (o *Objects) policy(p Policy) error {
	if policyScope(p.APIVersion, p.Kind) == namespaced {
		p.Namespace = orDefault(p.Namespace)
	} else {
		p.Namespace = ""
	}
	switch p.APIVersion + " " + p.Kind {
	case networkingv1.SchemeGroupVersion.String() + " NetworkPolicy":
		np := new(networkingv1.NetworkPolicy)
		if err := json.Unmarshal(p.Object, np); err != nil {
			return err
		}
		if err := validate(&np.Spec); err != nil {
			return err
		}
		np.Namespace = p.Namespace
		p.NetworkPolicy = np
	case clusterPolicyGroup + "/v1beta1 ClusterNetworkPolicy", clusterPolicyGroup + "/v1alpha2 ClusterNetworkPolicy": // of the same shape
		if cp, err := clusterPolicy(p.Object); err == nil {
			p.ClusterPolicy = cp
		}
	}
	o.Policies = append(o.Policies, p)
	return nil
}

// validate finds invalid selectors and blocks, which an API server refuses in a NetworkPolicy.
func validate(s *networkingv1.NetworkPolicySpec) error {
	selectors := []*metav1.LabelSelector{&s.PodSelector}
	var blocks []*networkingv1.IPBlock
	peers := func(ps []networkingv1.NetworkPolicyPeer) {
		for _, p := range ps {
			selectors = append(selectors, p.PodSelector, p.NamespaceSelector)
			blocks = append(blocks, p.IPBlock)
		}
	}
	for _, r := range s.Ingress {
		peers(r.From)
	}
	for _, r := range s.Egress {
		peers(r.To)
	}
	if err := validSelectors(selectors); err != nil {
		return err
	}
	for _, b := range blocks {
		if b == nil {
			continue
		}
		if err := validateBlock(b); err != nil {
			return fmt.Errorf("read ipBlock: %w", err)
		}
	}
	return nil
}

func validateBlock(b *networkingv1.IPBlock) error {
	cidr, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return err
	}
	for _, text := range b.Except {
		except, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		if !cidr.Contains(except.Addr()) || except.Bits() <= cidr.Bits() {
			return fmt.Errorf("except %s does not lie within %s", except, cidr)
		}
	}
	return nil
}

// Resource returns the name of p's kind, for messages and files: "networkpolicy.networking.k8s.io".
func (p *Policy) Resource() string {
	group, _, _ := strings.Cut(p.APIVersion, "/")
	return fmt.Sprintf("%s.%s", strings.ToLower(p.Kind), group)
}
