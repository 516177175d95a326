package agent

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/store"
)

// before fills the kernel with what an earlier life of the agent left there.
func before(t *testing.T, objects ...[]store.Event) func(*Config) {
	return func(c *Config) {
		s := store.New()
		for _, o := range objects {
			s.Apply(o)
		}
		compiler := compile.New(compile.Config{Config: services.Config{Node: "node-a"}})
		compiler.Update(s, s.Take())
		d := c.Driver.(*fakeDriver)
		p, err := d.Adopt(t.Context(), compiler.State(), driver.Keep{})
		if err == nil {
			err = p.Apply(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		d.restart()
	}
}

// What the source cannot read at the start stays in the kernel. Once it has read everything, what
// is not declared goes.
func TestWhatCannotBeReadIsKept(t *testing.T) {
	b := start(t, before(t, web(1, "10.1.0.1"), web(2, "10.1.0.2"), web(3, "10.1.0.3")))
	b.source.lacks("b.yaml: somebody is writing it")
	b.source.deliver(web(1, "10.1.0.1", "10.1.0.9")...)
	b.source.sync()
	const grown = "TCP 10.0.0.1:80 -> [10.1.0.1:8080 10.1.0.9:8080]"
	const web3 = "TCP 10.0.0.3:80 -> [10.1.0.3:8080]"
	b.holds(t, grown, web2, web3)
	err := b.client.Sync(t.Context())
	if err == nil || !strings.Contains(err.Error(), "2 elements of services or policies in the kernel may belong to") || !strings.Contains(err.Error(), "b.yaml: somebody is writing it") {
		t.Errorf("Sync while something is lacking: %v", err)
	}
	if s := b.Status(); s.OK || s.Kept != 2 || s.Heals != 0 {
		t.Errorf("status while something is lacking: %+v", s)
	}
	if text := scrape(t, b.metrics.handler(nil), "/metrics"); !strings.Contains(text, "\nsluice_frontends_kept 2\n") {
		t.Error("the metric does not count what is kept")
	}
	if plan, err := b.client.Plan(t.Context()); err != nil || plan.Operations != 0 {
		t.Errorf("plan while something is lacking: %+v, %v", plan, err)
	}
	b.source.deliver(gone(1)...) // was seen to go
	b.holds(t, web2, web3)

	b.source.deliver(web(2, "10.1.0.2")...)
	b.source.lacks()
	b.holds(t, web2)
	eventually(t, "all is well", func() bool { return b.Status().OK })
	if s := b.Status(); s.Kept != 0 {
		t.Errorf("status once all is read: %+v", s)
	}
}

// If only policies are lacking, no service and no endpoint is kept for it.
func TestLackingPoliciesKeepNoService(t *testing.T) {
	b := start(t, before(t, web(1, "10.1.0.1"), web(2, "10.1.0.2")))
	b.source.lacks("p.yaml: it is at fault")
	b.source.odd = []model.PolicyKey{{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "p"}}}
	b.source.deliver(web(1)...)
	b.source.sync()
	b.holds(t, "TCP 10.0.0.1:80 -> []")
	if s := b.Status(); s.Kept != 0 {
		t.Errorf("status: %+v", s)
	}
}

// A service that is lacking beside them is kept.
func TestLackingServiceIsKept(t *testing.T) {
	b := start(t, before(t, web(1, "10.1.0.1"), web(2, "10.1.0.2")))
	b.source.lacks("p.yaml: it is at fault", "web-2.yaml: it is at fault")
	b.source.odd = []model.Ref{{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "p"}},
		{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "web-2"}}}
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	b.holds(t, web1, web2)
}

// A service whose endpoints cannot be read keeps those that the kernel has.
func TestUnreadEndpointsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, apart, before(t, web(1, "10.1.0.1")))
		b.source.lacks("slice.yaml: it is at fault")
		b.source.deliver(web(1)[:1]...)
		b.source.deliver(web(2, "10.1.0.2")...)
		b.source.sync()
		b.holds(t, web1, web2)
		b.source.lacks()
		b.holds(t, "TCP 10.0.0.1:80 -> []", web2)
	})
}

// An endpoint that was read and then deleted does not count as unreadable.
func TestLastEndpointGoesWhileKeeping(t *testing.T) {
	b := start(t, before(t, web(1, "10.1.0.1"), web(2, "10.1.0.2")))
	b.source.lacks("b.yaml: somebody is writing it")
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	eventually(t, "something is kept", func() bool { return b.Status().Kept == 1 })
	b.source.deliver(web(1)...)
	b.holds(t, "TCP 10.0.0.1:80 -> []", web2)
	b.source.deliver(web(1, "10.1.0.1")...)
	b.holds(t, web1, web2)
	if text := scrape(t, b.metrics.handler(nil), "/metrics"); !strings.Contains(text, "\nkubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 0\n") {
		t.Error("changes while something is kept count as failures")
	}
	if strings.Contains(b.log.String(), "failed") {
		t.Error("changes while something is kept are logged as failures")
	}
}

