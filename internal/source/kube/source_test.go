package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// sink records what is delivered, and checks the contract of deliveries.
type sink struct {
	t       testing.TB
	mu      sync.Mutex
	objects map[string]any // "Service shop/web"
	events  int
	shop    int // events of objects with that in their name
	gone    int
	synced  int
}

func (s *sink) Apply(events []store.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for _, e := range events {
		key := string(e.Kind) + " " + e.Name.String()
		if seen[key] {
			s.t.Errorf("%s is twice in a batch", key)
		}
		seen[key] = true
		s.events++
		if strings.Contains(key, "shop") {
			s.shop++
		}
		if e.Object == nil {
			s.gone++
			delete(s.objects, key)
			continue
		}
		s.objects[key] = e.Object
	}
}

func (s *sink) SetSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced++
}

// fixture is a source that follows a fake API.
type fixture struct {
	t      *testing.T
	api    *fakeAPI
	sink   *sink
	source *Source
	end    func()
}

func quickTiming(t *timing) {
	*t = timing{answer: 10 * time.Second, watch: time.Minute, first: time.Millisecond, last: 5 * time.Millisecond, steady: time.Second,
		refused: 5 * time.Millisecond, discover: 5 * time.Millisecond, doubt: 5 * time.Millisecond, outage: time.Hour, patience: time.Minute}
}

func follow(t *testing.T, api *fakeAPI, tune ...func(*timing)) *fixture {
	return followAs(t, api, Config{Kubeconfig: api.kubeconfig(""), Policies: true}, tune...)
}

func followAs(t *testing.T, api *fakeAPI, config Config, tune ...func(*timing)) *fixture {
	var times timing
	quickTiming(&times)
	for _, change := range tune {
		change(&times)
	}
	f := newFixture(t, func(s *sink) *Source { return newSource(config, times, s, slog.New(slog.DiscardHandler)) })
	f.api = api
	return f
}

// newFixture runs a source until it is ended, or the test ends.
func newFixture(t *testing.T, open func(*sink) *Source) *fixture {
	f := &fixture{t: t, sink: &sink{t: t, objects: map[string]any{}}}
	f.source = open(f.sink)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.source.Run(ctx) }()
	f.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.end)
	return f
}

// wait waits until a condition holds, on a machine that may be busy.
func (f *fixture) wait(what string, so func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("timed out waiting for %s; there are %v; status %+v", what, f.names(), f.source.Status())
		}
	}
}

func (f *fixture) names() []string {
	f.sink.mu.Lock()
	defer f.sink.mu.Unlock()
	return slices.Sorted(maps.Keys(f.sink.objects))
}

func (f *fixture) waitNames(want ...string) {
	f.t.Helper()
	f.wait(fmt.Sprint("objects ", want), func() bool { return slices.Equal(f.names(), want) })
}

func (f *fixture) waitSynced() {
	f.t.Helper()
	f.wait("synced", func() bool { return f.source.Status().Synced && f.sink.count(&f.sink.synced) == 1 })
}

func (s *sink) count(n *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *n
}

func (s *sink) object(key string) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[key]
}

func (f *fixture) port(name string) uint16 {
	svc, _ := f.sink.object("Service shop/" + name).(*model.Service)
	if svc == nil {
		return 0
	}
	return svc.Ports[0].Port
}

func (f *fixture) flush() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	if err := f.source.Flush(ctx); err != nil {
		f.t.Fatal(err)
	}
}

// waitIssue waits for an issue that has all these words.
func (f *fixture) waitIssue(words ...string) {
	f.t.Helper()
	f.wait("issue "+strings.Join(words, " … "), func() bool { return f.hasIssue(words...) })
}

// hasIssue reports whether there is an issue with all these words.
func (f *fixture) hasIssue(words ...string) bool {
	return slices.ContainsFunc(f.source.Status().Issues, func(i model.Issue) bool {
		for _, w := range words {
			if !strings.Contains(i.String(), w) {
				return false
			}
		}
		return true
	})
}

func (f *fixture) waitNoIssue() {
	f.t.Helper()
	f.wait("no issue", func() bool { return len(f.source.Status().Issues) == 0 })
}

