package lab

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/standin"
)

// The notes of a status are what does not work now: where the lab deviates from its manifests, and
// the faults that agents find, without those of earlier commands.
func TestStatusNotesWhatHolds(t *testing.T) {
	faults := []string{"NetworkPolicy a is refused"}
	agent := &Agent{
		Command: func(AgentConfig) []string { return []string{"sleep", "600"} },
		Sync:    func(context.Context, string) ([]string, error) { return faults, nil },
	}
	const left = "Service default/web is left out: it has no ports"
	l := upWith(t, Config{Name: "testnote", Nodes: 2, Objects: &plan.Objects{Faults: []string{left}}, Agent: agent})
	if want := []string{left, "agents: NetworkPolicy a is refused"}; !slices.Equal(l.Warnings, want) {
		t.Errorf("brought up with %q, want %q", l.Warnings, want)
	}
	for _, now := range [][]string{{"Service b is refused"}, nil} {
		faults = now
		l, err := Open(l.Name, agent)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{left}
		for _, f := range now {
			want = append(want, "agents: "+f)
		}
		if got := l.Status(t.Context()).Warnings; !slices.Equal(got, want) {
			t.Errorf("status notes %q, want %q", got, want)
		}
	}
}

// The table of pods says for which images stand-ins run, if there are any.
func TestStatusNamesStandIns(t *testing.T) {
	l := &Lab{Cluster: &plan.Cluster{}}
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.Spec.NodeName = "web", "shop", "node1"
	own := l.podStatus(pod)
	pod.Annotations = map[string]string{standin.Annotation: "web=shop/web:1,side=shop/side:2,more=shop/web:1"}
	other := l.podStatus(pod)
	for _, tc := range []struct {
		pods []PodStatus
		want string
	}{
		{[]PodStatus{own}, "POD\tNODE\tSTATE\tADDRESSES\tPORTS\nshop/web\tnode1\tnot ready\t-\t-\n"},
		{[]PodStatus{own, other}, "PORTS\tSTANDS IN FOR\nshop/web\tnode1\tnot ready\t-\t-\t-\nshop/web\tnode1\tnot ready\t-\t-\tshop/web:1 shop/side:2\n"},
	} {
		var b strings.Builder
		(&Status{Pods: tc.pods}).Table(&b)
		if !strings.Contains(b.String(), tc.want) {
			t.Errorf("%q is not in:\n%s", tc.want, b.String())
		}
	}
}
