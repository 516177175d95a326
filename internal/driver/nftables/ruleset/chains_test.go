package ruleset

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// The list of base chains in chains.go, which people read first, names each of them, and no other.
func TestBaseChainsAreListed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("chains.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if w := strings.Fields(line); len(w) > 4 && w[0] == "//" && (w[3] == "nat" || w[3] == "filter") {
			listed[strings.Join(w[1:5], " ")] = true
		}
	}
	rs := New(Options{Policy: true, Fabric: true})
	chains := rs.Chains
	s := state.NewPolicy()
	s.Rules["p"] = &state.Rules{ID: "p", Tiers: []state.Tier{{Name: "t", Default: model.Deny}}}
	s.Hosts[2] = &state.Host{Name: "h", UntrackedIn: "p", UntrackedOut: "p"}
	s.Denied = state.Denied{Devices: []state.Device{{Index: 2, Name: "eth0"}}, Lists: []*state.List{{Name: "l", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}}}
	rs.eachPolicyChain(s, func(_ string, write func() *table.DynamicChain) { chains = append(chains, write().Chain) })
	tunnels := state.Settings{Untracked: true, Tunnels: []state.TunnelEnd{{Addr: netip.MustParseAddr("192.0.2.1")}, {Addr: netip.MustParseAddr("192.0.2.1"), Port: 4789}}}
	rs.SettingsChains(tunnels, func(_ string, write func() *table.DynamicChain) { chains = append(chains, write().Chain) })
	hooks := map[uint32]string{unix.NF_INET_PRE_ROUTING: "prerouting", unix.NF_INET_LOCAL_IN: "input", unix.NF_INET_FORWARD: "forward",
		unix.NF_INET_LOCAL_OUT: "output", unix.NF_INET_POST_ROUTING: "postrouting", nft.Ingress: "ingress"}
	for _, c := range chains {
		if c.Hook == nil {
			continue
		}
		name := c.Name
		if strings.HasPrefix(name, denyEntries) {
			name = denyEntries + "*"
		}
		line := fmt.Sprintf("%s %s %s %d", name, hooks[c.Hook.Number], c.Hook.Type, c.Hook.Priority)
		if !listed[line] {
			t.Errorf("the list lacks %s", line)
		}
		delete(listed, line)
	}
	for line := range listed {
		t.Errorf("there is no %s", line)
	}
}
