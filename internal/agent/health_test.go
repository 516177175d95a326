package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// get sends a request to a handler and returns the status and the body's fields.
func get(t *testing.T, h http.Handler, path string) (int, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	body := map[string]any{}
	if w.Header().Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatalf("body of %s: %v", path, err)
		}
	}
	return w.Code, body
}

func TestHealthTransitions(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := &health{limit: time.Minute, now: func() time.Time { return now }, eligible: func() bool { return true }}
	handler := h.handler(newMetrics(&Agent{}).healthz, newMetrics(&Agent{}).livez)
	for _, step := range []struct {
		name                  string
		do                    func()
		healthz, livez, ready int
		updated               time.Time // lastUpdated in the body
	}{
		{"started", func() {}, 200, 200, 503, now},
		{"a change waits", func() { h.queued(now) }, 200, 200, 503, now},
		{"it is applied", h.applied, 200, 200, 200, now},
		{"nothing happens for an hour", func() { now = now.Add(time.Hour); h.beat() }, 200, 200, 200, now.Add(time.Hour)},
		{"a change waits again", func() { h.queued(now) }, 200, 200, 200, now.Add(time.Hour)},
		{"more changes come", func() { now = now.Add(59 * time.Second); h.queued(now) }, 200, 200, 200, now.Add(time.Hour + 59*time.Second)},
		{"attempts fail", func() { h.beat(); h.failed(errKernel) }, 200, 200, 503, now.Add(time.Hour + 59*time.Second)},
		{"the first waits too long", func() { now = now.Add(time.Second); h.beat() }, 503, 200, 503, now},
		{"the loop is stuck", func() { now = now.Add(time.Minute) }, 503, 503, 503, now},
		{"all is applied", func() { h.beat(); h.applied() }, 200, 200, 200, now.Add(time.Hour + 2*time.Minute)},
	} {
		step.do()
		code, body := get(t, handler, "/healthz")
		if code != step.healthz || body["nodeEligible"] != true {
			t.Errorf("%s: /healthz answers %d %v", step.name, code, body)
		}
		if got := body["lastUpdated"]; got != step.updated.Format(time.RFC3339) {
			t.Errorf("%s: lastUpdated is %v, want %v", step.name, got, step.updated)
		}
		code, body = get(t, handler, "/livez")
		if _, has := body["nodeEligible"]; code != step.livez || has {
			t.Errorf("%s: /livez answers %d %v", step.name, code, body)
		}
		if code, _ := get(t, handler, "/readyz"); code != step.ready {
			t.Errorf("%s: /readyz answers %d", step.name, code)
		}
	}
}

// In the role of kube-proxy, a node without its Node object gets no traffic from load balancers.
func TestMissingNode(t *testing.T) {
	for _, needed := range []bool{false, true} {
		b := start(t, func(c *Config) { c.NodeNeeded = needed })
		handler := b.Agent.health.handler(b.metrics.healthz, b.metrics.livez)
		if code, body := get(t, handler, "/healthz"); (code == http.StatusOK) == needed || body["nodeEligible"] == needed || body["healthy"] != true {
			t.Errorf("needed %v: /healthz answers %d %v", needed, code, body)
		}
		b.source.deliver(store.Event{Kind: model.NodeKind, Name: model.Name{Name: "node-a"}, Object: &model.Node{Name: "node-a"}})
		if code, _ := get(t, handler, "/healthz"); code != http.StatusOK {
			t.Errorf("needed %v: /healthz of a node that is there answers %d", needed, code)
		}
	}
}

// As in kube-proxy, the body says for each family when it was last up to date, once it has been.
func TestFamilyHealth(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := &health{limit: 10 * time.Second, now: func() time.Time { return now }, eligible: func() bool { return true }}
	handler := h.handler(newMetrics(&Agent{}).healthz, newMetrics(&Agent{}).livez)
	if _, body := get(t, handler, "/livez"); body["healthy"] != true || body["status"] != nil {
		t.Errorf("at the start: %v", body)
	}
	h.applied()
	h.queued(now)
	now = now.Add(10 * time.Second)
	code, body := get(t, handler, "/healthz")
	want := map[string]any{"lastUpdated": "2026-01-02T03:04:05Z", "healthy": false}
	if diff := cmp.Diff(map[string]any{"IPv4": want, "IPv6": want}, body["status"]); code != http.StatusServiceUnavailable || diff != "" {
		t.Errorf("a change waits too long: %d (-want +got):\n%s", code, diff)
	}
}

func TestLeavingNode(t *testing.T) {
	b := start(t)
	handler := b.Agent.health.handler(b.metrics.healthz, b.metrics.livez)
	for _, leaving := range []bool{false, true, false} {
		b.source.deliver(store.Event{Kind: model.NodeKind, Name: model.Name{Name: "node-a"}, Object: &model.Node{Name: "node-a", Leaving: leaving}})
		want := http.StatusOK
		if leaving {
			want = http.StatusServiceUnavailable
		}
		if code, body := get(t, handler, "/healthz"); code != want || body["nodeEligible"] != !leaving {
			t.Errorf("leaving %v: /healthz answers %d %v", leaving, code, body)
		}
		if code, _ := get(t, handler, "/livez"); code != http.StatusOK {
			t.Errorf("leaving %v: /livez answers %d", leaving, code)
		}
	}
}
