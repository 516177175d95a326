// Package modes has the experiments whose names begin with modes: the agent's modes (`sluice run
// --mode`) beside the real kube-proxy's, as published comparisons have them.
package modes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/experiment/kubeproxy"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// compared are the agent's modes and kube-proxy's.
var compared = kubeproxy.Comparison{Name: "modes", Programs: func(r *harness.Run, st *kubeproxy.APICluster) []dataplane.Program {
	all := []dataplane.Program{
		dataplane.SluiceMode(r.Binary, "nftables", ""), dataplane.SluiceMode(r.Binary, "iptables", "legacy"), dataplane.SluiceMode(r.Binary, "iptables", "nft"),
		dataplane.SluiceMode(r.Binary, "userspace", ""), dataplane.KubeNftables(st.Bin), dataplane.KubeIptables(st.Bin),
	}
	if err := probe.Missing(context.Background(), ipvs.Requirements); err != nil {
		r.Skip("IPVS: %s; it is measured in the guest (docs/measured.md)", err)
		return all
	}
	return append(all, dataplane.SluiceMode(r.Binary, "ipvs", ""), dataplane.KubeIPVS(st.Bin))
}}

// The names of what goals are about.
const (
	ownNftables    = "sluice nftables"
	ownIptables    = "sluice iptables legacy"
	ownIptablesNft = "sluice iptables nft"
	ownUserspace   = "sluice userspace"
	ownIPVS        = "sluice ipvs"
	kubeIPVS       = "kube-proxy ipvs"
)

// kubeIptables is the real kube-proxy in iptables mode.
var kubeIptables = peer.KubeIptables{}.Name()

// measured returns the names of all programs that were measured.
func measured(r *harness.Run) (names []string) {
	for _, m := range r.Series {
		if !slices.Contains(names, m.Dataplane) {
			names = append(names, m.Dataplane)
		}
	}
	return names
}

// own reports whether a program is the agent.
func own(program string) bool { return strings.HasPrefix(program, peer.Sluice{}.Name()) }

// ratioGoal adds a goal for the ratio of two programs' medians.
func ratioGoal(r *harness.Run, what, own, other string, services int, variant, metric, goal string, met func(float64) bool) {
	a, b := r.Find(own, services, variant, metric), r.Find(other, services, variant, metric)
	if a == nil || b == nil {
		return
	}
	ratio := report.Ratios(a, b)
	r.Goal(fmt.Sprintf("%s, %s over %s, %s services", what, own, other, chart.Number(float64(services))), goal,
		fmt.Sprintf("%s; %s over %s %s", ratio, chart.Number(a.Median), chart.Number(b.Median), a.Unit), met(ratio.Median))
}
