package kubeobj

import (
	"cmp"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

const (
	maxPriority = 1000 // the API's limit
	maxRuleName = 100  // characters, likewise
)

// ClusterNetworkPolicy translates a policy.networking.k8s.io/v1beta1 ClusterNetworkPolicy of the
// API's standard channel; it refuses the fields of the experimental one.
//
// A faulty policy is returned as by NetworkPolicy. There is no policy at all if the fault is in its
// name or subject.
func ClusterNetworkPolicy(o *policyv1beta1.ClusterNetworkPolicy) (*model.Policy, error) {
	var f fault.List
	p := &model.Policy{
		Order:   float64(o.Spec.Priority),
		Ingress: len(o.Spec.Ingress) > 0,
		Egress:  len(o.Spec.Egress) > 0,
	}
	p.Key = model.PolicyKey{Kind: model.ClusterPolicy, Name: model.Name{Name: clusterName(&o.ObjectMeta, &f)}}
	p.Tier = clusterTier(o.Spec.Tier, &f)
	if o.Spec.Priority < 0 || o.Spec.Priority > maxPriority {
		f.Aside("spec.priority", "%d is not in 0-%d", o.Spec.Priority, maxPriority)
	}
	mark := f.Mark()
	p.Subject = clusterPods(o.Spec.Subject.Namespaces, o.Spec.Subject.Pods, &f)
	f.Under(mark, "spec.subject")
	known := f.Known()
	for i := range o.Spec.Ingress {
		mark := f.Mark()
		rule := clusterIngress(&o.Spec.Ingress[i], i, &f)
		f.Under(mark, "spec.ingress[%d]", i)
		p.IngressRules = append(p.IngressRules, rule)
	}
	for i := range o.Spec.Egress {
		mark := f.Mark()
		rule := clusterEgress(&o.Spec.Egress[i], i, &f)
		f.Under(mark, "spec.egress[%d]", i)
		p.EgressRules = append(p.EgressRules, rule)
	}
	return policyResult(p, known, &f)
}

// clusterTier returns the tier of a policy; one whose tier is unknown denies before all others.
func clusterTier(t policyv1beta1.Tier, f *fault.List) string {
	switch t {
	case policyv1beta1.AdminTier:
		return model.AdminTier.Name
	case policyv1beta1.BaselineTier:
		return model.BaselineTier.Name
	}
	f.Aside("spec.tier", "%q is neither Admin nor Baseline", string(t))
	return model.AdminTier.Name
}

func clusterIngress(in *policyv1beta1.ClusterNetworkPolicyIngressRule, i int, f *fault.List) model.PolicyRule {
	rule := clusterRule(in.Name, fmt.Sprintf("ingress[%d]", i), in.Action, f)
	if len(in.From) == 0 {
		f.Reject("from", "is empty; a rule needs a peer")
	}
	rule.Source.Peers = [][]model.Peer{each("from", in.From, f, func(p *policyv1beta1.ClusterNetworkPolicyIngressPeer, f *fault.List) model.Peer {
		return model.Peer{Selector: clusterPods(p.Namespaces, p.Pods, f)}
	})}
	rule.Destination.Ports = clusterPorts(in.Protocols, f)
	return rule
}

func clusterEgress(in *policyv1beta1.ClusterNetworkPolicyEgressRule, i int, f *fault.List) model.PolicyRule {
	rule := clusterRule(in.Name, fmt.Sprintf("egress[%d]", i), in.Action, f)
	if len(in.To) == 0 {
		f.Reject("to", "is empty; a rule needs a peer")
	}
	networks := false
	rule.Destination.Peers = [][]model.Peer{each("to", in.To, f, func(p *policyv1beta1.ClusterNetworkPolicyEgressPeer, f *fault.List) model.Peer {
		networks = networks || len(p.Networks) > 0
		return clusterEgressPeer(p, f)
	})}
	rule.Destination.Ports = clusterPorts(in.Protocols, f)
	for j := range in.Protocols {
		if networks && in.Protocols[j].DestinationNamedPort != "" {
			f.Reject(fmt.Sprintf("protocols[%d].destinationNamedPort", j), "can't stand in a rule with networks, whose addresses have no named ports")
		}
	}
	return rule
}

var ruleActions = map[policyv1beta1.ClusterNetworkPolicyRuleAction]model.Action{
	policyv1beta1.ClusterNetworkPolicyRuleActionAccept: model.Allow,
	policyv1beta1.ClusterNetworkPolicyRuleActionDeny:   model.Deny,
	policyv1beta1.ClusterNetworkPolicyRuleActionPass:   model.Pass,
}

func clusterRule(name, place string, action policyv1beta1.ClusterNetworkPolicyRuleAction, f *fault.List) model.PolicyRule {
	rule := model.PolicyRule{Name: cmp.Or(name, place)}
	if len(name) > maxRuleName {
		f.Reject("name", "has %d characters, at most %d are allowed", len(name), maxRuleName)
	}
	known := false
	if rule.Action, known = ruleActions[action]; !known {
		f.Reject("action", "%q is none of Accept, Deny and Pass", string(action))
	}
	return rule
}

func clusterEgressPeer(in *policyv1beta1.ClusterNetworkPolicyEgressPeer, f *fault.List) model.Peer {
	switch {
	case in.Nodes != nil:
		f.Reject("nodes", "is an experimental field and not supported")
		return model.Peer{}
	case len(in.DomainNames) > 0:
		f.Reject("domainNames", "is an experimental field and not supported")
		return model.Peer{}
	case len(in.Networks) == 0:
		return model.Peer{Selector: clusterPods(in.Namespaces, in.Pods, f)}
	case in.Namespaces != nil || in.Pods != nil:
		f.Reject("networks", "can't stand beside namespaces or pods; make it a peer of its own")
	}
	var p model.Peer
	for i, text := range in.Networks {
		p.Nets = append(p.Nets, fault.Read(f, fmt.Sprintf("networks[%d]", i), string(text), parsePrefix))
	}
	return p
}

// clusterPods selects the pods of the namespaces, or those that pods selects.
func clusterPods(namespaces *metav1.LabelSelector, pods *policyv1beta1.NamespacedPod, f *fault.List) model.Selector {
	switch {
	case namespaces != nil && pods != nil:
		f.Reject("pods", "can't stand beside namespaces; give one of them")
	case namespaces != nil:
		return podsOf(namespaces, nil, "namespaces", "", f)
	case pods != nil:
		return podsOf(&pods.NamespaceSelector, &pods.PodSelector, "pods.namespaceSelector", "pods.podSelector", f)
	default:
		f.Reject("namespaces", "is missing, and so is all that may stand in its place")
	}
	return model.Selector{}
}

// clusterPorts translates a list of protocols. Without any, a rule matches every protocol, also
// those without ports.
func clusterPorts(in []policyv1beta1.ClusterNetworkPolicyProtocol, f *fault.List) []model.PolicyPort {
	if in != nil && len(in) == 0 {
		f.Reject("protocols", "is empty; leave it out to match every protocol")
	}
	var ports []model.PolicyPort
	for i := range in {
		mark := f.Mark()
		ports = append(ports, clusterProtocol(&in[i], f)...)
		f.Under(mark, "protocols[%d]", i)
	}
	return ports
}

// clusterProtocol translates a protocol, of which exactly one field must be set. A named port has
// the protocol that the pod gives it.
func clusterProtocol(in *policyv1beta1.ClusterNetworkPolicyProtocol, f *fault.List) []model.PolicyPort {
	var ports []model.PolicyPort
	fields := 0
	if in.TCP != nil {
		fields++
		ports = append(ports, clusterPort("tcp", model.TCP, in.TCP.DestinationPort, f))
	}
	if in.UDP != nil {
		fields++
		ports = append(ports, clusterPort("udp", model.UDP, in.UDP.DestinationPort, f))
	}
	if in.SCTP != nil {
		fields++
		ports = append(ports, clusterPort("sctp", model.SCTP, in.SCTP.DestinationPort, f))
	}
	if in.DestinationNamedPort != "" {
		fields++
		ports = append(ports, model.PolicyPort{Name: portName("destinationNamedPort", in.DestinationNamedPort, f)})
	}
	if fields != 1 {
		f.Reject("tcp", "exactly one of tcp, udp, sctp and destinationNamedPort must be given, not %d of them", fields)
	}
	return ports
}

func clusterPort(field string, p model.Protocol, in *policyv1beta1.Port, f *fault.List) model.PolicyPort {
	out := allPorts(p)
	field += ".destinationPort"
	switch {
	case in == nil:
		f.Reject(field, "is missing")
	case in.Number != 0 && in.Range != nil, in.Number == 0 && in.Range == nil:
		f.Reject(field, "needs either number or range")
	case in.Range == nil:
		out.First = port(field+".number", in.Number, f)
		out.Last = out.First
	default:
		out.First = port(field+".range.start", in.Range.Start, f)
		out.Last = port(field+".range.end", in.Range.End, f)
		if in.Range.Start >= in.Range.End {
			f.Reject(field+".range", "the start, %d, is not below the end, %d", in.Range.Start, in.Range.End)
		}
	}
	return out
}
