package kube

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/logtest"
)

// eventAPI is an API server that has a few objects and accepts Events.
type eventAPI struct {
	t       *testing.T
	url     string
	objects map[string]string // path of the list, and name → uid

	mu      sync.Mutex
	events  map[string]*eventsv1.Event // path → what was created
	writes  int                        // creations and changes, also failed ones
	denied  bool                       // nobody may write
	refused int                        // writes that were denied
}

func newEventAPI(t *testing.T) *eventAPI {
	a := &eventAPI{t: t, events: map[string]*eventsv1.Event{}, objects: map[string]string{
		"/api/v1/namespaces/shop/services web": "uid-web",
		"/api/v1/nodes worker":                 "uid-worker",
		"/apis/crd.projectcalico.org/v1/namespaces/shop/networkpolicies default.db": "uid-db",
		"/apis/crd.projectcalico.org/v1/globalnetworkpolicies default.all":          "uid-all",
	}}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

func (a *eventAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch path := r.URL.Path; {
	case r.Method == http.MethodGet:
		a.list(w, r)
	case a.denied:
		a.refused++
		fail(w, http.StatusForbidden, "no rule allows it")
	case r.Method == http.MethodPost:
		a.writes++
		var e eventsv1.Event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil || path != "/apis/events.k8s.io/v1/namespaces/"+e.Namespace+"/events" {
			a.t.Errorf("POST %s: %v", path, err)
		}
		if path += "/" + e.Name; a.events[path] != nil {
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(status(http.StatusConflict, "AlreadyExists", "it exists"))
			return
		}
		a.events[path] = &e
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodPatch && a.events[path] == nil:
		fail(w, http.StatusNotFound, "no such Event")
	case r.Method == http.MethodPatch:
		a.writes++
		if media := r.Header.Get("Content-Type"); media != mediaMergePatch {
			a.t.Errorf("a change is %q", media)
		}
		if err := json.NewDecoder(r.Body).Decode(a.events[path]); err != nil {
			a.t.Error(err)
		}
	}
}

// list answers with the metadata of the one object that is asked for.
func (a *eventAPI) list(w http.ResponseWriter, r *http.Request) {
	served := slices.ContainsFunc(slices.Collect(maps.Keys(a.objects)), func(o string) bool { return strings.HasPrefix(o, r.URL.Path+" ") })
	if !served {
		fail(w, http.StatusNotFound, "not served")
		return
	}
	name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	items := ""
	if uid := a.objects[r.URL.Path+" "+name]; uid != "" {
		items = fmt.Sprintf(`{"metadata":{"name":%q,"uid":%q}}`, name, uid)
	}
	_, _ = fmt.Fprintf(w, `{"kind":"PartialObjectMetadataList","items":[%s]}`, items)
}

// forget removes an Event, as the server does after an hour.
func (a *eventAPI) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.events)
}

// all lists the Events: node, object, kind and note, sorted.
func (a *eventAPI) all() (list []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.events {
		o := e.Regarding
		list = append(list, fmt.Sprintf("%s: %s %s %s/%s %s: %s", e.ReportingInstance, o.APIVersion, o.Kind, e.Namespace, o.Name, o.UID, e.Note))
	}
	slices.Sort(list)
	return list
}

func (a *eventAPI) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

// repeated returns the count of the only Event's series.
func (a *eventAPI) repeated() (n int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.events {
		if e.Series != nil {
			n = e.Series.Count
		}
	}
	return n
}

// node starts a recorder with short times.
func (a *eventAPI) node(t *testing.T, name string, change func(*pace), log *slog.Logger) *Recorder {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: %q}}]\n", a.url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return startRecorder(t, path, name, change, log)
}

func startRecorder(t *testing.T, kubeconfig, name string, change func(*pace), log *slog.Logger) *Recorder {
	r := NewRecorder(Config{Kubeconfig: kubeconfig}, name, log)
	r.pace = pace{spread: time.Millisecond, between: time.Millisecond, again: time.Hour, others: time.Hour, failed: 10 * time.Millisecond}
	change(&r.pace)
	var running sync.WaitGroup
	running.Go(func() { r.Run(t.Context()) })
	t.Cleanup(running.Wait)
	return r
}

var (
	silentLog = slog.New(slog.DiscardHandler)
	webFault  = model.Ref{Kind: "Service", Name: model.Name{Namespace: "shop", Name: "web"}}.Issue("port 0 is\nout of range")
)

