package kube

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

func clusterPolicy(name string, priority int) string {
	return fmt.Sprintf(`{"apiVersion":"policy.networking.k8s.io/v1beta1","kind":"ClusterNetworkPolicy","metadata":{"name":%q},"spec":{"tier":"Admin","priority":%d,"subject":{"namespaces":{}},"ingress":[{"name":"x","action":"Deny","from":[{"namespaces":{}}]}]}}`, name, priority)
}

// oldVersion is an object of ClusterNetworkPolicy as an API of its earlier version has it.
func oldVersion(object string) string { return strings.ReplaceAll(object, "v1beta1", "v1alpha2") }

func calicoSet(version, name, net string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":"GlobalNetworkSet","metadata":{"name":%q},"spec":{"nets":[%q]}}`, version, name, net)
}

// Optional kinds come and go with the API's discovery.
func TestKindsComeAndGo(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	f := follow(t, api)
	f.waitSynced()
	f.waitNoIssue()
	if l := f.source.Status().Lacking; l != nil {
		t.Errorf("lacking %q", l)
	}
	api.put(cluster, clusterPolicy("a", 1))
	f.waitNames("ClusterNetworkPolicy a")
	if p := f.sink.object("ClusterNetworkPolicy a").(*model.Policy); p.Refused != "" || p.Order != 1 {
		t.Errorf("policy %+v", p)
	}
	api.set(func() { delete(api.kinds, cluster) })
	api.server.CloseClientConnections()
	f.waitNames()
	api.put(cluster, clusterPolicy("b", 2))
	f.waitNames("ClusterNetworkPolicy b")
	f.waitNoIssue()
	if n := f.sink.count(&f.sink.synced); n != 1 {
		t.Errorf("synced %d times", n)
	}
}

// Calico's kinds are read from one place at a time, the best that is served.
func TestCalicoPlaces(t *testing.T) {
	t.Parallel()
	const v1, v3 = "crd.projectcalico.org/v1", "projectcalico.org/v3"
	sets := func(dir string) string { return dir + "globalnetworksets" }
	api := newFakeAPI(t)
	api.put(sets(calicoV1), calicoSet(v1, "a", "192.0.2.0/24"))
	f := follow(t, api)
	f.waitSynced()
	f.waitNames("GlobalNetworkSet a")
	nets := func() string {
		s, _ := f.sink.object("GlobalNetworkSet a").(*model.NetworkSet)
		return fmt.Sprint(s.Nets)
	}
	events := f.sink.count(&f.sink.events)
	api.put(sets(calicoV3), calicoSet(v3, "a", "192.0.2.0/24"))
	f.wait("the move to v3", func() bool { return api.count("watch "+sets(calicoV3)) > 0 })
	if n := f.sink.count(&f.sink.events) - events; n > 0 {
		t.Errorf("the same object came with %d events from the other place", n)
	}
	api.put(sets(calicoV1), calicoSet(v1, "a", "198.51.100.0/24"))
	api.put(sets(calicoV3), calicoSet(v3, "a", "203.0.113.0/24"))
	f.wait("what v3 says", func() bool { return nets() == "[203.0.113.0/24]" })
	f.flush()
	if nets() != "[203.0.113.0/24]" {
		t.Errorf("nets %s come from the other place", nets())
	}
	// An extension API server that is away is no reason to read elsewhere.
	looks := api.count("/apis")
	api.set(func() {
		api.answers["/apis/"+v3] = http.StatusServiceUnavailable
		api.answers[sets(calicoV3)] = http.StatusServiceUnavailable
	})
	api.server.CloseClientConnections()
	f.waitIssue("GlobalNetworkSet (projectcalico.org/v3)", "fails to serve")
	f.wait("more looks", func() bool { return api.count("/apis") > looks+3 })
	if nets() != "[203.0.113.0/24]" {
		t.Errorf("nets %s come from the other place", nets())
	}
	// One that is gone is.
	api.set(func() { clear(api.answers); delete(api.kinds, sets(calicoV3)) })
	api.server.CloseClientConnections()
	f.wait("what v1 says", func() bool { return nets() == "[198.51.100.0/24]" })
	f.waitNoIssue()
}

