package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"sluice.dev/sluice/internal/source"
)

// sourceCollector makes the metrics of how a source follows what it reads, each time that they are
// asked for.
type sourceCollector struct{ source.Source }

var (
	descReconnects     = desc("source_reconnects_total", "How often a connection that tells of changes had to be made anew.", "source")
	descKindSynced     = desc("source_kind_synced", "1 once all objects of a kind have been read, or it is known that there are none.", "source", "kind")
	descKindBehind     = desc("source_kind_behind_seconds", "Since when changes of a kind may not come; 0 while they do.", "source", "kind")
	descKindFaults     = desc("source_kind_faults", "Objects of a kind at fault.", "source", "kind")
	descKindReconnects = desc("source_kind_reconnects_total", "How often the watch of a kind had to be made anew.", "source", "kind")
	descKindLists      = desc("source_kind_lists_total", "How often all objects of a kind were read.", "source", "kind")
	descKindList       = desc("source_kind_list_seconds", "How long it took to read all objects of a kind, the last time.", "source", "kind")
)

// Describe implements prometheus.Collector.
func (c sourceCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descReconnects, descKindSynced, descKindBehind, descKindFaults, descKindReconnects, descKindLists, descKindList} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c sourceCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.Status()
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, append([]string{st.Name}, labels...)...)
	}
	send(descReconnects, prometheus.CounterValue, float64(st.Reconnects))
	for _, k := range st.Kinds {
		kind := string(k.Kind)
		synced := 0.0
		if k.Synced {
			synced = 1
		}
		send(descKindSynced, prometheus.GaugeValue, synced, kind)
		send(descKindBehind, prometheus.GaugeValue, k.Behind, kind)
		send(descKindFaults, prometheus.GaugeValue, float64(k.Faults), kind)
		send(descKindReconnects, prometheus.CounterValue, float64(k.Reconnects), kind)
		send(descKindLists, prometheus.CounterValue, float64(k.Lists), kind)
		send(descKindList, prometheus.GaugeValue, k.ListSeconds, kind)
	}
}
