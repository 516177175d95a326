package agent

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

func TestMetrics(t *testing.T) {
	b := start(t)
	b.source.fault(model.Issue{Object: model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "bad"}}, Source: "bad.yaml", Reason: "port 70000 is out of range"})
	b.source.deliver(web(1, "10.1.0.1", "10.1.0.2")...)
	b.source.sync()
	eventually(t, "the first apply is done", func() bool { return b.health.ready() })
	get(t, b.Agent.health.handler(b.metrics.healthz, b.metrics.livez), "/healthz")
	get(t, b.Agent.health.handler(b.metrics.healthz, b.metrics.livez), "/livez")

	text := scrape(t, b.metrics.handler(nil), "/metrics")
	for _, line := range []string{
		`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
		`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1`,
		`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 0`,
		`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 0`,
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="300"} 0`,
		`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="16.384"} 1`,
		`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} `,
		`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} `,
		"kubeproxy_sync_proxy_rules_endpoint_changes_total 1",
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
		"kubeproxy_sync_proxy_rules_service_changes_total 1",
		"kubeproxy_sync_proxy_rules_service_changes_pending 0",
		`kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 0`,
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} 0`,
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv6",traffic_policy="external"} 0`,
		`kubeproxy_proxy_healthz_total{code="200"} 1`,
		`kubeproxy_proxy_livez_total{code="200"} 1`,
		"sluice_ready 1",
		"sluice_frontends 1",
		"sluice_backends 2",
		"sluice_frontends_kept 0",
		"sluice_heals_total 0",
		"sluice_operations_total 1",
		`sluice_apply_seconds_count{path="adopt"} 1`,
		"sluice_change_seconds_count 1",
		"sluice_issues 1",
		`sluice_issue{kind="Service",name="bad",namespace="shop",reason="port 70000 is out of range",source="bad.yaml"} 1`,
		`sluice_source_synced{source="manifests"} 1`,
		`sluice_source_objects{kind="Service",source="manifests"} 1`,
		`sluice_source_skipped{kind="ConfigMap",source="manifests"} 2`,
		`sluice_build_info{node="node-a",version="v1"} 1`,
		"go_goroutines ",
		"process_resident_memory_bytes ",
	} {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("no line that starts with %q", line)
		}
	}
	if mode := scrape(t, b.metrics.handler(nil), "/proxyMode"); mode != "ipvs" {
		t.Errorf("/proxyMode answers %q", mode)
	}
}

// Endpoints that changed after the agent's start carry the time of the change, and the time until
// the kernel has it is measured.
func TestNetworkProgramming(t *testing.T) {
	b := start(t)
	b.source.sync()
	eventually(t, "the first apply is done", func() bool { return b.health.ready() })
	long := web(1, "10.1.0.1")
	long[1].Object.(*model.EndpointSlice).Triggered = b.started.Add(-time.Hour)
	b.source.deliver(long...)
	b.holds(t, "TCP 10.0.0.1:80 -> [10.1.0.1:8080]")
	now := web(1, "10.1.0.1", "10.1.0.2")
	now[1].Object.(*model.EndpointSlice).Triggered = time.Now()
	b.source.deliver(now...)
	b.holds(t, "TCP 10.0.0.1:80 -> [10.1.0.1:8080 10.1.0.2:8080]")
	eventually(t, "the change is counted", func() bool {
		return strings.Contains(scrape(t, b.metrics.handler(nil), "/metrics"), "\nkubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"} 1\n")
	})
	text := scrape(t, b.metrics.handler(nil), "/metrics")
	for _, line := range []string{
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="5"} 1`,
		`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv6"} 0`,
		`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2`,
		`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv6"} 0`,
	} {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("no line that starts with %q", line)
		}
	}
}

func TestIssueSeriesAreBounded(t *testing.T) {
	b := start(t)
	var issues []model.Issue
	for n := range 2 * maxIssueSeries {
		issues = append(issues, model.Issue{Object: model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: fmt.Sprint("bad-", n)}}, Reason: "bad"})
	}
	b.source.fault(issues...)
	text := scrape(t, b.metrics.handler(nil), "/metrics")
	if n := strings.Count(text, "\nsluice_issue{"); n != maxIssueSeries {
		t.Errorf("%d series, want %d", n, maxIssueSeries)
	}
	if !strings.Contains(text, fmt.Sprintf("\nsluice_issues %d\n", len(issues))) {
		t.Error("sluice_issues does not count all")
	}
}

func scrape(t testing.TB, h http.Handler, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	b, err := io.ReadAll(w.Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s answers %d, %v", path, w.Code, err)
	}
	return string(b)
}
