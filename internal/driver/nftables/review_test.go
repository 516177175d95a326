package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// While something is kept, a pod has neither the rules of a dead one that had its address, nor
// stays as open as it was when no policy was known for it.
func TestKeepingIsOfTheSamePodAndOfRules(t *testing.T) {
	t.Parallel()
	closed, open := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2")
	for name, c := range map[string]struct {
		change  func(*state.Policy) // leaves something out
		pod     netip.Addr
		verdict string // how the name of its rules' first chain begins; "" returns at once
	}{
		"a pod with the address of a dead one": {func(p *state.Policy) {
			delete(p.Workloads, open)
			p.Workloads[closed] = &state.Workload{Pod: model.Name{Namespace: "test", Name: "heir"}, Device: 5}
		}, closed, ""},
		"the same pod": {func(p *state.Policy) {
			delete(p.Workloads, open)
			p.Workloads[closed] = &state.Workload{Pod: p.Workloads[closed].Pod, Device: 5}
		}, closed, "ip-rules-"},
		"a pod that no policy was known for": {func(p *state.Policy) {
			delete(p.Workloads, closed)
			p.Workloads[open] = &state.Workload{Pod: p.Workloads[open].Pod, Device: 6, Ingress: "deny"}
		}, open, "ip-rules-"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testNS(t)
			d := openIn(t, ns, Options{Options: driver.Options{Policy: true}})
			adopt(t, d, isolated())
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = openIn(t, ns, Options{Options: driver.Options{Policy: true}})
			want := isolated()
			c.change(want.Policy)
			p, kept, err := adoptKeeping(t, d, want, driver.Keep{Services: true, Policy: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Apply(t.Context()); err != nil {
				t.Fatalf("apply: %v\n%s", err, p)
			}
			if kept == 0 {
				t.Fatal("nothing is kept")
			}
			got := ingressOf(t, d, c.pod)
			if c.verdict == "" && got != nft.Return || c.verdict != "" && !strings.HasPrefix(got.Chain, c.verdict) {
				t.Errorf("%v has %+v, want %q", c.pod, got, c.verdict)
			}
		})
	}
}

// ingressOf is what the kernel has for packets to the address.
func ingressOf(t *testing.T, d *Driver, a netip.Addr) nft.Verdict {
	t.Helper()
	content, err := d.Content(t.Context(), d.ruleset.Family(a.Is4()).Policy.To)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range content {
		if strings.HasPrefix(string(e.Key[:]), string(a.AsSlice())) {
			return e.Verdict
		}
	}
	t.Fatalf("the kernel has nothing for %v", a)
	return nft.Verdict{}
}

// A change that cannot be made in two transactions, as what is new and what is old do not go
// together, is made in one, and what comes of it is the same.
func TestTwiceInOne(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		d := openIn(t, testNS(t), o)
		withPorts := func(id state.RulesID, first, last uint16) *state.State {
			s := isolated()
			ports := &state.Ports{ID: 0x100, Ranges: []state.PortRange{{Protocol: model.TCP, First: first, Last: last}}}
			key := model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "test", Name: string(id)}}
			s.Policy.PortSets[ports.ID] = ports
			s.Policy.Rules[id] = &state.Rules{ID: id, Tiers: []state.Tier{{Name: "default", Default: model.Deny, Policies: []*state.PolicyRules{{Policy: key,
				Rules: []state.Rule{{Name: "ingress[0]", Action: model.Allow, Protocol: uint8(model.TCP), Destination: state.End{Ports: ports}}}}}}}}
			s.Policy.Workloads[netip.MustParseAddr("10.1.0.2")] = &state.Workload{Pod: model.Name{Namespace: "test", Name: "open"}, Device: 6, Ingress: id}
			return s
		}
		have := withPorts("first", 80, 90)
		adopt(t, d, have)
		for i, want := range []*state.State{withPorts("second", 85, 95), withPorts("third", 70, 90), withPorts("fourth", 200, 210)} {
			plan, err := d.Update(t.Context(), state.Delta{Policy: policyDelta(have.Policy, want.Policy)})
			if err != nil {
				t.Fatal(err)
			}
			if err := plan.Apply(t.Context()); err != nil {
				t.Fatalf("change %d: apply: %v\n%s", i, err, plan)
			}
			if tampered, err := d.Tampered(t.Context()); tampered || err != nil {
				t.Errorf("change %d: tampered: %v %v", i, tampered, err)
			}
			have = want
			d.Doubt = true // have it read everything
			if n, text := adopt(t, d, want); n != 0 {
				t.Errorf("change %d: the kernel differs:\n%s", i, text)
			}
		}
	})
}