// ClusterNetworkPolicies are read in one version, the newer where the API serves both: what both
// have is one object. They stay while the API comes to serve another version, and while it ceases
// to.
func TestClusterPolicyVersions(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.put(clusterOld, oldVersion(clusterPolicy("a", 1)))
	f := follow(t, api)
	f.waitSynced()
	f.waitNames("ClusterNetworkPolicy a")
	order := func() float64 { return f.sink.object("ClusterNetworkPolicy a").(*model.Policy).Order }
	events := f.sink.count(&f.sink.events)
	api.put(cluster, clusterPolicy("a", 1))
	f.wait("the move to the newer version", func() bool { return api.count("watch "+cluster) > 0 })
	if n := f.sink.count(&f.sink.events) - events; n > 0 {
		t.Errorf("the same object came with %d events in the newer version", n)
	}
	api.put(clusterOld, oldVersion(clusterPolicy("a", 2)))
	api.put(cluster, clusterPolicy("a", 2))
	f.wait("the change", func() bool { return order() == 2 })
	if n := f.sink.count(&f.sink.events) - events; n != 1 {
		t.Errorf("one change came with %d events", n)
	}
	api.set(func() { delete(api.kinds, cluster) })
	api.server.CloseClientConnections()
	f.wait("the move back", func() bool { return api.count("watch "+clusterOld) > 1 })
	api.put(clusterOld, oldVersion(clusterPolicy("a", 3)))
	f.wait("the change", func() bool { return order() == 3 })
	if n := f.sink.count(&f.sink.events) - events; n != 2 {
		t.Errorf("two changes came with %d events", n)
	}
	f.waitNoIssue()
}

// Kubernetes' own policies that Calico's API server shows are not Calico's.
func TestShownPolicies(t *testing.T) {
	t.Parallel()
	const path = calicoV3 + "networkpolicies"
	calico := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"projectcalico.org/v3","kind":"NetworkPolicy","metadata":{"name":%q,"namespace":"shop"},"spec":{"selector":"all()","types":["Ingress"]}}`, name)
	}
	api := newFakeAPI(t)
	api.put(policies, policy("deny", denyAll))
	api.put(path, calico("knp.default.deny"))
	api.put(path, calico("own"))
	f := follow(t, api)
	f.waitSynced()
	f.waitNames("NetworkPolicy shop/deny", "NetworkPolicy.projectcalico.org shop/own")
	api.put(path, calico("knp.default.deny"))
	api.remove(path, "shop/knp.default.deny")
	f.flush()
	f.waitNames("NetworkPolicy shop/deny", "NetworkPolicy.projectcalico.org shop/own")
	f.waitNoIssue()
}

// A stored policy has the name in its annotation, also when that changes.
func TestStoredNames(t *testing.T) {
	t.Parallel()
	const path = calicoV1 + "globalnetworkpolicies"
	stored := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"crd.projectcalico.org/v1","kind":"GlobalNetworkPolicy","metadata":{"name":"default.a","annotations":{"projectcalico.org/metadata":"{\"name\":\"%s\"}"}},"spec":{"selector":"all()","types":["Ingress"]}}`, name)
	}
	api := newFakeAPI(t)
	api.put(path, stored("a"))
	f := follow(t, api)
	f.waitSynced()
	f.waitNames("GlobalNetworkPolicy a")
	api.put(path, stored("b"))
	f.waitNames("GlobalNetworkPolicy b")
	api.put(path, `{"metadata":{"name":"b"},"spec":{"selector":"all()","types":["Egress"]}}`)
	f.flush()
	f.waitNames("GlobalNetworkPolicy b")
	api.remove(path, "/default.a")
	api.remove(path, "/b")
	f.waitNames()
}

// Unusable objects are named as lacking, as long as nothing else is lacking.
func TestObjectsAreAllThatLacks(t *testing.T) {
	t.Parallel()
	const path, odd = calicoV1 + "globalnetworkpolicies", `,"spec":{"selector":"app = 'x'"}}`
	api := newFakeAPI(t)
	everything(api)
	api.putAs(path, "/default.odd", `{"metadata":{"name":"default.odd"}`+odd)
	f := follow(t, api)
	f.waitSynced()
	f.waitIssue("GlobalNetworkPolicy default.odd", "selector")
	global := func(name string) model.Ref {
		return model.Ref{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: name}}
	}
	want := []model.Ref{global("default.odd"), global("odd")}
	if st := f.source.Status(); len(st.Lacking) != 1 || !slices.Equal(st.LackingObjects, want) {
		t.Errorf("lacking %q, objects %v", st.Lacking, st.LackingObjects)
	}
	api.putAs(services, "shop/never", `{"metadata":{"name":"never","namespace":"shop","labels":7},"spec":{}}`)
	f.waitIssue("Service shop/never", "number found where")
	want = append([]model.Ref{{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "never"}}}, want...)
	if st := f.source.Status(); len(st.Lacking) != 2 || !slices.Equal(st.LackingObjects, want) {
		t.Errorf("lacking %q, objects %v", st.Lacking, st.LackingObjects)
	}
}

