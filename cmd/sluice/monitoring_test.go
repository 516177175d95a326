package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/bgp"
	nftables "sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/programs"
	"sluice.dev/sluice/test/world"
)

// TestMonitoring has agents and balancers get into each fault that there is an alert for, and
// Prometheus evaluate the alerts and the dashboard with what was scraped of them: an alert fires
// with its fault, once that has lasted, and without it none does; each panel shows values of the
// size that they must have, in the unit that it names.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	m := &monitoring{t: t, faults: map[string]fault{}}
	t.Run("agents", func(t *testing.T) {
		t.Run("node", func(t *testing.T) { t.Parallel(); monitoredNode(t, m) })
		t.Run("contested", func(t *testing.T) { t.Parallel(); contestedNode(t, m) })
		t.Run("cluster", func(t *testing.T) { t.Parallel(); unfollowedCluster(t, m) })
		t.Run("balancer", func(t *testing.T) { t.Parallel(); monitoredBalancer(t, m) })
	})
	if t.Failed() {
		return
	}
	t.Run("alerts", m.alerts)
	t.Run("panels", m.panels)
	t.Run("names", m.names)
}

// scrape is what one scrape has: values by series, as "name{label="value"}". A nil one has failed.
type scrape map[string]float64

// tryScrape scrapes an agent in a namespace.
func tryScrape(ns *netns.NS) (scrape, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, network, to string) (net.Conn, error) {
		return dialFrom(ns, network, to)
	}}}
	for _, page := range []string{"http://127.0.0.1:10256/healthz", "http://127.0.0.1:10256/livez"} { // as kubelet asks
		if a, err := client.Get(page); err == nil {
			_ = a.Body.Close()
		}
	}
	a, err := client.Get("http://127.0.0.1:10249/metrics")
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		return nil, err
	}
	s := scrape{}
	for line := range strings.Lines(string(text)) {
		if series, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && !strings.HasPrefix(line, "#") {
			s[series+"}"], err = strconv.ParseFloat(value, 64)
		} else if series, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			s[series], err = strconv.ParseFloat(value, 64)
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// awaitScrape scrapes until the values are so.
func awaitScrape(t *testing.T, ns *netns.NS, what string, is func(scrape) bool) (s scrape) {
	t.Helper()
	eventually(t, what, func() bool {
		var err error
		s, err = tryScrape(ns)
		return err == nil && is(s)
	})
	return s
}

// sum adds up the series of a metric that have all of some labels.
func (s scrape) sum(name string, labels ...string) (sum float64) {
	for series, v := range s {
		if of, rest, _ := strings.Cut(series, "{"); of == name && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			sum += v
		}
	}
	return sum
}

// fault is what Prometheus scrapes of an instance with a fault, the one that an alert is for: at
// first without, then with the fault.
type fault struct {
	before scrape
	during []scrape      // each for some minutes, the last one to the end
	late   time.Duration // how long it takes beside what the alert waits for
	lasts  string        // a metric of seconds that goes on counting during the last
	day    bool          // it begins after a day
	gone   bool          // there is nothing to scrape any more, of no instance
	beside scrape        // of another instance, all the time
}

// monitoring collects what agents have.
type monitoring struct {
	t *testing.T

	mu     sync.Mutex
	faults map[string]fault // by alert
	shown  []history        // what panels show
	sound  []scrape         // of instances without a fault
}

// history is an instance that was scraped twice, some minutes apart.
type history struct{ before, after scrape }

func (m *monitoring) fault(alert string, f fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, twice := m.faults[alert]; twice {
		m.t.Errorf("two faults for %s", alert)
	}
	m.faults[alert] = f
}

func (m *monitoring) shows(before, after scrape) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shown, m.sound = append(m.shown, history{before, after}), append(m.sound, before)
}

const (
	monitoringAlerts    = "../../deploy/helm/sluice/files/alerts.yaml"
	monitoringDashboard = "../../deploy/helm/sluice/files/dashboard.json"
)

// begins is when a fault begins: after so many samples. Between two of a day are five minutes.
func (f *fault) begins() (samples int, apart time.Duration) {
	if f.day {
		return 24*12 + 1, 5 * time.Minute
	}
	return 5, time.Minute
}

// parts is how many samples there are of each of during, except for the last.
const parts = 7

