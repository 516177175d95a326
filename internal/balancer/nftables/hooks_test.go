package nftables_test

import (
	"maps"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/nfttest"
)

// TestNoBaseChainGoes has farms come and go that need base chains of their own. None is deleted, as
// the kernel would drop packets that wait in other programs' queues; farms that come again are
// served.
func TestNoBaseChainGoes(t *testing.T) {
	t.Parallel()
	w, _ := newDirectSite(t, 3)
	w.balancer.IP("link set lo up")
	hooks := nfttest.WatchHooks(t, w.balancer.NS)
	w.must(w.driver.Probe(t.Context()))
	farm := func(name string, n uint16, f model.Farm) *model.Farm {
		f.Name, f.Addresses, f.Backends = name, []model.FarmAddress{at(virtual4, port(n))}, backends(3, true, 8080)
		return &f
	}
	all := map[string]*model.Farm{
		"with persistence": farm("persist", 1001, model.Farm{Mode: model.SNAT, Persist: model.SrcIP}),
		"strict":           farm("strict", 1002, model.Farm{Mode: model.SNAT, Limits: model.FarmLimits{Strict: true}}),
		"stateless":        farm("stateless", 1004, model.Farm{Mode: model.StatelessDNAT}),
		"at a range":       {Name: "range", Mode: model.SNAT, Addresses: []model.FarmAddress{at(virtual4, model.PortSpan{First: 2000, Last: 2999})}, Backends: backends(3, true, 0)},
		"direct":           dsr(virtual4, true, port(80)),
		"direct at IPv6":   {Name: "direct6", Mode: model.DSR, Addresses: []model.FarmAddress{at(virtual6, port(80))}, Backends: backends(3, false, 0)},
	}
	for range 2 {
		for what, f := range all {
			w.set(f)
			hooks.Intact(t, "a farm is served: "+what)
			if f == all["direct"] || f == all["direct at IPv6"] {
				w.answers(3, "tcp", hostPort(f.Addresses[0].Addr.String(), "80"))
			}
		}
		w.set(slices.Collect(maps.Values(all))...)
		hooks.Intact(t, "all farms are served")
		w.set()
		hooks.Intact(t, "none is")
		w.restart()
		w.settled()
		hooks.Intact(t, "an agent started")
	}
}