func service(name string, port int) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q,"namespace":"shop","managedFields":[{"manager":"x","fieldsV1":{"f:a":{}}}]},"spec":{"clusterIP":"10.96.0.10","clusterIPs":["10.96.0.10"],"type":"ClusterIP","ports":[{"name":"http","protocol":"TCP","port":%d,"targetPort":8080}],"selector":{"app":%[1]q}}}`, name, port)
}

func slice(name, service string, addrs ...string) string {
	var list []string
	for _, a := range addrs {
		list = append(list, fmt.Sprintf(`{"addresses":[%q],"conditions":{"ready":true},"nodeName":"n1","zone":"z"}`, a))
	}
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop","labels":{"kubernetes.io/service-name":%q}},"addressType":"IPv4","ports":[{"name":"http","port":8080}],"endpoints":[%s]}`, name, service, strings.Join(list, ","))
}

func policy(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":%q,"namespace":"shop"},"spec":%s}`, name, spec)
}

const denyAll = `{"podSelector":{},"policyTypes":["Ingress"]}`

// everything puts one object of each kind that every API has.
func everything(api *fakeAPI) (names []string) {
	api.put(services, service("web", 80))
	api.put(endpoints, slice("web-1", "web", "10.0.0.1", "10.0.0.2"))
	api.put(nodes, `{"metadata":{"name":"n1","labels":{"a":"b"}},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]},"spec":{"podCIDRs":["10.0.0.0/24"]}}`)
	api.put(namespaces, `{"metadata":{"name":"shop","labels":{"team":"x"}}}`)
	api.put(pods, `{"metadata":{"name":"web-a","namespace":"shop","labels":{"app":"web"}},"spec":{"nodeName":"n1","containers":[{"name":"c","ports":[{"name":"http","containerPort":8080}]}]},"status":{"podIPs":[{"ip":"10.0.0.1"}],"conditions":[{"type":"Ready","status":"True"}]}}`)
	api.put(accounts, `{"metadata":{"name":"default","namespace":"shop","labels":{"role":"r"}}}`)
	api.put(policies, policy("deny", denyAll))
	return []string{"EndpointSlice shop/web-1", "Namespace shop", "NetworkPolicy shop/deny", "Node n1", "Pod shop/web-a", "Service shop/web", "ServiceAccount shop/default"}
}

// Objects of all kinds are created, changed and deleted, in either encoding, with and without
// history.
func TestFollow(t *testing.T) {
	t.Parallel()
	for _, binary := range []bool{false, true} {
		t.Run(fmt.Sprintf("protobuf=%v", binary), func(t *testing.T) {
			api := newFakeAPI(t)
			api.binary, api.pageSize = binary, 2
			names := everything(api)
			f := follow(t, api)
			f.waitSynced()
			f.waitNames(names...)
			pod := f.sink.object("Pod shop/web-a").(*model.Pod)
			if !pod.Ready || pod.Node != "n1" || pod.Labels["app"] != "web" || len(pod.Ports) != 1 {
				t.Errorf("pod %+v", pod)
			}
			eps := f.sink.object("EndpointSlice shop/web-1").(*model.EndpointSlice)
			if eps.Service != "web" || len(eps.Endpoints) != 2 || eps.Endpoints[1].Node != "n1" {
				t.Errorf("slice %+v", eps)
			}
			api.put(services, service("web", 81))
			f.wait("a change", func() bool { return f.port("web") == 81 })
			api.remove(pods, "shop/web-a")
			f.wait("a pod to go", func() bool { return f.sink.object("Pod shop/web-a") == nil })
			api.forget()
			api.die()
			api.put(services, service("web", 82))
			api.put(services, service("other", 90))
			api.remove(nodes, "/n1")
			api.live()
			f.wait("what changed unseen", func() bool {
				return f.port("web") == 82 && f.port("other") == 90 && f.sink.object("Node n1") == nil
			})
			f.waitNoIssue()
			st := f.source.Status()
			if st.Objects["Service"] != 2 || st.Reconnects == 0 || len(st.Lacking) > 0 || st.Where != "http://"+api.address {
				t.Errorf("status %+v", st)
			}
		})
	}
}
