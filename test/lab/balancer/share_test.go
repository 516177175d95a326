package balancer

import (
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// shared is the address of all Services of TestSharedAddress.
const shared = "203.0.113.7"

// sharer makes a Service with the shared address, and its ready endpoints on these nodes.
func sharer(name string, policy corev1.ServiceExternalTrafficPolicy, nodes ...string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	svc.Spec.Type, svc.Spec.ExternalTrafficPolicy, svc.Spec.ExternalIPs = corev1.ServiceTypeClusterIP, policy, []string{shared}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name},
	}}
	for _, n := range nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{NodeName: &n})
	}
	return svc, slice
}

func readyNode(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// TestSharedAddress adds and removes Services with one address, in any order. The address leads to
// where all of them are served, as long as one of them exists.
func TestSharedAddress(t *testing.T) {
	type service struct {
		name   string
		policy corev1.ServiceExternalTrafficPolicy
		nodes  []string // with a ready endpoint
	}
	const cluster, local = corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal
	for _, tt := range []struct {
		name     string
		services []service
		all      string // where it leads while both exist
		alone    []string
	}{
		{"cluster", []service{{"a", cluster, nil}, {"b", cluster, nil}}, "node1 node2", []string{"node1 node2", "node1 node2"}},
		{"local and cluster", []service{{"a", cluster, nil}, {"b", local, []string{"node2"}}}, "node2", []string{"node1 node2", "node2"}},
		{"local without endpoints", []service{{"a", local, nil}, {"b", cluster, nil}}, "node1 node2", []string{"", "node1 node2"}},
		{"local, together", []service{{"a", local, []string{"node1", "node2"}}, {"b", local, []string{"node2"}}}, "node2",
			[]string{"node1+node2", "node2"}},
		{"local, apart", []service{{"a", local, []string{"node1"}}, {"b", local, []string{"node2"}}}, "node1", []string{"node1", "node2"}},
	} {
		for _, order := range [][]int{{0, 1}, {1, 0}} {
			r := &routes{known: map[string]string{}}
			b := newBalancer(nil, nil, r.set, slog.New(slog.NewTextHandler(t.Output(), nil)))
			settle := func(name string) {
				if err := b.settle(t.Context(), types.NamespacedName{Name: name}); err != nil {
					t.Fatal(err)
				}
			}
			leads := func(when, want string) {
				t.Helper()
				if got := r.get(shared); got != want {
					t.Errorf("%s, order %v, %s: it leads to %q, want %q", tt.name, order, when, got, want)
				}
			}
			b.updateNode(readyNode("node1"))
			b.updateNode(readyNode("node2"))
			for n, i := range order {
				s := tt.services[i]
				svc, slice := sharer(s.name, s.policy, s.nodes...)
				b.updateSlice(slice)
				b.updateService(svc)
				settle(s.name)
				if n == 0 {
					leads("one has come", tt.alone[i])
				}
			}
			leads("both are there", tt.all)
			for n, i := range order {
				b.forgetService(types.NamespacedName{Name: tt.services[i].name})
				settle(tt.services[i].name)
				if n == 0 {
					leads("one has gone", tt.alone[order[1]])
				}
			}
			leads("both have gone", "")
			if len(b.owned) > 0 || len(b.owners) > 0 || len(b.routes) > 0 {
				t.Errorf("%s: something is left: %v %v %v", tt.name, b.owned, b.owners, b.routes)
			}
		}
	}
}

// A route that cannot be removed at once is removed later, also if a change gave up its address.
func TestRouteRemovedLater(t *testing.T) {
	r := &routes{known: map[string]string{}}
	b := newBalancer(nil, nil, r.set, slog.New(slog.NewTextHandler(t.Output(), nil)))
	b.updateNode(readyNode("node1"))
	svc, _ := sharer("a", corev1.ServiceExternalTrafficPolicyCluster)
	b.updateService(svc)
	name := types.NamespacedName{Name: "a"}
	if err := b.settle(t.Context(), name); err != nil || r.get(shared) != "node1" {
		t.Fatal(err, r.known)
	}
	svc = svc.DeepCopy()
	svc.Spec.ExternalIPs = []string{"203.0.113.8"}
	b.updateService(svc)
	r.fail = true
	if err := b.settle(t.Context(), name); err == nil {
		t.Error("no error where the router is busy")
	}
	if err := b.settle(t.Context(), name); err != nil || r.get(shared) != "" || r.get("203.0.113.8") != "node1" {
		t.Error(err, r.known)
	}
}

// An address of a node is reached without a route, and belongs to no other node.
func TestAddressOfANode(t *testing.T) {
	r := &routes{known: map[string]string{}}
	b := newBalancer(nil, nil, r.set, slog.New(slog.NewTextHandler(t.Output(), nil)))
	b.updateNode(readyNode("node1"))
	svc, _ := sharer("a", corev1.ServiceExternalTrafficPolicyCluster)
	svc.Spec.ExternalIPs = []string{shared, "203.0.113.8"}
	b.updateService(svc)
	settle := func() {
		for name := range b.dirty {
			if err := b.settle(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	settle()
	n := readyNode("node2")
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "node2"}, {Type: corev1.NodeInternalIP, Address: shared}}
	b.updateNode(n)
	settle()
	if got := r.get(shared); got != "" {
		t.Errorf("node2's address leads to %s", got)
	}
	if got := r.get("203.0.113.8"); got != "node1 node2" {
		t.Errorf("the other leads to %q", got)
	}
	b.forgetNode(types.NamespacedName{Name: "node2"})
	settle()
	if got := r.get(shared); got != "node1" {
		t.Errorf("it is no longer a node's address and leads to %q", got)
	}
}
