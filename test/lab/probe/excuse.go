package probe

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/lab/plan"
)

// Excuse checks failed results again, with the cluster before and now: a result that matches one of
// the two has not failed. If the service, its endpoints or the source have changed, the right
// outcome in between is unknown, and the result is excused. Now is what Tries or PairTries expects
// of the same sources by now.
func Excuse(results []Result, before, after *plan.Cluster, now []Try) {
	expected := map[path]Expect{}
	for _, t := range now {
		expected[t.path()] = t.Expect
	}
	for i := range results {
		r := &results[i]
		if r.Failed == 0 {
			continue
		}
		expect, still := expected[r.path()]
		switch {
		case still && reflect.DeepEqual(expect, r.Expect) && !changed(r.Try, before, after):
		case still && r.explainedBy(expect):
			r.Failed = 0
		default:
			r.Excused, r.Failed = r.Failed, 0
		}
	}
}

// path is a source and a frontend.
type path struct {
	source string
	Frontend
}

func (t Try) path() path { return path{t.Source.Name, t.Frontend} }

// explainedBy reports whether each request was answered by a pod that may answer, before or now.
func (r *Result) explainedBy(now Expect) bool {
	answers := 0
	for pod, n := range r.By {
		if !r.Expect.By[pod] && !now.By[pod] {
			return false
		}
		answers += n
	}
	plain := !r.Sticky && !now.Sticky && (r.Masqueraded == 0 || !r.Keep && !now.Keep)
	return plain && answers == r.Sent && r.Frontend.Kind != HealthCheck
}

// changed reports whether a try's service, its endpoints, or its source pod differ from before.
func changed(t Try, before, after *plan.Cluster) bool {
	return !slices.Equal(versions(t, before), versions(t, after))
}

// versions returns the versions of the objects that a try is about, in a stable order.
func versions(t Try, c *plan.Cluster) (all []string) {
	for _, svc := range c.Services {
		if svc.Namespace+"/"+svc.Name != t.Service {
			continue
		}
		all = append(all, string(svc.UID), svc.ResourceVersion)
		for _, s := range c.SlicesOf(svc) {
			all = append(all, string(s.UID), s.ResourceVersion)
		}
	}
	for _, p := range c.Pods {
		if t.Source.Kind == FromPod && p.Namespace+"/"+p.Name == t.Source.Name {
			all = append(all, string(p.UID), p.ResourceVersion)
		}
	}
	slices.Sort(all)
	return all
}

// OfKubeProxy adapts tries to known differences of kube-proxy. It leads pods past
// externalTrafficPolicy Local on other nodes than their own, but keeps their addresses, so that the
// answer of a pod on a third node comes back by another path and is not translated. And it lets
// services have nodes' addresses.
func OfKubeProxy(c *plan.Cluster, tries []Try) {
	local := map[string]bool{}
	for _, svc := range c.Services {
		local[svc.Namespace+"/"+svc.Name] = svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	}
	for i := range tries {
		t := &tries[i]
		if t.Why == whyOfNode {
			t.Fate = Unknown
		}
		past := t.Source.Kind == FromPod && t.Frontend.Kind == NodePort && local[t.Service] && t.Source.Node != t.Frontend.Node
		if past && t.Fate == Answered && slices.ContainsFunc(c.Pods, func(p *corev1.Pod) bool {
			return t.Expect.By[p.Namespace+"/"+p.Name] && p.Spec.NodeName != t.Frontend.Node
		}) {
			t.Fate, t.Why = Differs, "kube-proxy leaves a pod's address as it is, and answers from other nodes than the asked one do not come back"
		}
	}
}
