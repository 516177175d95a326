package agent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	kernelprobe "sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/logtest"
)

// testAgent is a running agent on a fake kernel and a fake source.
type testAgent struct {
	*Agent
	driver *fakeDriver
	source *fakeSource
	client *Client
	log    *logtest.Log
}

// start runs an agent until the test ends. Its source is not synced yet.
func start(t *testing.T, change ...func(*Config)) *testAgent {
	t.Helper()
	st := store.New()
	b := &testAgent{driver: newFakeDriver(), source: &fakeSource{store: st}, log: &logtest.Log{}}
	c := Config{
		Node: "node-a", Version: "v1", Mode: "ipvs", Store: st, Source: b.source, Driver: b.driver,
		Compiler: compile.New(compile.Config{Config: services.Config{Node: "node-a"}}),
		Socket:   filepath.Join(t.TempDir(), "run", "sluice.sock"), AuditInterval: time.Minute,
		Log: slog.New(slog.NewTextHandler(b.log, nil)),
	}
	for _, f := range change {
		f(&c)
	}
	b.Agent = New(c)
	b.client = NewClient(c.Socket)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if len(b.driver.misused) > 0 {
			t.Errorf("driver misused: %v", b.driver.misused)
		}
		if t.Failed() {
			t.Logf("log:\n%s", b.log)
		}
	})
	if p, is := c.sockets.(*pipes); is {
		b.client.http.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return p.DialContext(ctx, "unix", c.Socket)
		}}
		eventually(t, "socket answers", func() bool { _, err := b.client.Status(t.Context()); return err == nil })
		return b
	}
	eventually(t, "socket answers", func() bool { return Alive(c.Socket) })
	return b
}

// eventually fails the test if f does not become true in ten seconds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if f() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("does not happen: %s", what)
		}
	}
}

// web is a service 10.0.0.N:80 called shop/web-N, with one endpoint for each address.
func web(n int, endpoints ...string) []store.Event {
	name := model.Name{Namespace: "shop", Name: fmt.Sprintf("web-%d", n)}
	svc := &model.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})},
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, TargetPort: 8080}},
	}
	slice := &model.EndpointSlice{
		Name: name, Service: name.Name, Ports: []model.EndpointPort{{Name: "http", Protocol: model.TCP, Port: 8080}},
	}
	for _, e := range endpoints {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.MustParseAddr(e), Ready: true, Serving: true, Node: "node-a"})
	}
	return []store.Event{
		{Kind: model.ServiceKind, Name: name, Object: svc},
		{Kind: model.EndpointSliceKind, Name: name, Object: slice},
	}
}

func gone(n int) []store.Event {
	events := web(n)
	for i := range events {
		events[i].Object = nil
	}
	return events
}

// holds fails the test unless the kernel comes to hold exactly these lines.
func (b *testAgent) holds(t *testing.T, want ...string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		diff := cmp.Diff(want, b.driver.backends())
		if diff == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("kernel (-want +got):\n%s", diff)
		}
	}
}

const (
	web1 = "TCP 10.0.0.1:80 -> [10.1.0.1:8080]"
	web2 = "TCP 10.0.0.2:80 -> [10.1.0.2:8080]"
)

func TestNothingBeforeSynced(t *testing.T) {
	b := start(t)
	b.source.deliver(web(1, "10.1.0.1")...)
	// The loop answers questions in turn, so it has seen the change by then.
	if _, err := b.client.Plan(t.Context()); err == nil || !strings.Contains(err.Error(), errNotSynced.Error()) {
		t.Fatalf("Plan before sync: %v", err)
	}
	if n := b.driver.applied(); n != 0 {
		t.Fatalf("%d plans applied before the source was synced", n)
	}
	s, err := b.client.Status(t.Context())
	if err != nil || s.OK || len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "not been read in full") {
		t.Fatalf("status before sync: %+v, %v", s, err)
	}
	b.source.sync()
	b.holds(t, web1)
}

func TestChangesFlow(t *testing.T) {
	b := start(t)
	b.source.sync()
	b.source.deliver(web(1, "10.1.0.1")...)
	b.holds(t, web1)
	b.source.deliver(web(2, "10.1.0.2")...)
	b.holds(t, web1, web2)
	b.source.deliver(gone(1)...)
	b.holds(t, web2)
}

func TestFailureIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, apart)
		b.source.sync()
		b.source.deliver(web(1, "10.1.0.1")...)
		b.holds(t, web1)
		b.driver.breaks(errKernel)
		b.source.deliver(web(2, "10.1.0.2")...)
		eventually(t, "status names the failure", func() bool {
			s := b.Status()
			return !s.OK && s.Failure != nil && s.Failure.Attempts > 1 && strings.Contains(s.Problems[0], errKernel.Error())
		})
		plan, err := b.client.Plan(t.Context())
		if err != nil || plan.Operations != 1 || plan.Text != "set "+web2+"\n" {
			t.Errorf("plan while failing: %+v, %v", plan, err)
		}
		b.driver.breaks(nil)
		b.holds(t, web1, web2)
		eventually(t, "status is well again", func() bool { return b.Status().OK })
		if log := b.log.String(); !strings.Contains(log, "shop/web-2") || !strings.Contains(log, errKernel.Error()) {
			t.Error("the log does not name the object and the error")
		}
	})
}

func TestBusyKernelIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, apart)
		b.driver.breaks(fmt.Errorf("claim table: %w: process 4711", driver.ErrBusy))
		b.source.deliver(web(1, "10.1.0.1")...)
		b.source.sync()
		eventually(t, "status names the owner", func() bool {
			s := b.Status()
			return s.Failure != nil && s.Failure.Attempts > 2 && strings.Contains(s.Failure.Error, "process 4711")
		})
		b.driver.breaks(nil)
		b.holds(t, web1)
		if n := strings.Count(b.log.String(), "4711"); n != 1 {
			t.Errorf("the same failure was logged %d times", n)
		}
	})
}

func TestTamperingIsHealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, apart)
		b.source.deliver(web(1, "10.1.0.1")...)
		b.source.sync()
		b.holds(t, web1)
		b.driver.flush()
		b.holds(t, web1)
		eventually(t, "the heal is counted", func() bool { return b.Status().Heals == 1 })
		if !strings.Contains(b.log.String(), "changed by someone else") {
			t.Error("no warning in the log")
		}
	})
}

// A program that goes on changing what is programmed is undone each time, said ever more rarely in
// the log, and shown in the status until it ends.
func TestTamperingThatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, apart)
		b.source.deliver(web(1, "10.1.0.1")...)
		b.source.sync()
		b.holds(t, web1)
		const problem = "another program goes on changing what is programmed"
		shown := func() bool { return strings.Contains(strings.Join(b.Status().Problems, "\n"), problem) }
		for i := range 300 {
			b.driver.flush()
			time.Sleep(time.Second)
			b.holds(t, web1)
			if i == 0 && shown() {
				t.Error("one change is taken for many")
			}
		}
		if said := strings.Count(b.log.String(), "changed by someone else"); b.Status().Heals < 290 || said < 25 || said > 45 { // each for half a minute, and then at pauses that double
			t.Errorf("%d heals, said %d times", b.Status().Heals, said)
		}
		if !shown() {
			t.Errorf("problems: %v", b.Status().Problems)
		}
		time.Sleep(5 * time.Minute)
		if shown() {
			t.Error("it is shown still, long after it has ended")
		}
	})
}

func TestChangeMeetsTampering(t *testing.T) {
	b := start(t)
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	b.holds(t, web1)
	b.driver.flush()
	b.source.deliver(web(2, "10.1.0.2")...) // mostly seen before the flush
	b.holds(t, web1, web2)
	eventually(t, "the heal is counted", func() bool { return b.Status().Heals == 1 })
	if strings.Contains(b.log.String(), "failed") {
		t.Error("someone else's doing is logged as a failure of ours")
	}
}

func TestOneFailureIsMendedAtOnce(t *testing.T) {
	b := start(t)
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	b.holds(t, web1)
	b.driver.once = true
	b.driver.breaks(errKernel)
	b.source.declare(web(2, "10.1.0.2")...)
	if err := b.client.Sync(t.Context()); err != nil {
		t.Errorf("Sync when only the update failed: %v", err)
	}
	b.holds(t, web1, web2)
	if s := b.Status(); !s.OK || s.Heals != 0 || s.LastApply.Path != reconcile.PathAdopt {
		t.Errorf("status: %+v", s)
	}
}

