package agent

import "sluice.dev/sluice/internal/source"

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
func collectSource(s samples, st source.Status) {
	s.put(descReconnects, float64(st.Reconnects), st.Name)
	for _, k := range st.Kinds {
		kind := string(k.Kind)
		s.put(descKindSynced, oneIf(k.Synced), st.Name, kind)
		s.put(descKindBehind, k.Behind.Seconds(), st.Name, kind)
		s.put(descKindFaults, float64(k.Faults), st.Name, kind)
		s.put(descKindReconnects, float64(k.Reconnects), st.Name, kind)
		s.put(descKindLists, float64(k.Lists), st.Name, kind)
		s.put(descKindList, k.ListTook.Seconds(), st.Name, kind)
	}
}
