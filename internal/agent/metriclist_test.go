package agent

import (
	"slices"
	"strings"
	"testing"
)

// The list of metrics has all that is served, each as it is served.
func TestMetricList(t *testing.T) {
	list, err := Metrics()
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]Metric{}
	for _, m := range list {
		if _, twice := listed[m.Name]; twice || m.Help == "" {
			t.Errorf("%s is listed twice: %v, or has no help: %q", m.Name, twice, m.Help)
		}
		listed[m.Name] = m
	}
	b := start(t)
	b.source.sync()
	eventually(t, "the first apply is done", func() bool { return b.health.ready() })
	served, err := b.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range served {
		m, ok := listed[f.GetName()]
		if kind := MetricType(strings.ToLower(f.GetType().String())); !ok || m.Type != kind {
			t.Errorf("%s is a %s, and listed as %+v", f.GetName(), kind, m)
		}
		own := strings.HasPrefix(m.Name, "sluice_") || strings.HasPrefix(m.Name, "kubeproxy_")
		if listed := strings.Join(slices.Sorted(slices.Values(m.Labels)), ","); own && listed != labels(f) {
			t.Errorf("%s has the labels %s, and is listed with %s", f.GetName(), labels(f), listed)
		}
	}
}

// A metric is zero while the agent is not ready.
func TestReadyMetric(t *testing.T) {
	b := start(t)
	for _, want := range []string{"\nsluice_ready 0\n", "\nsluice_ready 1\n"} {
		eventually(t, want, func() bool { return strings.Contains(scrape(t, b.metrics.handler(nil), "/metrics"), want) })
		b.source.sync()
	}
}