// Only applied plans count: what was kept is in the status from then on, until its removal
// succeeds.
func TestKeptIsWhatWasApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, apart, before(t, web(1, "10.1.0.1"), web(2, "10.1.0.2")))
		b.driver.breaks(errKernel)
		b.source.lacks("b.yaml: somebody is writing it")
		b.source.deliver(web(1, "10.1.0.1", "10.1.0.9")...)
		b.source.sync()
		eventually(t, "the kernel refuses", func() bool { return b.Status().Failure != nil })
		if _, err := b.client.Plan(t.Context()); err != nil {
			t.Error(err)
		}
		if s := b.Status(); s.Kept != 0 || strings.Contains(b.log.String(), "they stay") {
			t.Errorf("status though nothing was applied: %+v", s)
		}
		b.driver.breaks(nil)
		eventually(t, "something is kept", func() bool { return b.Status().Kept == 1 })
		b.driver.breaks(errKernel)
		b.source.lacks()
		eventually(t, "the kernel refuses again", func() bool { return b.Status().Failure != nil })
		if s := b.Status(); s.Kept != 1 || !strings.Contains(strings.Join(s.Problems, "\n"), "1 element of services or policies in the kernel still to be removed") {
			t.Errorf("status though what was kept is still there: %+v", s)
		}
		b.driver.breaks(nil)
		eventually(t, "all is well", func() bool { s := b.Status(); return s.OK && s.Kept == 0 })
	})
}

// A fault does not hide that something is kept: to whoever waits, that is more than a fault.
func TestSyncNamesWhatIsKeptBesideFaults(t *testing.T) {
	b := start(t, before(t, web(1, "10.1.0.1"), web(2, "10.1.0.2")))
	b.source.lacks("b.yaml: somebody is writing it")
	b.source.fault(model.Issue{Object: model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "bad"}}, Reason: "port 70000 is out of range"})
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	eventually(t, "something is kept", func() bool { return b.Status().Kept == 1 })
	err := b.client.Sync(t.Context())
	if _, objectsAlone := errors.AsType[*FaultError](err); objectsAlone || err == nil {
		t.Fatalf("Sync: %v", err)
	}
	for _, want := range []string{"may belong to", "Service shop/bad"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Sync does not say %q: %v", want, err)
		}
	}
}

// What is removed because everything has been read at last does not count as tampering, even if an
// audit removes it.
func TestEndOfLackingIsNoHeal(t *testing.T) {
	b := start(t, before(t, web(1, "10.1.0.1"), web(2, "10.1.0.2")), func(c *Config) { c.AuditInterval = time.Millisecond })
	b.source.lacks("b.yaml: somebody is writing it")
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	eventually(t, "something is kept", func() bool { return b.Status().Kept == 1 })
	b.source.lacks()
	eventually(t, "all is well", func() bool { return b.Status().OK })
	b.holds(t, web1)
	if s := b.Status(); s.Heals != 0 {
		t.Errorf("%d heals", s.Heals)
	}
}

// If the kernel has nothing to lose, nothing counts as lacking.
func TestNothingToKeep(t *testing.T) {
	b := start(t)
	b.source.lacks("/manifests: it holds no manifests")
	b.source.sync()
	if err := b.client.Sync(t.Context()); err != nil {
		t.Errorf("Sync: %v", err)
	}
	if s := b.Status(); !s.OK {
		t.Errorf("status: %+v", s)
	}
}

// If the kernel has nothing to keep, a service without endpoints is refused at once, by adoption
// and update alike, and the audit agrees.
func TestNothingToKeepWithoutEndpoints(t *testing.T) {
	const web1, web2 = "TCP 10.0.0.1:80 -> []", "TCP 10.0.0.2:80 -> []"
	b := start(t, func(c *Config) { c.AuditInterval = 20 * time.Millisecond })
	b.source.lacks("b.yaml: it is at fault")
	b.source.deliver(web(1)...)
	b.source.sync()
	b.holds(t, web1)
	b.source.deliver(web(2)...)
	b.holds(t, web1, web2)
	for range 3 { // a few audits
		if err := b.client.Sync(t.Context()); err != nil {
			t.Errorf("Sync: %v", err)
		}
		time.Sleep(25 * time.Millisecond)
	}
	b.holds(t, web1, web2)
	if s := b.Status(); s.Heals != 0 || s.Kept != 0 {
		t.Errorf("status: %+v", s)
	}
}

