package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"sluice.dev/sluice/internal/source"
)

var (
	descReconnects     = desc("source_reconnects_total", "Reconnects of connections that deliver changes.", "source")
	descKindSynced     = desc("source_kind_synced", "1 once all objects of a kind have been read, or it is known that there are none.", "source", "kind")
	descKindBehind     = desc("source_kind_behind_seconds", "Seconds for which changes of a kind may have been missing; 0 while they arrive.", "source", "kind")
	descKindFaults     = desc("source_kind_faults", "Objects of a kind at fault.", "source", "kind")
	descKindReconnects = desc("source_kind_reconnects_total", "Restarts of the watch of a kind.", "source", "kind")
	descKindLists      = desc("source_kind_lists_total", "Full reads of all objects of a kind.", "source", "kind")
	descKindList       = desc("source_kind_list_seconds", "Duration of the last full read of all objects of a kind.", "source", "kind")
)

// collectSource makes the metrics of how a source follows its objects.
func collectSource(ch chan<- prometheus.Metric, st source.Status) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, append([]string{st.Name}, labels...)...)
	}
	send(descReconnects, prometheus.CounterValue, float64(st.Reconnects))
	for _, k := range st.Kinds {
		kind := string(k.Kind)
		send(descKindSynced, prometheus.GaugeValue, oneIf(k.Synced), kind)
		send(descKindBehind, prometheus.GaugeValue, k.Behind.Seconds(), kind)
		send(descKindFaults, prometheus.GaugeValue, float64(k.Faults), kind)
		send(descKindReconnects, prometheus.CounterValue, float64(k.Reconnects), kind)
		send(descKindLists, prometheus.CounterValue, float64(k.Lists), kind)
		send(descKindList, prometheus.GaugeValue, k.ListTook.Seconds(), kind)
	}
}
