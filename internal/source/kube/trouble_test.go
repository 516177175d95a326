package kube

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// A kind that cannot be read does not hold up the others, and its objects stay.
func TestKindThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(*fakeAPI)
		words []string
	}{
		{"RBAC denies it", func(f *fakeAPI) { f.answers[policies] = http.StatusForbidden },
			[]string{"NetworkPolicy", "apiGroups: [\"networking.k8s.io\"], resources: [\"networkpolicies\"], verbs: [list, watch]"}},
		{"the API lacks it", func(f *fakeAPI) { f.answers[policies] = http.StatusNotFound },
			[]string{"NetworkPolicy", "does not serve networkpolicies.networking.k8s.io"}},
		{"the API fails", func(f *fakeAPI) { f.answers[policies] = http.StatusInternalServerError },
			[]string{"NetworkPolicy", "fails to serve networkpolicies.networking.k8s.io"}},
		{"the answer is no list", func(f *fakeAPI) { f.unnamed[policies] = `{}` }, []string{"it is no list"}},
		{"the answer is a web page", func(f *fakeAPI) { f.unnamed[policies] = `<html>` }, []string{"read answer"}},
		{"the API does not answer", func(f *fakeAPI) { f.hanging[policies] = true }, []string{"NetworkPolicy (http", "does not answer in time"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := newFakeAPI(t)
			names := everything(api)
			rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "NetworkPolicy shop/deny" })
			c.spoil(api)
			f := follow(t, api, func(t *timing) { t.answer, t.patience = 500*time.Millisecond, 600*time.Millisecond })
			f.waitSynced()
			f.waitNames(rest...)
			f.waitIssue(c.words...)
			if l := f.source.Status().Lacking; len(l) != 1 || !strings.HasPrefix(l[0], "NetworkPolicy: ") {
				t.Errorf("lacking %q", l)
			}
			for _, k := range f.source.Status().Kinds { // some are optional, and not served
				if k.Synced == (k.Kind == "NetworkPolicy") {
					t.Errorf("%s: synced is %v", k.Kind, k.Synced)
				}
			}
			api.set(func() { clear(api.answers); clear(api.unnamed); clear(api.hanging) })
			f.waitNames(names...)
			f.waitNoIssue()
			if l := f.source.Status().Lacking; l != nil {
				t.Errorf("lacking %q", l)
			}
			// What has been read once is not lacking when it cannot be read later: once its watch
			// ends.
			waitFor(t, "a watch of it", func() bool { return api.count("watch "+policies) > 0 })
			api.set(func() { c.spoil(api); api.answers["watch "+policies] = api.answers[policies] })
			api.server.CloseClientConnections()
			f.waitIssue(c.words...)
			f.waitNames(names...)
			if l := f.source.Status().Lacking; l != nil {
				t.Errorf("lacking %q", l)
			}
		})
	}
}

// Nothing is synced or withdrawn while the API is away or does not accept our credentials.
func TestAPIThatIsAway(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	names := everything(api)
	api.die()
	f := follow(t, api)
	f.waitIssue("Kubernetes API", "refused")
	if st := f.source.Status(); st.Synced || len(st.Issues) != 1 {
		t.Errorf("status %+v", st)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.source.Flush(ctx); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("flush: %v", err)
	}
	api.set(func() { api.user = "good" })
	api.live()
	f.waitIssue("Kubernetes API", "does not accept the credentials")
	if f.source.Status().Synced {
		t.Error("synced without credentials")
	}
	api.set(func() { api.user = "" })
	f.waitSynced()
	f.waitNames(names...)
	f.waitNoIssue()
	api.die()
	f.waitIssue("Kubernetes API")
	f.waitNames(names...)
	api.live()
	f.waitNoIssue()
	if n := f.sink.count(&f.sink.gone); n > 0 {
		t.Errorf("%d objects went", n)
	}
}