func TestPlanIsLogged(t *testing.T) {
	log := &logtest.Log{}
	b := start(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	for n := range reconcile.MaxLogged + 1 {
		b.source.deliver(web(n, "10.1.0.1")...)
	}
	b.source.sync()
	eventually(t, "the first apply is done", b.health.ready)
	if text := log.String(); !strings.Contains(text, "set TCP 10.0.0.1:80 ->") || strings.Count(text, "operation=") != reconcile.MaxLogged || !strings.Contains(text, "plan is longer") {
		t.Errorf("log:\n%s", text)
	}
}

func TestAuditHeals(t *testing.T) {
	b := start(t, func(c *Config) { c.AuditInterval = 20 * time.Millisecond })
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	b.holds(t, web1)
	b.driver.mu.Lock()
	clear(b.driver.kernel) // not seen by Tampered
	b.driver.mu.Unlock()
	b.holds(t, web1)
	eventually(t, "the heal is counted", func() bool { return b.Status().Heals == 1 })
}

func TestSync(t *testing.T) {
	b := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := b.Sync(ctx); !errors.Is(err, errNotSynced) {
		t.Errorf("Sync before the source is synced: %v", err)
	}
	b.source.sync()
	for n := 1; n < 20; n++ {
		b.source.declare(web(n, "10.1.0.1")...)
		if err := b.client.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := len(b.driver.backends()); got != n {
			t.Fatalf("Sync returned with %d of %d services in the kernel", got, n)
		}
	}
}

// A caller that gives up waiting leaves nothing behind.
func TestAbandonedSyncs(t *testing.T) {
	b := start(t)
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if err := b.Sync(ctx); err == nil {
			t.Error("Sync before the source is synced succeeded")
		}
		cancel()
	}
	waiting := make(chan int, 1)
	if err := b.ask(t.Context(), func(l *loop) { waiting <- len(l.waiting) }); err != nil {
		t.Fatal(err)
	}
	if n := <-waiting; n > 1 {
		t.Errorf("%d wait", n)
	}
}

// The agent answers before the client gives up, so that it can say why.
func TestSyncTimesOutWithReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, apart)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if err := b.client.Sync(ctx); err == nil || !strings.Contains(err.Error(), errNotSynced.Error()) {
			t.Errorf("Sync before the source is synced: %v", err)
		}
	})
}

func TestHealthLimitIsNotTheAudits(t *testing.T) {
	b := start(t, func(c *Config) { c.AuditInterval = time.Hour })
	if b.health.limit > 2*time.Minute {
		t.Errorf("a change may wait for %s", b.health.limit)
	}
}

func TestSyncSaysWhyNot(t *testing.T) {
	b := start(t)
	b.source.sync()
	b.source.broken = errors.New("folder is gone")
	if err := b.client.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "folder is gone") {
		t.Errorf("Sync with a broken source: %v", err)
	}
	b.source.broken = nil
	b.driver.breaks(errKernel)
	b.source.declare(web(1, "10.1.0.1")...)
	if err := b.client.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), errKernel.Error()) {
		t.Errorf("Sync with a broken kernel: %v", err)
	}
	b.driver.breaks(nil)
	issue := model.Issue{Object: model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "bad"}}, Source: "bad.yaml", Reason: "port 70000 is out of range"}
	b.source.fault(issue, issue)
	fault, ok := errors.AsType[*FaultError](b.client.Sync(t.Context()))
	if !ok || len(fault.Issues) != 1 || fault.Issues[0] != issue {
		t.Errorf("Sync with an object at fault: %v", fault)
	}
	b.holds(t, web1)
	b.source.neverRead(model.EndpointSliceKind)
	err := b.client.Sync(t.Context())
	if _, objectsAlone := errors.AsType[*FaultError](err); objectsAlone || err == nil ||
		!strings.Contains(err.Error(), "EndpointSlice: none could be read") || !strings.Contains(err.Error(), "Service shop/bad") {
		t.Errorf("Sync without any EndpointSlice: %v", err)
	}
	b.source.neverRead()
	b.source.fault()
	if err := b.client.Sync(t.Context()); err != nil {
		t.Errorf("Sync after the fault is mended: %v", err)
	}
}

func TestFaultsAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var reported []model.Issue
		b := start(t, apart, func(c *Config) {
			c.Report = func(issues []model.Issue) {
				mu.Lock()
				defer mu.Unlock()
				reported = issues
			}
		})
		reports := func(want ...model.Issue) func() bool {
			return func() bool {
				mu.Lock()
				defer mu.Unlock()
				return slices.Equal(reported, want)
			}
		}
		b.source.sync()
		rival := web(1)[:1]
		svc := *rival[0].Object.(*model.Service)
		svc.Name.Name = "zzz" // the later one by name loses
		b.source.deliver(append(web(1, "10.1.0.1"), store.Event{Kind: model.ServiceKind, Name: svc.Name, Object: &svc})...)
		b.holds(t, web1)
		eventually(t, "status names the loser", func() bool {
			s := b.Status()
			return !s.OK && len(s.Issues) > 0 && s.Issues[0].Object.String() == "Service shop/zzz"
		})
		eventually(t, "the log names the loser", func() bool { return strings.Contains(b.log.String(), "Service shop/zzz") })
		loser := model.Ref{Kind: model.ServiceKind, Name: svc.Name}.Issue(b.Status().Issues[0].Reason)
		loser.Everywhere = true
		eventually(t, "the loser is reported", reports(loser))
		unread := model.Issue{Object: model.Ref{Kind: "web.yaml"}, Reason: "no YAML"}
		b.source.fault(unread)
		eventually(t, "what the source finds is reported, too", reports(loser, unread))
		b.source.fault()
		b.source.deliver(store.Event{Kind: model.ServiceKind, Name: svc.Name})
		eventually(t, "the log says that it is over", func() bool { return strings.Contains(b.log.String(), "no longer at fault") })
		if !b.Status().OK {
			t.Error("status is not well again")
		}
		eventually(t, "nothing is reported any more", reports())
	})
}

// What the kernel refuses is reported with its object, and holds up neither other changes nor the
// agent's health.
func TestRefusedObjectIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, apart)
		b.source.sync()
		b.source.deliver(web(1, "10.1.0.1")...)
		b.holds(t, web1)
		b.driver.setsAside(driver.SetAside{Kind: "NetworkPolicy", Name: model.Name{Namespace: "shop", Name: "large"}, Reason: "the kernel refuses a rule of it", InForce: model.InForceDeny})
		s := b.Status()
		if len(s.Issues) != 1 || s.Issues[0].Object.String() != "NetworkPolicy shop/large" || s.Issues[0].InForce != model.InForceDeny || s.OK || !strings.Contains(s.Problems[0], "everything else is in the kernel") {
			t.Errorf("status: %+v", s)
		}
		eventually(t, "the log names it", func() bool { return strings.Contains(b.log.String(), "NetworkPolicy shop/large") })
		handler := b.Agent.health.handler(b.metrics.healthz, b.metrics.livez)
		for _, path := range []string{"/healthz", "/livez", "/readyz"} {
			if code, _ := get(t, handler, path); code != http.StatusOK {
				t.Errorf("%s answers %d", path, code)
			}
		}
		if text := scrape(t, b.metrics.handler(nil), "/metrics"); !strings.Contains(text, "sluice_set_aside 1\n") || !strings.Contains(text, `sluice_issue{kind="NetworkPolicy",name="large",namespace="shop"`) {
			t.Errorf("metrics:\n%s", text)
		}
		b.driver.setsAside()
		eventually(t, "the log says that it is over", func() bool { return strings.Contains(b.log.String(), "no longer at fault") })
	})
}

