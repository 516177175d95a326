// Package dashboard makes the Grafana dashboard of the chart from the agents' list of metrics: it
// can show no metric that is gone.
package dashboard

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/agent"
)

// row is a row of panels under a title.
type row struct {
	title  string
	panels []panel
}

// panel shows one metric. What an agent counts is a rate, summed over the chosen agents; what it
// measures is the greatest value among them; of a histogram it is the median and the 99th
// percentile.
type panel struct {
	title  string
	metric string
	by     []string // labels that make lines of their own
	sum    bool     // over the chosen agents, rather than the greatest value
	unit   string   // Grafana's; "": by the name of the metric
	filter string   // matchers of labels
	top    bool     // only the ten greatest
}

var rows = []row{
	{"Agents", []panel{
		{title: "Agents that are ready", metric: "sluice_ready", sum: true},
		{title: "Agents by version", metric: "sluice_build_info", by: []string{"version"}, sum: true},
		{title: "Objects at fault", metric: "sluice_issues"},
	}},
	{"Changes", []panel{
		{title: "From a change of a pod to the kernel", metric: "kubeproxy_network_programming_duration_seconds"},
		{title: "From the agent to the kernel", metric: "sluice_change_seconds"},
		{title: "Planning and applying", metric: "sluice_apply_seconds", by: []string{"path"}},
		{title: "Changes of endpoints", metric: "kubeproxy_sync_proxy_rules_endpoint_changes_total"},
		{title: "Changes of services", metric: "kubeproxy_sync_proxy_rules_service_changes_total"},
		{title: "Services that wait", metric: "kubeproxy_sync_proxy_rules_service_changes_pending"},
		{title: "Failures", metric: "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"},
		{title: "Changes by others, undone", metric: "sluice_heals_total"},
		{title: "Set aside", metric: "sluice_set_aside"},
	}},
	{"Objects", []panel{
		{title: "Frontends", metric: "sluice_frontends"},
		{title: "Backends", metric: "sluice_backends"},
		{title: "Kept, as not all could be read", metric: "sluice_frontends_kept"},
		{title: "Objects by kind", metric: "sluice_source_objects", by: []string{"kind"}},
		{title: "Changes missing for", metric: "sluice_source_kind_behind_seconds", by: []string{"kind"}},
		{title: "Watches begun again", metric: "sluice_source_kind_reconnects_total", by: []string{"kind"}},
	}},
	{"Policy", []panel{
		{title: "New connections by verdict", metric: "sluice_policy_packets_total", by: []string{"verdict"}},
		{title: "Denied by policy", metric: "sluice_policy_packets_total", by: []string{"kind", "namespace", "name"}, filter: `verdict="denied"`, top: true},
		{title: "Dropped packets", metric: "sluice_dropped_packets_total", by: []string{"reason"}},
		{title: "Connections cut", metric: "sluice_policy_connections_cut_total"},
		{title: "Pods under policy", metric: "sluice_policy_local_pods", sum: true},
		{title: "Entries of address lists", metric: "sluice_address_list_entries", by: []string{"name"}},
	}},
	{"Connections", []panel{
		{title: "Connection table", metric: "sluice_conntrack_entries"},
		{title: "Limit of the connection table", metric: "sluice_conntrack_entries_limit"},
		{title: "Clients with session affinity", metric: "sluice_affinity_clients", by: []string{"ip_family"}},
	}},
	{"Addresses and BGP", []panel{
		{title: "Addresses of Services", metric: "sluice_addresses"},
		{title: "Addresses announced", metric: "sluice_addresses_announced", by: []string{"instance"}},
		{title: "Statuses not written yet", metric: "sluice_addresses_unwritten", sum: true},
		{title: "BGP peers", metric: "sluice_bgp_peers", by: []string{"state"}, sum: true},
		{title: "Routes learned", metric: "sluice_bgp_routes_learned"},
		{title: "Routes announced", metric: "sluice_bgp_routes_announced", sum: true},
	}},
	{"Balancer", []panel{
		{title: "Backends of farms", metric: "sluice_farm_backend_state", by: []string{"state"}, sum: true},
		{title: "New connections to farms", metric: "sluice_farm_backend_connections_total", by: []string{"farm"}},
		{title: "Connections of farms", metric: "sluice_farm_backend_active_connections", by: []string{"farm"}, sum: true},
		{title: "Bytes of farms", metric: "sluice_farm_backend_bytes_total", by: []string{"farm"}},
		{title: "Packets to farms of modes dsr and stlsdnat", metric: "sluice_farm_backend_packets_total", by: []string{"farm"}},
		{title: "Failed checks", metric: "sluice_farm_backend_checks_failed_total", by: []string{"farm", "backend"}, top: true},
	}},
	{"Process", []panel{
		{title: "Resident memory", metric: "process_resident_memory_bytes"},
		{title: "CPU", metric: "process_cpu_seconds_total", unit: "percentunit"},
		{title: "File descriptors", metric: "process_open_fds"},
	}},
}

