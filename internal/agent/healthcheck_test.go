package agent

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
)

// freePort returns a port that nothing listens on at the moment.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// ask returns the answer of a health check port; code 0 if nothing answers.
func ask(t *testing.T, host string, port uint16) (code int, header http.Header, body map[string]any) {
	t.Helper()
	resp, err := http.Get(fmt.Sprintf("http://%s:%d/", host, port))
	if err != nil {
		return 0, nil, nil
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		t.Fatalf("body of health check: %v", err)
	}
	return resp.StatusCode, resp.Header, body
}

func newChecks(t *testing.T) (h *healthChecks, healthy *atomic.Bool) {
	healthy = &atomic.Bool{}
	healthy.Store(true)
	h = newHealthChecks(slog.New(slog.DiscardHandler), healthy.Load, shareDescriptors(), kernelSockets{})
	t.Cleanup(h.close)
	return h, healthy
}

// want is a change with one health check.
func want(name string, port uint16, local int) map[uint16]*services.HealthCheck {
	return map[uint16]*services.HealthCheck{port: {Service: model.Name{Namespace: "shop", Name: name}, Port: port, LocalEndpoints: local}}
}

func TestHealthCheckAnswers(t *testing.T) {
	h, healthy := newChecks(t)
	port := freePort(t)
	for _, c := range []struct {
		name    string
		local   int
		healthy bool
		code    int
	}{
		{"endpoints here", 2, true, 200},
		{"none here", 0, true, 503},
		{"agent is not healthy", 2, false, 503},
		{"healthy again", 1, true, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			healthy.Store(c.healthy)
			h.apply(want("web", port, c.local))
			for _, host := range []string{"127.0.0.1", "[::1]"} {
				code, header, body := ask(t, host, port)
				if code == 0 && host == "[::1]" {
					continue // without IPv6
				}
				if code != c.code {
					t.Errorf("%s answers %d, want %d", host, code, c.code)
				}
				wantBody := map[string]any{
					"service":        map[string]any{"namespace": "shop", "name": "web"},
					"localEndpoints": float64(c.local), "serviceProxyHealthy": c.healthy,
				}
				if diff := cmp.Diff(wantBody, body); diff != "" {
					t.Errorf("body (-want +got):\n%s", diff)
				}
				if header.Get("Content-Type") != "application/json" || header.Get("X-Content-Type-Options") != "nosniff" ||
					header.Get("X-Load-Balancing-Endpoint-Weight") != fmt.Sprint(c.local) {
					t.Errorf("header: %v", header)
				}
			}
		})
	}
}

func TestHealthCheckMovesAndGoes(t *testing.T) {
	h, _ := newChecks(t)
	first, second := freePort(t), freePort(t)
	h.apply(want("web", first, 1))
	moved := want("web", second, 1)
	moved[first] = nil
	h.apply(moved)
	if code, _, _ := ask(t, "127.0.0.1", first); code != 0 {
		t.Errorf("the old port still answers %d", code)
	}
	if code, _, _ := ask(t, "127.0.0.1", second); code != 200 {
		t.Errorf("the new port answers %d", code)
	}
	h.apply(map[uint16]*services.HealthCheck{second: nil})
	if code, _, _ := ask(t, "127.0.0.1", second); code != 0 {
		t.Errorf("the port of a deleted service answers %d", code)
	}
}

// While kube-proxy runs, that it has a port is no fault of the Service; otherwise it is. Once the
// port is free, it is served.
func TestHealthCheckPortOfKubeProxy(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	for _, runs := range []bool{true, false} {
		h, _ := newChecks(t)
		h.proxy = func() bool { return runs }
		h.apply(want("web", port, 1))
		notes := strings.Join(h.notes(), "\n")
		if strings.Contains(notes, fmt.Sprintf("%d of shop/web", port)) != runs || (len(h.issues()) == 0) != runs {
			t.Errorf("kube-proxy runs: %t, notes %q, issues %v", runs, notes, h.issues())
		}
		h.close()
	}
	h, _ := newChecks(t)
	h.proxy = func() bool { return true }
	h.apply(want("web", port, 1))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if h.retry(); len(h.notes()) > 0 || len(h.issues()) > 0 {
		t.Errorf("the port is free: %q, %v", h.notes(), h.issues())
	}
	if code, _, _ := ask(t, "127.0.0.1", port); code != http.StatusOK {
		t.Errorf("the port answers %d", code)
	}
}

func TestHealthChecksSwapPorts(t *testing.T) {
	h, _ := newChecks(t)
	a, b := freePort(t), freePort(t)
	for a == b {
		b = freePort(t)
	}
	both := func(a, b uint16) map[uint16]*services.HealthCheck {
		checks := want("a", a, 1)
		maps.Copy(checks, want("b", b, 0))
		return checks
	}
	h.apply(both(a, b))
	h.apply(both(b, a))
	codeA, _, _ := ask(t, "127.0.0.1", b)
	codeB, _, _ := ask(t, "127.0.0.1", a)
	if codeA != 200 || codeB != 503 || len(h.issues()) != 0 {
		t.Errorf("after the swap: %d, %d, issues %v", codeA, codeB, h.issues())
	}
}

func TestHealthCheckPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := uint16(taken.Addr().(*net.TCPAddr).Port)
	h, _ := newChecks(t)
	h.apply(want("web", port, 1))
	issues := h.issues()
	if len(issues) != 1 || issues[0].Object.String() != "Service shop/web" || !strings.Contains(issues[0].Reason, fmt.Sprint(port)) {
		t.Fatalf("issues: %v", issues)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	h.retry()
	if issues := h.issues(); len(issues) != 0 {
		t.Errorf("issues after the port was freed: %v", issues)
	}
	if code, _, _ := ask(t, "127.0.0.1", port); code != 200 {
		t.Errorf("the freed port answers %d", code)
	}
}