// A kernel that refuses all changes makes the agent unready, with the reason; the agent is still
// alive.
func TestReadinessFollowsTheKernel(t *testing.T) {
	b := start(t)
	b.source.sync()
	b.source.deliver(web(1, "10.1.0.1")...)
	b.holds(t, web1)
	handler := b.Agent.health.handler(b.metrics.healthz, b.metrics.livez)
	ready := func() bool { code, _ := get(t, handler, "/readyz"); return code == http.StatusOK }
	eventually(t, "ready", ready)
	b.driver.breaks(errKernel)
	b.source.deliver(web(2, "10.1.0.2")...)
	eventually(t, "unready", func() bool { return !ready() })
	if code, _ := get(t, handler, "/livez"); code != http.StatusOK {
		t.Errorf("/livez answers %d", code)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	if !strings.Contains(w.Body.String(), errKernel.Error()) {
		t.Errorf("/readyz says %q", w.Body)
	}
	b.driver.breaks(nil)
	eventually(t, "ready again", ready)
}

func TestStatusAndServices(t *testing.T) {
	b := start(t)
	b.source.deliver(web(1, "10.1.0.1", "10.1.0.2")...)
	b.source.sync()
	eventually(t, "all is well", func() bool { return b.Status().OK })
	s, err := b.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !s.OK || s.Node != "node-a" || s.Version != "v1" || s.PID != os.Getpid() || s.Frontends != 1 || s.Backends != 2 ||
		s.Objects["Service"] != 1 || s.LastApply == nil || s.LastApply.Operations != 1 || s.Source.Skipped["ConfigMap"] != 2 {
		t.Errorf("status: %+v", s)
	}
	views, err := b.client.Services(t.Context())
	if err != nil || len(views) != 1 {
		t.Errorf("services: %+v, %v", views, err)
	}
	// A service is shown with all of its faults, whoever finds them.
	b.source.fault(model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "web-1"}}.Issue("an odd field"), model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "web-2"}}.Issue("not this one's"))
	b.driver.setsAside(driver.SetAside{Kind: "Service", Name: model.Name{Namespace: "shop", Name: "web-1"}, Reason: "refused", InForce: model.InForceRest})
	if views, err = b.client.Services(t.Context()); err != nil || len(views) != 2 || !slices.Equal(views[0].Issues, []string{"an odd field", "refused; in force: the rest of it"}) ||
		views[1].Name != "web-2" || !slices.Equal(views[1].Issues, []string{"not this one's"}) {
		t.Errorf("services with faults: %+v, %v", views, err)
	}
	b.source.fault()
	b.driver.setsAside()
	plan, err := b.client.Plan(t.Context())
	if err != nil || plan.Operations != 0 {
		t.Errorf("plan when all is well: %+v, %v", plan, err)
	}
	b.source.deliver(web(2, "10.1.0.2")...)
	b.holds(t, "TCP 10.0.0.1:80 -> [10.1.0.1:8080 10.1.0.2:8080]", web2)
}

func TestAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	st := store.New()
	c := Config{
		Store: st, Source: &fakeSource{store: st}, Driver: newFakeDriver(), Compiler: compile.New(compile.Config{}),
		Socket: filepath.Join(t.TempDir(), "s.sock"), HealthzAddress: taken.Addr().String(), MustServe: true, AuditInterval: time.Minute, Log: slog.New(slog.DiscardHandler),
	}
	if err := New(c).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--healthz-address") {
		t.Errorf("Run with a taken address: %v", err)
	}
	if Alive(c.Socket) {
		t.Error("the socket still answers")
	}
}

func TestAddressThatBecomesFree(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	address := taken.Addr().String()
	b := start(t, func(c *Config) { c.MetricsAddress = address })
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	eventually(t, "the agent works without the address and says so", func() bool {
		s := b.Status()
		return s.OK && strings.Contains(s.Unserved[address], "in use") && strings.Contains(b.log.String(), "address cannot be served on")
	})
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the address is served once it is free", func() bool {
		answer, err := http.Get("http://" + address + "/proxyMode")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK && len(b.Status().Unserved) == 0
	})
	http.DefaultClient.CloseIdleConnections()
	if n := strings.Count(b.log.String(), "address cannot be served on"); n != 1 {
		t.Errorf("it is said %d times that the address is taken", n)
	}
}

func TestAddressThatIsWrong(t *testing.T) {
	st := store.New()
	c := Config{
		Store: st, Source: &fakeSource{store: st}, Driver: newFakeDriver(), Compiler: compile.New(compile.Config{}),
		Socket: filepath.Join(t.TempDir(), "s.sock"), MetricsAddress: "127.0.0.1:http-or-so", AuditInterval: time.Minute, Log: slog.New(slog.DiscardHandler),
	}
	if err := New(c).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--metrics-address") {
		t.Errorf("Run with an address that never can be had: %v", err)
	}
}

