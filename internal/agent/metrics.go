package agent

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/internal/store"
)

// metrics are kube-proxy's, with their names and labels, where we have the same to report, and our
// own under sluice_. One transaction programs both address families, so its duration counts for
// each family whose services it changed.
type metrics struct {
	registry *prometheus.Registry
	list     []Metric // of the fields below
	started  time.Time
	mode     string

	sync, full, partial    *prometheus.HistogramVec
	programming            *prometheus.HistogramVec
	change                 prometheus.Observer
	apply                  *prometheus.HistogramVec
	lastSync, lastQueued   *prometheus.GaugeVec
	endpointsTotal         prometheus.Counter
	servicesTotal          prometheus.Counter
	endpointsPending       prometheus.Gauge
	servicesPending        prometheus.Gauge
	failures               *prometheus.CounterVec
	healthz, livez         *prometheus.CounterVec
	heals, operationsTotal prometheus.Counter
}

func newMetrics(a *Agent) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), started: a.started, mode: a.Mode}
	m.sync = m.kubeHistogram("sync_proxy_rules_duration_seconds", "Time to plan and apply a change of services.", syncBuckets())
	m.full = m.kubeHistogram("sync_full_proxy_rules_duration_seconds", "Time to compare everything with the kernel and apply the difference.", syncBuckets())
	m.partial = m.kubeHistogram("sync_partial_proxy_rules_duration_seconds", "Time to plan and apply what changed of services.", syncBuckets())
	m.programming = m.kubeHistogram("network_programming_duration_seconds", "Time from when a pod or service changed, as its EndpointSlice says, to the kernel's acknowledgement.", programmingBuckets())
	m.lastSync = m.gauge("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "Unix time at which the kernel last had everything wanted.", familyLabel...)
	m.lastQueued = m.gauge("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "Unix time at which the last processed change had arrived.", familyLabel...)

	m.endpointsTotal = m.counter("kubeproxy_sync_proxy_rules_endpoint_changes_total", "Changes of endpoints seen.").WithLabelValues()
	m.servicesTotal = m.counter("kubeproxy_sync_proxy_rules_service_changes_total", "Changes of services seen.").WithLabelValues()
	m.endpointsPending = m.gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "Changes of endpoints that wait for the kernel.").WithLabelValues()
	m.servicesPending = m.gauge("kubeproxy_sync_proxy_rules_service_changes_pending", "Changes of services that wait for the kernel.").WithLabelValues()
	m.failures = m.counter("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "Attempts to program the kernel that failed.", familyLabel...)
	m.healthz = m.counter("kubeproxy_proxy_healthz_total", "Answers of /healthz by HTTP status.", "code")
	m.livez = m.counter("kubeproxy_proxy_livez_total", "Answers of /livez by HTTP status.", "code")

	fine := prometheus.ExponentialBuckets(0.00005, 2, 18)
	m.change = m.histogram("sluice_change_seconds", "Time from a change's arrival in the store to the kernel's acknowledgement, in fine steps.", fine).WithLabelValues()
	m.apply = m.histogram("sluice_apply_seconds", "Time to plan and apply, by path: update (what changed) or adopt (everything compared).", fine, "path")
	m.heals = m.counter("sluice_heals_total", "Times that another program's change of our tables was undone.").WithLabelValues()
	m.operationsTotal = m.counter("sluice_operations_total", "Kernel operations applied.").WithLabelValues()
	for _, family := range families { // that are there from the start
		for _, h := range []*prometheus.HistogramVec{m.sync, m.full, m.partial, m.programming} {
			h.WithLabelValues(family)
		}
		m.lastSync.WithLabelValues(family)
		m.lastQueued.WithLabelValues(family)
		m.failures.WithLabelValues(family)
	}
	m.registry.MustRegister(collector{a})
	m.registry.MustRegister(ofProcess()...)
	return m
}

// handler serves /metrics, and /proxyMode and /healthz at the same address, as kube-proxy does.
// more, if set, answers everything else.
func (m *metrics) handler(more http.Handler) http.Handler {
	mux := http.NewServeMux()
	if more != nil {
		mux.Handle("/", more)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "ok") })
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = fmt.Fprint(w, m.mode)
	})
	return mux
}

