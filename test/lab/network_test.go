package lab

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/probe"
)

// A node sends every refusal, however many there are in a second.
func TestNodesRefuseWithoutLimit(t *testing.T) {
	t.Parallel()
	l := up(t, "testrefuse")
	for _, addr := range l.Cluster.Nodes[0].IPs {
		for i := range 20 { // the kernel's limit allows six at once
			if _, err := ask(t, l, "outside", "UDP", netip.AddrPortFrom(addr, 9).String()); !errors.Is(err, echo.ErrRefused) {
				t.Errorf("request %d to %s: %v, want a refusal", i, addr, err)
				break
			}
		}
	}
}

// Requests do not come from a pod that is about to end.
func TestEndingPodsAreNotAsked(t *testing.T) {
	pod := func(name string, ending *metav1.Time) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, DeletionTimestamp: ending}, Spec: corev1.PodSpec{NodeName: "node1"}}
	}
	l := &Lab{Name: "testending", Kubernetes: &Kubernetes{}, Cluster: &plan.Cluster{
		Nodes: []plan.Node{{Name: "node1"}}, Pods: []*corev1.Pod{pod("goes", &metav1.Time{}), pod("stays", nil)},
	}}
	var asked []string
	for _, s := range slices.Concat(l.sources(), l.clients()) {
		if s.Kind == probe.FromPod {
			asked = append(asked, s.Name)
		}
	}
	if want := []string{"shop/stays", "shop/stays"}; !slices.Equal(asked, want) {
		t.Errorf("asked from %v, want %v", asked, want)
	}
}
