package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

// A kind that RBAC denies holds up no other; the missing rule is reported, and the kind is read
// once the rule is there.
func TestRealDenied(t *testing.T) {
	c := realAPI(t)
	names := c.shop(t)
	for _, denied := range []struct{ resource, kind, object string }{
		{"networkpolicies.networking.k8s.io", "NetworkPolicy", "NetworkPolicy shop/deny"},
		{"services", "Service", "Service shop/web"},
		{"endpointslices.discovery.k8s.io", "EndpointSlice", "EndpointSlice shop/web-1"},
	} {
		t.Run(denied.kind, func(t *testing.T) {
			const user = "denied"
			way := c.forward(t)
			f := followReal(t, c.user(t, way.url(), user, without(allResources, denied.resource)...))
			f.waitSynced()
			f.waitOwn(without(names, denied.object)...)
			plural, group, _ := strings.Cut(denied.resource, ".")
			f.waitIssue(denied.kind, "cannot list", fmt.Sprintf("apiGroups: [%q], resources: [%q], verbs: [list, watch]", group, plural))
			if l := f.source.Status().Lacking; len(l) != 1 || !strings.HasPrefix(l[0], denied.kind+": ") {
				t.Errorf("lacking %q", l)
			}
			c.allow(t, user, allResources...)
			f.waitOwn(names...)
			f.waitNoIssue()
			if l := f.source.Status().Lacking; l != nil {
				t.Errorf("lacking %q", l)
			}
			// What has been read stays when the right to read it is taken away.
			c.allow(t, user, without(allResources, denied.resource)...)
			way.cut()
			f.waitIssue(denied.kind, "apiGroups")
			f.waitOwn(names...)
		})
	}
}

