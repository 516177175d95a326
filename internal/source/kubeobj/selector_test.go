package kubeobj_test

import (
	"math/rand/v2"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
)

var (
	labelKeys   = []string{"a", "b", "example.com/c"}
	labelValues = []string{"", "x", "y"}
)

func randomSelector(r *rand.Rand) *metav1.LabelSelector {
	key := func() string { return labelKeys[r.IntN(len(labelKeys))] }
	value := func() string { return labelValues[r.IntN(len(labelValues))] }
	s := &metav1.LabelSelector{}
	for range r.IntN(2) {
		s.MatchLabels = map[string]string{key(): value()}
	}
	for range r.IntN(3) {
		e := metav1.LabelSelectorRequirement{Key: key()}
		switch r.IntN(4) {
		case 0:
			e.Operator = metav1.LabelSelectorOpExists
		case 1:
			e.Operator = metav1.LabelSelectorOpDoesNotExist
		case 2:
			e.Operator, e.Values = metav1.LabelSelectorOpIn, []string{value(), value()}
		default:
			e.Operator, e.Values = metav1.LabelSelectorOpNotIn, []string{value(), value()}
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func randomLabels(r *rand.Rand) labels.Set {
	set := labels.Set{}
	for _, k := range labelKeys {
		if r.IntN(2) == 0 {
			set[k] = labelValues[r.IntN(len(labelValues))]
		}
	}
	return set
}

// TestSelectorsAsKubernetes compares what policies select, for random selectors and labels, with
// what Kubernetes' own library selects.
func TestSelectorsAsKubernetes(t *testing.T) {
	selects := func(s *metav1.LabelSelector, l labels.Set) bool {
		own, err := metav1.LabelSelectorAsSelector(s) // nil selects nothing there, and is not asked here
		if err != nil {
			t.Fatal(err)
		}
		return own.Matches(l)
	}
	matched := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 5))
		subject, peerPods, peerNamespaces := randomSelector(r), randomSelector(r), randomSelector(r)
		p, err := kubeobj.NetworkPolicy(&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"},
			Spec: networkingv1.NetworkPolicySpec{PodSelector: *subject, Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{
					{PodSelector: peerPods}, {NamespaceSelector: peerNamespaces}, {PodSelector: peerPods, NamespaceSelector: peerNamespaces},
				},
			}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		namespace, pod, namespaceLabels := []string{"shop", "other"}[r.IntN(2)], randomLabels(r), randomLabels(r)
		object := model.LabelMap{model.OrchestratorLabel: "k8s", model.NamespaceLabel: namespace}
		for k, v := range pod {
			object[k] = v
		}
		for k, v := range namespaceLabels {
			object[model.NamespaceLabelPrefix+k] = v
		}
		peers := p.IngressRules[0].Source.Peers[0]
		for i, c := range []struct {
			selector model.Selector
			want     bool
		}{
			{p.Subject, namespace == "shop" && selects(subject, pod)},
			{peers[0].Selector, namespace == "shop" && selects(peerPods, pod)},
			{peers[1].Selector, selects(peerNamespaces, namespaceLabels)},
			{peers[2].Selector, selects(peerNamespaces, namespaceLabels) && selects(peerPods, pod)},
		} {
			if got := c.selector.Matches(object); got != c.want {
				t.Fatalf("seed %d, selector %d: %s on %v: %v, want %v", seed, i, c.selector, object, got, c.want)
			}
			if c.want {
				matched++
			}
			delete(object, model.OrchestratorLabel)
			if c.selector.Matches(object) {
				t.Fatalf("seed %d, selector %d: %s selects what is no pod: %v", seed, i, c.selector, object)
			}
			object[model.OrchestratorLabel] = "k8s"
		}
	}
	if matched < 1000 {
		t.Errorf("only %d of 12000 matched: the labels are too many to say anything", matched)
	}
}
