package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/deploy/dashboard"
	"sluice.dev/sluice/internal/agent"
)

const (
	alertsFile    = chart + "/files/alerts.yaml"
	dashboardFile = chart + "/files/dashboard.json"
)

// monitored are the values that turn on all that monitoring needs.
const monitored = "metricsAddress=:10249,podMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true"

// alert is one of the file of alerts.
type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) []alert {
	t.Helper()
	text, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []alert } }
	if err := yaml.Unmarshal(text, &file); err != nil || len(file.Groups) != 1 {
		t.Fatalf("%+v, %v", file, err)
	}
	return file.Groups[0].Rules
}

// check has one of the tools check its input, or what its arguments name.
func check(t *testing.T, input, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool(t, name), args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := output(cmd); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Prometheus takes the alerts, and fires each in the case that it is for, and only then.
func TestAlerts(t *testing.T) {
	t.Parallel()
	file, err := filepath.Abs(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "", "promtool", "check", "rules", "--lint=all", "--lint-fatal", file)
	cases, err := filepath.Glob("testdata/*alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	check(t, "", "promtool", append([]string{"test", "rules"}, cases...)...)
	var all []byte
	for _, file := range cases {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	for _, a := range alerts(t) {
		if !bytes.Contains(all, []byte("alertname: "+a.Alert+"\n")) {
			t.Errorf("no case for %s in %q", a.Alert, cases)
		}
	}
}

// Alerts say how bad it is and what to do, by a link into the runbook.
func TestAlertsHaveARunbook(t *testing.T) {
	t.Parallel()
	anchors := runbook(t)
	for _, a := range alerts(t) {
		if s := a.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s has the severity %q", a.Alert, s)
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s says %q", a.Alert, a.Annotations)
		}
		page, anchor, _ := strings.Cut(a.Annotations["runbook_url"], "#")
		if page != "runbook.md" || !slices.Contains(anchors, anchor) {
			t.Errorf("%s leads to %s#%s, and the runbook has %q", a.Alert, page, anchor, anchors)
		}
	}
}

// runbook returns the anchors of the runbook's sections.
func runbook(t *testing.T) (anchors []string) {
	t.Helper()
	text, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(text), -1) {
		anchors = append(anchors, strings.ReplaceAll(strings.ToLower(regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(m[1], "")), " ", "-"))
	}
	return anchors
}

// Alerts name metrics that agents have.
func TestAlertsNameMetrics(t *testing.T) {
	t.Parallel()
	list, err := agent.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range list {
		if m.Type == agent.Histogram {
			known[m.Name+"_bucket"], known[m.Name+"_count"], known[m.Name+"_sum"] = true, true, true
		} else {
			known[m.Name] = true
		}
	}
	names := regexp.MustCompile(`\b(sluice|kubeproxy|process|go)_\w+`)
	for _, a := range alerts(t) {
		for _, name := range names.FindAllString(a.Expr, -1) {
			if !known[name] {
				t.Errorf("%s asks for %s, which agents do not have", a.Alert, name)
			}
		}
	}
}

// grafana is what the tests look at of a dashboard.
type grafana struct {
	Panels []struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
}

// The dashboard is made from the list of metrics, is what Grafana's schemas say, and each of its
// queries is one to Prometheus.
func TestDashboard(t *testing.T) {
	t.Parallel()
	want, err := dashboard.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(dashboardFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(dashboardFile)
	if err != nil || !bytes.Equal(text, want) {
		t.Errorf("%s is not what the metrics make of it (go test ./deploy -run TestDashboard -update): %v", dashboardFile, err)
	}
	check(t, string(text), "dashboard")
	var d grafana
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	var queries strings.Builder
	queries.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %d %q has no title, or an id that another one has", p.ID, p.Title)
		}
		ids[p.ID] = true
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("panel %q is at %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("panel %q lies on %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if (len(p.Targets) == 0) != (p.Type == "row") {
			t.Errorf("panel %q has %d queries", p.Title, len(p.Targets))
		}
		for i, q := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m").Replace(q.Expr)
			fmt.Fprintf(&queries, "  - {record: panel_%d_%d, expr: %q}\n", p.ID, i, expr)
		}
	}
	file := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(file, []byte(queries.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	check(t, "", "promtool", "check", "rules", file)
}

// What monitoring needs comes with its values: the port, what finds it, alerts with whole links,
// the dashboard.
func TestMonitoringValues(t *testing.T) {
	t.Parallel()
	text := render(t, "--set", "kubernetes.host=a", "--set", "metricsAddress=:9249", "--set", "docsURL=https://docs.example/sluice/",
		"--set", "podMonitor.enabled=true,podMonitor.interval=30s,podMonitor.labels.release=prometheus",
		"--set", "prometheusRule.enabled=true,prometheusRule.labels.release=prometheus", "--set", "dashboard.enabled=true,dashboard.annotations.folder=net")
	_, c := daemon(t, text)
	if want := (corev1.ContainerPort{Name: "metrics", ContainerPort: 9249, HostPort: 9249}); !slices.Contains(c.Ports, want) {
		t.Errorf("no %+v among %+v", want, c.Ports)
	}
	all := objects(t, text)
	for _, name := range []string{"PodMonitor sluice", "PrometheusRule sluice"} {
		if labels, _ := all[name]["metadata"].(map[string]any)["labels"].(map[string]any); labels["release"] != "prometheus" {
			t.Errorf("%s has the labels %v", name, labels)
		}
	}
	monitor, err := json.Marshal(all["PodMonitor sluice"]["spec"])
	if err != nil || !strings.Contains(string(monitor), `"interval":"30s","port":"metrics"`) || !strings.Contains(string(monitor), `"matchLabels":{"app.kubernetes.io/name":"sluice"}`) {
		t.Errorf("PodMonitor %s, %v", monitor, err)
	}
	check(t, text, "operator")
	rule, err := yaml.Marshal(all["PrometheusRule sluice"]["spec"])
	if err != nil {
		t.Fatal(err)
	}
	if n, links := len(alerts(t)), strings.Count(string(rule), "runbook_url: https://docs.example/sluice/runbook.md#"); n != links {
		t.Errorf("%d alerts have %d links:\n%s", n, links, rule)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml") // as the operator gives it to Prometheus
	if err := os.WriteFile(file, rule, 0o600); err != nil {
		t.Fatal(err)
	}
	check(t, "", "promtool", "check", "rules", file)
	board := object[corev1.ConfigMap](t, text, "ConfigMap sluice-dashboard")
	want, err := os.ReadFile(dashboardFile)
	if err != nil || board.Data["sluice.json"] != string(want) || board.Labels["grafana_dashboard"] != "1" || board.Annotations["folder"] != "net" {
		t.Errorf("%v, ConfigMap %+v", err, board.ObjectMeta)
	}
	for name := range objects(t, render(t, "--set", "kubernetes.host=a")) {
		if strings.Contains(name, "Monitor") || strings.Contains(name, "Rule") || strings.Contains(name, "dashboard") {
			t.Errorf("%s is there though nobody asked for it", name)
		}
	}
}
