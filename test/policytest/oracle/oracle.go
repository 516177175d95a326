// Package oracle says which connections network policies allow, straight from the documentation of
// their APIs, as naively as it can be written: it looks at every object for every question, and
// shares nothing with the product. Tests ask it and Sluice the same questions.
//
// The sources are the reference of networking.k8s.io/v1 NetworkPolicy, that of
// policy.networking.k8s.io/v1beta1 ClusterNetworkPolicy, and Calico's reference of
// projectcalico.org/v3.
package oracle

import (
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// Objects are all that is declared in a cluster and has a say in what may pass.
type Objects struct {
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Nodes      []*corev1.Node
	Services   []*corev1.Service // that rules name, with their slices
	Slices     []*discoveryv1.EndpointSlice

	NetworkPolicies []*networkingv1.NetworkPolicy
	ClusterPolicies []*policyv1beta1.ClusterNetworkPolicy
	Calico          Calico
}

// Connection is a new connection between two addresses, of pods or of anything else, as it is after
// service translation and before masquerade.
type Connection struct {
	From, To netip.Addr
	Protocol corev1.Protocol
	Port     int32 // the destination's
}

// Allowed reports whether the policies let the connection pass, at both ends.
func (o *Objects) Allowed(c Connection) bool {
	if c.From == c.To {
		return true // "A Pod cannot block access to itself"
	}
	return o.Sends(c) && o.Receives(c)
}

// Sends reports whether the policies of the source let it go.
func (o *Objects) Sends(c Connection) bool { return o.allowedAt(o.pod(c.From), c, egress) }

// Receives reports whether the policies of the destination let it in.
func (o *Objects) Receives(c Connection) bool { return o.allowedAt(o.pod(c.To), c, ingress) }

type direction bool

const (
	ingress direction = false
	egress  direction = true
)

// allowedAt evaluates one end. An address that is no pod's, and a pod on the host network, are not
// subject to any policy.
func (o *Objects) allowedAt(subject *corev1.Pod, c Connection, d direction) bool {
	if subject == nil || subject.Spec.HostNetwork {
		return true
	}
	for _, tier := range o.stages(subject, c, d) {
		if final, allow := tier.evaluate(); final {
			return allow
		}
	}
	return true // "all pods can communicate with each other"
}

// pod returns the pod that has the address on the cluster's network.
func (o *Objects) pod(a netip.Addr) *corev1.Pod {
	text := a.String()
	for _, p := range o.Pods {
		for _, ip := range p.Status.PodIPs {
			if !p.Spec.HostNetwork && ip.IP == text {
				return p
			}
		}
	}
	return nil
}

// namespaceLabels are those of a namespace. The API server gives it kubernetes.io/metadata.name.
func (o *Objects) namespaceLabels(name string) labels.Set {
	l := labels.Set{}
	for _, ns := range o.Namespaces {
		if ns.Name == name {
			for k, v := range ns.Labels {
				l[k] = v
			}
		}
	}
	l[corev1.LabelMetadataName] = name
	return l
}

func (o *Objects) inNamespaces(p *corev1.Pod, s *metav1.LabelSelector) bool {
	return selects(s, o.namespaceLabels(p.Namespace))
}

// readings are what the selectors say that were asked about, by their place: objects never change,
// and reading a selector takes much longer than a question.
var readings sync.Map // of *metav1.LabelSelector: labels.Selector

func selects(s *metav1.LabelSelector, l labels.Set) bool {
	if read, ok := readings.Load(s); ok {
		return read.(labels.Selector).Matches(l)
	}
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		panic("oracle: a selector that the API server refuses: " + err.Error())
	}
	readings.Store(s, sel)
	return sel.Matches(l)
}

// networkPolicies evaluates NetworkPolicies: a pod is isolated in a direction if any policy selects
// it and has that direction among its policyTypes; what is then allowed is the union of what those
// policies allow.
func (o *Objects) networkPolicies(subject *corev1.Pod, c Connection, d direction) (isolated, allow bool) {
	for _, np := range o.NetworkPolicies {
		if np.Namespace != subject.Namespace || !selects(&np.Spec.PodSelector, subject.Labels) || !applies(np, d) {
			continue
		}
		isolated = true
		if o.ruleAllows(np, c, d) {
			allow = true
		}
	}
	return isolated, allow
}

// applies is the documented default of policyTypes: Ingress always, Egress if there are egress
// rules.
func applies(np *networkingv1.NetworkPolicy, d direction) bool {
	types := np.Spec.PolicyTypes
	if len(types) == 0 {
		return d == ingress || len(np.Spec.Egress) > 0
	}
	if d == egress {
		return slices.Contains(types, networkingv1.PolicyTypeEgress)
	}
	return slices.Contains(types, networkingv1.PolicyTypeIngress)
}

func (o *Objects) ruleAllows(np *networkingv1.NetworkPolicy, c Connection, d direction) bool {
	if d == egress {
		for _, r := range np.Spec.Egress {
			if o.peerMatches(np.Namespace, r.To, c.To) && o.portMatches(r.Ports, c) {
				return true
			}
		}
		return false
	}
	for _, r := range np.Spec.Ingress {
		if o.peerMatches(np.Namespace, r.From, c.From) && o.portMatches(r.Ports, c) {
			return true
		}
	}
	return false
}

// peerMatches: "If this field is empty or missing, this rule matches all".
func (o *Objects) peerMatches(namespace string, peers []networkingv1.NetworkPolicyPeer, a netip.Addr) bool {
	if len(peers) == 0 {
		return true
	}
	for _, p := range peers {
		if p.IPBlock != nil {
			if inBlock(p.IPBlock, a) {
				return true
			}
			continue
		}
		pod := o.pod(a)
		if pod == nil {
			continue
		}
		inNamespace := pod.Namespace == namespace
		if p.NamespaceSelector != nil {
			inNamespace = o.inNamespaces(pod, p.NamespaceSelector)
		}
		if inNamespace && (p.PodSelector == nil || selects(p.PodSelector, pod.Labels)) {
			return true
		}
	}
	return false
}

func inBlock(b *networkingv1.IPBlock, a netip.Addr) bool {
	if !netip.MustParsePrefix(b.CIDR).Contains(a) {
		return false
	}
	for _, e := range b.Except {
		if netip.MustParsePrefix(e).Contains(a) {
			return false
		}
	}
	return true
}

// portMatches: an item without protocol is TCP; without port, all ports of the protocol; a name is
// a container port of the destination pod.
func (o *Objects) portMatches(ports []networkingv1.NetworkPolicyPort, c Connection) bool {
	if len(ports) == 0 {
		return true
	}
	for _, p := range ports {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		if protocol != c.Protocol {
			continue
		}
		switch {
		case p.Port == nil:
			return true
		case p.Port.StrVal != "":
			if o.isNamed(c, p.Port.StrVal) {
				return true
			}
		case p.EndPort != nil:
			if p.Port.IntVal <= c.Port && c.Port <= *p.EndPort {
				return true
			}
		case p.Port.IntVal == c.Port:
			return true
		}
	}
	return false
}

// isNamed reports whether the destination is a pod that gives the connection's protocol and port
// the name.
func (o *Objects) isNamed(c Connection, name string) bool {
	pod := o.pod(c.To)
	if pod == nil {
		return false
	}
	for _, ctr := range pod.Spec.Containers {
		for _, p := range ctr.Ports {
			protocol := p.Protocol
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			if p.Name == name && protocol == c.Protocol && p.ContainerPort == c.Port {
				return true
			}
		}
	}
	return false
}
