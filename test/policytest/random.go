package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sluice.dev/sluice/test/policytest/oracle"
)

// A dice makes random clusters out of few names, so that things meet.
type dice struct{ *rand.Rand }

func newDice(seed uint64) dice { return dice{rand.New(rand.NewPCG(seed, 1))} }

func one[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

// some calls f up to most times.
func some[T any](d dice, most int, f func() T) (out []T) {
	for range d.IntN(most + 1) {
		out = append(out, f())
	}
	return out
}

var (
	randomNamespaces = []string{"red", "green", "blue"}
	randomPorts      = []int32{1, 53, 80, 81, 8080, 65535}
	portNames        = []string{"web", "dns", "admin"}
	strangers        = []string{"192.168.1.1", "fd00:192:168:1::1", "198.51.100.7", "2001:db8::7", "10.244.9.9", "fd00:10:244:9::9"}
)

// cluster is a random cluster of two nodes with policies.
func (d dice) cluster() *oracle.Objects {
	o := &oracle.Objects{Nodes: []*corev1.Node{
		nodeObject(NodeName, NodeAddresses),
		nodeObject("other", []netip.Addr{netip.MustParseAddr("192.168.2.1"), netip.MustParseAddr("fd00:192:168:2::1")}),
	}}
	for _, name := range randomNamespaces {
		o.Namespaces = append(o.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: d.labels()}})
	}
	for i := range 3 + d.IntN(6) {
		o.Pods = append(o.Pods, d.pod(i))
	}
	for i := range d.IntN(5) {
		o.NetworkPolicies = append(o.NetworkPolicies, d.networkPolicy(i))
	}
	for i := range d.IntN(4) {
		o.ClusterPolicies = append(o.ClusterPolicies, d.clusterPolicy(i))
	}
	if d.IntN(2) == 0 {
		o.Calico = d.calico()
		d.services(o)
	}
	return o
}

// services adds the Services that rules name, with endpoints of either family.
func (d dice) services(o *oracle.Objects) {
	for _, namespace := range randomNamespaces {
		name := metav1.ObjectMeta{Namespace: namespace, Name: "service"}
		o.Services = append(o.Services, &corev1.Service{ObjectMeta: name, Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}},
		}})
		for i := range d.IntN(3) {
			family, protocol, port := d.IntN(2), one(d, Protocols...), one(d, randomPorts...)
			s := &discoveryv1.EndpointSlice{ObjectMeta: name, Ports: []discoveryv1.EndpointPort{{Protocol: &protocol, Port: &port}}}
			s.Name, s.Labels = fmt.Sprint("slice-", i), map[string]string{discoveryv1.LabelServiceName: name.Name}
			s.AddressType = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}[family]
			for range d.IntN(4) {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{one(d, o.Pods...).Status.PodIPs[family].IP}})
			}
			if d.IntN(3) == 0 {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{strangers[2+family]}})
			}
			o.Slices = append(o.Slices, s)
		}
	}
}

func (d dice) labels() map[string]string {
	l := map[string]string{}
	for range d.IntN(4) {
		l[one(d, "app", "tier", "env")] = one(d, "a", "b", "c")
	}
	return l
}

func (d dice) pod(i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), Namespace: one(d, randomNamespaces...), Labels: d.labels()}}
	used := map[string]bool{}
	for range d.IntN(4) {
		port := corev1.ContainerPort{Name: one(d, portNames...), ContainerPort: one(d, randomPorts...), Protocol: one(d, append(Protocols, "")...)}
		if !used[port.Name] {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: port.Name, Ports: []corev1.ContainerPort{port}})
		}
		used[port.Name] = true
	}
	switch d.IntN(8) {
	case 0:
		p.Spec.HostNetwork = true
		place(p, NodeName, []corev1.PodIP{{IP: NodeAddresses[0].String()}, {IP: NodeAddresses[1].String()}})
	case 1, 2:
		place(p, "other", []corev1.PodIP{{IP: fmt.Sprint("10.244.2.", i+1)}, {IP: fmt.Sprint("fd00:10:244:2::", i+1)}})
	default:
		place(p, NodeName, podAddresses(i+1))
	}
	return p
}

