package demo

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/probe"
)

// followed returns the request to follow: over TCP, through a service of another workload, if
// possible to a pod of another node; nil if no pod may send one.
func followed(c *plan.Cluster, pairs []probe.Try) *probe.Try {
	rank := func(t probe.Try) int {
		for i, good := range []bool{!t.Own && elsewhere(c, t), !t.Own} {
			if good {
				return i
			}
		}
		return 2
	}
	var best *probe.Try
	for i := range pairs {
		t := &pairs[i]
		if t.Protocol == "TCP" && t.Fate == probe.Answered && (best == nil || rank(*t) < rank(*best)) {
			best = t
		}
	}
	return best
}

// elsewhere reports whether some pod that may answer is on another node than the client.
func elsewhere(c *plan.Cluster, t probe.Try) bool {
	return slices.ContainsFunc(c.Pods, func(p *corev1.Pod) bool {
		return t.Expect.By[p.Namespace+"/"+p.Name] && p.Spec.NodeName != t.Source.Node
	})
}

// denial is a request that policies deny.
type denial struct {
	probe.Try
	// Labels with which its client would be allowed; none if no labels would do.
	labels map[string]string
	// The policy with a rule for these labels.
	policy plan.Policy
}

// denied returns a request over TCP that policies deny, if possible one that is allowed once its
// client has other labels; nil if none is denied.
func denied(c *plan.Cluster, pairs []probe.Try) *denial {
	isDenied := func(t probe.Try) bool { return t.Protocol == "TCP" && t.Fate == probe.Dropped && !t.Own }
	first := slices.IndexFunc(pairs, isDenied)
	if first < 0 {
		return nil
	}
	tried := 0
	for _, p := range c.Policies {
		for _, labels := range wanted(p) {
			for _, t := range pairs {
				if !isDenied(t) || tried == mostTried {
					continue
				}
				tried++
				if allows(c, t, labels) {
					return &denial{t, labels, p}
				}
			}
		}
	}
	return &denial{Try: pairs[first]}
}

// mostTried bounds the search for labels in large applications.
const mostTried = 2000

// wanted lists the labels for which a policy's rules let in pods. All have values.
func wanted(p plan.Policy) (all []map[string]string) {
	if p.NetworkPolicy == nil {
		return nil
	}
	for _, rule := range p.NetworkPolicy.Spec.Ingress {
		for _, peer := range rule.From {
			labels := satisfying(peer.PodSelector)
			if empty := slices.Contains(slices.Collect(maps.Values(labels)), ""); len(labels) > 0 && !empty {
				all = append(all, labels)
			}
		}
	}
	return all
}

// satisfying returns labels that a selector asks for.
func satisfying(s *metav1.LabelSelector) map[string]string {
	labels := map[string]string{}
	if s == nil {
		return labels
	}
	maps.Copy(labels, s.MatchLabels)
	for _, e := range s.MatchExpressions {
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			labels[e.Key] = e.Values[0]
		case metav1.LabelSelectorOpExists:
			labels[e.Key] = "true"
		}
	}
	return labels
}

// allows reports whether a denied request is answered once its client has labels, which make it an
// endpoint of no other service than before.
func allows(c *plan.Cluster, t probe.Try, labels map[string]string) bool {
	i := slices.IndexFunc(c.Pods, func(p *corev1.Pod) bool { return p.Namespace+"/"+p.Name == t.Source.Name })
	if i < 0 {
		return false
	}
	pod := c.Pods[i].DeepCopy()
	pod.Labels = labelled(pod.Labels, labels)
	for _, svc := range c.Services {
		if plan.Selects(svc, c.Pods[i]) != plan.Selects(svc, pod) {
			return false
		}
	}
	after := *c
	after.Pods = slices.Clone(c.Pods)
	after.Pods[i] = pod
	after.Services = slices.DeleteFunc(slices.Clone(c.Services), func(s *corev1.Service) bool { return s.Namespace+"/"+s.Name != t.Service })
	tries, _ := probe.Tries(&after, []probe.Source{t.Source})
	return slices.ContainsFunc(tries, func(now probe.Try) bool { return now.Frontend == t.Frontend && now.Fate == probe.Answered })
}

// labelled returns a copy of a pod's labels with others added.
func labelled(old, more map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, old)
	maps.Copy(all, more)
	return all
}