// alerts has each alert be evaluated.
func (m *monitoring) alerts(t *testing.T) {
	text, err := os.ReadFile(monitoringAlerts)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr, For string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil || len(file.Groups) != 1 {
		t.Fatalf("%+v, %v", file, err)
	}
	soon, days := promCases{Interval: "1m"}, promCases{Interval: "5m"}
	left := maps.Clone(m.faults)
	for _, a := range file.Groups[0].Rules {
		f, ok := left[a.Alert]
		if delete(left, a.Alert); !ok {
			t.Errorf("no agent has the fault of %s", a.Alert)
			continue
		}
		waits, err := time.ParseDuration(a.For)
		if err != nil {
			t.Fatal(err)
		}
		if c := f.promCase(a.Alert, metricNames(a.Expr), waits, m.sound[0]); f.day {
			days.Tests = append(days.Tests, c)
		} else {
			soon.Tests = append(soon.Tests, c)
		}
	}
	for alert := range left {
		t.Errorf("there is no alert %s", alert)
	}
	none := promCase{Name: "no fault", Begins: time.Now(), Interval: "1m"}
	for i, s := range m.sound {
		none.add(fmt.Sprint("i", i), metricNames(string(text)), repeat(s, 181))
	}
	none.expect(`count by (alertname) (max_over_time(ALERTS[3h]))`, 3*time.Hour, nil)
	soon.Tests = append(soon.Tests, none)
	for _, cases := range []promCases{soon, days} {
		rules, err := filepath.Abs(monitoringAlerts)
		if err != nil {
			t.Fatal(err)
		}
		cases.Rules = []string{rules}
		cases.run(t)
	}
}

// promCase has an alert fire once the fault has lasted as long as the alert waits, and not before,
// nor for an instance without it.
func (f *fault) promCase(alert string, only map[string]bool, waits time.Duration, sound scrape) promCase {
	begins, apart := f.begins()
	c := promCase{Name: alert, Begins: time.Now(), Interval: apart.String()}
	length := begins + parts*len(f.during) + int(2*(waits+f.late)/apart) + 5
	c.add("ill", only, f.samples(length))
	if !f.gone {
		c.add("sound", only, repeat(sound, length))
	}
	if f.beside != nil {
		c.add("beside", only, repeat(f.beside, length))
	}
	firing := fmt.Sprintf("count(ALERTS{alertname=%q, alertstate=\"firing\", instance!=\"sound\"})", alert)
	at := time.Duration(begins) * apart
	end := at + waits + f.late + 2*apart
	c.expect(firing, at+waits+f.late-time.Minute, nil)
	c.expect("clamp_max("+firing+", 1)", end, one)
	c.expect(fmt.Sprintf("ALERTS{alertname=%q, instance=\"sound\"}", alert), end, nil)
	return c
}

// samples are those of the instance with the fault.
func (f *fault) samples(n int) []scrape {
	begins, _ := f.begins()
	all := repeat(f.before, begins)
	for i, s := range f.during {
		for minute := 0; len(all) < n && (minute < parts || i == len(f.during)-1); minute++ {
			now := s
			if f.lasts != "" {
				now = maps.Clone(s)
				for series, v := range s {
					if strings.HasPrefix(series, f.lasts+"{") && v > 0 {
						now[series] = v + float64(60*minute)
					}
				}
			}
			all = append(all, now)
		}
	}
	for !f.gone && len(all) < n {
		all = append(all, nil) // it does not answer
	}
	return all
}

func repeat(s scrape, n int) []scrape { return slices.Repeat([]scrape{s}, n) }

var metricName = regexp.MustCompile(`\b(?:(?:sluice|kubeproxy|process)_\w+|up)\b`)

// metricNames are those that an expression names.
func metricNames(expr string) map[string]bool {
	names := map[string]bool{"up": true}
	for _, n := range metricName.FindAllString(expr, -1) {
		names[n] = true
	}
	return names
}

// promCases are a file of tests for promtool.
type promCases struct {
	Rules    []string   `json:"rule_files,omitempty"`
	Interval string     `json:"evaluation_interval"`
	Tests    []promCase `json:"tests"`
}

type promCase struct {
	Name     string       `json:"name"`
	Begins   time.Time    `json:"start_timestamp"` // the present, as there are times among the values
	Interval string       `json:"interval"`
	Series   []promSeries `json:"input_series"`
	Exprs    []promExpr   `json:"promql_expr_test"`
}

type promSeries struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