func (d dice) selector() metav1.LabelSelector {
	s := metav1.LabelSelector{}
	if d.IntN(2) == 0 {
		s.MatchLabels = map[string]string{one(d, "app", "tier", "env"): one(d, "a", "b", "c")}
	}
	s.MatchExpressions = some(d, 1, func() metav1.LabelSelectorRequirement {
		r := metav1.LabelSelectorRequirement{
			Key:      one(d, "app", "tier", "env"),
			Operator: one(d, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist),
		}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = []string{"a", one(d, "b", "c")}
		}
		return r
	})
	return s
}

func (d dice) namespaceSelector() metav1.LabelSelector {
	if d.IntN(2) == 0 {
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: corev1.LabelMetadataName, Operator: one(d, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: []string{one(d, randomNamespaces...)},
		}}}
	}
	return d.selector()
}

func (d dice) networkPolicy(i int) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("np-", i), Namespace: one(d, randomNamespaces...)},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: d.selector()},
	}
	np.Spec.PolicyTypes = one(d, nil, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		[]networkingv1.PolicyType{networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress})
	np.Spec.Ingress = some(d, 2, func() networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: some(d, 2, d.peer), Ports: some(d, 2, d.port)}
	})
	np.Spec.Egress = some(d, 2, func() networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: some(d, 2, d.peer), Ports: some(d, 2, d.port)}
	})
	return np
}

func (d dice) peer() (p networkingv1.NetworkPolicyPeer) {
	kind := d.IntN(4)
	if kind == 0 {
		p.IPBlock = one(d,
			&networkingv1.IPBlock{CIDR: "10.244.1.0/29", Except: []string{"10.244.1.2/32", "10.244.1.4/31"}},
			&networkingv1.IPBlock{CIDR: "fd00:10:244:1::/125", Except: []string{"fd00:10:244:1::2/127"}},
			&networkingv1.IPBlock{CIDR: "0.0.0.0/0"}, &networkingv1.IPBlock{CIDR: "::/0", Except: []string{"2001:db8::/32"}},
			&networkingv1.IPBlock{CIDR: "198.51.100.0/24"}, &networkingv1.IPBlock{CIDR: "192.168.0.0/16"})
		return p
	}
	if kind != 1 {
		s := d.selector()
		p.PodSelector = &s
	}
	if kind != 2 {
		s := d.namespaceSelector()
		p.NamespaceSelector = &s
	}
	return p
}

func (d dice) port() (p networkingv1.NetworkPolicyPort) {
	if proto := one(d, append(Protocols, "")...); proto != "" {
		p.Protocol = &proto
	}
	number := intstr.FromInt32(one(d, randomPorts...))
	name := intstr.FromString(one(d, portNames...))
	switch d.IntN(4) {
	case 0:
		p.Port = &name
	case 1:
		p.Port = &number
	case 2:
		end := min(number.IntVal+int32(d.IntN(100)), 65535)
		p.Port, p.EndPort = &number, &end
	}
	return p
}

func (d dice) clusterPolicy(i int) *policyv1beta1.ClusterNetworkPolicy {
	p := &policyv1beta1.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("cnp-", i)}}
	p.Spec.Tier = one(d, policyv1beta1.AdminTier, policyv1beta1.BaselineTier)
	p.Spec.Priority = int32(d.IntN(3))
	if d.IntN(2) == 0 {
		s := d.namespaceSelector()
		p.Spec.Subject.Namespaces = &s
	} else {
		p.Spec.Subject.Pods = d.namespacedPod()
	}
	p.Spec.Ingress = some(d, 3, func() policyv1beta1.ClusterNetworkPolicyIngressRule {
		return policyv1beta1.ClusterNetworkPolicyIngressRule{Action: d.action(), From: append(some(d, 1, d.ingressPeer), d.ingressPeer()), Protocols: some(d, 2, d.protocol)}
	})
	p.Spec.Egress = some(d, 3, func() policyv1beta1.ClusterNetworkPolicyEgressRule {
		r := policyv1beta1.ClusterNetworkPolicyEgressRule{Action: d.action(), To: append(some(d, 1, d.egressPeer), d.egressPeer()), Protocols: some(d, 2, d.protocol)}
		for _, peer := range r.To {
			if peer.Networks != nil { // named ports don't go with them
				r.Protocols = slices.DeleteFunc(r.Protocols, func(p policyv1beta1.ClusterNetworkPolicyProtocol) bool { return p.DestinationNamedPort != "" })
				if len(r.Protocols) == 0 {
					r.Protocols = nil
				}
			}
		}
		return r
	})
	return p
}