// A faulty network set keeps its last good version, or is delivered as refused.
func TestSetsAtFault(t *testing.T) {
	t.Parallel()
	const path, v3 = calicoV3 + "globalnetworksets", "projectcalico.org/v3"
	api := newFakeAPI(t)
	api.put(path, calicoSet(v3, "good", "192.0.2.0/24"))
	api.put(path, calicoSet(v3, "never", "nonsense"))
	f := follow(t, api)
	f.waitSynced()
	f.waitNames("GlobalNetworkSet good", "GlobalNetworkSet never")
	api.put(path, calicoSet(v3, "good", "nonsense"))
	f.waitIssue("GlobalNetworkSet good", "nonsense")
	if s := f.sink.object("GlobalNetworkSet good").(*model.NetworkSet); s.Refused != "" || len(s.Nets) != 1 {
		t.Errorf("the last good version is gone: %+v", s)
	}
	if s := f.sink.object("GlobalNetworkSet never").(*model.NetworkSet); s.Refused == "" {
		t.Errorf("set %+v is not refused", s)
	}
}

// A policy that cannot be taken as it is written is ignored where that is asked for, so that
// nothing is lacking, whatever is wrong with it; a good version of it is not given up.
func TestPoliciesIgnored(t *testing.T) {
	t.Parallel()
	const path = calicoV3 + "networkpolicies"
	policy := func(name, spec string) string {
		return fmt.Sprintf(`{"apiVersion":"projectcalico.org/v3","kind":"NetworkPolicy","metadata":{"name":%q,"namespace":"shop"},"spec":{%s}}`, name, spec)
	}
	const http = `"selector":"app == 'a'","ingress":[{"action":"Allow","http":{}}]`
	api := newFakeAPI(t)
	api.put(path, policy("http", http))
	api.put(path, policy("nobody", `"selector":"=="`))
	api.put(path, policy("good", `"selector":"all()"`))
	f := followAs(t, api, Config{Kubeconfig: api.kubeconfig(""), Policies: true, IgnoreRefused: true})
	f.waitSynced()
	f.waitNames("NetworkPolicy.projectcalico.org shop/good", "NetworkPolicy.projectcalico.org shop/http", "NetworkPolicy.projectcalico.org shop/nobody")
	for _, name := range []string{"http", "nobody"} {
		if p := f.sink.object("NetworkPolicy.projectcalico.org shop/" + name).(*model.Policy); !p.Ignored || p.Refused == "" {
			t.Errorf("%s: %+v", name, p)
		}
		f.waitIssue("NetworkPolicy.projectcalico.org shop/"+name, ": ignored: spec.", "; in force: nothing of it")
	}
	if l := f.source.Status().Lacking; l != nil {
		t.Errorf("lacking %q", l)
	}
	api.put(path, policy("good", http))
	f.waitIssue("NetworkPolicy.projectcalico.org shop/good", "): spec.ingress[0].http: ", "; in force: its last good version")
	if p := f.sink.object("NetworkPolicy.projectcalico.org shop/good").(*model.Policy); p.Ignored {
		t.Errorf("the last good version is gone: %+v", p)
	}
	api.put(path, policy("http", `"selector":"all()"`))
	f.wait("it is mended", func() bool {
		return !f.sink.object("NetworkPolicy.projectcalico.org shop/http").(*model.Policy).Ignored
	})
}

// If discovery is denied, the kinds that need it do not hold up the others.
func TestDiscoveryIsDenied(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	names := everything(api)
	api.answers["/apis"] = http.StatusForbidden
	f := follow(t, api)
	f.waitSynced()
	f.waitNames(names...)
	f.waitIssue("ClusterNetworkPolicy", "system:discovery")
	if l := f.source.Status().Lacking; len(l) != 7 {
		t.Errorf("lacking %q", l)
	}
	api.set(func() { clear(api.answers) })
	f.wait("nothing to be lacking", func() bool { return f.source.Status().Lacking == nil })
	f.waitNoIssue()
}

// Without policies, the source needs neither discovery nor the kinds for policies.
func TestWithoutPolicies(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	everything(api)
	f := followAs(t, api, Config{Kubeconfig: api.kubeconfig("")})
	f.waitSynced()
	f.waitNames("EndpointSlice shop/web-1", "Node n1", "Service shop/web")
	f.flush()
	for _, path := range []string{pods, namespaces, policies, "/apis"} {
		if api.count(path) > 0 {
			t.Errorf("%s was asked for", path)
		}
	}
}