func TestProbeFailure(t *testing.T) {
	d := newFakeDriver()
	d.probeErr = kernelprobe.ErrNotSupported
	if err := New(Config{Compiler: compile.New(compile.Config{}), Driver: d, Log: slog.New(slog.DiscardHandler)}).Run(t.Context()); !errors.Is(err, kernelprobe.ErrNotSupported) {
		t.Errorf("Run on an old kernel: %v", err)
	}
}

// No service gets the address of the API server, neither at the start nor after the server has
// moved.
func TestAPIIsGuarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, apart, func(c *Config) {
			c.Source.(*fakeSource).dialed = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.7:6443")}
		})
		objects := web(1, "10.1.0.1")
		objects[0].Object.(*model.Service).ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("198.51.100.8")}
		b.source.deliver(objects...)
		b.source.sync()
		b.holds(t, web1, "TCP 198.51.100.8:80 -> [10.1.0.1:8080]")
		b.source.mu.Lock()
		b.source.dialed = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.8:6443")}
		b.source.mu.Unlock()
		b.holds(t, web1, "TCP 198.51.100.7:80 -> [10.1.0.1:8080]")
	})
}

// NodePorts move with the host's addresses.
func TestHostAddressesMove(t *testing.T) {
	moves := make(chan []netip.Prefix)
	b := start(t, func(c *Config) {
		c.HostAddresses = moves
		c.Compiler = compile.New(compile.Config{Config: services.Config{Node: "node-a", NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}})
	})
	objects := web(1, "10.1.0.1")
	objects[0].Object.(*model.Service).Ports[0].NodePort = 30080
	b.source.deliver(objects...)
	b.source.sync()
	b.holds(t, web1)
	moves <- []netip.Prefix{netip.MustParsePrefix("198.51.100.7/24")}
	b.holds(t, web1, "TCP 198.51.100.7:30080 -> [10.1.0.1:8080]")
	moves <- nil
	b.holds(t, web1)
	close(moves)
	b.source.deliver(web(2, "10.1.0.2")...)
	eventually(t, "the next change is programmed", func() bool { return slices.Contains(b.driver.backends(), web2) })
}

// A socket that was removed is back within seconds; connected clients notice nothing.
func TestRemovedSocketIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := start(t, func(c *Config) {
		c.Drops = func(ctx context.Context) (iter.Seq[Packet], error) {
			return func(func(Packet) bool) { <-ctx.Done() }, nil
		}
	})
	started, ended := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- b.client.Drops(ctx, func() { close(started) }, func(DropReport) error { return nil }) }()
	<-started
	for _, remove := range []func() error{
		func() error { return os.Remove(b.Socket) },
		func() error { return os.RemoveAll(filepath.Dir(b.Socket)) },
	} {
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the socket is back", func() bool { return Alive(b.Socket) })
		if _, err := b.client.Status(t.Context()); err != nil {
			t.Error(err)
		}
	}
	select {
	case err := <-ended:
		t.Errorf("a stream has ended: %v", err)
	default:
	}
	cancel()
	<-ended
}

// smallFS is a folder in a filesystem of its own with that much space. The test removes it at its
// end.
func smallFS(t *testing.T, options map[string]string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a filesystem")
	}
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fs) }()
	for key, value := range options {
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		t.Fatal(err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(mount) })
	return fmt.Sprintf("/proc/self/fd/%d", mount)
}

