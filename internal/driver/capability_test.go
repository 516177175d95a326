package driver_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// rulesOf are rules made of some policies.
func rulesOf(s *state.State, kind model.Kind, names ...string) state.RulesID {
	p := &state.Rules{Tiers: []state.Tier{{}}}
	for _, name := range names {
		p.ID += state.RulesID(name)
		key := model.PolicyKey{Kind: kind, Name: model.Name{Name: name}}
		p.Tiers[0].Policies = append(p.Tiers[0].Policies, &state.PolicyRules{Policy: key})
	}
	s.Policy.Rules[p.ID] = p
	return p.ID
}

// What a driver lacks is said of each object that asks for it: of services, of policies that apply
// here, of host endpoints and of deny lists.
func TestIssues(t *testing.T) {
	s := state.New()
	web := model.Name{Namespace: "shop", Name: "web"}
	key := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: model.SCTP, Port: 80}
	s.Services.Frontends[key] = &state.Frontend{Service: web, Affinity: time.Hour}
	s.Policy = state.NewPolicy()
	rulesOf(s, model.NetworkPolicy, "applies to nobody")
	s.Policy.Workloads[netip.MustParseAddr("10.1.0.1")] = &state.Workload{Ingress: rulesOf(s, model.NetworkPolicy, "in"), Egress: rulesOf(s, model.NetworkPolicy, "out", "in")}
	s.Policy.Workloads[netip.MustParseAddr("10.1.0.2")] = &state.Workload{}
	failsafe := rulesOf(s, model.Failsafe, "failsafe")
	s.Policy.Hosts[2] = &state.Host{Name: "node-eth0", Input: rulesOf(s, model.GlobalNetworkPolicy, "host"), Output: failsafe, UntrackedIn: rulesOf(s, model.GlobalNetworkPolicy, "raw")}
	s.Policy.Denied.Lists = []*state.List{{Name: "bad"}}

	policy := []string{"GlobalNetworkPolicy host", "GlobalNetworkPolicy raw", "HostEndpoint node-eth0", "NetworkPolicy in", "NetworkPolicy out", "list bad"}
	for name, c := range map[string]struct {
		lacks driver.Capability
		want  []string
	}{
		"nothing":                           {0, nil},
		"what nobody asks for":              {driver.LocalTraffic | driver.SourceRanges | driver.Survives | driver.Keeps, nil},
		"session affinity":                  {driver.Affinity, []string{"Service shop/web"}},
		"SCTP":                              {driver.SCTP, []string{"Service shop/web"}},
		"services":                          {driver.Services, []string{"Service shop/web"}},
		"policy before connection tracking": {driver.UntrackedPolicy, []string{"GlobalNetworkPolicy raw", "list bad"}},
		"policy of host endpoints":          {driver.HostPolicy, []string{"GlobalNetworkPolicy host", "GlobalNetworkPolicy raw", "HostEndpoint node-eth0"}},
		"network policy":                    {driver.Policy, policy},
	} {
		var got []string
		for _, i := range (driver.Capabilities{Name: "weak", Can: driver.All &^ c.lacks}).Issues(s) {
			got = append(got, i.Object.String())
			if want := "the driver weak cannot do what it asks for: " + name; i.Reason != want {
				t.Errorf("%v: %q, want %q", i.Object, i.Reason, want)
			}
			inForce := model.InForceRest
			if c.lacks&(driver.Services|driver.Policy) != 0 {
				inForce = model.InForceNothing
			}
			if i.InForce != inForce {
				t.Errorf("lacks %s: of %v is in force %s, want %s", name, i.Object, i.InForce, inForce)
			}
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("lacks %s: %v, want %v", name, got, c.want)
		}
	}
	if got := (driver.Capabilities{}).Issues(&state.State{}); len(got) > 0 {
		t.Errorf("of nothing: %v", got)
	}
}