// JSON returns the dashboard. It fails where a panel names a metric, or a label, that agents do not
// have.
func JSON() ([]byte, error) {
	list, err := agent.Metrics()
	if err != nil {
		return nil, err
	}
	l := layout{metrics: map[string]agent.Metric{}}
	for _, m := range list {
		l.metrics[m.Name] = m
	}
	for _, r := range rows {
		if err := l.row(r); err != nil {
			return nil, fmt.Errorf("row %q: %w", r.title, err)
		}
	}
	text, err := json.MarshalIndent(whole(l.panels), "", " ")
	return append(text, '\n'), err
}

// object is an object of JSON.
type object = map[string]any

// Panels are three beside each other, in a grid of 24 columns.
const (
	width  = 8
	height = 7
)

// layout puts panels below each other.
type layout struct {
	metrics map[string]agent.Metric
	panels  []object
	y       int
}

func (l *layout) row(r row) error {
	l.add("row", r.title, 0, 3*width, 1, object{"collapsed": false, "panels": []object{}})
	l.y++
	for i, p := range r.panels {
		m, ok := l.metrics[p.metric]
		if !ok {
			return fmt.Errorf("panel %q: agents have no metric %s", p.title, p.metric)
		}
		for _, label := range p.by {
			if label != "instance" && !slices.Contains(m.Labels, label) {
				return fmt.Errorf("panel %q: %s has no label %s", p.title, p.metric, label)
			}
		}
		if i > 0 && i%3 == 0 {
			l.y += height
		}
		l.add("timeseries", p.title, i%3*width, width, height, object{
			"description": m.Help,
			"datasource":  datasource,
			"targets":     p.targets(m),
			"fieldConfig": object{"defaults": object{"unit": unit(p, m), "min": 0}, "overrides": []object{}},
		})
	}
	l.y += height
	return nil
}

func (l *layout) add(kind, title string, x, w, h int, more object) {
	panel := object{"id": len(l.panels) + 1, "type": kind, "title": title, "gridPos": object{"x": x, "y": l.y, "w": w, "h": h}}
	for name, value := range more {
		panel[name] = value
	}
	l.panels = append(l.panels, panel)
}

// targets are a panel's queries.
func (p panel) targets(m agent.Metric) []object {
	chosen := `job=~"$job", instance=~"$instance"`
	if p.filter != "" {
		chosen += ", " + p.filter
	}
	by, legend := "", p.legend()
	if len(p.by) > 0 {
		by = " by (" + strings.Join(p.by, ", ") + ")"
	}
	switch m.Type {
	case agent.Histogram:
		var list []object
		of := strings.Join(append([]string{"le"}, p.by...), ", ")
		for _, q := range []struct{ id, of, name string }{{"A", "0.5", "median"}, {"B", "0.99", "p99"}} {
			expr := fmt.Sprintf("histogram_quantile(%s, sum by (%s) (rate(%s_bucket{%s}[$__rate_interval])))", q.of, of, m.Name, chosen)
			list = append(list, target(q.id, expr, strings.TrimSpace(q.name+" "+legend)))
		}
		return list
	case agent.Counter:
		expr := fmt.Sprintf("sum%s (rate(%s{%s}[$__rate_interval]))", by, m.Name, chosen)
		if p.top {
			expr = "topk(10, " + expr + ")"
		}
		return []object{target("A", expr, legend)}
	}
	function := "max"
	if p.sum {
		function = "sum"
	}
	expr := fmt.Sprintf("%s%s (%s{%s})", function, by, m.Name, chosen)
	return []object{target("A", expr, legend)}
}

func target(id, expr, legend string) object {
	return object{"refId": id, "datasource": datasource, "expr": expr, "legendFormat": legend}
}

// legend names a line by its labels.
func (p panel) legend() string {
	var parts []string
	for _, label := range p.by {
		parts = append(parts, "{{"+label+"}}")
	}
	return strings.Join(parts, " ")
}

// unit is Grafana's unit of what a panel shows.
func unit(p panel, m agent.Metric) string {
	switch {
	case p.unit != "":
		return p.unit
	case strings.HasSuffix(m.Name, "_bytes"):
		return "bytes"
	case strings.HasSuffix(m.Name, "_bytes_total"):
		return "Bps"
	case strings.HasSuffix(m.Name, "_seconds"):
		return "s"
	case m.Type == agent.Counter:
		return "cps" // counts a second
	}
	return "short"
}

// datasource is the Prometheus that the variable names.
var datasource = object{"type": "prometheus", "uid": "$datasource"}

// variable is one that the dashboard's user chooses values of: those of a label.
func variable(name, query string) object {
	return object{
		"type": "query", "name": name, "label": name, "datasource": datasource, "query": query,
		"refresh": 2, "multi": true, "includeAll": true, "allValue": ".*", "sort": 1,
		"current": object{"text": []string{"All"}, "value": []string{"$__all"}},
	}
}

// whole is the dashboard with its variables.
func whole(panels []object) object {
	return object{
		"uid": "sluice", "title": "Sluice", "tags": []string{"sluice", "kubernetes", "networking"},
		"schemaVersion": 39, "editable": true, "refresh": "30s",
		"time":        object{"from": "now-3h", "to": "now"},
		"annotations": object{"list": []object{}},
		"templating": object{"list": []object{
			{"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
			variable("job", "label_values(sluice_build_info, job)"),
			variable("instance", `label_values(sluice_build_info{job=~"$job"}, instance)`),
		}},
		"panels": panels,
	}
}
