package remedy_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/remedy"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/store"
)

// In cluster, database is selected by policy db, which denies what no rule of a case allows; client is in
// namespace dev, with labels of its own.
const cluster = `{kind: Namespace, metadata: {name: dev, labels: {purpose: testing}}}
---
{kind: Namespace, metadata: {name: shop}}
---
kind: Pod
metadata: {name: client, namespace: dev, labels: {app: client}}
spec: {nodeName: node1}
status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}]}
---
kind: Pod
metadata: {name: database, namespace: shop, labels: {app: db}}
spec: {nodeName: node1}
status: {phase: Running, podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}]}
`

func TestNearest(t *testing.T) {
	for _, c := range []struct {
		name  string
		rules string // of policy shop/db
		want  []verdict.Near
	}{
		{"no rule", `[]`, nil},
		{"a label of the namespace", `[{from: [{namespaceSelector: {matchLabels: {purpose: production}}}]}]`,
			near("ingress[0]", "wants namespace label purpose=production; namespace dev has purpose=testing")},
		{"one more label is closer than another one",
			`[{from: [{podSelector: {matchLabels: {app: front}}, namespaceSelector: {}}, {podSelector: {matchLabels: {db-client: "true"}}, namespaceSelector: {}}]}]`,
			near("ingress[0]", "wants label db-client=true; dev/client has no label db-client")},
		{"one label is closer than two",
			`[{from: [{podSelector: {matchLabels: {a: b, c: d}}, namespaceSelector: {}}, {podSelector: {matchLabels: {app: front}}, namespaceSelector: {}}]}]`,
			near("ingress[0]", "wants label app=front; dev/client has app=client")},
		{"the closest rule first",
			`[{from: [{podSelector: {}}], ports: [{port: 81}]}, {ports: [{port: 81}]}]`,
			append(near("ingress[1]", "wants TCP 81; this is TCP 80"),
				near("ingress[0]", "wants namespace shop; dev/client is in namespace dev", "wants TCP 81; this is TCP 80")...)},
		{"its namespace, protocol and port first, and the limit leaves out the furthest",
			`[{from: [{namespaceSelector: {matchLabels: {purpose: monitoring}}}], ports: [{port: 9187}]},
			{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: stage}}}], ports: [{port: 80}]},
			{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: dev}}}], ports: [{port: 80, protocol: UDP}]},
			{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: dev}}}], ports: [{port: 9187}]},
			{from: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: 80}]},
			{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: dev}}, podSelector: {matchLabels: {app: a, tier: b}}}], ports: [{port: 80}]}]`,
			slices.Concat(near("ingress[5]", "wants label app=a; dev/client has app=client", "wants label tier=b; dev/client has no label tier"),
				near("ingress[3]", "wants TCP 9187; this is TCP 80"),
				near("ingress[1]", "wants namespace stage; dev/client is in namespace dev"))},
		{"a block for the port before another port, for what is no pod",
			`[{ports: [{port: 81}]}, {from: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: 80}]}]`,
			append(near("ingress[1]", "wants 192.0.2.0/24; this is 203.0.113.9"), near("ingress[0]", "wants TCP 81; this is TCP 80")...)},
		{"labels before a block, for a pod",
			`[{from: [{ipBlock: {cidr: 192.0.2.0/24}}, {podSelector: {matchLabels: {a: b, c: d}}, namespaceSelector: {}}]}]`,
			near("ingress[0]", "wants label a=b; dev/client has no label a", "wants label c=d; dev/client has no label c")},
		{"a block, for what is no pod",
			`[{from: [{podSelector: {}}, {ipBlock: {cidr: 203.0.113.0/24, except: [203.0.113.9/32]}}]}]`,
			near("ingress[0]", "leaves 203.0.113.9 out of 203.0.113.0/24")},
		{"a block", `[{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.1/32]}}]}]`,
			near("ingress[0]", "leaves 10.0.0.1 out of 10.0.0.0/24")},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := "10.0.0.1"
			if strings.HasSuffix(c.name, "for what is no pod") {
				from = "203.0.113.9"
			}
			s := store.New()
			apply(t, s, cluster+`---
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: `+c.rules+`}
`)
			step := verdict.Step{
				Stage: verdict.Ingress, Of: model.Ref{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: "database"}},
				Verdict: verdict.Verdict{Outcome: verdict.Denied, Isolating: []model.Ref{db}},
				Flow: verdict.Flow{Source: netip.MustParseAddr(from), Destination: netip.MustParseAddr("10.0.0.2"),
					Protocol: uint8(model.TCP), SourcePort: 40000, DestinationPort: 80},
			}
			s.Read(func(v *store.View) {
				if diff := cmp.Diff(c.want, remedy.Nearest(v, step, remedy.NewIdle(v))); diff != "" {
					t.Errorf("nearest (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A policy whose own selector is misspelled applies to nothing, and would allow the connection: it
// is named with what the denied pod lacks, before rules that lack more. One that applies to other
// pods is meant for those.
func TestNearestThatApplyToNothing(t *testing.T) {
	s := store.New()
	apply(t, s, cluster+`---
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress]}
---
kind: NetworkPolicy
metadata: {name: typo, namespace: shop}
spec: {podSelector: {matchLabels: {app: bd}}, ingress: [{from: [{namespaceSelector: {}}], ports: [{port: 80}]}]}
---
kind: NetworkPolicy
metadata: {name: another-port, namespace: shop}
spec: {podSelector: {matchLabels: {app: bd}}, ingress: [{ports: [{port: 81}]}]}
---
kind: NetworkPolicy
metadata: {name: elsewhere, namespace: dev}
spec: {podSelector: {matchLabels: {app: bd}}, ingress: [{}]}
---
kind: NetworkPolicy
metadata: {name: wrong-namespace, namespace: dev}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{}]}
---
kind: NetworkPolicy
metadata: {name: wrong-from, namespace: dev}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}
---
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: node1}
status: {phase: Running, podIP: 10.0.0.3, podIPs: [{ip: 10.0.0.3}]}
---
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, ingress: [{}]}
`)
	step := verdict.Step{
		Stage: verdict.Ingress, Of: model.Ref{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: "database"}},
		Verdict: verdict.Verdict{Outcome: verdict.Denied, Isolating: []model.Ref{db}},
		Flow: verdict.Flow{Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.0.0.2"),
			Protocol: uint8(model.TCP), SourcePort: 40000, DestinationPort: 80},
	}
	typo := model.Ref{Kind: db.Kind, Name: model.Name{Namespace: "shop", Name: "typo"}}
	wrong := model.Ref{Kind: db.Kind, Name: model.Name{Namespace: "dev", Name: "wrong-namespace"}}
	want := []verdict.Near{
		{Policy: typo, Rule: "ingress[0]", Lacks: []string{"would allow it and applies to nothing: it wants label app=bd; shop/database has app=db"}},
		{Policy: wrong, Rule: "ingress[0]", Lacks: []string{"would allow it and applies to nothing: it wants namespace dev; shop/database is in namespace shop"}},
	}
	s.Read(func(v *store.View) {
		if diff := cmp.Diff(want, remedy.Nearest(v, step, remedy.NewIdle(v))); diff != "" {
			t.Errorf("nearest (-want +got):\n%s", diff)
		}
		step.Flow.Source = netip.MustParseAddr("10.0.0.3") // shop/web
		from := model.Ref{Kind: db.Kind, Name: model.Name{Namespace: "dev", Name: "wrong-from"}}
		if got := remedy.Nearest(v, step, remedy.NewIdle(v)); !slices.ContainsFunc(got, func(n verdict.Near) bool { return n.Policy == from }) {
			t.Errorf("a policy whose rules are about the pods of its namespace is not among %v", got)
		}
	})
}

// Rules that name a Service lack an endpoint of it.
func TestNearestOfServices(t *testing.T) {
	s := store.New()
	apply(t, s, cluster)
	policy := &model.Policy{Key: db, Tier: model.DefaultTier.Name, Ingress: true, Egress: true}
	service := model.Name{Namespace: "shop", Name: "db"}
	policy.IngressRules = []model.PolicyRule{{Name: "ingress[0]", Source: model.RuleEnd{Peers: [][]model.Peer{{{Service: service}}}}}}
	policy.EgressRules = []model.PolicyRule{{Name: "egress[0]", Destination: model.RuleEnd{Ports: []model.PolicyPort{{Service: service}}}}}
	slice := &model.EndpointSlice{Name: service, Service: "db", Ports: []model.EndpointPort{{Protocol: model.TCP, Port: 5432}},
		Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.0.0.2")}}}
	for _, o := range []model.Object{policy, &model.Service{Name: service}, slice} {
		s.Apply([]store.Event{{Kind: o.Ref().Kind, Name: o.Ref().Name, Object: o}})
	}
	step := verdict.Step{
		Stage: verdict.Ingress, Of: model.Ref{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: "database"}},
		Verdict: verdict.Verdict{Outcome: verdict.Denied, Isolating: []model.Ref{db}},
		Flow: verdict.Flow{Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.0.0.2"),
			Protocol: uint8(model.TCP), SourcePort: 40000, DestinationPort: 80},
	}
	for stage, want := range map[verdict.Stage][]verdict.Near{
		verdict.Ingress: near("ingress[0]", "wants an endpoint of Service shop/db; 10.0.0.1 is none"),
		verdict.Egress:  near("egress[0]", "wants an endpoint of Service shop/db; this is TCP 80"),
	} {
		step.Stage = stage
		s.Read(func(v *store.View) {
			if diff := cmp.Diff(want, remedy.Nearest(v, step, remedy.NewIdle(v))); diff != "" {
				t.Errorf("nearest (-want +got):\n%s", diff)
			}
		})
	}
}

var db = model.Ref{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: "db"}}

func near(rule string, lacks ...string) []verdict.Near {
	return []verdict.Near{{Policy: db, Rule: rule, Lacks: lacks}}
}

// apply gives the store the objects of manifests.
func apply(t *testing.T, s *store.Store, manifests string) {
	t.Helper()
	for _, text := range strings.Split(manifests, "---\n") {
		data, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		var head struct{ Kind model.Kind }
		if err := yaml.Unmarshal(data, &head); err != nil {
			t.Fatal(err)
		}
		o, err := kinds.Find(head.Kind).Decode(kinds.Text{Data: data})
		if err != nil {
			t.Fatal(err)
		}
		s.Apply([]store.Event{{Kind: o.Ref().Kind, Name: o.Ref().Name, Object: o}})
	}
}