func (d dice) action() policyv1beta1.ClusterNetworkPolicyRuleAction {
	return one(d, policyv1beta1.ClusterNetworkPolicyRuleActionAccept, policyv1beta1.ClusterNetworkPolicyRuleActionDeny, policyv1beta1.ClusterNetworkPolicyRuleActionPass)
}

func (d dice) namespacedPod() *policyv1beta1.NamespacedPod {
	return &policyv1beta1.NamespacedPod{NamespaceSelector: d.namespaceSelector(), PodSelector: d.selector()}
}

func (d dice) ingressPeer() (p policyv1beta1.ClusterNetworkPolicyIngressPeer) {
	if d.IntN(2) == 0 {
		s := d.namespaceSelector()
		p.Namespaces = &s
	} else {
		p.Pods = d.namespacedPod()
	}
	return p
}

func (d dice) egressPeer() (p policyv1beta1.ClusterNetworkPolicyEgressPeer) {
	if d.IntN(3) == 0 {
		p.Networks = one(d, []policyv1beta1.CIDR{"0.0.0.0/0", "::/0"}, []policyv1beta1.CIDR{"10.244.1.0/30"}, []policyv1beta1.CIDR{"2001:db8::/32", "198.51.100.7/32"})
		return p
	}
	in := d.ingressPeer()
	p.Namespaces, p.Pods = in.Namespaces, in.Pods
	return p
}

func (d dice) protocol() (p policyv1beta1.ClusterNetworkPolicyProtocol) {
	port := &policyv1beta1.Port{Number: one(d, randomPorts...)}
	if d.IntN(2) == 0 {
		port = &policyv1beta1.Port{Range: &policyv1beta1.PortRange{Start: one[int32](d, 1, 50, 80), End: one[int32](d, 81, 8080, 65535)}}
	}
	switch d.IntN(4) {
	case 0:
		p.TCP = &policyv1beta1.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
	case 1:
		p.UDP = &policyv1beta1.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
	case 2:
		p.SCTP = &policyv1beta1.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}
	default:
		p.DestinationNamedPort = one(d, portNames...)
	}
	return p
}

// connection is a random one that the node sees: at least one end is a pod of its own.
func (d dice) connection(o *oracle.Objects) (oracle.Connection, bool) {
	family := d.IntN(2)
	var own, all []netip.Addr
	for _, p := range o.Pods {
		a := netip.MustParseAddr(p.Status.PodIPs[family].IP)
		if !p.Spec.HostNetwork && p.Spec.NodeName == NodeName {
			own = append(own, a)
		}
		all = append(all, a)
	}
	for i := family; i < len(strangers); i += 2 {
		all = append(all, netip.MustParseAddr(strangers[i]))
	}
	if len(own) == 0 {
		return oracle.Connection{}, false
	}
	c := oracle.Connection{From: one(d, own...), To: one(d, all...), Protocol: one(d, Protocols...), Port: one(d, randomPorts...)}
	if len(o.Slices) > 0 && d.IntN(3) == 0 { // where rules may name it
		s := one(d, o.Slices...)
		c.Protocol, c.Port = *s.Ports[0].Protocol, *s.Ports[0].Port
		if len(s.Endpoints) > 0 {
			if to := netip.MustParseAddr(one(d, s.Endpoints...).Addresses[0]); to.Is4() == c.From.Is4() {
				c.To = to
				return c, true
			}
		}
	}
	if d.IntN(2) == 0 && c.To != NodeAddresses[family] { // the node itself always reaches its pods
		c.From, c.To = c.To, c.From
	}
	return c, true
}
