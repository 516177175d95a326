package oracle

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// clusterTier walks the policies of a tier by ascending priority and their rules as they are
// written. The first that matches decides: Accept and Deny for good, Pass for the rest of the tier.
// Policies of one priority go by name, which is Sluice's choice where the API leaves it open.
func (o *Objects) clusterTier(tier policyv1beta1.Tier, subject *corev1.Pod, c Connection, d direction) (final, allow bool) {
	var inOrder []*policyv1beta1.ClusterNetworkPolicy
	for _, p := range o.ClusterPolicies {
		if p.Spec.Tier == tier && o.isSubject(p.Spec.Subject, subject) {
			inOrder = append(inOrder, p)
		}
	}
	slices.SortFunc(inOrder, func(a, b *policyv1beta1.ClusterNetworkPolicy) int {
		if a.Spec.Priority != b.Spec.Priority {
			return int(a.Spec.Priority - b.Spec.Priority)
		}
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	for _, p := range inOrder {
		for _, action := range o.clusterRules(p, c, d) {
			switch action {
			case policyv1beta1.ClusterNetworkPolicyRuleActionAccept:
				return true, true
			case policyv1beta1.ClusterNetworkPolicyRuleActionDeny:
				return true, false
			case policyv1beta1.ClusterNetworkPolicyRuleActionPass:
				return false, false
			}
		}
	}
	return false, false
}

func (o *Objects) isSubject(s policyv1beta1.ClusterNetworkPolicySubject, p *corev1.Pod) bool {
	if s.Namespaces != nil {
		return o.inNamespaces(p, s.Namespaces)
	}
	return o.isNamespacedPod(s.Pods, p)
}

func (o *Objects) isNamespacedPod(s *policyv1beta1.NamespacedPod, p *corev1.Pod) bool {
	return s != nil && o.inNamespaces(p, &s.NamespaceSelector) && selects(&s.PodSelector, p.Labels)
}

// clusterRules are the actions of the rules that match, in order.
func (o *Objects) clusterRules(p *policyv1beta1.ClusterNetworkPolicy, c Connection, d direction) (actions []policyv1beta1.ClusterNetworkPolicyRuleAction) {
	if d == ingress {
		for _, r := range p.Spec.Ingress {
			from := func(peer policyv1beta1.ClusterNetworkPolicyIngressPeer) bool {
				return o.isPodPeer(peer.Namespaces, peer.Pods, c.From)
			}
			if slices.ContainsFunc(r.From, from) && o.protocolMatches(r.Protocols, c) {
				actions = append(actions, r.Action)
			}
		}
		return actions
	}
	for _, r := range p.Spec.Egress {
		to := func(peer policyv1beta1.ClusterNetworkPolicyEgressPeer) bool {
			return o.isPodPeer(peer.Namespaces, peer.Pods, c.To) ||
				peer.Nodes != nil && o.isNode(peer.Nodes, c.To) ||
				slices.ContainsFunc(peer.Networks, func(n policyv1beta1.CIDR) bool { return netip.MustParsePrefix(string(n)).Contains(c.To) })
		}
		if slices.ContainsFunc(r.To, to) && o.protocolMatches(r.Protocols, c) {
			actions = append(actions, r.Action)
		}
	}
	return actions
}

// isPodPeer: pods on the host network "are not included in this type of peer".
func (o *Objects) isPodPeer(namespaces *metav1.LabelSelector, pods *policyv1beta1.NamespacedPod, a netip.Addr) bool {
	pod := o.pod(a)
	if pod == nil {
		return false
	}
	return namespaces != nil && o.inNamespaces(pod, namespaces) || o.isNamespacedPod(pods, pod)
}

func (o *Objects) isNode(s *metav1.LabelSelector, a netip.Addr) bool {
	for _, n := range o.Nodes {
		if !selects(s, n.Labels) {
			continue
		}
		for _, na := range n.Status.Addresses {
			if na.Address == a.String() {
				return true
			}
		}
	}
	return false
}

// protocolMatches: without protocols all traffic matches, whatever its protocol.
func (o *Objects) protocolMatches(ps []policyv1beta1.ClusterNetworkPolicyProtocol, c Connection) bool {
	if len(ps) == 0 {
		return true
	}
	for _, p := range ps {
		switch {
		case p.DestinationNamedPort != "":
			if o.isNamed(c, p.DestinationNamedPort) {
				return true
			}
		case p.TCP != nil && c.Protocol == corev1.ProtocolTCP:
			if inPort(p.TCP.DestinationPort, c.Port) {
				return true
			}
		case p.UDP != nil && c.Protocol == corev1.ProtocolUDP:
			if inPort(p.UDP.DestinationPort, c.Port) {
				return true
			}
		case p.SCTP != nil && c.Protocol == corev1.ProtocolSCTP:
			if inPort(p.SCTP.DestinationPort, c.Port) {
				return true
			}
		}
	}
	return false
}

func inPort(p *policyv1beta1.Port, port int32) bool {
	if p == nil {
		return true
	}
	if p.Range != nil {
		return p.Range.Start <= port && port <= p.Range.End
	}
	return p.Number == port
}
