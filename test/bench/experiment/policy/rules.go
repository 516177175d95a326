// Package policy has the experiments whose names begin with policy.
package policy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
	"sluice.dev/sluice/test/bench/trace"
)

// Rules is the experiment policy-rules.
var Rules = harness.Experiment{
	Name:  "policy-rules",
	Title: "Rules that a packet meets",
	How: "30 pods on the node, each selected by three NetworkPolicies in both directions, of which the last lets the connection pass. One pod of the node connects to another, through a service. " +
		"The kernel traces the packets (nftrace); the rules that a packet is held against without matching lie between those that it tells of, and are counted from the tables. " +
		"Sluice's count is for both directions, spoofing and host endpoints together; what translates services is counted apart. " +
		"Of mode iptables, the rules of iptables-nft are counted; those of iptables-legacy are the same, and mode ipvs judges by those of nftables. " +
		"Calico's is its formula for the same: two directions of about six fixed rules, two for each policy, and the policy's own.",
	Run:    runRules,
	Charts: ruleCharts,
}

const (
	judging     = "rules, policy"
	translating = "rules, services"
	newPacket   = "new connection"
	oldPacket   = "established"
	calico      = "calico (formula)"
)

// calicoRules is how many rules of Calico a new connection between two pods of a node meets, if so
// many policies with one rule a direction select each pod.
func calicoRules(policies int) float64 { return 2 * float64(6+2*policies+policies) }

// rulesOf are the modes whose rules are counted, with the tables that hold them. The kernel traces
// no rules of iptables-legacy; the driver writes the same for both variants. In mode ipvs, policy
// is that of nftables.
var rulesOf = []rulesIn{
	{"", []string{"sluice"}, unix.NFPROTO_INET},
	{peer.IptablesNft, []string{"raw", "mangle", "nat", "filter"}, unix.NFPROTO_IPV4},
}

type rulesIn struct {
	peer.Mode
	tables []string
	family byte
}

func runRules(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds, r.Result.Rounds = 1, 1 // counting twice gives the same
	large := 1_000
	if r.Full() {
		large = 10_000
	}
	sizes := []cluster.Tenants{
		{Services: 10, Policies: 10}, {Services: 10, Policies: large}, {Services: large, Policies: 10},
		{Services: 100, Policies: 100}, {Services: large, Policies: large},
	}
	for _, t := range sizes {
		t.Pods, t.Local = max(PodsOnNode, t.Policies), PodsOnNode
		for _, mode := range rulesOf {
			if err := countRules(ctx, r, mode, t); err != nil {
				return fmt.Errorf("%s, %s, %d services: %w", mode.Name(), t, t.Services, err)
			}
		}
		r.Add(report.Measurement{Dataplane: calico, Services: t.Services, Policies: t.Policies, Variant: newPacket, Metric: judging, Unit: "rules"},
			calicoRules(cluster.PoliciesPerPod))
	}
	ruleGoals(r)
	return nil
}

func countRules(ctx context.Context, r *harness.Run, mode rulesIn, t cluster.Tenants) (err error) {
	l, n, err := newNode(ctx, r, mode.Mode, t)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close(), l.Close()) }()
	met, err := traceRequest(ctx, l, mode, t)
	for err == nil && len(met) == 0 { // on a busy machine the one request may not have its turn
		met, err = traceRequest(ctx, l, mode, t)
	}
	if err != nil {
		return err
	}
	if len(met) < 3 {
		return fmt.Errorf("only %d packets of a connection were traced", len(met))
	}
	recordRules(r, mode, t, newPacket, met[0])
	worst := slices.MaxFunc(met[1:], func(a, b trace.Met) int { return a.Sum() - b.Sum() })
	recordRules(r, mode, t, oldPacket, worst)
	r.Note("%s, %d services, %s: new %s; established %s.", mode.Name(), t.Services, t, byChain(met[0]), byChain(worst))
	return nil
}

