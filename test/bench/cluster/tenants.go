package cluster

import (
	"fmt"
	"iter"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
	"sluice.dev/sluice/internal/store"
)

// Tenants is a cluster of pods each of which three NetworkPolicies select, in both directions. The
// first two open a port of their own to the pods that they select; the last, and the last by name,
// opens TargetPort to all pods. So a connection to TargetPort meets all three, and the last lets it
// pass.
type Tenants struct {
	Pods     int
	Local    int // so many of them, the first, are on the node
	Policies int // at least PoliciesPerPod
	Services int // the endpoint of each is pod 1
}

// PoliciesPerPod is how many policies of Tenants select each pod.
const PoliciesPerPod = 3

// TenantPort is the port that the first policy of each pod opens.
const TenantPort = 9000

// String returns "10000 pods, 10000 policies".
func (t Tenants) String() string { return fmt.Sprintf("%d pods, %d policies", t.Pods, t.Policies) }

// ofKind is the number of policies of a kind; each pod is selected by one of each kind.
func (t Tenants) ofKind(kind int) int {
	return (t.Policies + PoliciesPerPod - 1 - kind) / PoliciesPerPod
}

func label(kind int) string { return fmt.Sprintf("set-%d", kind) }
func value(i int) string    { return fmt.Sprintf("v%d", i) }

// Pod is pod i.
func (t Tenants) Pod(i int) *model.Pod {
	labels := map[string]string{}
	for kind := range PoliciesPerPod {
		labels[label(kind)] = value(i % t.ofKind(kind))
	}
	return newPod(i, t.Local, labels)
}

// policy is policy j.
func (t Tenants) policy(j int) *networkingv1.NetworkPolicy {
	kind, i := j%PoliciesPerPod, j/PoliciesPerPod
	selected := metav1.LabelSelector{MatchLabels: map[string]string{label(kind): value(i)}}
	peers, port := selected, TenantPort+kind
	if kind == PoliciesPerPod-1 {
		peers, port = metav1.LabelSelector{}, TargetPort
	}
	return newPolicy(fmt.Sprintf("policy-%d-%06d", kind, i), selected, []metav1.LabelSelector{peers}, port)
}

// newPolicy lets the selected pods talk TCP and UDP with each of the peers on a port, in both
// directions, by a rule for each.
func newPolicy(name string, selected metav1.LabelSelector, peers []metav1.LabelSelector, port int) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: selected,
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	}
	number := intstr.FromInt(port)
	udp := corev1.ProtocolUDP
	ports := []networkingv1.NetworkPolicyPort{{Port: &number}, {Port: &number, Protocol: &udp}}
	for _, s := range peers {
		peer := []networkingv1.NetworkPolicyPeer{{PodSelector: &s}}
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: peer, Ports: ports})
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: peer, Ports: ports})
	}
	return p
}

// policyEvent is the event of a policy. Policies made here are valid.
func policyEvent(o *networkingv1.NetworkPolicy) store.Event {
	p, err := kubeobj.NetworkPolicy(o)
	if err != nil {
		panic(err)
	}
	return store.Event{Kind: model.NetworkPolicy, Name: p.Key.Name, Object: p}
}

// Events are all objects.
func (t Tenants) Events() []store.Event {
	events := podPrerequisites()
	for i := range t.Pods {
		events = append(events, PodEvent(t.Pod(i)))
	}
	for j := range t.Policies {
		events = append(events, policyEvent(t.policy(j)))
	}
	c := Cluster{Services: t.Services, Endpoints: 1}
	for i := range t.Services {
		slice := c.Slice(i, 1)
		slice.Endpoints[0].Addr, slice.Endpoints[0].Node = PodAddr(1, t.Local), Node
		events = append(events,
			store.Event{Kind: model.ServiceKind, Name: ServiceName(i), Object: c.Service(i)},
			store.Event{Kind: model.EndpointSliceKind, Name: ServiceName(i), Object: slice})
	}
	return events
}

// Files yields every object but services as a manifest of its own.
func (t Tenants) Files() iter.Seq[File] {
	return func(yield func(File) bool) {
		for _, f := range podPrerequisiteFiles() {
			if !yield(f) {
				return
			}
		}
		for i := range t.Pods {
			if !yield(podFile(t.Pod(i))) {
				return
			}
		}
		for j := range t.Policies {
			if p := t.policy(j); !yield(file(p.Name+".json", p)) {
				return
			}
		}
	}
}