// An agent works without a socket if no inode is free for one, reports it, and makes one as soon as
// there is.
func TestNoInodes(t *testing.T) {
	run := smallFS(t, map[string]string{"nr_inodes": "3"}) // the root's, and two more
	st := store.New()
	d := newFakeDriver()
	c := Config{
		Node: "node-a", Store: st, Source: &fakeSource{store: st}, Driver: d, Compiler: compile.New(compile.Config{Config: services.Config{Node: "node-a"}}),
		Socket: filepath.Join(run, "sluice", "s.sock"), AuditInterval: time.Minute, Log: slog.New(slog.DiscardHandler),
	}
	var fill []string
	for i := range 2 {
		fill = append(fill, filepath.Join(run, fmt.Sprint(i)))
		if err := os.WriteFile(fill[i], nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := New(c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	source := c.Source.(*fakeSource)
	source.deliver(web(1, "10.1.0.1")...)
	source.sync()
	eventually(t, "the kernel is programmed", func() bool { return len(d.backends()) == 1 })
	eventually(t, "the status says why there is no socket", func() bool { return strings.Contains(a.Status().Unserved[c.Socket], "no space left") })
	for _, path := range fill {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the socket answers", func() bool { return Alive(c.Socket) })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// largeServices are services of 40,000 endpoints each, web-2 and the next.
func largeServices(n int) (all []store.Event) {
	endpoints := make([]string, 40_000)
	for i := range endpoints {
		endpoints[i] = netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}).String()
	}
	for i := range n {
		all = append(all, web(2+i, endpoints...)...)
	}
	return all
}

// A change larger than a slice takes several attempts. A caller that waits for all of it gets its
// answer after the last.
func TestSlices(t *testing.T) {
	b := start(t)
	b.source.sync()
	b.source.deliver(web(1, "10.1.0.1")...)
	b.holds(t, web1)
	before := b.driver.applied()
	const services = 4
	b.source.deliver(largeServices(services)...)
	if err := b.client.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(b.driver.backends()); n != 1+services {
		t.Errorf("the kernel has %d frontends", n)
	}
	if n := b.driver.applied() - before; n != services {
		t.Errorf("%d services of more than a slice each went in by %d attempts", services, n)
	}
	if s, err := b.client.Status(t.Context()); err != nil || !s.OK {
		t.Errorf("status %+v, %v", s, err)
	}
}

// A caller that waits for everything declared so far gets its answer while a large service goes on
// changing.
func TestSyncWhileALargeServiceChanges(t *testing.T) {
	b := start(t)
	b.source.sync()
	endpoints := make([]string, 40_000)
	for i := range endpoints {
		endpoints[i] = netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}).String()
	}
	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for n := range 3 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				b.source.deliver(web(10+n, endpoints[i%100:]...)...)
				time.Sleep(time.Millisecond)
			}
		})
	}
	defer all.Wait()
	defer end()
	for range 3 {
		b.source.deliver(web(1, "10.1.0.1")...)
		asked, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := b.client.Sync(asked); err != nil {
			t.Error(err)
		}
		cancel()
		b.source.deliver(gone(1)...)
	}
}

// A caller that waits for a generation is told of the objects that matter to it.
func TestWaitForObjects(t *testing.T) {
	b := start(t)
	b.source.deliver(slices.Concat(web(1, "10.1.0.1"), web(2, "10.1.0.2"))...)
	b.source.sync()
	b.driver.setsAside(driver.SetAside{Kind: "Service", Name: model.Name{Namespace: "shop", Name: "web-1"}, Reason: "refused", InForce: model.InForceRest})
	generation := b.Store.Generation()
	service := func(n string) model.Ref {
		return model.Ref{Kind: "Service", Name: model.Name{Namespace: "shop", Name: n}}
	}
	if err := b.Wait(t.Context(), generation, service("web-2")); err != nil {
		t.Errorf("an object without faults: %v", err)
	}
	var fault *FaultError
	if err := b.Wait(t.Context(), generation, service("web-1"), service("web-2")); !errors.As(err, &fault) || len(fault.Issues) != 1 {
		t.Errorf("one with a fault: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Wait(ctx, generation+1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a generation that there is not yet: %v", err)
	}
}

// Whether anything stays in the kernel is said as it is.
func TestLastWords(t *testing.T) {
	for want, work := range map[string]func(*testAgent){
		"agent stopped; it programmed nothing": func(*testAgent) {},
		"agent stopped; what is programmed stays in the kernel": func(b *testAgent) {
			b.source.deliver(web(1, "10.1.0.1")...)
			b.source.sync()
			b.holds(t, "TCP 10.0.0.1:80 -> [10.1.0.1:8080]")
		},
	} {
		var b *testAgent
		t.Run("agent", func(t *testing.T) {
			b = start(t)
			work(b)
		})
		if !strings.Contains(b.log.String(), want) {
			t.Errorf("want %q:\n%s", want, b.log.String())
		}
	}
}
