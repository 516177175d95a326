package agent

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

func TestMetrics(t *testing.T) {
	b := start(t)
	b.source.fault(model.Issue{Object: "Service shop/bad", Source: "bad.yaml", Reason: "port 70000 is out of range"})
	b.source.deliver(web(1, "10.1.0.1", "10.1.0.2")...)
	b.source.sync()
	eventually(t, "the first apply is done", func() bool { return b.health.ready() })
	get(t, b.Agent.health.handler(b.metrics.healthz, b.metrics.livez), "/healthz")
	get(t, b.Agent.health.handler(b.metrics.healthz, b.metrics.livez), "/livez")

	text := scrape(t, b.metrics.handler(), "/metrics")
	for _, line := range []string{
		"kubeproxy_sync_proxy_rules_duration_seconds_count 1",
		"kubeproxy_sync_full_proxy_rules_duration_seconds_count 1",
		"kubeproxy_sync_partial_proxy_rules_duration_seconds_count 0",
		"kubeproxy_network_programming_duration_seconds_count 1",
		`kubeproxy_network_programming_duration_seconds_bucket{le="300"} 1`,
		`kubeproxy_sync_proxy_rules_duration_seconds_bucket{le="16.384"} 1`,
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds ",
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ",
		"kubeproxy_sync_proxy_rules_endpoint_changes_total 1",
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
		"kubeproxy_sync_proxy_rules_service_changes_total 1",
		"kubeproxy_sync_proxy_rules_service_changes_pending 0",
		"kubeproxy_sync_proxy_rules_nftables_sync_failures_total 0",
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy="internal"} 0`,
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy="external"} 0`,
		`kubeproxy_proxy_healthz_total{code="200"} 1`,
		`kubeproxy_proxy_livez_total{code="200"} 1`,
		"sluice_frontends 1",
		"sluice_backends 2",
		"sluice_frontends_kept 0",
		"sluice_heals_total 0",
		"sluice_operations_total 1",
		`sluice_apply_seconds_count{path="adopt"} 1`,
		"sluice_change_seconds_count 1",
		"sluice_issues 1",
		`sluice_issue{object="Service shop/bad",reason="port 70000 is out of range",source="bad.yaml"} 1`,
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
	if mode := scrape(t, b.metrics.handler(), "/proxyMode"); mode != "nftables" {
		t.Errorf("/proxyMode answers %q", mode)
	}
}

func TestIssueSeriesAreBounded(t *testing.T) {
	b := start(t)
	var issues []model.Issue
	for n := range 2 * maxIssueSeries {
		issues = append(issues, model.Issue{Object: fmt.Sprintf("Service shop/bad-%d", n), Reason: "bad"})
	}
	b.source.fault(issues...)
	text := scrape(t, b.metrics.handler(), "/metrics")
	if n := strings.Count(text, "\nsluice_issue{"); n != maxIssueSeries {
		t.Errorf("%d series, want %d", n, maxIssueSeries)
	}
	if !strings.Contains(text, fmt.Sprintf("\nsluice_issues %d\n", len(issues))) {
		t.Error("sluice_issues does not count all")
	}
}

func scrape(t *testing.T, h http.Handler, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	b, err := io.ReadAll(w.Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s answers %d, %v", path, w.Code, err)
	}
	return string(b)
}