func hour(*pace) {}

func TestRecorder(t *testing.T) {
	t.Parallel()
	a := newEventAPI(t)
	policy := model.Issue{
		Object: model.Ref{Kind: "NetworkPolicy.projectcalico.org", Name: model.Name{Namespace: "shop", Name: "default.db"}}, Reason: strings.Repeat("ä", 600), InForce: model.InForceDeny,
	}
	r := a.node(t, "n1", hour, silentLog)
	r.Report([]model.Issue{
		webFault, policy, model.Ref{Kind: "Node", Name: model.Name{Name: "worker"}}.Issue("is gone"),
		model.Ref{Kind: "Service", Name: model.Name{Namespace: "shop", Name: "gone"}}.Issue("is of no account"),
		model.Ref{Kind: "AddressList", Name: model.Name{Name: "bad"}}.Issue("is no object of the API"),
		model.Ref{Kind: "GlobalNetworkPolicy", Name: model.Name{Name: "all"}}.Issue("is named as users know it"),
		{Object: model.Ref{Kind: "web.yaml"}, Reason: "is no object at all"},
	})
	want := []string{
		"n1: crd.projectcalico.org/v1 GlobalNetworkPolicy default/default.all uid-all: is named as users know it",
		"n1: crd.projectcalico.org/v1 NetworkPolicy shop/default.db uid-db: " + strings.Repeat("ä", 510) + "…",
		"n1: v1 Node default/worker uid-worker: is gone",
		"n1: v1 Service shop/web uid-web: port 0 is out of range",
	}
	waitFor(t, "Events of what the API has", func() bool { return len(a.all()) == len(want) })
	if got := a.all(); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A Service tells which node announces its addresses, until another does.
func TestRecorderAnnounces(t *testing.T) {
	t.Parallel()
	a := newEventAPI(t)
	r := a.node(t, "n1", hour, silentLog)
	web := []model.Name{{Namespace: "shop", Name: "web"}}
	r.Announce(map[netip.Addr][]model.Name{netip.MustParseAddr("192.0.2.1"): web, netip.MustParseAddr("2001:db8::1"): web})
	r.Report([]model.Issue{webFault})
	want := []string{
		"n1: v1 Service shop/web uid-web: node n1 announces 192.0.2.1 by ARP",
		"n1: v1 Service shop/web uid-web: node n1 announces 2001:db8::1 by NDP",
		"n1: v1 Service shop/web uid-web: port 0 is out of range",
	}
	waitFor(t, "Events", func() bool { return len(a.all()) == len(want) })
	if got := a.all(); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, e := range a.events {
		if want := map[bool]string{true: "Normal nodeAssigned", false: "Warning Fault"}[strings.HasPrefix(e.Note, "node")]; e.Type+" "+e.Reason != want {
			t.Errorf("%s: %s %s, want %s", e.Note, e.Type, e.Reason, want)
		}
	}
	r.Announce(nil)
	if len(r.faults) != 1 {
		t.Errorf("still to be told: %v", r.faults)
	}
}

// A node that announces an address again, within the hour in which the API server still has its
// Event, renews that: the newest Event names the node that announces.
func TestRecorderAnnouncesAgain(t *testing.T) {
	t.Parallel()
	a := newEventAPI(t)
	web := map[netip.Addr][]model.Name{netip.MustParseAddr("192.0.2.1"): {{Namespace: "shop", Name: "web"}}}
	a.node(t, "n1", hour, silentLog).Announce(web)
	waitFor(t, "the Event", func() bool { return len(a.all()) == 1 })
	a.node(t, "n1", hour, silentLog).Announce(web)
	waitFor(t, "it is renewed", func() bool { return a.repeated() == 2 && len(a.all()) == 1 })
}

// Of more than are reported, the same are each time: otherwise each call would make new Events.
func TestRecorderAnnouncesMany(t *testing.T) {
	t.Parallel()
	r := NewRecorder(Config{}, "n1", silentLog)
	many := map[netip.Addr][]model.Name{}
	for i := range 2 * maxReported {
		many[netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})] = []model.Name{{Namespace: "shop", Name: fmt.Sprint("s", i)}}
	}
	r.Report([]model.Issue{webFault})
	r.Announce(many)
	first := r.faults
	if _, told := first[webFault]; len(first) != maxReported || !told {
		t.Errorf("%d are told of, the fault: %v", len(first), told)
	}
	r.Report([]model.Issue{webFault})
	r.Announce(many)
	if !maps.Equal(r.faults, first) {
		t.Error("others are told of the next time")
	}
}

