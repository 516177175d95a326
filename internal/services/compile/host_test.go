package compile_test

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/compile"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Node ports follow the host's addresses, and nothing changes with one that
// the configuration does not choose.
func TestHostAddressesMove(t *testing.T) {
	s := store.New()
	s.Apply(events(v4.node(), v4.service(nodePort)))
	c := compile.New(compile.Config{Config: services.Config{Node: "here", NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}})
	c.Update(s, s.Take())
	for _, step := range []struct {
		host    string
		changes int
	}{
		{"198.51.100.7", 1}, {"198.51.100.7", 0}, {"203.0.113.1", 1}, {"198.51.100.8", 1}, {"198.51.100.9", 2},
	} {
		addr := netip.MustParseAddr(step.host)
		c.Services.SetHostAddresses([]netip.Prefix{netip.PrefixFrom(addr, 24)})
		if d := c.Update(s, s.Take()); d.Len() != step.changes {
			t.Errorf("%s: %d changes, want %d: %+v", addr, d.Len(), step.changes, d)
		}
		chosen := false
		for k, f := range c.State().Services.Frontends {
			chosen = chosen || f.Kind == state.NodePort && k.Addr == addr
		}
		if want := addr.As4()[0] == 198; chosen != want {
			t.Errorf("node port on %s: %v, want %v", addr, chosen, want)
		}
	}
}
