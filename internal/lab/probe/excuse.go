package probe

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/lab/plan"
)

// Excuse judges what failed again, by how the cluster was before and is now: what one of the two
// accounts for has not failed. Where the service, its endpoints or the source have changed, nobody
// can say what should have become of a request in between: it is excused. Now has what Tries or
// PairTries expects of the same sources by now.
func Excuse(results []Result, before, after *plan.Cluster, now []Try) {
	expected := map[way]Expect{}
	for _, t := range now {
		expected[t.way()] = t.Expect
	}
	for i := range results {
		r := &results[i]
		if r.Failed == 0 {
			continue
		}
		expect, still := expected[r.way()]
		switch {
		case still && reflect.DeepEqual(expect, r.Expect) && !changed(r.Try, before, after):
		case still && r.explainedBy(expect):
			r.Failed = 0
		default:
			r.Excused, r.Failed = r.Failed, 0
		}
	}
}

// way is a source and a frontend.
type way struct {
	source string
	Frontend
}

func (t Try) way() way { return way{t.Source.Name, t.Frontend} }

// explainedBy says whether each request was answered by a pod that was to answer before or is to
// now.
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

// changed says whether a try's service, its endpoints, or the pod it comes from are others than
// before.
func changed(t Try, before, after *plan.Cluster) bool {
	return !slices.Equal(versions(t, before), versions(t, after))
}

// versions are those of the objects that a try is about, in any order that stays.
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

// OfKubeProxy changes tries to what kube-proxy makes of them where that is known to be something
// else: it leads pods past externalTrafficPolicy Local on other nodes than their own, but leaves
// their addresses as they are, so that the answer of a pod on a third node comes back by another
// way and is not translated. And it lets services have nodes' addresses.
func OfKubeProxy(c *plan.Cluster, tries []Try) {
	local := map[string]bool{}
	for _, svc := range c.Services {
		local[svc.Namespace+"/"+svc.Name] = svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	}
	for i := range tries {
		t := &tries[i]
		if t.Why == whyOfNode {
			t.Fate = Unjudged
		}
		past := t.Source.Kind == FromPod && t.Frontend.Kind == NodePort && local[t.Service] && t.Source.Node != t.Frontend.Node
		if past && t.Fate == Answered && slices.ContainsFunc(c.Pods, func(p *corev1.Pod) bool {
			return t.Expect.By[p.Namespace+"/"+p.Name] && p.Spec.NodeName != t.Frontend.Node
		}) {
			t.Fate, t.Why = Differs, "kube-proxy leaves a pod's address as it is, and answers from other nodes than the asked one do not come back"
		}
	}
}