// A driver that cannot keep anything adopts as ever.
func TestDriverThatKeepsNothing(t *testing.T) {
	b := start(t, before(t, web(1, "10.1.0.1")), func(c *Config) { c.Driver = unable{c.Driver.(*fakeDriver), driver.Keeps} })
	b.source.lacks("b.yaml: it is at fault")
	b.source.deliver(web(2, "10.1.0.2")...)
	b.source.sync()
	b.holds(t, web2)
}

func TestKeepingNamesFew(t *testing.T) {
	s := Status{Source: source.Status{Lacking: []string{"a", "b", "c", "d", "e", "f", "g"}}}
	if text := Keeping(1, s.Source.Lacking); !strings.Contains(text, "1 element of services or policies in") || !strings.Contains(text, "e; and 2 more") {
		t.Error(text)
	}
}

// A rollout stops at an agent that knows no pods, or whose node name belongs to no Node.
func TestNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, apart)
		readyz := func() string {
			w := httptest.NewRecorder()
			b.health.handler(b.metrics.healthz, b.metrics.livez).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			return w.Body.String()
		}
		b.source.neverRead("Pod")
		b.source.lacks("Pod: it may not be read")
		b.source.sync()
		eventually(t, "it is said", func() bool {
			return strings.Contains(readyz(), "not ready: Pod: none could be read since the start; policy is not in force")
		})
		if s := b.Status(); s.OK || !strings.Contains(strings.Join(s.Problems, "\n"), "what all others send and get passes") {
			t.Errorf("status: %q", s.Problems)
		}
		if !strings.Contains(b.log.String(), "not ready: Pod") {
			t.Error("the log does not say it")
		}
		b.source.neverRead()
		b.source.lacks()
		eventually(t, "it is ready", func() bool { return readyz() == "ok\n" && strings.Contains(b.log.String(), "Pods have been read") })

		b.source.deliver(store.Event{Kind: model.NodeKind, Name: model.Name{Name: "other"}, Object: &model.Node{Name: "other"}})
		eventually(t, "no Node is this one", func() bool { return strings.Contains(readyz(), "no Node object named node-a") })
	})
}

// What an earlier agent programmed for a policy that waits for its tier since the start stays, and
// nothing else for its sake: the kernel is in step.
func TestWaitingPoliciesAreLacking(t *testing.T) {
	policy := &model.Policy{Key: model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "p"}}, Tier: "own"}
	tier := &model.Tier{Name: "own"}
	b := start(t, before(t, web(1, "10.1.0.1")))
	b.source.deliver(store.Event{Kind: policy.Key.Kind, Name: policy.Key.Name, Object: policy})
	b.source.sync()
	b.holds(t)
	s := b.Status()
	if len(s.Source.Lacking) != 1 || s.OK || len(s.Issues) != 1 || !strings.Contains(s.Issues[0].Reason, "there is no Tier own") {
		t.Errorf("status while it waits: %+v", s)
	}
	eventually(t, "the kernel is in step", func() bool {
		whole := make(chan bool, 1)
		err := b.ask(t.Context(), func(l *loop) { whole <- l.whole && l.kernel.InSlices() })
		return err == nil && <-whole
	})
	for _, c := range []struct {
		status source.Status
		any    bool
		want   string
	}{
		{source.Status{}, false, "[GlobalNetworkPolicy p]"},
		{source.Status{Lacking: []string{"x.yaml"}}, true, "[]"},
		{source.Status{Lacking: []string{"x.yaml"}, LackingObjects: []model.Ref{{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "a"}}}}, true, "[GlobalNetworkPolicy a GlobalNetworkPolicy p]"},
		{source.Status{Lacking: []string{"x.yaml"}, LackingObjects: []model.Ref{{Kind: model.ServiceKind, Name: model.Name{Name: "a"}}}}, true, "[]"},
	} {
		if l := Lacking(Await(c.status, b.Store)); l.Any != c.any || fmt.Sprint(l.Policies) != c.want {
			t.Errorf("%+v: lacking %+v", c.status, l)
		}
	}
	b.source.deliver(store.Event{Kind: model.TierKind, Name: model.Name{Name: "own"}, Object: tier})
	eventually(t, "all is well", func() bool { s := b.Status(); return s.OK && len(s.Source.Lacking) == 0 })
}