// took counts the changes that are about to be programmed.
func (m *metrics) took(d store.Dirty) {
	if !d.Since.IsZero() {
		for _, family := range families {
			m.lastQueued.WithLabelValues(family).Set(unixSeconds(d.Since))
		}
	}
	m.servicesTotal.Add(float64(d.ServiceChanges))
	m.endpointsTotal.Add(float64(d.EndpointChanges))
	m.servicesPending.Add(float64(d.ServiceChanges))
	m.endpointsPending.Add(float64(d.EndpointChanges))
}

// applied counts that the taken changes are in the kernel, except for services that wait. since is
// when the oldest of them was queued, or zero if there are none; caused is when the events behind
// their EndpointSlices happened.
func (m *metrics) applied(done Applied, since time.Time, caused []store.Trigger, waiting int) {
	m.servicesPending.Set(float64(waiting))
	m.endpointsPending.Set(0)
	for _, family := range families {
		m.lastSync.WithLabelValues(family).Set(unixSeconds(done.Time))
	}
	m.programmed(done.Time, caused)
	if done.Path == "" {
		return // nothing on this node depends on the change
	}
	m.operationsTotal.Add(float64(done.Operations))
	m.apply.WithLabelValues(done.Path).Observe(done.Took.Seconds())
	path := m.partial
	if done.Path == reconcile.PathAdopt {
		path = m.full
	}
	for i, family := range families {
		if done.families[i] {
			m.sync.WithLabelValues(family).Observe(done.Took.Seconds())
			path.WithLabelValues(family).Observe(done.Took.Seconds())
		}
	}
	if !since.IsZero() {
		m.change.Observe(done.Time.Sub(since).Seconds())
	}
}

// programmed counts how long the kernel took to follow an event. As in kube-proxy, events before
// the agent's start do not count.
func (m *metrics) programmed(now time.Time, caused []store.Trigger) {
	for _, c := range caused {
		if c.At.After(m.started) {
			m.programming.WithLabelValues(families[familyOf(c.Is4)]).Observe(now.Sub(c.At).Seconds())
		}
	}
}

