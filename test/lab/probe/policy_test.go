package probe

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/test/lab/plan"
)

// allow is a NetworkPolicy for the pods of app web, with the given rules.
func allow(rules string) string {
	return "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web}\nspec: {podSelector: {matchLabels: {app: web}}, " + rules + "}\n"
}

// policed is a cluster in which web runs on node1 and node2, other on node3 and node1, and web is a
// NodePort Service with additions to its spec.
func policed(t *testing.T, service, policy string) (*plan.Cluster, []Source) {
	t.Helper()
	c := cluster(t, `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: other}
spec:
  replicas: 2
  template: {metadata: {labels: {app: other}}, spec: {containers: [{ports: [{containerPort: 80}]}]}}
`+fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {type: NodePort, selector: {app: web}, ports: [{port: 80}]%s}\n", service)+policy)
	ss := []Source{{Kind: FromOutside, Name: "outside", Addrs: c.OutsideIPs}}
	for _, n := range c.Nodes {
		ss = append(ss, Source{Kind: FromNode, Name: n.Name, Node: n.Name, Addrs: n.IPs})
	}
	for _, p := range c.Pods {
		ss = append(ss, Source{Kind: FromPod, Name: "default/" + p.Name, Node: p.Spec.NodeName, Of: plan.WorkloadOf(p), Addrs: plan.Addrs(p)})
	}
	return c, ss
}

// The effect of policies depends on where requests are translated, and on the addresses that both
// ends see there. Pods: web-1 on node1, web-2 on node2, other-1 on node3, other-2 on node1.
func TestExpectWithPolicies(t *testing.T) {
	for _, tc := range []struct {
		name, service, policy string
		want                  map[string]string // by "source via [node]": the answering pods, or the fate
	}{
		{"no policy", "", "", map[string]string{"other-1 ClusterIP": "12 keep", "outside NodePort node3": "12"}},
		{"a pod reaches itself, a node its own pods, nobody else anything", "", allow("policyTypes: [Ingress, Egress]"), map[string]string{
			"web-1 ClusterIP": "1 keep partly", "node1 ClusterIP": "1 partly", "node3 ClusterIP": "dropped",
			"other-1 ClusterIP": "dropped", "outside NodePort node1": "dropped",
		}},
		{"from pods by label", "", allow("ingress: [{from: [{podSelector: {matchLabels: {app: other}}}]}]"), map[string]string{
			"other-1 ClusterIP": "12 keep", "other-2 ClusterIP": "12 keep", "web-2 ClusterIP": "2 keep partly",
			// Where a pod's request is masqueraded, the endpoint's node sees a node.
			"other-1 NodePort node3": "dropped", "other-1 NodePort node1": "1 partly", "other-2 NodePort node1": "1 partly",
		}},
		{"masqueraded to a node, or seen as itself by endpoints of the translating node", "", allow("ingress: [{from: [{ipBlock: {cidr: 10.10.0.1/32}}]}]"), map[string]string{
			"outside NodePort node1": "1 partly", "outside NodePort node3": "dropped", "node1 NodePort node2": "dropped",
		}},
		{"from the nodes", "", allow("ingress: [{from: [{ipBlock: {cidr: 10.10.0.0/24, except: [10.10.0.1/32]}}]}]"), map[string]string{
			"outside NodePort node1": "2 partly", "outside NodePort node3": "12", "node3 ClusterIP": "12", "other-1 ClusterIP": "dropped",
		}},
		{"the client's own address", ", externalTrafficPolicy: Local", allow("ingress: [{from: [{ipBlock: {cidr: 10.10.0.1/32}}]}]"), map[string]string{
			"outside NodePort node1": "1 keep", "outside NodePort node3": "dropped", "node3 NodePort node1": "dropped",
		}},
		{"egress to pods, seen after translation on the client's node alone", "", strings.ReplaceAll(
			allow("policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: web}}}]}]"), "{app: web}}, policy", "{app: other}}, policy"), map[string]string{
			"other-1 ClusterIP": "12 keep", "other-2 NodePort node1": "12", "other-2 NodePort node2": "dropped", "node3 ClusterIP": "12",
		}},
		{"egress to nodes", "", strings.ReplaceAll(
			allow("policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.10.0.12/32}}]}]"), "{app: web}}, policy", "{app: other}}, policy"), map[string]string{
			"other-1 ClusterIP": "dropped", "other-2 NodePort node2": "12", "other-2 NodePort node1": "dropped",
		}},
		{"by the endpoint's port, not the service's", "", allow("ingress: [{ports: [{port: 443}]}]"), map[string]string{"other-1 ClusterIP": "dropped"}},
		{"a tier above NetworkPolicy, and one below", "", allow("ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]") + `---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: admin}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  ingress: [{action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: other}}}}]}]
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: base}
spec:
  tier: Baseline
  priority: 1
  subject: {namespaces: {}}
  egress: [{action: Deny, to: [{nodes: {matchLabels: {kubernetes.io/hostname: node2}}}]}]
`, map[string]string{
			"web-1 ClusterIP": "12 keep", "other-1 ClusterIP": "12 keep", "node3 ClusterIP": "dropped",
			"other-1 NodePort node2": "dropped", "other-2 NodePort node1": "1 partly",
		}},
		{"a policy of tiers that nobody can read", "", "---\napiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: g}\nspec: {subject: {namespaces: {matchExpressions: [{key: a, operator: Near}]}}}\n",
			map[string]string{"other-1 ClusterIP": "unjudged"}},
		{"policies of another API", "", "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: g}\nspec: {}\n",
			map[string]string{"other-1 ClusterIP": "unjudged"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, ss := policed(t, tc.service, tc.policy)
			tries, _ := Tries(c, ss)
			for match, want := range tc.want {
				var got []string
				for _, try := range tries {
					text := fmt.Sprintf("%s %s %s ", strings.TrimPrefix(try.Source.Name, "default/"), try.Frontend.Kind, try.Frontend.Node)
					if strings.HasPrefix(text, match+" ") && try.To.Addr().Is4() {
						got = append(got, show(try.Expect))
					}
				}
				if len(got) != 1 || got[0] != want {
					t.Errorf("%s: %v, want %s", match, got, want)
				}
			}
		})
	}
}

// Policies are not tested with pairs of a workload and itself.
func TestPairTries(t *testing.T) {
	c, ss := policed(t, "", allow("ingress: [{from: [{podSelector: {matchLabels: {app: other}}}]}]"))
	ss = slices.DeleteFunc(ss, func(s Source) bool { return s.Kind != FromPod || !strings.HasSuffix(s.Name, "-1") })
	got := map[string]string{}
	for _, try := range PairTries(c, ss) {
		got[try.Of] = fmt.Sprintf("%s %s own=%v", try.Frontend.Kind, show(try.Expect), try.Own)
	}
	want := map[string]string{"default/web": "ClusterIP 1 keep partly own=true", "default/other": "ClusterIP 12 keep own=false"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("tries %v, want %v", got, want)
	}
}
