package remedy_test

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/remedy"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// TestAllowSelects suggests policies for pods whose labels say more than of which set they are. The
// policies ask for no label that no Pod has, or that another pod of the set has not.
func TestAllowSelects(t *testing.T) {
	for _, c := range []struct {
		name     string
		labels   string // of the client
		network  string // labels of a network set of its namespace; "": there is none
		calico   bool
		selector string // of the client
		says     string // in a comment
	}{
		{"a Deployment", `{app: web, pod-template-hash: 7d4b}`, "", false, `{matchLabels: {app: "web"}}`, ""},
		{"a StatefulSet", `{app: web, statefulset.kubernetes.io/pod-name: web-0, apps.kubernetes.io/pod-index: "0", controller-revision-hash: web-59}`, "", false, `{matchLabels: {app: "web"}}`, ""},
		{"a CronJob", `{app: web, job-name: web-29, batch.kubernetes.io/job-name: web-29, batch.kubernetes.io/controller-uid: x, controller-uid: x}`, "", false, `{matchLabels: {app: "web"}}`, ""},
		{"nothing else tells it", `{statefulset.kubernetes.io/pod-name: web-0, controller-revision-hash: web-59}`, "", false, `{matchLabels: {statefulset.kubernetes.io/pod-name: "web-0"}}`, ""},
		{"labels of Calico's", `{app: web, projectcalico.org/orchestrator: k8s, projectcalico.org/namespace: dev, projectcalico.org/serviceaccount: a}`, "", false, `{matchLabels: {app: "web"}}`, ""},
		{"by Calico", `{app: web}`, "", true, `app == 'web'`, ""},
		{"by Calico, beside a network set", `{app: web}`, `{app: web, set: partners}`, true, `app == 'web' && !has(set)`, ""},
		{"by Calico, beside a network set like it", `{app: web}`, `{app: web}`, true, `app == 'web'`, "also those of NetworkSet dev/partners: it holds for them too"},
		{"by Kubernetes, network sets do not matter", `{app: web}`, `{app: web}`, false, `{matchLabels: {app: "web"}}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := store.New()
			objects := strings.Replace(cluster, "{app: client}", c.labels, 1) + `---
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}
`
			if c.network != "" {
				objects += "---\n{apiVersion: projectcalico.org/v3, kind: NetworkSet, metadata: {name: partners, namespace: dev, labels: " + c.network + "}, spec: {nets: [192.0.2.0/24]}}\n"
			}
			apply(t, s, objects)
			step := denied(netip.MustParseAddr("10.0.0.1"))
			if step.Isolating = []model.Ref{db}; c.calico {
				step.Isolating[0].Kind = model.CalicoPolicy
			}
			var got remedy.Suggestion
			var err error
			s.Read(func(v *store.View) { got, err = remedy.Allow(v, step) })
			if err != nil {
				t.Fatal(err)
			}
			field := "podSelector: "
			if c.calico {
				field = "selector: "
			}
			if !strings.Contains(got.YAML, "      "+field+c.selector+"\n") || strings.Contains(got.YAML, "projectcalico.org/orchestrator") || !strings.Contains(got.YAML, c.says) || c.says == "" && strings.Contains(got.YAML, "holds for") {
				t.Errorf("want %s%s, and %q in comments:\n%s", field, c.selector, c.says, got.YAML)
			}
		})
	}
}

// A policy for the address of a node is for all who get it.
func TestAllowNode(t *testing.T) {
	s := store.New()
	apply(t, s, cluster+"---\n{kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}\n")
	s.Read(func(v *store.View) {
		step := denied(netip.MustParseAddr("192.0.2.1"))
		got, err := remedy.Allow(v, step)
		if err != nil || !strings.Contains(got.YAML, "# That is node node1: it holds for every client that gets an address of this node, too.\n") {
			t.Errorf("%v\n%s", err, got.YAML)
		}
	})
}

// denied is what denies pod shop/database's clients.
func denied(from netip.Addr) verdict.Step {
	return verdict.Step{
		Stage: verdict.Ingress, Of: model.Ref{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: "database"}}, Drop: state.DropPolicy,
		Verdict: verdict.Verdict{Outcome: verdict.Denied, Decider: verdict.Decider{Tier: model.DefaultTier.Name}, Isolating: []model.Ref{db}},
		Flow:    verdict.Flow{Source: from, Destination: netip.MustParseAddr("10.0.0.2"), Protocol: uint8(model.TCP), SourcePort: 40000, DestinationPort: 80},
	}
}