type promExpr struct {
	Expr    string       `json:"expr"`
	At      string       `json:"eval_time"`
	Samples []promSample `json:"exp_samples,omitempty"`
}

type promSample struct {
	Labels string  `json:"labels"`
	Value  float64 `json:"value"`
}

var one = []promSample{{"{}", 1}}

// add adds what was scraped of an instance, sample by sample; only says of which metrics.
func (c *promCase) add(instance string, only map[string]bool, samples []scrape) {
	all := map[string][]string{}
	put := func(i int, series, value string) {
		if all[series] == nil {
			all[series] = slices.Repeat([]string{"_"}, i)
		}
		all[series] = append(all[series], value)
	}
	for i, s := range samples {
		up := "1"
		if s == nil {
			up = "0"
		}
		put(i, "up{", up)
		for series, v := range s {
			name, labels, ok := strings.Cut(series, "{")
			if !only[name] {
				continue
			}
			if series = name + "{"; ok {
				series += strings.TrimSuffix(labels, "}") + ","
			}
			put(i, series, strconv.FormatFloat(v, 'g', -1, 64))
		}
		for series, values := range all {
			if len(values) <= i {
				put(i, series, "stale")
			}
		}
	}
	for _, series := range slices.Sorted(maps.Keys(all)) {
		c.Series = append(c.Series, promSeries{fmt.Sprintf("%sjob=\"sluice\",instance=%q}", series, instance), strings.Join(all[series], " ")})
	}
}

func (c *promCase) expect(expr string, at time.Duration, samples []promSample) {
	c.Exprs = append(c.Exprs, promExpr{expr, at.String(), samples})
}

// run has promtool evaluate all.
func (c *promCases) run(t *testing.T) {
	t.Helper()
	bin, err := control.BuildTools(t.Context(), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "promtool"), "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// panelSize is what the values of a panel must be like.
type panelSize struct {
	unit      string
	low, high float64
}

const (
	perSecond = 1.0 / 300 // one in five minutes
	some      = 1e3
)

// panelSizes are those of the panels, by their titles.
var panelSizes = map[string]panelSize{
	"Agents that are ready": {"short", 3, 3},
	"Agents by version":     {"short", 4, 4},
	"Objects at fault":      {"short", 1, 9},

	"From a change of a pod to the kernel": {"s", 0.1, 60},
	"From the agent to the kernel":         {"s", 1e-5, 60},
	"Planning and applying":                {"s", 1e-5, 60},
	"Changes of endpoints":                 {"cps", perSecond, some},
	"Changes of services":                  {"cps", perSecond, some},
	"Services that wait":                   {"short", 0, 0},
	"Failures":                             {"cps", 3 * perSecond, some},
	"Changes by others, undone":            {"cps", 6 * perSecond, some},
	"Set aside":                            {"short", 0, 0},

	"Frontends":                      {"short", 1, some},
	"Backends":                       {"short", 1, some},
	"Kept, as not all could be read": {"short", 0, 0},
	"Objects by kind":                {"short", 0, some},
	"Changes missing for":            {"s", 0, 120},
	"Watches begun again":            {"cps", 0, some},

	"New connections by verdict": {"cps", 0, some},
	"Denied by policy":           {"cps", 0, some},
	"Dropped packets":            {"cps", 0, some},
	"Connections cut":            {"cps", perSecond, some},
	"Pods under policy":          {"short", 2, 2},
	"Entries of address lists":   {"short", 2, 2},

	"Connection table":              {"short", 1, 1e5},
	"Limit of the connection table": {"short", 10, 1e8},
	"Clients with session affinity": {"short", 0, some},

	"Addresses of Services":    {"short", 1, 9},
	"Addresses announced":      {"short", 0, 9},
	"Statuses not written yet": {"short", 0, 0},
	"BGP peers":                {"short", 0, 9},
	"Routes learned":           {"short", 1, 9},
	"Routes announced":         {"short", 1, 9},

	"Backends of farms":                          {"short", 1, 3},
	"New connections to farms":                   {"cps", 0, some},
	"Connections of farms":                       {"short", 0, some},
	"Bytes of farms":                             {"Bps", 1, 1e9},
	"Packets to farms of modes dsr and stlsdnat": {"cps", 3 * perSecond, some},
	"Failed checks":                              {"cps", 0, some},

	"Resident memory":  {"bytes", 1e7, 1e9},
	"CPU":              {"percentunit", 1e-5, 4},
	"File descriptors": {"short", 5, some},
}

// panels has each panel's queries be evaluated.
func (m *monitoring) panels(t *testing.T) {
	text, err := os.ReadFile(monitoringDashboard)
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
			FieldConfig struct{ Defaults struct{ Unit string } }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	c := promCase{Name: "panels", Begins: time.Now(), Interval: "1m"}
	left := maps.Clone(panelSizes)
	const at = 9 * time.Minute
	var all strings.Builder
	for _, p := range board.Panels {
		if p.Type == "row" {
			continue
		}
		want, ok := left[p.Title]
		if delete(left, p.Title); !ok || p.FieldConfig.Defaults.Unit != want.unit {
			t.Errorf("panel %q has the unit %s; there it is to have %+v", p.Title, p.FieldConfig.Defaults.Unit, want)
		}
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*").Replace(target.Expr)
			all.WriteString(expr)
			c.expect(fmt.Sprintf("clamp_max(count((%s) >= %g <= %g), 1)", expr, want.low, want.high), at, one)
			c.expect(fmt.Sprintf("(%[1]s) < %[2]g or (%[1]s) > %[3]g", expr, want.low, want.high), at, nil)
			if want.high > 0 { // one of them at the least says something
				c.expect(fmt.Sprintf("clamp_max(count((%s) > 0), 1)", expr), at, one)
			}
		}
	}
	for title := range left {
		t.Errorf("there is no panel %q", title)
	}
	for i, h := range m.shown {
		c.add(fmt.Sprint("i", i), metricNames(all.String()), slices.Concat(repeat(h.before, 6), repeat(h.after, 6)))
	}
	cases := promCases{Interval: "1m", Tests: []promCase{c}}
	cases.run(t)
}

