package policytest

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/policytest/oracle"
)

// A Scenario is a cluster whose objects change in steps, and what is to pass
// after each.
type Scenario struct {
	Name  string
	Steps []Step
}

// A Step is one version of the cluster.
type Step struct {
	Name    string
	Objects *oracle.Objects // all there are; never changed
	// Probes are what the tests that the scenario comes from expect of it, in so many words.
	Probes []Probe
}

// A Probe is a new connection between two pods, whose first packet is to pass or
// to be dropped.
type Probe struct {
	From, To string // "namespace/pod"
	Protocol corev1.Protocol
	Port     int32
	Allowed  bool
}

// String returns "TCP x/a > y/b:80".
func (p Probe) String() string {
	return fmt.Sprintf("%s %s > %s:%d", p.Protocol, p.From, p.To, p.Port)
}

// Families are the indexes of a pod's addresses: IPv4 and IPv6.
var Families = []int{0, 1}

// Connection is the probe between the addresses of a family.
func (p Probe) Connection(o *oracle.Objects, family int) oracle.Connection {
	return oracle.Connection{From: Address(o, p.From, family), To: Address(o, p.To, family), Protocol: p.Protocol, Port: p.Port}
}

// Address is that of the pod "namespace/name" in a family; the pod must exist.
func Address(o *oracle.Objects, name string, family int) netip.Addr {
	for _, p := range o.Pods {
		if p.Namespace+"/"+p.Name == name {
			return netip.MustParseAddr(p.Status.PodIPs[family].IP)
		}
	}
	panic("policytest: there is no pod " + name)
}

// The node that all pods are on, its addresses, and those of its pods.
const NodeName = "node"

// NodeAddresses are those of the node, by family.
var NodeAddresses = []netip.Addr{netip.MustParseAddr("192.168.1.1"), netip.MustParseAddr("fd00:192:168:1::1")}

// PodCIDRs hold the addresses of the node's pods, by family.
var PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")}

// nodeObject returns a node of the cluster with one address in each family.
func nodeObject(name string, addresses []netip.Addr) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux", corev1.LabelHostname: name}}}
	if name == NodeName {
		for _, p := range PodCIDRs {
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, p.String())
		}
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	return n
}

// podAddresses are the addresses of the node's pod with a number from 1 to 254.
func podAddresses(number int) []corev1.PodIP {
	var ips []corev1.PodIP
	for _, p := range PodCIDRs {
		b := p.Addr().AsSlice()
		b[len(b)-1] = byte(number)
		a, _ := netip.AddrFromSlice(b)
		ips = append(ips, corev1.PodIP{IP: a.String()})
	}
	return ips
}

// place gives a pod its node and addresses, and makes it ready.
func place(p *corev1.Pod, node string, ips []corev1.PodIP) {
	p.Spec.NodeName = node
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ips[0].IP, PodIPs: ips,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
}

// clone copies the lists of objects, so that some may be replaced. The objects are shared.
func clone(o *oracle.Objects) *oracle.Objects {
	n := *o
	n.Namespaces, n.Pods, n.Nodes = slices.Clone(o.Namespaces), slices.Clone(o.Pods), slices.Clone(o.Nodes)
	n.NetworkPolicies, n.ClusterPolicies = slices.Clone(o.NetworkPolicies), slices.Clone(o.ClusterPolicies)
	n.Services, n.Slices = slices.Clone(o.Services), slices.Clone(o.Slices)
	n.Calico = oracle.Calico{Tiers: slices.Clone(o.Calico.Tiers), Policies: slices.Clone(o.Calico.Policies), Sets: slices.Clone(o.Calico.Sets)}
	return &n
}
