package demo

import (
	"maps"
	"testing"
	"testing/fstest"
	"time"

	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/probe"
)

const rule = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
    - from: [{podSelector: {matchLabels: {app: front}}}]
`

// pairs plans a cluster of the tiers with policies, and lists the requests between them.
func pairs(t *testing.T, policies string) (*plan.Cluster, []probe.Try) {
	t.Helper()
	objs, err := plan.ReadFS(fstest.MapFS{"tiers.yaml": {Data: Tiers}, "policies.yaml": {Data: []byte(policies)}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := plan.New(plan.Size{Nodes: 3}, objs, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var clients []probe.Source
	seen := map[string]bool{}
	for _, p := range c.Pods {
		if w := plan.WorkloadOf(p); !seen[w] {
			seen[w] = true
			clients = append(clients, probe.Source{Kind: probe.FromPod, Name: p.Namespace + "/" + p.Name, Node: p.Spec.NodeName, Of: w, Addrs: plan.Addrs(p)})
		}
	}
	return c, probe.PairTries(c, clients)
}

func TestFollowed(t *testing.T) {
	c, all := pairs(t, "")
	if got := followed(c, all); got == nil || got.Own || !elsewhere(c, *got) {
		t.Errorf("follows %+v, want a request to another workload on another node", got)
	}
	if got := followed(c, nil); got != nil {
		t.Errorf("follows %+v of no requests", got)
	}
	if got := denied(c, all); got != nil {
		t.Errorf("%+v is denied without a policy", got)
	}
}

// The label of a denied request's client is one that a rule asks for and that makes the client no
// endpoint of another service.
func TestDenied(t *testing.T) {
	for _, tc := range []struct {
		name, more string
		labels     map[string]string
	}{
		{"only a label by which a service selects", "", nil},
		{"a label of its own", "    - from: [{podSelector: {matchLabels: {reads: db}}}]\n", map[string]string{"reads": "db"}},
		{"one of several", "    - from: [{podSelector: {matchExpressions: [{key: role, operator: In, values: [a, b]}, {key: ok, operator: Exists}]}}]\n", map[string]string{"role": "a", "ok": "true"}},
		{"a label of another namespace's pods", "    - from: [{namespaceSelector: {matchLabels: {team: other}}, podSelector: {matchLabels: {reads: db}}}]\n", nil},
	} {
		c, all := pairs(t, rule+tc.more)
		before := c.Pods[0].DeepCopy().Labels
		got := denied(c, all)
		if got == nil || got.Service != "default/db" || got.Of != "default/api" || !maps.Equal(got.labels, tc.labels) {
			t.Errorf("%s: %+v, want api to db with %v", tc.name, got, tc.labels)
		}
		if !maps.Equal(before, c.Pods[0].Labels) {
			t.Errorf("%s: the cluster is not as it was", tc.name)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		45 * time.Microsecond: "45 µs", 312 * time.Microsecond: "0.3 ms", 9940 * time.Microsecond: "9.9 ms", 81 * time.Millisecond: "81 ms", 1340 * time.Millisecond: "1.3 s",
	} {
		if got := span(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int]string{7: "7", 999: "999", 2113: "2,113", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is %s", n, got)
		}
	}
	if got := onNodes(map[string]time.Duration{"b": 300 * time.Microsecond, "a": 81 * time.Millisecond}); got != "81 ms (a), 0.3 ms (b)" {
		t.Error(got)
	}
	if got := onNodes(map[string]time.Duration{"a": 1e6, "b": 2e6, "c": 3e6, "d": 4e6}); got != "1.0 ms to 4.0 ms (4 nodes)" {
		t.Error(got)
	}
}
