package cluster

import (
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Large is one object that gets many entries of one kind and loses them again.
type Large struct {
	Name        string
	Size        int
	Add, Remove []store.Event
}

// largePorts is how many ports the services of Large have.
const largePorts = 3

// LargePrerequisites are the objects that Large ones need: a node with a pod, a service for each
// Large, and one more service.
func LargePrerequisites() []store.Event {
	pod := newPod(0, 1, map[string]string{"app": "large"})
	events := append(podPrerequisites(), store.Event{Kind: model.PodKind, Name: pod.Name, Object: pod})
	for i := range 2 {
		events = append(events, largeService(i, nil))
		slice := Cluster{Services: 2, Endpoints: 1}.Slice(i, 1)
		events = append(events, store.Event{Kind: model.EndpointSliceKind, Name: slice.Name, Object: slice})
	}
	return events
}

// ChangeOtherService is a change of that one more service: it loses its one endpoint or gets it
// back.
func ChangeOtherService(there bool) []store.Event {
	slice := Cluster{Services: 2, Endpoints: 1}.Slice(1, 1)
	slice.Endpoints[0].Ready = there
	return []store.Event{{Kind: model.EndpointSliceKind, Name: slice.Name, Object: slice}}
}

func largeService(i int, ranges []netip.Prefix) store.Event {
	s := Cluster{Services: 2, Endpoints: 1}.Service(i)
	s.LoadBalancerIPs = []netip.Addr{nth(netip.MustParsePrefix("203.0.113.0/24"), i+1)}
	s.SourceRanges = ranges
	for p := range uint16(largePorts - 1) {
		more := s.Ports[0]
		more.Port += 1 + p
		s.Ports = append(s.Ports, more)
	}
	return store.Event{Kind: model.ServiceKind, Name: s.Name, Object: s}
}

// LargeRanges is a service with n source ranges at each of three ports, single addresses and
// networks of many lengths among them.
func LargeRanges(n int) Large {
	return Large{"source ranges", n,
		[]store.Event{largeService(0, Networks(n))}, []store.Event{largeService(0, nil)}}
}

// LargeCIDRs is a node with n pod CIDRs.
func LargeCIDRs(n int) Large {
	node := func(cidrs []netip.Prefix) []store.Event {
		return []store.Event{{Kind: model.NodeKind, Name: model.Name{Name: Node}, Object: &model.Node{Name: Node, IPs: []netip.Addr{NodeAddr}, PodCIDRs: cidrs}}}
	}
	cidrs := []netip.Prefix{PodCIDR}
	for i := range n - 1 {
		cidrs = append(cidrs, netip.PrefixFrom(nth(netip.MustParsePrefix("172.16.0.0/12"), 32*i), 28))
	}
	return Large{"pod CIDRs", n, node(cidrs), node(cidrs[:1])}
}

// LargePorts is a policy that names n ranges of ports.
func LargePorts(n int) Large {
	rule := networkingv1.NetworkPolicyIngressRule{}
	for i := range n {
		first, last := intstr.FromInt(1000+4*i), int32(1001+4*i)
		rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Port: &first, EndPort: &last})
	}
	return largePolicy("port ranges", n, rule)
}

// LargeBlocks is a policy that names n blocks of addresses.
func LargeBlocks(n int) Large {
	rule := networkingv1.NetworkPolicyIngressRule{}
	for _, c := range Networks(n) {
		rule.From = append(rule.From, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: c.String()}})
	}
	return largePolicy("ipBlocks", n, rule)
}

func largePolicy(name string, n int, rule networkingv1.NetworkPolicyIngressRule) Large {
	with := func(rules ...networkingv1.NetworkPolicyIngressRule) []store.Event {
		return []store.Event{policyEvent(&networkingv1.NetworkPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
			ObjectMeta: metav1.ObjectMeta{Name: "large", Namespace: namespace},
			Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: rules},
		})}
	}
	return Large{name, n, with(rule), with()}
}
