package probe

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sluice.dev/sluice/internal/lab/plan"
	"sluice.dev/sluice/internal/policytest/oracle"
)

// policies say which connections a cluster's network policies let pass, one end at a time: what the
// two ends see of a connection through a service may differ.
type policies struct {
	leaving, arriving *oracle.Objects
	workloads         map[string]string // of pods, both "namespace/name"
	unjudged          string            // why nothing can be said; "" if it can
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
		// These say nothing by themselves.
		case o.Kind != "Tier" && o.Kind != "NetworkSet" && o.Kind != "GlobalNetworkSet":
			p.unjudged = fmt.Sprintf("objects of kind %s", o.Resource())
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

// directions says which directions a policy isolates its pods in. Left out, policyTypes means
// Ingress, and Egress where there are rules for it.
func directions(np *networkingv1.NetworkPolicy) (egress, ingress bool) {
	types := np.Spec.PolicyTypes
	if len(types) == 0 {
		return len(np.Spec.Egress) > 0, true
	}
	return slices.Contains(types, networkingv1.PolicyTypeEgress), slices.Contains(types, networkingv1.PolicyTypeIngress)
}

// only is a policy's half for one direction.
func only(np *networkingv1.NetworkPolicy, direction networkingv1.PolicyType) *networkingv1.NetworkPolicy {
	half := np.DeepCopy()
	half.Spec.PolicyTypes = []networkingv1.PolicyType{direction}
	return half
}

// permits says whether policies let a source's requests to an endpoint pass. A request meets the
// egress policies of the source as it leaves, and the ingress policies of the endpoint on the
// endpoint's node. Where it is translated it has its own source and the endpoint for a destination;
// it is masqueraded after that.
func (j judge) permits(src Source, ep endpoint) bool {
	at := j.translator(src)
	if at == src.Node && (ep.pod == src.Name || src.Kind == FromNode && ep.node == src.Node) {
		return true // a pod always reaches itself, and a node its own pods
	}
	own := sameFamily(src.Addrs, j.To.Addr())
	if src.Kind == FromPod {
		to := ep.addr
		if at != src.Node {
			to = j.To
		}
		if !j.allowed(j.policies.leaving, own, to) {
			return false
		}
	}
	seen := own
	if ep.node != at && j.masqueraded(src, at) {
		seen = sameFamily(j.c.Node(at).IPs, j.To.Addr())
	}
	return j.allowed(j.policies.arriving, seen, ep.addr)
}

func (j judge) allowed(o *oracle.Objects, from netip.Addr, to netip.AddrPort) bool {
	return o.Allowed(oracle.Connection{From: from, To: to.Addr(), Protocol: corev1.Protocol(j.Protocol), Port: int32(to.Port())})
}

// masqueraded says whether requests leave the node that translates them with that node's address.
func (j judge) masqueraded(src Source, at string) bool {
	switch {
	case j.Kind == ClusterIP:
		return src.Kind != FromPod
	case j.svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal:
		return src.Kind == FromNode && src.Node == at || src.Kind == FromPod && src.Node != at
	}
	return true
}

// own says whether all endpoints are pods of the source's workload.
func (j judge) own(src Source, eps []endpoint) bool {
	return src.Of != "" && !slices.ContainsFunc(eps, func(e endpoint) bool { return j.policies.workloads[e.pod] != src.Of })
}

// judged turns what is expected of a request that reaches the service into what policies make of
// it.
func (j judge) judged(e Expect, eps []endpoint) Expect {
	permitted := 0
	for _, ep := range eps {
		if e.By[ep.pod] {
			permitted++
		}
	}
	switch {
	case j.policies.unjudged != "":
		return Expect{Fate: Unjudged, Why: j.policies.unjudged, Own: e.Own}
	case permitted == 0:
		return Expect{Fate: Dropped, Why: "by policy", Own: e.Own}
	case permitted < len(eps):
		e.Fate, e.Why = Partly, "policies keep some endpoints from answering"
	}
	return e
}

// sameFamily returns the first address of to's family; the zero Addr, which no policy allows, if
// there is none.
func sameFamily(addrs []netip.Addr, to netip.Addr) netip.Addr {
	for _, a := range addrs {
		if a.Is4() == to.Is4() {
			return a
		}
	}
	return netip.Addr{}
}
