package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metric describes a metric of agents.
type Metric struct {
	Name, Help string
	Type       MetricType
	Labels     []string // its own, in no order
}

// MetricType is a metric's type, by Prometheus' name.
type MetricType string

// These are the types of our own metrics; those of Go's runtime have others, too.
const (
	Gauge     MetricType = "gauge"
	Counter   MetricType = "counter"
	Histogram MetricType = "histogram"
)

// Metrics returns all metrics that an agent can have, whatever it is asked to do, sorted by name.
func Metrics() ([]Metric, error) {
	list := slices.Concat(newMetrics(&Agent{}).list, declared)
	r := prometheus.NewRegistry()
	r.MustRegister(ofProcess()...)
	families, err := r.Gather()
	if err != nil {
		return nil, fmt.Errorf("read the metrics of this process: %w", err)
	}
	for _, f := range families {
		list = append(list, Metric{Name: f.GetName(), Help: f.GetHelp(), Type: MetricType(strings.ToLower(f.GetType().String()))})
	}
	slices.SortFunc(list, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// ofProcess collects what is known of every process and of Go's runtime.
func ofProcess() []prometheus.Collector {
	return []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})}
}

// declared are the metrics that are collected at each scrape.
var declared []Metric

// collected is one of them.
type collected struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

// declare adds a metric that is collected at each scrape.
func declare(m Metric) collected {
	declared = append(declared, m)
	kinds := map[MetricType]prometheus.ValueType{Gauge: prometheus.GaugeValue, Counter: prometheus.CounterValue}
	return collected{prometheus.NewDesc(m.Name, m.Help, m.Labels, nil), kinds[m.Type]}
}

// samples takes what is collected for one scrape.
type samples chan<- prometheus.Metric

func (s samples) put(c collected, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(c.Desc, c.kind, v, labels...)
}

// desc declares one of our own: a counter, if its name ends in _total, or a gauge.
func desc(name, help string, labels ...string) collected {
	m := Metric{Name: "sluice_" + name, Help: help, Type: Gauge, Labels: labels}
	if strings.HasSuffix(name, "_total") {
		m.Type = Counter
	}
	return declare(m)
}

// The following make and register what is counted as it happens.

func (m *metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	m.list = append(m.list, Metric{name, help, Gauge, labels})
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	m.list = append(m.list, Metric{name, help, Counter, labels})
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	m.list = append(m.list, Metric{name, help, Histogram, labels})
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(v)
	return v
}

// kubeHistogram is one of kube-proxy's.
func (m *metrics) kubeHistogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	return m.histogram("kubeproxy_"+name, help, buckets, familyLabel...)
}