// failed counts an attempt to program services of these families.
func (m *metrics) failed(which [2]bool) {
	for i, family := range families {
		if which[i] {
			m.failures.WithLabelValues(family).Inc()
		}
	}
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// syncBuckets are kube-proxy's: from a millisecond, doubling.
func syncBuckets() []float64 { return prometheus.ExponentialBuckets(0.001, 2, 15) }

// programmingBuckets are kube-proxy's: quarter and whole seconds, then wider.
func programmingBuckets() []float64 {
	return slices.Concat([]float64{0.25, 0.5}, prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
}

// collector makes, at each scrape, the gauges of the agent's current state.
type collector struct{ *Agent }

// maxIssueSeries limits the series for faulty objects; sluice_issues counts all of them.
const maxIssueSeries = 100

var (
	descBuild     = desc("build_info", "The agent's version and node.", "version", "node")
	descReady     = desc("ready", "1 while the agent is ready, as /readyz says.")
	descSynced    = desc("source_synced", "1 once the source has been read in full.", "source")
	descObjects   = desc("source_objects", "Objects delivered by the source.", "source", "kind")
	descSkipped   = desc("source_skipped", "Objects of the source that were skipped.", "source", "kind")
	descFrontends = desc("frontends", "Frontends (address, protocol, port) wanted on this node.")
	descBackends  = desc("backends", "Backends wanted on this node, over all frontends.")
	descKept      = desc("frontends_kept", "Frontends, and parts of policy, that stay in the kernel only because not everything could be read.")
	descIssues    = desc("issues", "Objects at fault.")
	descIssue     = desc("issue", "1 for each object at fault; the first hundred only.", "kind", "namespace", "name", "source", "reason")
	descAside     = desc("set_aside", "Objects that are partly set aside, as the kernel refuses something of them.")
	descPolicies  = desc("policies", "Policies known, on this node or not.")
	descPods      = desc("policy_local_pods", "Pods of this node that a policy applies to.")
	descDecided   = desc("policy_packets_total", "Packets that a policy decided, since it was first programmed: the first of each connection, as often as it is sent until it is answered; in nftables, for a moment after a change, packets of those that it is about too.",
		"kind", "namespace", "name", "verdict")
	descList     = desc("address_list_entries", "Networks in an address list that is read from a file.", "name")
	descDropped  = desc("dropped_packets_total", "Packets dropped by policy, and stray ones, by reason.", "reason")
	descCut      = desc("policy_connections_cut_total", "Established connections that were cut because policy came to forbid them, or that were allowed again.")
	descConns    = desc("conntrack_entries", "Entries in the connection table.")
	descConnsMax = desc("conntrack_entries_limit", "Limit of the connection table.")
	descRivals   = desc("rivals", "Other agents in this network namespace, which wait until this one ends.")
	descNoLocal  = declare(Metric{
		Name: "kubeproxy_sync_proxy_rules_no_local_endpoints_total", Type: Gauge, // whatever the name says
		Help: "Service ports with a Local traffic policy and no endpoint on this node.", Labels: []string{"traffic_policy", "ip_family"},
	})
)

// objectLabels are the values of the labels kind, namespace and name.
func objectLabels(r model.Ref) []string {
	return []string{string(r.Kind), r.Name.Namespace, r.Name.Name}
}

// Describe implements prometheus.Collector: what is collected says itself what it is.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	to := samples(ch)
	to.put(descBuild, 1, c.Version, c.Node)
	to.put(descReady, oneIf(c.Ready()))
	src := c.Source.Status()
	to.put(descSynced, oneIf(src.Synced), src.Name)
	for kind, n := range src.Objects {
		to.put(descObjects, float64(n), src.Name, kind)
	}
	for kind, n := range src.Skipped {
		to.put(descSkipped, float64(n), src.Name, kind)
	}
	t := c.totals()
	to.put(descFrontends, float64(t.frontends))
	to.put(descBackends, float64(t.backends))
	c.mu.Lock()
	kept := c.record.kept
	c.mu.Unlock()
	to.put(descKept, float64(kept))
	to.put(descRivals, float64(c.Lock.Waiting()))
	for i, family := range families {
		to.put(descNoLocal, float64(t.noLocalForInternal[i]), "internal", family)
		to.put(descNoLocal, float64(t.noLocalForExternal[i]), "external", family)
	}
	issues := c.issues()
	to.put(descIssues, float64(len(issues)))
	to.put(descAside, float64(len(c.Driver.SetAside())))
	for _, i := range issues[:min(len(issues), maxIssueSeries)] {
		to.put(descIssue, 1, append(objectLabels(i.Object), i.Source, i.Reason)...)
	}
	collectSource(to, src)
	c.collectDrops(to)
	c.collectAffinity(to)
	for _, s := range c.subjects {
		if s.collect != nil {
			s.collect(to)
		}
	}
	if conns, err := ReadConntrack(); err == nil {
		to.put(descConns, float64(conns.Count))
		to.put(descConnsMax, float64(conns.Max))
	}
}

// collectDrops makes those of dropped packets, if the driver counts them.
func (c collector) collectDrops(to samples) {
	counter := c.Driver.Capabilities().Counter
	if counter == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	if drops, err := counter.DropCounts(ctx); err == nil {
		for reason, n := range drops {
			to.put(descDropped, float64(n), string(reason))
		}
	}
}

// collectPolicy makes the metrics of policy, if it is enforced. What cannot be read is left out.
func (c collector) collectPolicy(to samples) {
	s := c.policyStatus()
	if s == nil {
		return
	}
	to.put(descPolicies, float64(s.Policies))
	to.put(descPods, float64(s.Selected))
	for list, n := range s.AddressLists {
		to.put(descList, float64(n), list)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	if counters, err := c.counters(ctx); err == nil {
		for key, n := range counters {
			to.put(descDecided, float64(n.Allowed), append(objectLabels(key), "allowed")...)
			to.put(descDecided, float64(n.Denied), append(objectLabels(key), "denied")...)
		}
	}
	if c.FlowsCut != nil {
		to.put(descCut, float64(c.FlowsCut()))
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// scrapeLimit bounds how long the kernel's counters may take to read.
const scrapeLimit = 5 * time.Second
