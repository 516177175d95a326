package policytest

import (
	"testing"
)

// TestOracle holds the oracle to what the tests that the scenarios come from
// expect, and these to the oracle: neither is believed alone.
func TestOracle(t *testing.T) {
	t.Parallel()
	for name, s := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			for _, step := range s.Steps {
				for _, p := range step.Probes {
					for _, f := range Families {
						if got := step.Objects.Allowed(p.Connection(step.Objects, f)); got != p.Allowed {
							t.Errorf("%s: %v (family %d): the oracle says %v, the test %v", step.Name, p, f, got, p.Allowed)
						}
					}
				}
			}
		})
	}
}

// scenarios are all there are, by name.
func scenarios(t *testing.T) map[string]Scenario {
	t.Helper()
	all := map[string]Scenario{}
	netpol, err := netpolCases()
	if err != nil {
		t.Fatal(err)
	}
	if len(netpol) != 48 {
		t.Errorf("%d netpol cases, want 48", len(netpol))
	}
	conformance, err := conformanceTests()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range netpol {
		all["netpol/"+s.Name] = s
	}
	for _, s := range conformance {
		all["conformance/"+s.Name] = s
	}
	if len(all) != len(netpol)+len(conformance) {
		t.Error("two scenarios share a name")
	}
	return all
}
