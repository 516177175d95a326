package plan

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const policyManifests = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, annotations: {why: "kept as it is"}}
spec:
  podSelector: {}
  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: admin}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: db, namespace: data}
---
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkSet
metadata: {name: bad}
---
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: security}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot, labels: {role: worker}}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: router}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: selector}
spec: {podSelector: {matchExpressions: [{key: a, operator: Near}]}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: block}
spec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [192.168.0.0/16]}}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: type}
spec: {podSelector: {}, ingress: [{ports: [{port: [80]}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: default}
spec: {podSelector: {}}
`

func TestPoliciesArePassedOn(t *testing.T) {
	objs := read(t, policyManifests+service("a", "ports: [{port: 80}]"))
	c, err := New(Size{Nodes: 1}, objs, epoch)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range c.Policies {
		got = append(got, p.Resource()+" "+p.Namespace+"/"+p.Name)
	}
	want := []string{
		"networkpolicy.networking.k8s.io default/db",
		"clusternetworkpolicy.policy.networking.k8s.io /admin",
		"networkpolicy.projectcalico.org data/db",
		"globalnetworkset.crd.projectcalico.org /bad",
		"tier.projectcalico.org /security",
		"bgppeer.projectcalico.org /router",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"Ingress": 1}, c.Passed); diff != "" {
		t.Errorf("passed over (-want +got):\n%s", diff)
	}
	for i, want := range []string{"NetworkPolicy selector", "192.168.0.0/16 does not lie within", "NetworkPolicy type", "declared twice"} {
		if i >= len(c.Notes) || !strings.Contains(c.Notes[i], want) {
			t.Errorf("notes: %q, want one with %q at %d", c.Notes, want, i)
		}
	}
	if len(c.Accounts) != 1 || c.Accounts[0].Namespace != "default" || c.Accounts[0].Labels["role"] != "worker" {
		t.Errorf("service accounts %+v", c.Accounts)
	}
	var names []string
	for _, ns := range c.Namespaces {
		names = append(names, ns.Name)
	}
	if !slices.Contains(names, "data") {
		t.Errorf("namespaces %v lack that of a policy", names)
	}
}

// Files that were joined without a line break are read as agents read them.
func TestGluedPolicies(t *testing.T) {
	policy := "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s}\nspec:\n  podSelector: {}\n  egress:\n  - {}"
	c := cluster(t, 1, strings.ReplaceAll(policy, "%s", "a")+"---\n# the next file\n"+strings.ReplaceAll(policy, "%s", "b")+"\n"+service("s", "ports: [{port: 80}]"))
	if len(c.Policies) != 2 || len(c.Notes) > 0 {
		t.Errorf("%d policies, notes %q; want two, and none", len(c.Policies), c.Notes)
	}
}

// The agents get exactly the manifest's content, even after the plan was saved and read.
func TestPoliciesAreNotModified(t *testing.T) {
	c := cluster(t, 1, policyManifests+service("a", "ports: [{port: 80}]"))
	saved, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	again := new(Cluster)
	if err := json.Unmarshal(saved, again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c.Policies, again.Policies); diff != "" {
		t.Errorf("after saving (-want +got):\n%s", diff)
	}
	want := `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"annotations":{"why":"kept as it is"},"name":"db"},` +
		`"spec":{"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}]}],"podSelector":{}}}`
	if got := string(again.Policies[0].Object); got != want {
		t.Errorf("object %s, want %s", got, want)
	}
	if again.Policies[0].NetworkPolicy.Namespace != "default" || again.Policies[2].NetworkPolicy != nil {
		t.Error("Kubernetes' own NetworkPolicy, and no other, is to be decoded, with its namespace")
	}
}

// Selectors match labels, namespaces and service accounts; named ports match containers.
func TestPodsHaveWhatSelectorsNeed(t *testing.T) {
	c := cluster(t, 1, deployment("a", 1, "")+deployment("b", 1, ", serviceAccountName: robot"))
	for i, account := range []string{"default", "robot"} {
		p := c.Pods[i]
		if p.Spec.ServiceAccountName != account || p.Labels["app"] != p.Name[:1] || p.Spec.Containers[0].Ports[0].Name != "http" {
			t.Errorf("pod %s: service account %q, labels %v, ports %v", p.Name, p.Spec.ServiceAccountName, p.Labels, p.Spec.Containers[0].Ports)
		}
	}
}