// Watches that end at once are reported; changes arrive all the same.
func TestWatchesEndAtOnce(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	everything(api)
	api.endless = 1 << 30
	f := follow(t, api)
	f.waitSynced()
	f.waitIssue("Service", "ends watches at once")
	if f.source.Status().Reconnects < tooShort {
		t.Error("reconnects are not counted")
	}
	events := f.sink.count(&f.sink.events)
	api.set(func() { api.endless = 0 })
	api.put(services, service("web", 81))
	f.wait("a change", func() bool { return f.port("web") == 81 })
	if n := f.sink.count(&f.sink.events) - events; n != 1 {
		t.Errorf("one change came with %d events", n)
	}
	if n := api.count(services) - api.count("watch "+services); n > 2+api.count("watch "+services) {
		t.Errorf("the list was read %d times", n)
	}
}

// Without history the list is read again, and only differences are delivered.
func TestHistoryIsLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		lose func(*fakeAPI)
	}{
		{"410 in the watch", func(f *fakeAPI) { f.forget() }},
		{"410 to the watch", func(f *fakeAPI) {
			f.set(func() { f.answers["watch "+services] = http.StatusGone })
		}},
		{"restored to an older state", func(f *fakeAPI) {
			f.set(func() { f.version, f.history = 10, nil })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := newFakeAPI(t)
			everything(api)
			api.put(services, service("gone", 80))
			f := follow(t, api)
			f.waitSynced()
			f.wait("a watch", func() bool { return api.count("watch "+services) > 0 })
			events := f.sink.count(&f.sink.events)
			api.die()
			api.put(services, service("web", 81))
			api.remove(services, "shop/gone")
			c.lose(api)
			api.live()
			f.wait("the difference", func() bool { return f.port("web") == 81 && f.port("gone") == 0 })
			api.set(func() { clear(api.answers) })
			f.flush()
			if n := f.sink.count(&f.sink.events) - events; n != 2 {
				t.Errorf("the difference of two objects came with %d events", n)
			}
			api.put(services, service("web", 82))
			f.wait("a change thereafter", func() bool { return f.port("web") == 82 })
		})
	}
}

// A list is read as a whole if the history of its pages is lost in between.
func TestPagesExpire(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	names := everything(api)
	api.put(services, service("a", 80))
	api.put(services, service("b", 80))
	api.pageSize, api.expire = 1, true
	f := follow(t, api)
	f.waitSynced()
	f.waitNames(append(names[:5:5], "Service shop/a", "Service shop/b", names[5], names[6])...)
}

// If the watch of one kind hangs without an answer, it is tried again.
func TestWatchHangs(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	everything(api)
	api.hanging["watch "+services] = true
	f := follow(t, api, func(t *timing) { t.answer = 50 * time.Millisecond })
	f.waitSynced()
	f.waitIssue("Service (http", "does not answer in time")
	api.set(func() { clear(api.hanging) })
	api.put(services, service("web", 81))
	f.wait("a change", func() bool { return f.port("web") == 81 })
	f.waitNoIssue()
}

// Faulty objects keep their last good version, and affect no others.
func TestObjectsAtFault(t *testing.T) {
	t.Parallel()
	const oddSpec = `{"metadata":{"name":"web","namespace":"shop"},"spec":{"clusterIP":"10.96.0.10","ports":"none"}}`
	const oddMeta = `{"metadata":{"name":"never","namespace":"shop","labels":7},"spec":{}}`
	api := newFakeAPI(t)
	names := everything(api)
	api.putAs(services, "shop/never", oddMeta)
	f := follow(t, api)
	f.waitSynced()
	f.waitNames(names...)
	f.waitIssue("Service shop/never (v1)", "number found where")
	if l := f.source.Status().Lacking; len(l) != 1 || !strings.HasPrefix(l[0], "Service shop/never: ") {
		t.Errorf("lacking %q", l)
	}
	api.putAs(services, "shop/web", oddSpec)
	f.waitIssue("Service shop/web", "spec.ports: string found where a list belongs")
	api.put(services, service("other", 80))
	f.wait("another object", func() bool { return f.port("other") == 80 })
	if f.port("web") != 80 {
		t.Error("the last good version is gone")
	}
	f.flush() // as found in a list
	if f.port("web") != 80 {
		t.Error("the last good version is gone")
	}
	api.put(services, service("web", 70000))
	f.waitIssue("Service shop/web", "70000")
	api.put(services, service("web", 81))
	api.remove(services, "shop/never")
	f.wait("mended", func() bool { return f.port("web") == 81 })
	f.waitNoIssue()
	api.putAs(services, "shop/?", `{"metadata":{"name":""}}`)
	f.waitIssue("Service without a name", "metadata.name: is missing")
	if l := f.source.Status().Lacking; l != nil {
		t.Errorf("lacking %q after all was read once", l)
	}
}

