package upkeep

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// What forbids a connection is a policy, at any stage, and nothing that is only not known.
func TestForbids(t *testing.T) {
	pod, outside, node := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.168.0.1")
	const eth0, veth = 2, 5
	tuple := func(from, to netip.Addr, fromPort, toPort uint16) conntrack.Tuple {
		return conntrack.Tuple{Src: netip.AddrPortFrom(from, fromPort), Dst: netip.AddrPortFrom(to, toPort)}
	}
	direct := func(from, to netip.Addr) conntrack.Flow {
		return conntrack.Flow{Protocol: model.TCP, Orig: tuple(from, to, 40000, 80), Reply: tuple(to, from, 80, 40000)}
	}
	nodePort := direct(outside, pod)
	nodePort.Orig = tuple(outside, node, 40000, 30080)
	denyNodePort := &state.Rules{ID: "node-port", Default: model.Allow, Tiers: []state.Tier{{Name: "default", Default: model.Allow, Policies: []*state.PolicyRules{{Rules: []state.Rule{{
		Action: model.Deny, Protocol: uint8(model.TCP), Destination: state.End{Ports: &state.Ports{ID: 0x100, Ranges: []state.PortRange{{Protocol: model.TCP, First: 30080, Last: 30080}}}}}}}}}}}
	preDNAT := func(p *state.Policy) {
		p.Rules[denyNodePort.ID] = denyNodePort
		p.PortSets[0x100] = denyNodePort.Tiers[0].Policies[0].Rules[0].Destination.Ports
		p.Hosts[eth0] = &state.Host{Name: "node", Device: "eth0", PreDNAT: denyNodePort.ID}
	}
	toNode := direct(outside, node)
	toNode.Orig, toNode.Reply = tuple(outside, node, 40000, 30080), tuple(node, outside, 30080, 40000)
	listed := driver.Kept{Members: map[netip.Prefix]bool{netip.MustParsePrefix("192.0.2.0/24"): true}}
	var none driver.Kept
	for name, c := range map[string]struct {
		flow   conntrack.Flow
		change func(*state.Policy)
		kept   driver.Kept
		want   bool
	}{
		"nothing forbids it":                    {direct(outside, pod), func(*state.Policy) {}, none, false},
		"the pod's policy":                      {direct(outside, pod), func(p *state.Policy) { p.Workloads[pod].Ingress = "deny" }, none, true},
		"the pod's policy, and it is kept":      {direct(outside, pod), func(p *state.Policy) { p.Workloads[pod].Ingress = "deny" }, driver.Kept{Receivers: map[netip.Addr]bool{pod: true}}, false},
		"the pod's policy, and another is kept": {direct(outside, pod), func(p *state.Policy) { p.Workloads[pod].Ingress = "deny" }, driver.Kept{Senders: map[netip.Addr]bool{pod: true}}, true},
		"the pod's policy, and a list is kept":  {direct(outside, pod), func(p *state.Policy) { p.Workloads[pod].Ingress = "deny" }, listed, false},
		"before services":                       {nodePort, preDNAT, none, true},
		"before services, to the node":          {toNode, preDNAT, none, true},
		"before services, another port":         {direct(outside, pod), preDNAT, none, false},
		"an interface that is not known":        {direct(outside, pod), func(p *state.Policy) { preDNAT(p); clear(p.HostDevices) }, none, false},
		"a pod that is not known":               {direct(outside, pod), func(p *state.Policy) { clear(p.Workloads) }, none, false},
		"a pod whose interface is not known":    {direct(pod, outside), func(p *state.Policy) { p.Workloads[pod].Device = 0; clear(p.PodDevices) }, none, false},
		"a pod's policy of what the node gets":  {direct(pod, node), func(p *state.Policy) { p.Workloads[pod].Egress = "deny" }, none, true},
	} {
		p := state.NewPolicy()
		p.Rules["deny"] = &state.Rules{ID: "deny", Default: model.Allow, Tiers: []state.Tier{{Name: "default", Default: model.Deny,
			Policies: []*state.PolicyRules{{Policy: model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "test", Name: "deny"}}}}}}}
		p.HostDevices[eth0], p.PodDevices[veth] = struct{}{}, struct{}{}
		p.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
		p.Workloads = map[netip.Addr]*state.Workload{pod: {Pod: model.Name{Namespace: "test", Name: "p"}, Device: veth}}
		c.change(p)
		l := &locator{own: map[netip.Addr]bool{node: true}, known: map[netip.Addr]int{outside: eth0, node: 1, pod: veth}}
		if got := newKept(c.kept).forbids(p, c.flow, l); got != c.want {
			t.Errorf("%s: forbidden: %v, want %v", name, got, c.want)
		}
	}
}