// definition returns a minimal definition of a kind that accepts any object.
func definition(group, version, plural, kind string, namespaced bool) string {
	scope := "Cluster"
	if namespaced {
		scope = "Namespaced"
	}
	return fmt.Sprintf(`{"metadata":{"name":"%s.%s"},"spec":{"group":%[2]q,"scope":%[5]q,"names":{"plural":%[1]q,"singular":%[6]q,"kind":%[4]q,"listKind":"%[4]sList"},
		"versions":[{"name":%[3]q,"served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
		plural, group, version, kind, scope, strings.ToLower(kind))
}

// define makes the API serve a kind, until the test ends or the kind is removed.
func (c *realCluster) define(t *testing.T, definition, path string) {
	t.Helper()
	c.put(t, definitions, definition)
	waitFor(t, "the API to serve "+path, func() bool {
		code, _ := c.ask(t, http.MethodGet, path, "")
		return code == http.StatusOK
	})
}

// clusterPolicies returns the published definition of ClusterNetworkPolicy.
func clusterPolicies(t *testing.T) string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/standard/policy.networking.k8s.io_clusternetworkpolicies.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	object, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(object)
}

// Kinds come and go with their definitions.
func TestRealKindsComeAndGo(t *testing.T) {
	c := realAPI(t)
	c.put(t, namespaces, `{"metadata":{"name":"shop"}}`)
	f := followReal(t, c.user(t, c.forward(t).url(), "kinds", allResources...))
	f.waitSynced()
	f.waitNoIssue()
	if l := f.source.Status().Lacking; l != nil {
		t.Errorf("lacking %q", l)
	}
	for range 2 { // they may come again
		c.define(t, clusterPolicies(t), cluster)
		c.put(t, cluster, clusterPolicy("shop-a", 1))
		f.waitOwn("ClusterNetworkPolicy shop-a", "Namespace shop")
		if p := f.sink.object("ClusterNetworkPolicy shop-a").(*model.Policy); p.Refused != "" || p.Order != 1 {
			t.Errorf("policy %+v", p)
		}
		c.put(t, cluster, clusterPolicy("shop-b", 2))
		f.waitOwn("ClusterNetworkPolicy shop-a", "ClusterNetworkPolicy shop-b", "Namespace shop")
		c.remove(t, definitions+"/clusternetworkpolicies.policy.networking.k8s.io")
		f.waitOwn("Namespace shop")
		f.waitNoIssue()
	}
}

// isAt reports whether a kind has been read in a version.
func (f *fixture) isAt(kind model.Kind, version string) bool {
	i := slices.IndexFunc(f.source.followers, func(f *follower) bool { return f.kind.Kind == kind })
	at := f.source.followers[i]
	at.mu.Lock()
	defer at.mu.Unlock()
	return at.place != nil && at.place.Version == version && at.version != ""
}

// The published definition comes in place of one that has the earlier version alone, while an agent
// reads; and it may cease to serve the newer version.
func TestRealClusterPolicyVersions(t *testing.T) {
	c := realAPI(t)
	c.put(t, namespaces, `{"metadata":{"name":"shop"}}`)
	f := followReal(t, c.user(t, c.forward(t).url(), "versions", allResources...))
	f.waitSynced()
	both := clusterPolicies(t)
	changed := func(change func(versions []any) []any) string {
		var definition struct {
			Metadata any            `json:"metadata"`
			Spec     map[string]any `json:"spec"`
		}
		err := json.Unmarshal([]byte(both), &definition)
		if err != nil {
			t.Fatal(err)
		}
		definition.Spec["versions"] = change(definition.Spec["versions"].([]any)) // the earlier one first
		text, err := json.Marshal(definition)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	c.define(t, changed(func(versions []any) []any {
		versions[0].(map[string]any)["storage"] = true
		return versions[:1]
	}), clusterOld)
	c.put(t, clusterOld, oldVersion(clusterPolicy("shop-a", 1)))
	f.waitOwn("ClusterNetworkPolicy shop-a", "Namespace shop")
	isOrder := func(want float64) func() bool {
		return func() bool {
			p, ok := f.sink.object("ClusterNetworkPolicy shop-a").(*model.Policy)
			return ok && p.Refused == "" && p.Order == want
		}
	}
	events := f.delivered(func() {
		c.define(t, both, cluster)
		f.wait("the newer version", func() bool { return f.isAt(model.ClusterPolicy, "v1beta1") })
		c.put(t, cluster, clusterPolicy("shop-a", 2))
		f.wait("what is written in the newer version", isOrder(2))
		c.put(t, clusterOld, oldVersion(clusterPolicy("shop-a", 3)))
		f.wait("what is written in the earlier version", isOrder(3))
		c.put(t, definitions, changed(func(versions []any) []any {
			versions[1].(map[string]any)["served"] = false
			return versions
		}))
		f.wait("the earlier version", func() bool { return f.isAt(model.ClusterPolicy, "v1alpha2") })
	})
	if events != 2 {
		t.Errorf("two changes came with %d events", events)
	}
	f.waitOwn("ClusterNetworkPolicy shop-a", "Namespace shop")
	f.waitNoIssue()
}

// So do Calico's, from what it stores, or from its own API if that is served.
func TestRealCalico(t *testing.T) {
	c := realAPI(t)
	c.put(t, namespaces, `{"metadata":{"name":"shop"}}`)
	f := followReal(t, c.user(t, c.forward(t).url(), "calico", allResources...))
	f.waitSynced()
	policy := `{"apiVersion":"crd.projectcalico.org/v1","kind":"GlobalNetworkPolicy","metadata":{"name":"default.shop"},"spec":{"selector":"all()","types":["Ingress"],"tier":"default"}}`
	c.define(t, definition(kinds.CalicoStored, "v1", "globalnetworkpolicies", "GlobalNetworkPolicy", false), calicoV1+"globalnetworkpolicies")
	c.define(t, definition(kinds.CalicoStored, "v1", "networksets", "NetworkSet", true), calicoV1+"networksets")
	c.put(t, calicoV1+"globalnetworkpolicies", policy)
	c.put(t, calicoV1+"networksets", `{"apiVersion":"crd.projectcalico.org/v1","kind":"NetworkSet","metadata":{"name":"nets","namespace":"shop"},"spec":{"nets":["192.0.2.0/24"]}}`)
	f.wait("Calico's objects", func() bool { return len(f.own()) == 3 })
	events := f.delivered(func() {
		c.define(t, definition(kinds.CalicoGroup, "v3", "networksets", "NetworkSet", true), calicoV3+"networksets")
		c.put(t, calicoV3+"networksets", `{"apiVersion":"projectcalico.org/v3","kind":"NetworkSet","metadata":{"name":"other","namespace":"shop"},"spec":{"nets":["198.51.100.0/24"]}}`)
		f.wait("the other place", func() bool { return slices.Contains(f.own(), "NetworkSet shop/other") })
		f.wait("the first to go", func() bool { return !slices.Contains(f.own(), "NetworkSet shop/nets") })
	})
	if events != 2 {
		t.Errorf("one set came and one went with %d events", events)
	}
	c.remove(t, definitions+"/networksets."+kinds.CalicoGroup)
	f.wait("what is stored", func() bool { return slices.Contains(f.own(), "NetworkSet shop/nets") })
	c.remove(t, definitions+"/networksets."+kinds.CalicoStored)
	c.remove(t, definitions+"/globalnetworkpolicies."+kinds.CalicoStored)
	f.waitOwn("Namespace shop")
	f.waitNoIssue()
}

// Objects with the schema of another version affect only themselves.
func TestRealOdd(t *testing.T) {
	c := realAPI(t)
	names := c.shop(t)
	const path = calicoV1 + "globalnetworkpolicies"
	c.define(t, definition(kinds.CalicoStored, "v1", "globalnetworkpolicies", "GlobalNetworkPolicy", false), path)
	gnp := func(name, spec string) string {
		return fmt.Sprintf(`{"apiVersion":"crd.projectcalico.org/v1","kind":"GlobalNetworkPolicy","metadata":{"name":%q},"spec":%s}`, name, spec)
	}
	odd := []struct{ spec, word string }{
		{`{"selector":"all()","types":["Ingress"],"newField":{"a":1}}`, "newField"},
		{`{"selector":"all()","types":["Sideways"]}`, "Sideways"},
		{`{"selector":7}`, "selector"},
		{`"none"`, "spec"},
		{`{"selector":"all()","types":["Ingress"],"ingress":[{"action":"Ponder"}]}`, "Ponder"},
		{`{"selector":"all()","types":["Ingress"],"ingress":[{"action":"Allow","nots":[1]}]}`, "nots"},
		{`{"selector":"all(","types":["Ingress"]}`, "selector"},
	}
	c.put(t, path, gnp("shop-good", `{"selector":"all()","types":["Ingress"]}`))
	name := func(i int) string { return fmt.Sprintf("shop-odd%d", i) }
	for i, o := range odd {
		c.put(t, path, gnp(name(i), o.spec))
	}
	f := followReal(t, c.user(t, c.forward(t).url(), "odd", allResources...))
	f.waitSynced()
	f.wait("the good one", func() bool {
		p, ok := f.sink.object("GlobalNetworkPolicy shop-good").(*model.Policy)
		return ok && p.Refused == ""
	})
	for i, o := range odd {
		f.waitIssue("GlobalNetworkPolicy "+name(i), "in force: ", o.word)
		if p, ok := f.sink.object("GlobalNetworkPolicy " + name(i)).(*model.Policy); ok && p.Refused == "" {
			t.Errorf("%s is not refused: %+v", name(i), p)
		}
	}
	for _, n := range names {
		if f.sink.object(n) == nil {
			t.Errorf("%s is not there", n)
		}
	}
	// They stop being faulty when they are corrected, and can be deleted.
	for i := range odd {
		c.remove(t, path+"/"+name(i))
	}
	f.waitNoIssue()
}

// An object that is odd, but valid by its schema, is delivered as it is.
func TestRealOddButGood(t *testing.T) {
	c := realAPI(t)
	c.put(t, namespaces, `{"metadata":{"name":"shop"}}`)
	c.put(t, endpoints, slice("lonely", "nobody", "10.0.0.1"))
	c.put(t, endpoints, slice("twin-1", "web", "10.0.0.2"))
	c.put(t, endpoints, slice("twin-2", "web", "10.0.0.2"))
	c.put(t, endpoints, `{"metadata":{"name":"unlabelled","namespace":"shop"},"addressType":"IPv4","endpoints":[]}`)
	c.put(t, endpoints, `{"metadata":{"name":"names","namespace":"shop","labels":{"kubernetes.io/service-name":"web"}},"addressType":"FQDN","endpoints":[{"addresses":["example.org"]}]}`)
	c.put(t, nodes, `{"metadata":{"name":"shop-bare"}}`)
	f := followReal(t, c.user(t, c.forward(t).url(), "bare", allResources...))
	f.waitSynced()
	f.waitOwn("EndpointSlice shop/lonely", "EndpointSlice shop/twin-1", "EndpointSlice shop/twin-2", "EndpointSlice shop/unlabelled", "Namespace shop", "Node shop-bare")
	f.waitNoIssue()
	if st := f.source.Status(); st.Skipped["EndpointSlice"] != 1 || st.Lacking != nil {
		t.Errorf("a slice of host names is not just passed over: %+v", st)
	}
}