// TestRecorderOnce: a fault that many nodes find is one Event, which one of them repeats as long as
// it lasts.
func TestRecorderOnce(t *testing.T) {
	t.Parallel()
	a := newEventAPI(t)
	first := a.node(t, "n1", func(p *pace) { p.again = 20 * time.Millisecond }, silentLog)
	first.Report([]model.Issue{webFault})
	waitFor(t, "the Event", func() bool { return len(a.all()) == 1 })
	second := a.node(t, "n2", func(p *pace) { p.others = 20 * time.Millisecond }, silentLog)
	second.Report([]model.Issue{webFault})
	waitFor(t, "it is repeated", func() bool { return a.repeated() > 3 })
	if got := a.all(); len(got) != 1 || !strings.HasPrefix(got[0], "n1: ") {
		t.Errorf("got %q", got)
	}
	first.Report(nil)
	a.forget()
	waitFor(t, "the other takes over", func() bool {
		got := a.all()
		if len(got) == 1 && strings.HasPrefix(got[0], "n1: ") { // it was on its way
			a.forget()
		}
		return len(got) == 1 && strings.HasPrefix(got[0], "n2: ")
	})
	second.Report(nil)
	waitFor(t, "there is nothing more to tell", func() bool { before := a.count(); time.Sleep(100 * time.Millisecond); return a.count() == before })
}

// TestRecorderRetries: if the cluster does not accept Events, that is logged once and affects
// nothing else.
func TestRecorderRetries(t *testing.T) {
	t.Parallel()
	a := newEventAPI(t)
	a.denied = true
	var log logtest.Log
	r := a.node(t, "n1", hour, slog.New(slog.NewTextHandler(&log, nil)))
	r.Report([]model.Issue{webFault})
	waitFor(t, "it was tried again", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.refused > 3 })
	if n := strings.Count(log.String(), "no rule allows it"); n != 1 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
	a.mu.Lock()
	a.denied = false
	a.mu.Unlock()
	waitFor(t, "the Event", func() bool { return len(a.all()) == 1 })
}

func TestRecorderBounds(t *testing.T) {
	t.Parallel()
	r := NewRecorder(Config{}, strings.Repeat("n", 200), silentLog)
	issues := make([]model.Issue, 2*maxReported)
	for i := range issues {
		issues[i] = model.Ref{Kind: "Service", Name: model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}}.Issue("bad")
	}
	r.Report(issues)
	if r.follow(); len(r.states) != maxReported || len(r.node) != maxInstance {
		t.Errorf("%d faults of %d bytes", len(r.states), len(r.node))
	}
	r.Report(nil)
	if r.follow(); len(r.states) != 0 {
		t.Errorf("%d faults are left", len(r.states))
	}
}

// An Event names no object of another namespace: its readers may not know of that.
func TestEventsKeepToTheirNamespace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ namespace, reason, want string }{
		{"shop", "TCP 10.0.0.1:80 belongs to Service shop/web, which was there first; give one of them another port", "TCP 10.0.0.1:80 belongs to Service shop/web, which was there first; give one of them another port"},
		{"shop", "TCP 10.0.0.1:80 belongs to Service bank/vault.v1, which was there first", "TCP 10.0.0.1:80 belongs to another Service, which was there first"},
		{"shop", "address 10.1.0.1 is Pod shop-2/a's too", "address 10.1.0.1 is another Pod's too"},
		{"", "nothing is allowed at pod bank/a-1, pod shop/b and 3 more", "nothing is allowed at another pod, another pod and 3 more"},
		{"shop", "label kubernetes.io/name: CIDR 10.0.0.0/8 and fd00::/8 of node worker", "label kubernetes.io/name: CIDR 10.0.0.0/8 and fd00::/8 of node worker"},
	} {
		if got := note(model.Issue{Reason: c.reason, Object: model.Ref{Kind: "Service", Name: model.Name{Namespace: c.namespace, Name: "x"}}}); got != c.want {
			t.Errorf("in %q: %q, want %q", c.namespace, got, c.want)
		}
	}
}
