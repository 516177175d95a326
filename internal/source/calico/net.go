package calico

import (
	"encoding/json"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// parseNet reads a CIDR or a single address, masked. An IPv4 address written
// inside an IPv6 one is the IPv4 address.
func parseNet(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return model.ParsePrefix(s)
}

// setSpec has its networks read one by one, so that a fault in one leaves all else known.
type setSpec struct {
	Nets json.RawMessage `json:"nets"`
}

// networkSet returns nil if the name or the labels can't be read. There are no networks if others
// may have been meant: doubtful says that of the data.
func networkSet(kind model.Kind, data []byte, doubtful bool, f *fault.List) *model.NetworkSet {
	m, text := head(data, f)
	set := &model.NetworkSet{Key: model.NetworkSetKey{Kind: kind, Name: model.Name{Name: m.Name}}, Labels: m.Labels}
	if kind == model.NamespacedNetworkSet {
		set.Key.Name.Namespace = m.namespace(f)
	}
	known := f.Known()
	var spec setSpec
	body(text, &spec, f)
	doubtful = doubtful || f.Broken() // by a field that is not known, perhaps, or is there twice
	var nets []string
	if len(spec.Nets) > 0 {
		strict(spec.Nets, &nets, "spec.nets", f)
	}
	set.Nets = fault.ReadAll(f, "spec.nets[%d]", nets, parseNet)
	slices.SortFunc(set.Nets, netip.Prefix.Compare)
	set.Nets = slices.Compact(set.Nets)
	if doubtful {
		set.Nets = nil
	}
	if !known {
		return nil
	}
	return set
}
