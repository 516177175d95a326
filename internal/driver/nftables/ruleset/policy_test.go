package ruleset

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Rules that the state lacks deny, and ports that are excluded are told to
// the kernel also where they are one range.
func TestPolicyNeverFailsOpen(t *testing.T) {
	t.Parallel()
	s := state.NewPolicy()
	a := netip.MustParseAddr("10.1.0.1")
	s.Workloads[a] = &state.Workload{Device: 5, Ingress: "gone", Egress: "gone"}
	s.Hosts[2] = &state.Host{Input: "gone"}
	s.PodTunnels = true
	s.PortSets[0x100] = &state.Ports{ID: 0x100, Ranges: []state.PortRange{{Protocol: model.TCP, First: 22, Last: 22}}}
	rs := New(Options{Policy: true})
	verdicts, ports := map[string]int{}, 0
	rs.EachPolicyElement(s, func(e *nft.Element) {
		switch {
		case e.Set.Verdict:
			verdicts[e.Verdict.Chain]++
		case e.Set == rs.Policy.ports:
			ports++
		}
	})
	if verdicts["ip-denied"] != 2 || verdicts["drop-host"] != 1 || len(verdicts) != 2 {
		t.Errorf("rules that are not there lead to %v", verdicts)
	}
	if ports != 1 {
		t.Errorf("%d elements for a range of ports, want 1", ports)
	}
}
