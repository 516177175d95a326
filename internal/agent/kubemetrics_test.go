package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

// kubeMetrics are the metrics of kube-proxy 1.37 in nftables mode, with their types and labels.
// Those without a meaning here say why.
var kubeMetrics = []struct {
	name    string
	kind    dto.MetricType
	labels  string // comma-separated, sorted
	buckets string // of a histogram: number, first and last
	not     string // why it is not served
}{
	{name: "kubeproxy_sync_proxy_rules_duration_seconds", kind: dto.MetricType_HISTOGRAM, labels: "ip_family", buckets: "15 0.001 16.384"},
	{name: "kubeproxy_sync_full_proxy_rules_duration_seconds", kind: dto.MetricType_HISTOGRAM, labels: "ip_family", buckets: "15 0.001 16.384"},
	{name: "kubeproxy_sync_partial_proxy_rules_duration_seconds", kind: dto.MetricType_HISTOGRAM, labels: "ip_family", buckets: "15 0.001 16.384"},
	{name: "kubeproxy_network_programming_duration_seconds", kind: dto.MetricType_HISTOGRAM, labels: "ip_family", buckets: "80 0.25 300"},
	{name: "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", kind: dto.MetricType_GAUGE, labels: "ip_family"},
	{name: "kubeproxy_sync_proxy_rules_last_timestamp_seconds", kind: dto.MetricType_GAUGE, labels: "ip_family"},
	{name: "kubeproxy_sync_proxy_rules_endpoint_changes_pending", kind: dto.MetricType_GAUGE},
	{name: "kubeproxy_sync_proxy_rules_endpoint_changes_total", kind: dto.MetricType_COUNTER},
	{name: "kubeproxy_sync_proxy_rules_service_changes_pending", kind: dto.MetricType_GAUGE},
	{name: "kubeproxy_sync_proxy_rules_service_changes_total", kind: dto.MetricType_COUNTER},
	{name: "kubeproxy_sync_proxy_rules_no_local_endpoints_total", kind: dto.MetricType_GAUGE, labels: "ip_family,traffic_policy"},
	{name: "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", kind: dto.MetricType_COUNTER, labels: "ip_family"},
	{name: "kubeproxy_proxy_healthz_total", kind: dto.MetricType_COUNTER, labels: "code"},
	{name: "kubeproxy_proxy_livez_total", kind: dto.MetricType_COUNTER, labels: "code"},

	{name: "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", not: "what is gone leaves the kernel in the change itself, so that there is nothing to clean up"},
	{name: "kubeproxy_conntrack_reconciler_sync_duration_seconds", not: "connections are cut in the background, and of what changed alone, not reconciled"},
	{name: "kubeproxy_conntrack_reconciler_deleted_entries_total", not: "connections are cut in the background, and of what changed alone, not reconciled"},
	{name: "kubeproxy_nftables_localhost_nodeport_listeners", not: "node ports are not served on loopback addresses"},
	{name: "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total", not: "node ports are not served on loopback addresses"},
	{name: "kubeproxy_nftables_localhost_nodeport_rejected_packets_total", not: "node ports are not served on loopback addresses"},
}

// Monitoring made for kube-proxy finds its metrics by name, type and labels, and finds no others
// under kube-proxy's prefix.
func TestKubeProxyMetrics(t *testing.T) {
	b := start(t)
	b.source.sync()
	eventually(t, "the first apply is done", func() bool { return b.health.ready() })
	handler := b.health.handler(b.metrics.healthz, b.metrics.livez)
	get(t, handler, "/healthz")
	get(t, handler, "/livez")
	gathered, err := b.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*dto.MetricFamily{}
	for _, f := range gathered {
		if strings.HasPrefix(f.GetName(), "kubeproxy_") {
			found[f.GetName()] = f
		}
	}
	for _, want := range kubeMetrics {
		f := found[want.name]
		delete(found, want.name)
		switch {
		case want.not != "" && f == nil:
		case want.not != "" || f == nil:
			t.Errorf("%s is served: %v; why not: %q", want.name, f != nil, want.not)
		case f.GetType() != want.kind || labels(f) != want.labels || buckets(f) != want.buckets:
			t.Errorf("%s is a %v by %q in %q, want a %v by %q in %q", want.name, f.GetType(), labels(f), buckets(f), want.kind, want.labels, want.buckets)
		}
	}
	for name := range found {
		t.Errorf("kube-proxy has no %s", name)
	}
}

func labels(f *dto.MetricFamily) string {
	var names []string
	for _, l := range f.GetMetric()[0].GetLabel() {
		names = append(names, l.GetName())
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

func buckets(f *dto.MetricFamily) string {
	h := f.GetMetric()[0].GetHistogram()
	if h == nil {
		return ""
	}
	list := h.GetBucket()
	return fmt.Sprint(len(list), list[0].GetUpperBound(), list[len(list)-1].GetUpperBound())
}
