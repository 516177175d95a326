package calico

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// parseNet reads a CIDR or a single address, masked. An IPv4 address written
// inside an IPv6 one is the IPv4 address.
func parseNet(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no address range such as 192.0.2.0/24", s)
	}
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

func parseNets(in []string, where string, f *faults) []netip.Prefix {
	var nets []netip.Prefix
	for i, text := range in {
		n, err := parseNet(text)
		if err != nil {
			f.reject(fmt.Sprintf("%s[%d]", where, i), "%v", err)
			continue
		}
		nets = append(nets, n)
	}
	return nets
}

type setSpec struct {
	Nets []string `json:"nets"`
}

func globalSet(data []byte, f *faults) *model.NetworkSet {
	m, spec := open[setSpec](data, f)
	return networkSet(model.GlobalNetworkSet, model.Name{Name: m.Name}, &m, &spec, f)
}

func namespacedSet(data []byte, f *faults) *model.NetworkSet {
	m, spec := open[setSpec](data, f)
	return networkSet(model.NamespacedNetworkSet, model.Name{Namespace: m.namespace(f), Name: m.Name}, &m, &spec, f)
}

func networkSet(kind model.NetworkSetKind, name model.Name, m *metadata, spec *setSpec, f *faults) *model.NetworkSet {
	nets := parseNets(spec.Nets, "spec.nets", f)
	slices.SortFunc(nets, netip.Prefix.Compare)
	return &model.NetworkSet{
		Key:    model.NetworkSetKey{Kind: kind, Name: name},
		Labels: m.Labels,
		Nets:   slices.Compact(nets),
	}
}