// names has each of the list of metrics be scraped of some agent, and its value be what the name
// says.
func (m *monitoring) names(t *testing.T) {
	list, err := agent.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, h := range m.shown {
		for series, v := range h.after {
			name, _, _ := strings.Cut(series, "{")
			all[name] = true
			switch {
			case strings.HasSuffix(name, "_timestamp_seconds") && strings.HasPrefix(name, "kubeproxy_"):
				if since := time.Since(time.Unix(int64(v), 0)); v != 0 && (since < 0 || since > time.Hour) {
					t.Errorf("%s is %s ago", series, since)
				}
			case strings.HasPrefix(name, "sluice_") && strings.HasSuffix(name, "_seconds") && v > 3600:
				t.Errorf("%s is %g, though the agent has just begun", series, v)
			case math.IsNaN(v) || v < 0:
				t.Errorf("%s is %g", series, v)
			}
		}
	}
	for _, metric := range list {
		name := metric.Name
		if metric.Type == agent.Histogram {
			name += "_count"
		}
		own := strings.HasPrefix(name, "sluice_") || strings.HasPrefix(name, "kubeproxy_")
		if own && !all[name] {
			t.Errorf("no agent exposes %s", name)
		}
		if total := strings.HasSuffix(name, "_total"); own && total != (metric.Type == agent.Counter) && name != "kubeproxy_sync_proxy_rules_no_local_endpoints_total" {
			t.Errorf("%s is a %s", name, metric.Type)
		}
		if clock := strings.HasSuffix(name, "_timestamp_seconds"); own && clock != strings.Contains(metric.Help, "Unix time") {
			t.Errorf("%s: %s", name, metric.Help)
		}
	}
}

// open lets an agent be scraped.
var open = []string{"--metrics-address", "127.0.0.1:10249", "--healthz-address", "127.0.0.1:10256"}

