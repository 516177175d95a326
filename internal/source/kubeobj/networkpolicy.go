package kubeobj

import (
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// NetworkPolicy translates a networking.k8s.io/v1 NetworkPolicy.
//
// A faulty policy is returned with the reason in Refused, beside the error: it can still isolate if
// there is no earlier good version. As its rules can only allow, those peers and ports stay of
// which all can be read. There is no policy at all if the fault is in its name, its podSelector or
// its policyTypes, as it is then unknown what to deny.
func NetworkPolicy(o *networkingv1.NetworkPolicy) (*model.Policy, error) {
	var f fault.List
	p := &model.Policy{Tier: model.DefaultTier.Name, Order: model.NetworkPolicyOrder}
	p.Key = model.PolicyKey{Kind: model.NetworkPolicy, Name: NameOf(&o.ObjectMeta, &f)}
	p.Subject = podsIn(o.Namespace, &o.Spec.PodSelector, "spec.podSelector", &f)
	p.Ingress, p.Egress = policyTypes(&o.Spec, &f)
	known := f.Known()
	for i := range o.Spec.Ingress {
		in, mark := &o.Spec.Ingress[i], f.Mark()
		rule := model.PolicyRule{Name: fmt.Sprintf("ingress[%d]", i)}
		rule.Source.Peers = policyPeers(o.Namespace, in.From, "from", &f)
		rule.Destination.Ports = policyPorts(in.Ports, &f)
		f.Under(mark, "spec.ingress[%d]", i)
		if readable(&rule) {
			p.IngressRules = append(p.IngressRules, rule)
		}
	}
	for i := range o.Spec.Egress {
		in, mark := &o.Spec.Egress[i], f.Mark()
		rule := model.PolicyRule{Name: fmt.Sprintf("egress[%d]", i)}
		rule.Destination.Peers = policyPeers(o.Namespace, in.To, "to", &f)
		rule.Destination.Ports = policyPorts(in.Ports, &f)
		f.Under(mark, "spec.egress[%d]", i)
		if readable(&rule) {
			p.EgressRules = append(p.EgressRules, rule)
		}
	}
	return policyResult(p, known, &f)
}

// readable reports whether anything is left of each list of a rule.
func readable(r *model.PolicyRule) bool {
	empty := func(list []model.Peer) bool { return len(list) == 0 }
	return len(r.Destination.Ports) > 0 && !slices.ContainsFunc(slices.Concat(r.Source.Peers, r.Destination.Peers), empty)
}

// policyResult is fault.Result for policies. known means that it is clear to whom the policy
// applies, and in which directions. Rules of other directions are removed.
func policyResult(p *model.Policy, known bool, f *fault.List) (*model.Policy, error) {
	if !p.Ingress {
		p.IgnoresIngress, p.IngressRules = len(p.IngressRules) > 0, nil
	}
	if !p.Egress {
		p.IgnoresEgress, p.EgressRules = len(p.EgressRules) > 0, nil
	}
	good, err := fault.Result(p, f)
	if good == nil && known {
		if p.Key.Kind == model.NetworkPolicy {
			p.Refused = err.Error() // what is left of its rules can only allow
		} else {
			p.Refuse(err)
		}
		return p, err
	}
	return good, err
}

// policyTypes returns the directions of a policy. Without policyTypes, that is ingress, and egress
// if the policy has a rule for it.
func policyTypes(s *networkingv1.NetworkPolicySpec, f *fault.List) (ingress, egress bool) {
	if len(s.PolicyTypes) == 0 {
		return true, len(s.Egress) > 0
	}
	for i, t := range s.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			ingress = true
		case networkingv1.PolicyTypeEgress:
			egress = true
		default:
			f.Reject(fmt.Sprintf("spec.policyTypes[%d]", i), "%q is neither Ingress nor Egress", string(t))
		}
	}
	return ingress, egress
}

// policyPeers translates a list of peers; an empty list means any address. Without those that
// cannot be read, the list may hold none.
func policyPeers(namespace string, in []networkingv1.NetworkPolicyPeer, list string, f *fault.List) [][]model.Peer {
	if len(in) == 0 {
		return nil
	}
	return [][]model.Peer{each(list, in, f, func(p *networkingv1.NetworkPolicyPeer, f *fault.List) model.Peer { return policyPeer(namespace, p, f) })}
}

