package lint

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	policy "sluice.dev/sluice/internal/policy/compile"
)

// hidden says which rules about clients outside of the cluster see a node in place of the client:
// those for pods of a Service with externalTrafficPolicy Cluster, where a client comes in by
// another node than the pod's.
func (l *linter) hidden(svc *model.Service, pods []*model.Pod) {
	nodePort := func(p model.ServicePort) bool { return p.NodePort != 0 }
	outside := len(svc.ExternalIPs) > 0 || svc.LoadBalancer != nil || slices.ContainsFunc(svc.Ports, nodePort)
	if svc.ExternalLocal || !outside || svc.Unproxied != "" {
		return
	}
	var rules []string
	for _, p := range slices.Concat(l.policies[svc.Name.Namespace], l.policies[""]) {
		if !p.Ingress || p.Refused != "" {
			continue
		}
		i := slices.IndexFunc(pods, func(pod *model.Pod) bool { return !pod.HostNetwork && l.selects(p, pod) })
		if i < 0 {
			continue
		}
		for r := range p.IngressRules {
			if rule := &p.IngressRules[r]; l.aboutClients(&rule.Source) && about(rule, svc, pods[i]) {
				rules = append(rules, rule.Name+" of "+p.Key.String())
			}
		}
	}
	if len(rules) == 0 {
		return
	}
	slices.Sort(rules)
	const most = 3
	l.hint(svc.Ref(), "spec.externalTrafficPolicy", "is Cluster, so policies see a node in place of the client where it comes in by another node than the pod's, and what is for clients by their addresses does not hold then (%s): set Local", model.FirstFew(slices.Compact(rules), most))
}

// selects reports whether a policy applies to a pod.
func (l *linter) selects(p *model.Policy, pod *model.Pod) bool {
	return slices.ContainsFunc(l.members[pod.Name.Namespace], func(m member) bool { return m.pod == pod && p.Subject.Matches(m.labels) })
}

// aboutClients reports whether a rule tells some sources outside of the cluster from others, by
// networks or network sets.
func (l *linter) aboutClients(source *model.RuleEnd) bool {
	tells := func(peer model.Peer) bool {
		if peer.Selector.IsZero() {
			return slices.ContainsFunc(slices.Concat(peer.Nets, peer.Except), l.outside)
		}
		return slices.ContainsFunc(l.view.NetworkSets(), func(set *model.NetworkSet) bool {
			return peer.Selector.Matches(policy.Labels(l.view, set)) && slices.ContainsFunc(set.Nets, l.outside)
		})
	}
	return slices.ContainsFunc(slices.Concat(slices.Concat(source.Peers...), source.NotPeers), tells)
}

// outside reports whether a network is not all addresses, and not one of nodes either. Where no
// node is known, any private network may be.
func (l *linter) outside(n netip.Prefix) bool {
	nodes := l.view.Nodes()
	if len(nodes) == 0 && n.Addr().IsPrivate() {
		return false
	}
	ofNode := func(node *model.Node) bool {
		return slices.ContainsFunc(node.IPs, func(a netip.Addr) bool { return n.Contains(a.Unmap()) })
	}
	return n.Bits() > 0 && !slices.ContainsFunc(nodes, ofNode)
}

// about reports whether a rule is about one of the ports by which a Service reaches a pod.
func about(rule *model.PolicyRule, svc *model.Service, pod *model.Pod) bool {
	return slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool {
		ofProtocol := rule.Protocol == 0 || rule.Protocol == uint8(p.Protocol)
		target := p.On(pod)
		return ofProtocol && (rule.Destination.Ports == nil || slices.ContainsFunc(rule.Destination.Ports, func(want model.PolicyPort) bool {
			named := want.Name != "" && slices.ContainsFunc(pod.Ports, func(own model.ContainerPort) bool { return own.Name == want.Name && own.Port == target })
			return (want.Protocol == 0 || want.Protocol == p.Protocol) && (named || want.First <= target && target <= want.Last)
		}))
	})
}
