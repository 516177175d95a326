package agent

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
)

// A fault that a command names is in status and in the metrics, in the same words, and one of an
// object that a command is about is named by it, whoever has found it.
func TestCommandsNameTheFaultsOfStatus(t *testing.T) {
	speaker, routes := &fakeSpeaker{reported: wake.New()}, &routing{}
	underlay := make(chan []model.HostAddress, 1)
	underlay <- []model.HostAddress{{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Device: "eth0", MTU: 1500}}
	b := start(t, func(c *Config) {
		pools := []*model.IPPool{{Name: "pods", CIDR: netip.MustParsePrefix("10.0.0.0/8")}}
		c.Compiler = compile.New(compile.Config{Config: services.Config{Node: "node-a", Fabric: true}, Pools: pools, BGP: true, Policy: true})
		c.Speaker, c.Fabric, c.Underlay = speaker, routes, underlay
	})
	of := func(kind model.Kind, namespace, name string) model.Issue {
		return model.Ref{Kind: kind, Name: model.Name{Namespace: namespace, Name: name}}.Issue("it cannot be read: " + name)
	}
	commands := map[model.Kind]string{
		model.ServiceKind: "services", model.NetworkPolicy: "policies", model.CalicoPolicy: "policies", model.GlobalNetworkPolicy: "policies", model.IPPoolKind: "fabric", model.BlockAffinityKind: "fabric",
		model.BGPPeerKind: "bgp", model.BGPConfigurationKind: "bgp", model.BGPFilterKind: "bgp", model.MetalLBPeerKind: "bgp", model.BGPAdvertisementKind: "bgp", model.CommunityKind: "bgp", model.BFDProfileKind: "bgp",
	}
	var faults []model.Issue
	for kind := range commands {
		faults = append(faults, of(kind, "shop", "web"))
	}
	b.source.fault(faults...)
	b.source.deliver(bgpNode("node-a", "192.0.2.1", "10.244.1.0/24"), bgpNode("node-b", "192.0.2.2", "10.244.1.0/25"))
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	eventually(t, "the speaker has its peer", func() bool { return slices.Equal(speaker.peers(), []string{"mesh node-b"}) })
	speaker.report(bgp.Report{Error: "no port", Settled: true, Learned: map[netip.Prefix]*bgp.Learned{netip.MustParsePrefix("192.0.2.0/28"): {Peer: "mesh node-b", NextHop: netip.MustParseAddr("192.0.2.9")}}})
	eventually(t, "BGP is at fault", func() bool { s := b.Status().BGP; return s != nil && s.Error != "" })

	status := b.Status()
	report, err := b.client.BGP(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fabric, err := b.client.Fabric(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	named := map[string][]string{}
	for command, issues := range map[string][]model.Issue{"bgp": report.Issues, "fabric": fabric.Issues} {
		for _, i := range issues {
			if !slices.Contains(status.Issues, i) {
				t.Errorf("%s names %q, and status does not", command, i)
			}
			named[command] = append(named[command], i.Reason)
		}
	}
	if len(report.Issues) < 8 || len(fabric.Issues) < 3 {
		t.Errorf("bgp names %q, fabric %q", report.Issues, fabric.Issues)
	}
	if !slices.Contains(status.Problems, BGPProblem(report.Error)) {
		t.Errorf("status has the problems %q, bgp has %q", status.Problems, report.Error)
	}
	for _, s := range b.Services() {
		named["services"] = append(named["services"], s.Issues...)
	}
	policies, err := b.Policies(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range policies {
		named["policies"] = append(named["policies"], p.Issues...)
	}
	metrics := scrape(t, b.metrics.handler(nil), "/metrics")
	for _, i := range faults {
		command := commands[i.Object.Kind]
		if !slices.Contains(status.Issues, i) || !slices.Contains(named[command], i.Text()) && !slices.Contains(named[command], i.Reason) {
			t.Errorf("%v: %s names %q", i, command, named[command])
		}
		if !strings.Contains(metrics, `sluice_issue{kind="`+string(i.Object.Kind)+`",name="web",namespace="shop"`) {
			t.Errorf("no metric of %v", i)
		}
	}
}