// traceRequest traces the packets of one request; none if it was not answered in time.
func traceRequest(ctx context.Context, l *testbed.Testbed, mode rulesIn, t cluster.Tenants) ([]trace.Met, error) {
	answered := true
	met, err := trace.Packets(ctx, trace.Config{
		NS: l.Node, Device: testbed.NodeIn, Tables: mode.tables, Family: mode.family,
		Match: fmt.Sprintf("tcp dport { %d, %d }", cluster.ServicePort, cluster.TargetPort),
	}, func() error {
		res, err := load.Run(ctx, load.Config{
			Client: l.Client, Sources: []netip.Addr{cluster.PodAddr(0, t.Local)}, Backend: l.Backend, Port: cluster.TargetPort,
			Target: netip.AddrPortFrom(cluster.ServiceAddr(t.Services-1), cluster.ServicePort),
			Rate:   20, Duration: 75 * time.Millisecond, CPU: harness.PacketCPU, // that is one request
		})
		switch {
		case err != nil:
		case res.Requests > 1 || res.Failed != 0:
			err = fmt.Errorf("%d requests were answered, %d failed: %v", res.Requests, res.Failed, res.Reasons)
		default:
			answered = res.Requests == 1
		}
		return err
	})
	if !answered {
		met = nil
	}
	return met, err
}

// recordRules records what a packet met. Chains of type nat translate, and see only new
// connections.
func recordRules(r *harness.Run, mode rulesIn, t cluster.Tenants, variant string, m trace.Met) {
	count := map[string]int{judging: 0, translating: 0}
	for chain, n := range m.Rules {
		if m.NAT[chain] {
			count[translating] += n
		} else {
			count[judging] += n
		}
	}
	for metric, n := range count {
		r.Add(report.Measurement{
			Dataplane: mode.Name(), Services: t.Services, Policies: t.Policies, Variant: variant, Metric: metric, Unit: "rules",
		}, float64(n))
	}
}

// byChain prints "sluice forward 1, sluice prerouting 2", without the chains that have no rules.
func byChain(m trace.Met) string {
	var parts []string
	for chain, n := range m.Rules {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", chain, n))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func ruleGoals(r *harness.Run) {
	const (
		ofNew = "rules of policy that a new connection between two pods meets, at each scale"
		ofOld = "rules that a packet of an established flow meets"
	)
	for _, g := range []struct {
		mode                rulesIn
		variant, what, goal string
		most                float64
	}{
		{rulesOf[0], newPacket, ofNew, fmt.Sprintf("the same, and below Calico's (%g)", calicoRules(cluster.PoliciesPerPod)), calicoRules(cluster.PoliciesPerPod) - 1},
		{rulesOf[0], oldPacket, ofOld, "≤ 2", 2},
		{rulesOf[1], newPacket, ofNew, "the same", math.Inf(1)},
		{rulesOf[1], oldPacket, ofOld, "the same", math.Inf(1)},
	} {
		var counts []float64
		for _, m := range r.Series {
			if m.Dataplane == g.mode.Name() && m.Variant == g.variant && m.Metric == judging {
				counts = append(counts, m.Median)
			}
		}
		s := report.SpreadOf(counts)
		r.Goal(g.what+", "+g.mode.Name(), g.goal, s.String(), len(counts) > 0 && s.Min == s.Max && s.Max <= g.most)
	}
}

func ruleCharts(r *report.Result) []report.Figure {
	diagonal := &report.Result{}
	for _, m := range r.Series {
		if m.Services == m.Policies {
			diagonal.Series = append(diagonal.Series, m)
		}
	}
	return []report.Figure{report.Draw(diagonal, "met", chart.Chart{
		Kind: chart.Bars, Title: "Rules of policy that a packet meets", Subtitle: "three policies a pod, both ends on the node; lower is better",
		XLabel: "policies, and as many services", YLabel: "rules",
	}, report.ByPolicies, judging, newPacket, oldPacket)}
}
