package kubeobj_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// TestLoadBalancer reads what Services say of the addresses that pools give them.
func TestLoadBalancer(t *testing.T) {
	annotated := func(s *corev1.Service, pairs ...string) {
		s.Spec.Type, s.Annotations = corev1.ServiceTypeLoadBalancer, map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			s.Annotations[pairs[i]] = pairs[i+1]
		}
	}
	for _, c := range []struct {
		name string
		in   func(s *corev1.Service)
		want *model.LoadBalancer
	}{
		{"of another type", func(*corev1.Service) {}, nil},
		{"plain", func(s *corev1.Service) { annotated(s) }, &model.LoadBalancer{Wanted: true}},
		{"no longer of the type", func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {Hostname: "x"}}
		}, &model.LoadBalancer{Ingress: addrs("192.0.2.1")}},
		{"everything", func(s *corev1.Service) {
			annotated(s, "metallb.io/address-pool", "gold", "metallb.io/loadBalancerIPs", "192.0.2.1, 2001:db8::1", "metallb.io/allow-shared-ip", "k")
			s.Labels = map[string]string{"a": "b"}
			s.Spec.LoadBalancerClass, s.Spec.IPFamilyPolicy = new("own"), new(corev1.IPFamilyPolicyPreferDualStack)
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: new(corev1.LoadBalancerIPModeProxy)}}
		}, &model.LoadBalancer{
			Wanted: true, Class: "own", Pool: "gold", SharingKey: "k", IPs: addrs("192.0.2.1", "2001:db8::1"), PreferDualStack: true,
			Ingress: addrs("192.0.2.1"), Labels: map[string]string{"a": "b"},
		}},
		{"the older annotations, of which the newer come first", func(s *corev1.Service) {
			annotated(s, "metallb.universe.tf/address-pool", "gold", "metallb.universe.tf/loadBalancerIPs", "192.0.2.1",
				"metallb.universe.tf/allow-shared-ip", "k", "metallb.io/allow-shared-ip", "newer")
		}, &model.LoadBalancer{Wanted: true, Pool: "gold", SharingKey: "newer", IPs: addrs("192.0.2.1")}},
		{"another controller's", func(s *corev1.Service) {
			annotated(s)
			s.ManagedFields = []metav1.ManagedFieldsEntry{
				{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:type":{}}}`)},
				{Manager: "other", Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:loadBalancer":{"f:ingress":{}}}}`)},
			}
		}, &model.LoadBalancer{Wanted: true, Writer: "other"}},
		{"other fields of that name", func(s *corev1.Service) {
			annotated(s)
			s.ManagedFields = []metav1.ManagedFieldsEntry{
				{Manager: "other", Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:loadBalancer":{"f:ingress":{}}}}`)},
				{Manager: "labels", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:ingress":{}}}}`)},
				{Manager: "annotations", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:ingress":{}}},"f:status":{"f:loadBalancer":{}}}`)},
			}
		}, &model.LoadBalancer{Wanted: true, Writer: "other"}},
		{"ours, whoever agrees", func(s *corev1.Service) {
			annotated(s)
			for _, name := range []string{"other", "sluice-addresses", "another"} {
				s.ManagedFields = append(s.ManagedFields, metav1.ManagedFieldsEntry{Manager: name, FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:loadBalancer":{"f:ingress":{}}}}`)})
			}
		}, &model.LoadBalancer{Wanted: true}},
		{"the field", func(s *corev1.Service) { annotated(s); s.Spec.LoadBalancerIP = "192.0.2.7" },
			&model.LoadBalancer{Wanted: true, IPs: addrs("192.0.2.7")}},
		{"field and annotation", func(s *corev1.Service) {
			annotated(s, "metallb.io/loadBalancerIPs", "192.0.2.1")
			s.Spec.LoadBalancerIP = "192.0.2.7"
		}, &model.LoadBalancer{Wanted: true, Fault: "spec.loadBalancerIP and the annotation metallb.io/loadBalancerIPs cannot both be there; leave the former out"}},
		{"malformed", func(s *corev1.Service) { annotated(s, "metallb.io/loadBalancerIPs", "192.0.2.1,x") },
			&model.LoadBalancer{Wanted: true, Fault: `the annotation metallb.io/loadBalancerIPs: "x" is no IP address`}},
		{"two of a family", func(s *corev1.Service) { annotated(s, "metallb.io/loadBalancerIPs", "192.0.2.1,192.0.2.2") },
			&model.LoadBalancer{Wanted: true, Fault: "the annotation metallb.io/loadBalancerIPs: 192.0.2.2: a service has at most one address of each family"}},
	} {
		got, err := kubeobj.Service(service(c.in))
		if err != nil || got == nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if diff := cmp.Diff(c.want, got.LoadBalancer, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// A node is not ready as its condition says; one without conditions is.
func TestNodeReady(t *testing.T) {
	for status, notReady := range map[corev1.ConditionStatus]bool{"": false, corev1.ConditionTrue: false, corev1.ConditionFalse: true, corev1.ConditionUnknown: true} {
		in := &corev1.Node{}
		in.Name = "n1"
		in.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}}
		if status != "" {
			in.Status.Conditions = append(in.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: status})
		}
		if got, err := kubeobj.Node(in); err != nil || got.NotReady != notReady {
			t.Errorf("%q: %+v, %v", status, got, err)
		}
	}
}