const monitoredObjects = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 10.1.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: 10.1.0.2}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]}
`

// monitoredNode is a node with pods and policies, whose agent speaks BGP with that of another.
func monitoredNode(t *testing.T, m *monitoring) {
	s := newSubnet(t)
	n1, n2 := s.nodes["n1"], s.nodes["n2"]
	objects := read(t, filepath.Join(s.dir, "cluster.yaml"))
	s.write("cluster.yaml", objects[:strings.Index(objects, "---\napiVersion: v1\nkind: Node\nmetadata: {name: n3}")])
	s.write("shop.yaml", monitoredObjects)
	s.write("other.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n")
	s.write("web.yaml", strings.NewReplacer("spec:\n", "spec:\n  type: LoadBalancer\n  sessionAffinity: ClientIP\n", "protocol: TCP}]\n---", "protocol: TCP}]\nstatus: {loadBalancer: {ingress: [{ip: 172.30.0.101}]}}\n---", ", {addresses: [10.1.0.2]}", "").Replace(web))
	pods := attachPods(t, n1.NS, 2)
	for _, pod := range pods {
		serveEcho(t, pod)
	}
	dir := t.TempDir()
	write(t, dir, "list", "192.0.2.0/24\n198.51.100.0/24\n")
	write(t, dir, "limit", "262144\n")
	s.flags = slices.Concat(open, []string{"--policy", "--fabric", "native", "--bgp", "--address-list", "known=" + filepath.Join(dir, "list")})
	// The limit of the connection table is the whole machine's: this agent reads another one.
	n1.by = []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /proc/sys/net/netfilter/nf_conntrack_max && exec "$@"`, filepath.Join(dir, "limit"), self}
	s.start("n1")
	s.start("n2")
	s.meshed("n1", "n2")
	s.meshed("n2", "n1")
	s.must(agent.NewClient(n1.socket).Sync(t.Context()))
	begun := time.Now()
	well := awaitScrape(t, n1.NS, "it is ready", func(s scrape) bool { return s["sluice_ready"] == 1 && s["sluice_conntrack_entries"] > 0 })
	later := func(what string, is func(scrape) bool) scrape {
		t.Helper()
		return awaitScrape(t, n1.NS, what, is)
	}

	// Traffic, of which some is denied, and one connection comes to be.
	held, err := dialFrom(pods[1], "tcp", "10.0.0.1:80")
	s.must(err)
	defer func() { _ = held.Close() }()
	s.must(say(held))
	if err := connect(pods[0], "10.1.0.2:8080"); err == nil {
		t.Error("the policy of db lets web in")
	}
	s.write("shop.yaml", strings.Replace(monitoredObjects, "app: db}}}]}]}", "app: api}}}]}]}", 1))
	s.must(agent.NewClient(n1.socket).Sync(t.Context()))
	later("traffic is counted", func(s scrape) bool {
		return s.sum("sluice_policy_packets_total", `verdict="denied"`) > 0 && s.sum("sluice_policy_packets_total", `verdict="allowed"`) > 0 &&
			s.sum("sluice_dropped_packets_total") > 0 && s["sluice_policy_connections_cut_total"] > 0 && s.sum("sluice_affinity_clients") > 0
	})

	s.write("bad.yaml", bad)
	after := later("a fault", func(s scrape) bool { return s.sum("sluice_issue", `name="bad"`) == 1 })
	m.fault("SluiceObjectRefused", fault{before: well, during: []scrape{after}})

	// Pods that changed when the agent began become known only now.
	eventually(t, "11 s have passed", func() bool { return time.Since(begun) > 11*time.Second })
	var slow []scrape
	for i := range 2 {
		text := strings.NewReplacer("web", fmt.Sprint("slow", i), "10.0.0.1", fmt.Sprintf("10.0.0.2%d", i),
			"metadata: {name: web-1,", fmt.Sprintf("metadata: {name: slow%d-1, annotations: {endpoints.kubernetes.io/last-change-trigger-time: %q},", i, begun.UTC().Format(time.RFC3339Nano))).Replace(web)
		s.write(fmt.Sprintf("slow%d.yaml", i), text)
		slow = append(slow, later("the kernel has it", func(s scrape) bool {
			return s.sum("kubeproxy_network_programming_duration_seconds_count") == well.sum("kubeproxy_network_programming_duration_seconds_count")+float64(i+1)
		}))
	}
	m.fault("SluiceProgrammingSlow", fault{before: well, during: slow})

	full := later("the table is full", func(s scrape) bool {
		write(t, dir, "limit", fmt.Sprintln(int(max(s["sluice_conntrack_entries"], 1))))
		return s["sluice_conntrack_entries"] > 0.95*s["sluice_conntrack_entries_limit"]
	})
	m.fault("SluiceConnectionTableFull", fault{before: well, during: []scrape{full}})
	write(t, dir, "limit", "262144\n")

	s.kill("n2")
	s.until("n1", "has lost n2", func(r agent.BGPReport) bool { return r.Sessions["mesh n2"].State != bgp.Established })
	m.fault("SluiceBGPPeerDown", fault{before: well, during: []scrape{later("a peer is down", func(s scrape) bool { return s.sum("sluice_bgp_peers", "down") > 0 })}})

	n2.by = []string{programs.Path(t, "sluice")}
	s.start("n2")
	s.meshed("n1", "n2")
	other := awaitScrape(t, n2.NS, "it is ready", func(s scrape) bool { return s["sluice_ready"] == 1 })
	m.fault("SluiceVersionsDiffer", fault{before: well, during: []scrape{other}})
	after = later("all is well", func(s scrape) bool {
		return s["sluice_conntrack_entries_limit"] > 1e5 && s.sum("sluice_bgp_peers", "down") == 0
	})
	m.shows(well, after)

	s.kill("n1")
	m.fault("SluiceDown", fault{before: well})
	m.fault("SluiceAbsent", fault{before: well, gone: true, late: 4 * time.Minute})

	// An agent that gives no memory back.
	n1.by = []string{"env", "GOGC=off", self}
	s.start("n1")
	small := awaitScrape(t, n1.NS, "it is ready", func(s scrape) bool { return s["sluice_ready"] == 1 })
	large := later("it takes much memory", func(s scrape) bool {
		const resident = "process_resident_memory_bytes"
		_, _ = agent.NewClient(n1.socket).Services(t.Context())
		return s[resident] > 260<<20 && s[resident] > 2.1*small[resident]
	})
	m.fault("SluiceMemoryGrows", fault{before: small, during: []scrape{large}, day: true, late: 50 * time.Minute})
}

