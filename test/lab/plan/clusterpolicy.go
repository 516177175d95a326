package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// clusterPolicy decodes a ClusterNetworkPolicy. An error means that the object is meaningless,
// although the API server, which checks it less than its own kinds, may accept it.
func clusterPolicy(doc []byte) (*policyv1beta1.ClusterNetworkPolicy, error) {
	p := new(policyv1beta1.ClusterNetworkPolicy)
	if err := json.Unmarshal(doc, p); err != nil {
		return nil, err
	}
	var selectors []*metav1.LabelSelector
	pods := func(namespaces *metav1.LabelSelector, pods *policyv1beta1.NamespacedPod) {
		selectors = append(selectors, namespaces)
		if pods != nil {
			selectors = append(selectors, &pods.NamespaceSelector, &pods.PodSelector)
		}
	}
	pods(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods)
	for _, r := range p.Spec.Ingress {
		for _, peer := range r.From {
			pods(peer.Namespaces, peer.Pods)
		}
	}
	for _, r := range p.Spec.Egress {
		for _, peer := range r.To {
			pods(peer.Namespaces, peer.Pods)
			selectors = append(selectors, peer.Nodes)
			for _, n := range peer.Networks {
				if _, err := netip.ParsePrefix(string(n)); err != nil {
					return nil, fmt.Errorf("read networks: %w", err)
				}
			}
		}
	}
	return p, validSelectors(selectors)
}

func validSelectors(selectors []*metav1.LabelSelector) error {
	for _, s := range selectors {
		if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
			return fmt.Errorf("read selector: %w", err)
		}
	}
	return nil
}