// each translates a list one by one, and leaves out what cannot be read.
func each[In, Out any](list string, in []In, f *fault.List, translate func(*In, *fault.List) Out) []Out {
	all := make([]Out, 0, len(in))
	for i := range in {
		var own fault.List
		out := translate(&in[i], &own)
		own.Under(0, "%s[%d]", list, i)
		if !f.Join(&own) {
			all = append(all, out)
		}
	}
	return all
}

func policyPeer(namespace string, in *networkingv1.NetworkPolicyPeer, f *fault.List) model.Peer {
	switch {
	case in.IPBlock != nil && (in.PodSelector != nil || in.NamespaceSelector != nil):
		f.Reject("ipBlock", "can't stand beside a podSelector or namespaceSelector; make it a peer of its own")
	case in.IPBlock != nil:
		mark := f.Mark()
		p := ipBlock(in.IPBlock, f)
		f.Under(mark, "ipBlock")
		return p
	case in.NamespaceSelector != nil:
		return model.Peer{Selector: podsOf(in.NamespaceSelector, in.PodSelector, "namespaceSelector", "podSelector", f)}
	case in.PodSelector != nil:
		return model.Peer{Selector: podsIn(namespace, in.PodSelector, "podSelector", f)}
	default:
		f.Reject("podSelector", "is missing: a peer needs a podSelector, a namespaceSelector or an ipBlock")
	}
	return model.Peer{}
}

func ipBlock(in *networkingv1.IPBlock, f *fault.List) model.Peer {
	block, err := parsePrefix(in.CIDR)
	if err != nil {
		f.Reject("cidr", "%v", err)
		return model.Peer{}
	}
	p := model.Peer{Nets: []netip.Prefix{block}}
	for i, text := range in.Except {
		field := fmt.Sprintf("except[%d]", i)
		e, err := parsePrefix(text)
		switch {
		case err != nil:
			f.Reject(field, "%v", err)
		case !block.Contains(e.Addr()):
			f.Reject(field, "%s is not inside %s", e, block)
		case e.Bits() <= block.Bits():
			f.Reject(field, "%s is not smaller than %s", e, block)
		default:
			p.Except = append(p.Except, e)
		}
	}
	return p
}

// policyPorts translates a list of ports. An empty list means all ports of the three transports
// that policies know: no other protocol passes.
func policyPorts(in []networkingv1.NetworkPolicyPort, f *fault.List) []model.PolicyPort {
	if len(in) == 0 {
		return []model.PolicyPort{allPorts(model.TCP), allPorts(model.UDP), allPorts(model.SCTP)}
	}
	return each("ports", in, f, policyPort)
}

func allPorts(p model.Protocol) model.PolicyPort { return model.PolicyPort{Protocol: p, Last: 65535} }

func policyPort(in *networkingv1.NetworkPolicyPort, f *fault.List) model.PolicyPort {
	out := allPorts(protocol("protocol", ptr.Deref(in.Protocol, ""), f))
	numbered := in.Port != nil && in.Port.Type == intstr.Int
	switch {
	case numbered:
		out.First = port("port", in.Port.IntVal, f)
		out.Last = out.First
	case in.Port != nil:
		out.Last, out.Name = 0, portName("port", in.Port.StrVal, f)
	}
	if in.EndPort == nil {
		return out
	}
	switch {
	case !numbered:
		f.Reject("endPort", "%d needs the number of a first port in port", *in.EndPort)
	case *in.EndPort < in.Port.IntVal:
		f.Reject("endPort", "%d is below port %d", *in.EndPort, in.Port.IntVal)
	default:
		out.Last = port("endPort", *in.EndPort, f)
	}
	return out
}

// portName checks the name of a container's port.
func portName(field, name string, f *fault.List) string {
	if why := validation.IsValidPortName(name); len(why) > 0 {
		f.Reject(field, "%q is no name of a port: it %s", name, why[0])
	}
	return name
}