// contestedNode is a node whose tables another program changes, and then takes away.
func contestedNode(t *testing.T, m *monitoring) {
	ns := nodeNS(t)
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"web.yaml": web}), socket, ns.Do, open...)
	before := awaitScrape(t, ns, "it is ready", func(s scrape) bool { return s["sluice_ready"] == 1 })
	after := before
	for i := range 6 {
		nft(t, ns, "delete table inet sluice")
		after = awaitScrape(t, ns, "the table is there again", func(s scrape) bool { return s["sluice_heals_total"] > float64(i) })
	}
	m.fault("SluiceTableChangedByOthers", fault{before: before, during: []scrape{after}})

	var holder *nftables.Socket
	err := ns.Do(func() (err error) { holder, err = nftables.Dial(); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close() }()
	eventually(t, "another program owns the table", func() bool {
		b := nftables.NewBatch("sluice")
		b.ReplaceTable()
		b.AddTable(nftables.FlagOwner, "of another program")
		_, err := b.Send(holder)
		return err == nil
	})
	const failures = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
	last := awaitScrape(t, ns, "the kernel refuses changes", func(s scrape) bool { return s.sum(failures) >= after.sum(failures)+5 })
	m.fault("SluiceProgrammingErrors", fault{before: after, during: []scrape{last}})
	m.shows(before, last)
	if err := holder.Close(); err != nil { // the table goes with its owner
		t.Fatal(err)
	}
	eventually(t, "it is programmed again", func() bool { return agent.NewClient(socket).Sync(t.Context()) == nil })
}