// Faulty objects on which nothing else depends hold nothing back.
func TestMinorObjectsAtFault(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	names := everything(api)
	api.put(endpoints, slice("odd", "nobody", "10.0.0.1"))
	api.putAs(endpoints, "shop/never", `{"metadata":{"name":"never","namespace":"shop"},"addressType":"IPv7"}`)
	api.putAs(nodes, "?", `{"metadata":{"name":"n9","labels":7}}`)
	f := follow(t, api)
	f.waitSynced()
	f.waitIssue("EndpointSlice shop/never", "addressType")
	f.waitIssue("Node", "number found where")
	if st := f.source.Status(); st.Lacking != nil || st.Unread != nil {
		t.Errorf("lacking %q, unread %q, of %q", st.Lacking, st.Unread, names)
	}
}

// A faulty policy denies if no good version of it is known.
func TestPoliciesAtFault(t *testing.T) {
	t.Parallel()
	const newer = `{"podSelector":{},"policyTypes":["Ingress"],"ingress":[{"from":[{"podSelector":{},"userSelector":{}}]}]}`
	api := newFakeAPI(t)
	api.put(policies, policy("a", newer))
	api.put(policies, policy("b", `{"podSelector":{},"ingress":[{}]}`))
	f := follow(t, api)
	f.waitSynced()
	get := func(name string) *model.Policy {
		p, _ := f.sink.object("NetworkPolicy shop/" + name).(*model.Policy)
		return p
	}
	if p := get("a"); p == nil || !strings.Contains(p.Refused, "userSelector: there is no such field") || !p.Ingress || len(p.IngressRules) > 0 {
		t.Errorf("policy %+v", p)
	}
	api.put(policies, policy("b", newer))
	f.waitIssue("NetworkPolicy shop/b", "userSelector")
	if p := get("b"); p.Refused != "" {
		t.Errorf("the last good version of %+v is gone", p)
	}
	api.put(policies, policy("c", `{"podSelector":7}`))
	f.waitIssue("NetworkPolicy shop/c", "spec.podSelector")
	if p := get("c"); p != nil {
		t.Errorf("policy %+v applies to nobody knows whom", p)
	}
	api.put(policies, policy("a", denyAll))
	f.wait("the policy to be good", func() bool { return get("a").Refused == "" })
}

// Odd but valid objects are delivered as they are.
func TestOddButGood(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.put(endpoints, slice("lonely", "nobody", "10.0.0.1"))
	api.put(endpoints, slice("twin-1", "web", "10.0.0.2"))
	api.put(endpoints, slice("twin-2", "web", "10.0.0.2"))
	api.put(nodes, `{"metadata":{"name":"bare"}}`)
	f := follow(t, api)
	f.waitSynced()
	f.waitNames("EndpointSlice shop/lonely", "EndpointSlice shop/twin-1", "EndpointSlice shop/twin-2", "Node bare")
	f.waitNoIssue()
}

// If a server refuses only watches, whole lists are not read all the time.
func TestWatchesRefused(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	everything(api)
	f := follow(t, api, func(t *timing) { t.outage = time.Nanosecond })
	f.waitSynced()
	api.set(func() { api.answers["watch "+services] = http.StatusInternalServerError })
	api.server.CloseClientConnections()
	f.waitIssue("Service", "fails to serve")
	tries := api.count("watch " + services)
	lists := f.lists("Service")
	f.wait("more tries", func() bool { return api.count("watch "+services) > tries+20 })
	if n := f.lists("Service") - lists; n > 1 {
		t.Errorf("%d lists were read meanwhile", n)
	}
}

// lists returns how often the list of a kind was read.
func (f *fixture) lists(kind string) uint64 {
	for _, k := range f.source.Status().Kinds {
		if string(k.Kind) == kind {
			return k.Lists
		}
	}
	return 0
}
