package probe

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/policytest/oracle"
)

// policies determine which connections a cluster's network policies allow, one end at a time: the
// two ends may see a connection through a service differently.
type policies struct {
	leaving, arriving *oracle.Objects
	workloads         map[string]string // of pods, both "namespace/name"
	unknown           string            // why the outcome is unknown; "" if it is known
}

func newPolicies(c *plan.Cluster) *policies {
	nodes := make([]*corev1.Node, len(c.Nodes))
	for i := range c.Nodes {
		nodes[i] = c.Nodes[i].Object(c.Created)
	}
	p := &policies{
		leaving:   &oracle.Objects{Namespaces: c.Namespaces, Pods: c.Pods, Nodes: nodes},
		arriving:  &oracle.Objects{Namespaces: c.Namespaces, Pods: c.Pods, Nodes: nodes},
		workloads: map[string]string{},
	}
	for _, pod := range c.Pods {
		p.workloads[pod.Namespace+"/"+pod.Name] = plan.WorkloadOf(pod)
	}
	for _, o := range c.Policies {
		switch {
		case o.NetworkPolicy != nil:
			p.addNetworkPolicy(o.NetworkPolicy)
		case o.ClusterPolicy != nil:
			egress, ingress := o.ClusterPolicy.DeepCopy(), o.ClusterPolicy.DeepCopy()
			egress.Spec.Ingress, ingress.Spec.Egress = nil, nil
			p.leaving.ClusterPolicies = append(p.leaving.ClusterPolicies, egress)
			p.arriving.ClusterPolicies = append(p.arriving.ClusterPolicies, ingress)
		case o.Judges():
			p.unknown = fmt.Sprintf("objects of kind %s", o.Resource())
		}
	}
	return p
}

func (p *policies) addNetworkPolicy(np *networkingv1.NetworkPolicy) {
	egress, ingress := directions(np)
	if egress {
		p.leaving.NetworkPolicies = append(p.leaving.NetworkPolicies, only(np, networkingv1.PolicyTypeEgress))
	}
	if ingress {
		p.arriving.NetworkPolicies = append(p.arriving.NetworkPolicies, only(np, networkingv1.PolicyTypeIngress))
	}
}

// directions returns in which directions a policy isolates its pods. Without policyTypes, that is
// Ingress, and Egress if there are rules for it.
func directions(np *networkingv1.NetworkPolicy) (egress, ingress bool) {
	types := np.Spec.PolicyTypes
	if len(types) == 0 {
		return len(np.Spec.Egress) > 0, true
	}
	return slices.Contains(types, networkingv1.PolicyTypeEgress), slices.Contains(types, networkingv1.PolicyTypeIngress)
}

// only returns a policy's half for one direction.
func only(np *networkingv1.NetworkPolicy, direction networkingv1.PolicyType) *networkingv1.NetworkPolicy {
	half := np.DeepCopy()
	half.Spec.PolicyTypes = []networkingv1.PolicyType{direction}
	return half
}

// allowedByPolicies reports whether policies allow a source's requests to an endpoint. A request
// meets the egress policies of the source as it leaves, and the ingress policies of the endpoint on
// the endpoint's node. Where it is translated, it still has its own source, and the endpoint as
// destination; it is masqueraded afterwards.
func (r frontendRules) allowedByPolicies(src Source, ep endpoint) bool {
	at := r.translatingNode(src)
	if at == src.Node && (ep.pod == src.Name || src.Kind == FromNode && ep.node == src.Node) {
		return true // a pod always reaches itself, and a node its own pods
	}
	own := sameFamily(src.Addrs, r.To.Addr())
	if src.Kind == FromPod {
		to := ep.addr
		if at != src.Node {
			to = r.To
		}
		if !r.allowed(r.policies.leaving, own, to) {
			return false
		}
	}
	seen := own
	if ep.node != at && r.masqueraded(src, at) {
		seen = r.c.Source(r.c.Node(at), r.c.Node(ep.node), r.To.Addr())
	}
	return r.allowed(r.policies.arriving, seen, ep.addr)
}

func (r frontendRules) allowed(o *oracle.Objects, from netip.Addr, to netip.AddrPort) bool {
	return o.Allowed(oracle.Connection{From: from, To: to.Addr(), Protocol: corev1.Protocol(r.Protocol), Port: int32(to.Port())})
}

// masqueraded reports whether requests leave the translating node with that node's address.
func (r frontendRules) masqueraded(src Source, at string) bool {
	switch {
	case r.Kind == ClusterIP:
		return src.Kind != FromPod
	case r.svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal:
		return src.Kind == FromNode && src.Node == at || src.Kind == FromPod && src.Node != at
	}
	return true
}

// ownService reports whether all endpoints are pods of the source's workload.
func (r frontendRules) ownService(src Source, eps []endpoint) bool {
	return src.Of != "" && !slices.ContainsFunc(eps, func(e endpoint) bool { return r.policies.workloads[e.pod] != src.Of })
}

// applyPolicies applies policies to the expected outcome of a request that reaches the service.
func (r frontendRules) applyPolicies(e Expect, eps []endpoint) Expect {
	permitted := 0
	for _, ep := range eps {
		if e.By[ep.pod] {
			permitted++
		}
	}
	switch {
	case r.policies.unknown != "":
		return Expect{Fate: Unknown, Why: r.policies.unknown, Own: e.Own}
	case permitted == 0:
		return Expect{Fate: Dropped, Why: "by policy", Own: e.Own}
	case permitted < len(eps):
		e.Fate, e.Why = Partly, "policies keep some endpoints from answering"
	}
	return e
}

// sameFamily returns the first address of to's family, or the zero Addr, which no policy allows.
func sameFamily(addrs []netip.Addr, to netip.Addr) netip.Addr {
	for _, a := range addrs {
		if a.Is4() == to.Is4() {
			return a
		}
	}
	return netip.Addr{}
}