// unfollowedCluster is a cluster whose API has a kind at first that the agent may not read, and
// then ends.
func unfollowedCluster(t *testing.T, m *monitoring) {
	node := world.NewHost(t, "node")
	node.IP("link set lo up")
	var l net.Listener
	node.In(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:6443"); return err })
	var allowed atomic.Bool
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !allowed.Load() && strings.HasSuffix(r.URL.Path, "/pods"):
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
		case r.URL.Path == "/apis":
			_, _ = io.WriteString(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
		case r.URL.Query().Has("watch"):
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			_, _ = io.WriteString(w, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"100"},"items":[]}`)
		}
	})}
	go func() { _ = server.Serve(l) }()
	defer func() { _ = server.Close() }()
	dir := t.TempDir()
	write(t, dir, "kubeconfig", `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "http://127.0.0.1:6443"}}], users: [{name: u, user: {}}]}`)
	socket := filepath.Join(dir, "s.sock")
	startProgram(t, node.NS, exec.Command(self, slices.Concat([]string{"run", "--kubeconfig", filepath.Join(dir, "kubeconfig"), "--node", "node-a", "--socket", socket, "--set-sysctls=false"}, open)...))
	unready := awaitScrape(t, node.NS, "it may not read Pods", func(s scrape) bool {
		return s.sum("sluice_source_kind_behind_seconds", `"Pod"`) > 0 && s.sum("sluice_source_kind_synced", `"Service"`) == 1
	})
	allowed.Store(true)
	_ = agent.NewClient(socket).Sync(t.Context()) // which has it read all again
	before := awaitScrape(t, node.NS, "it is ready", func(s scrape) bool {
		return s["sluice_ready"] == 1 && s.sum("sluice_source_kind_behind_seconds") == 0 && s["sluice_issues"] == 0
	})
	m.fault("SluiceNotReady", fault{before: before, during: []scrape{unready}})
	_ = server.Close()
	first := awaitScrape(t, node.NS, "it does not follow Services", func(s scrape) bool { return s.sum("sluice_source_kind_behind_seconds", `"Service"`) > 0 })
	begun := time.Now()
	const service = "sluice_source_kind_behind_seconds"
	last := awaitScrape(t, node.NS, "it has not for a second", func(s scrape) bool { return s.sum(service, `"Service"`) >= first.sum(service, `"Service"`)+1 })
	// The test goes on with these seconds in minutes.
	if took, counted := time.Since(begun).Seconds(), last.sum(service, `"Service"`)-first.sum(service, `"Service"`); counted > took+1 || first.sum(service, `"Service"`) > 60 {
		t.Errorf("it counts %g s in %g s, from %g on", counted, took, first.sum(service, `"Service"`))
	}
	m.fault("SluiceOutOfStep", fault{before: before, during: []scrape{last}, lasts: service, late: 5 * time.Minute})
	m.shows(before, last)
}

// monitoredBalancer is a balancer one of whose farms loses its backends.
func monitoredBalancer(t *testing.T, m *monitoring) {
	w := newBalanced(t)
	write(t, w.dir, "farms.json", strings.Replace(balancedFarm, `{"farms": [`, `{"farms": [{"name": "raw", "virtual-addr": "10.0.0.100", "virtual-ports": "81", "mode": "stlsdnat",
		"backends": [{"name": "green", "ip-addr": "10.1.0.13", "port": "8080"}]}, `, 1))
	green := w.behind("green", "10.1.0.13/24")
	green.Gateway("10.1.0.1")
	w.serve(green, "green")
	w.start()
	const connections, failed = "sluice_farm_backend_connections_total", "sluice_farm_backend_checks_failed_total"
	before := awaitScrape(t, w.machine.NS, "all serve", func(s scrape) bool {
		return s.sum("sluice_farm_backend_state", `state="serving"`) == 3 && s.sum(connections) == 0 && s["sluice_ready"] == 1
	})
	w.answer("red", "blue") // six requests
	if _, _, err := w.request(w.client, "GET", "http://10.0.0.100:81/", ""); err != nil {
		t.Error(err)
	}
	after := awaitScrape(t, w.machine.NS, "traffic is counted", func(s scrape) bool {
		return s.sum(connections) == 6 && s.sum(connections, `"red"`) == 3 && s.sum("sluice_farm_backend_active_connections", `"web"`) == 6 &&
			s.sum("sluice_farm_backend_bytes_total", `"web"`) > 6*400 && s.sum("sluice_farm_backend_bytes_total", `"raw"`) > 4*40 &&
			s.sum("sluice_farm_backend_packets_total", `"raw"`) > 3
	})
	if n := after.sum(failed); n != 0 {
		t.Errorf("%g checks have failed", n)
	}
	w.sick["blue"].Store(true)
	one := awaitScrape(t, w.machine.NS, "blue is down", func(s scrape) bool { return s.sum("sluice_farm_backend_state", `"blue"`, `"down"`) == 1 })
	if one.sum(failed, `"blue"`) < 2 || one.sum(failed, `"red"`) > 0 || one.sum("sluice_farm_backend_bytes_total") < after.sum("sluice_farm_backend_bytes_total") || one.sum(connections) < 6 {
		t.Errorf("blue is down:\n%v", one)
	}
	m.fault("SluiceFarmBackendsDown", fault{before: before, during: []scrape{one}})
	w.sick["red"].Store(true)
	none := awaitScrape(t, w.machine.NS, "nobody serves", func(s scrape) bool { return s.sum("sluice_farm_backend_state", `"web"`, `"down"`) == 2 })
	m.fault("SluiceFarmDown", fault{before: before, during: []scrape{none}})
	m.shows(before, one)
}