// What is kept of policy is known until policy itself is adopted again, whatever is adopted of
// services meanwhile.
func TestAdoptingServicesForgetsNothingKept(t *testing.T) {
	pod := netip.MustParseAddr("10.1.0.1")
	d := &Driver{kept: newKept(driver.Kept{})}
	adopted := func(want *state.State, kept driver.Kept) bool {
		d.hasAdopted(want, kept, false)
		return d.kept.Receivers[pod] && d.kept.Policy > 0
	}
	services, policy := &state.State{Services: state.NewServices()}, &state.State{Policy: state.NewPolicy()}
	if !adopted(policy, driver.Kept{Policy: 1, Receivers: map[netip.Addr]bool{pod: true}}) {
		t.Error("what is kept is not known")
	}
	if !adopted(services, driver.Kept{Services: 1}) {
		t.Error("what is kept of policy is forgotten once services are adopted")
	}
	if adopted(policy, driver.Kept{}) {
		t.Error("what is kept no more is still said to be")
	}
}

// meanwhile is a driver that has something happen whenever it is asked what the kernel holds.
type meanwhile struct {
	driver.Driver
	held   *state.State
	happen func()
}

func (d *meanwhile) Held(f func(*state.State)) {
	f(d.held)
	d.happen()
}

func (d *meanwhile) Close() error                      { return nil }
func (d *meanwhile) SetAside() []driver.SetAside       { return nil }
func (d *meanwhile) Capabilities() driver.Capabilities { return driver.Capabilities{} }

func (d *meanwhile) Adopt(_ context.Context, want *state.State, _ driver.Keep) (driver.Plan, error) {
	return &keepingPlan{d: d, want: want}, nil
}

// keepingPlan puts a state in the kernel, and keeps what a pod receives.
type keepingPlan struct {
	driver.Plan
	d    *meanwhile
	want *state.State
}

func (p *keepingPlan) Len() int { return 1 }

func (p *keepingPlan) Kept() driver.Kept {
	kept := driver.Kept{Policy: 1, Receivers: map[netip.Addr]bool{}}
	for a := range p.want.Policy.Workloads {
		kept.Receivers[a] = true
	}
	return kept
}

func (p *keepingPlan) Apply(context.Context) error {
	p.d.held = p.want
	return nil
}

// A connection is judged by the state that the driver holds and by what was kept for that state,
// also while an adoption is at work.
func TestForbidsWhileAdopting(t *testing.T) {
	pod, outside := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("192.0.2.9")
	want := state.New()
	want.Policy = state.NewPolicy()
	want.Policy.Rules["deny"] = &state.Rules{ID: "deny", Default: model.Allow, Tiers: []state.Tier{{Name: "default", Default: model.Deny, Policies: []*state.PolicyRules{{}}}}}
	want.Policy.Workloads[pod] = &state.Workload{Device: 5, Ingress: "deny"}
	before := state.New()
	before.Policy = state.NewPolicy()
	before.Services.Frontends[state.FrontendKey{Addr: pod, Port: 80}] = &state.Frontend{} // its removal is looked up

	kernel := &meanwhile{held: before, happen: func() {}}
	d, err := Open(kernel, driver.Options{Policy: true, KeepEstablished: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	p, err := d.Adopt(t.Context(), want, driver.Keep{})
	if err != nil {
		t.Fatal(err)
	}
	flow := conntrack.Flow{Protocol: model.TCP,
		Orig:  conntrack.Tuple{Src: netip.AddrPortFrom(outside, 40000), Dst: netip.AddrPortFrom(pod, 80)},
		Reply: conntrack.Tuple{Src: netip.AddrPortFrom(pod, 80), Dst: netip.AddrPortFrom(outside, 40000)}}
	judged := make(chan bool, 1)
	kernel.happen = func() {
		kernel.happen = func() {}
		go func() { judged <- d.forbids(flow, &locator{own: map[netip.Addr]bool{}}) }()
		time.Sleep(20 * time.Millisecond)
	}
	if err := p.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	if <-judged {
		t.Error("a connection is forbidden by rules in place of which the kernel has others")
	}
}
