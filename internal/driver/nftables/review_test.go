package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/conntrack"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// While something is kept, a pod has neither the programs of a dead one that had its address, nor stays as open
// as it was when no policy was known for it.
func TestKeepingIsOfTheSamePodAndOfPrograms(t *testing.T) {
	closed, open := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2")
	for name, c := range map[string]struct {
		change  func(*state.Policy) // leaves something out
		pod     netip.Addr
		verdict string // how the name of its program's chain begins; "" returns at once
	}{
		"a pod with the address of a dead one": {func(p *state.Policy) {
			delete(p.Workloads, open)
			p.Workloads[closed] = &state.Workload{Pod: model.Name{Namespace: "test", Name: "heir"}, Device: 5}
		}, closed, ""},
		"the same pod": {func(p *state.Policy) {
			delete(p.Workloads, open)
			p.Workloads[closed] = &state.Workload{Pod: p.Workloads[closed].Pod, Device: 5}
		}, closed, "ip-judge-"},
		"a pod that no policy was known for": {func(p *state.Policy) {
			delete(p.Workloads, closed)
			p.Workloads[open] = &state.Workload{Pod: p.Workloads[open].Pod, Device: 6, Ingress: "deny"}
		}, open, "ip-judge-"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testNS(t)
			d := openIn(t, ns, Options{Policy: true})
			adopt(t, d, isolated())
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = openIn(t, ns, Options{Policy: true})
			want := isolated()
			c.change(want.Policy)
			p, kept, err := d.AdoptKeeping(t.Context(), want, nil)
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
			if c.verdict == "" && got != returnIt || c.verdict != "" && !strings.HasPrefix(got.chain, c.verdict) {
				t.Errorf("%v has %+v, want %q", c.pod, got, c.verdict)
			}
		})
	}
}

// ingressOf is what the kernel has for packets to the address.
func ingressOf(t *testing.T, d *Driver, a netip.Addr) verdict {
	t.Helper()
	content, err := d.content(t.Context(), d.prog.family(a.Is4()).policy.to)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range content {
		if strings.HasPrefix(string(e.key[:]), string(a.AsSlice())) {
			return e.verdict
		}
	}
	t.Fatalf("the kernel has nothing for %v", a)
	return verdict{}
}

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
	denyNodePort := &state.Program{ID: "node-port", Default: model.Allow, Tiers: []state.Tier{{Name: "default", Default: model.Allow, Policies: []*state.PolicyRules{{Rules: []state.Rule{{
		Action: model.Deny, Protocol: uint8(model.TCP), Destination: state.End{Ports: &state.Ports{ID: 0x100, Ranges: []state.PortRange{{Protocol: model.TCP, First: 30080, Last: 30080}}}}}}}}}}}
	preDNAT := func(p *state.Policy) {
		p.Programs[denyNodePort.ID] = denyNodePort
		p.PortSets[0x100] = denyNodePort.Tiers[0].Policies[0].Rules[0].Destination.Ports
		p.Hosts[eth0] = &state.Host{Name: "node", Device: "eth0", PreDNAT: denyNodePort.ID}
	}
	toNode := direct(outside, node)
	toNode.Orig, toNode.Reply = tuple(outside, node, 40000, 30080), tuple(node, outside, 30080, 40000)
	none, listed := new(unsure), &unsure{members: map[netip.Prefix]bool{netip.MustParsePrefix("192.0.2.0/24"): true}}
	listed.lengths[0][24] = true
	for name, c := range map[string]struct {
		flow   conntrack.Flow
		change func(*state.Policy)
		unsure *unsure
		want   bool
	}{
		"nothing forbids it":                    {direct(outside, pod), func(*state.Policy) {}, none, false},
		"the pod's policy":                      {direct(outside, pod), func(p *state.Policy) { p.Workloads[pod].Ingress = "deny" }, none, true},
		"the pod's policy, and it is kept":      {direct(outside, pod), func(p *state.Policy) { p.Workloads[pod].Ingress = "deny" }, &unsure{receivers: map[netip.Addr]bool{pod: true}}, false},
		"the pod's policy, and another is kept": {direct(outside, pod), func(p *state.Policy) { p.Workloads[pod].Ingress = "deny" }, &unsure{senders: map[netip.Addr]bool{pod: true}}, true},
		"the pod's policy, and a list is kept":  {direct(outside, pod), func(p *state.Policy) { p.Workloads[pod].Ingress = "deny" }, listed, false},
		"before services":                       {nodePort, preDNAT, none, true},
		"before services, to the node":          {toNode, preDNAT, none, true},
		"before services, another port":         {direct(outside, pod), preDNAT, none, false},
		"an interface that is not known":        {direct(outside, pod), func(p *state.Policy) { preDNAT(p); clear(p.HostDevices) }, none, false},
		"a pod that is not known":               {direct(outside, pod), func(p *state.Policy) { clear(p.Workloads) }, none, false},
		"a pod whose interface is not known":    {direct(pod, outside), func(p *state.Policy) { p.Workloads[pod].Device = 0; clear(p.PodDevices) }, none, false},
		"a pod's policy of what the node gets":  {direct(pod, node), func(p *state.Policy) { p.Workloads[pod].Egress = "deny" }, none, true},
	} {
		p := isolated().Policy
		p.HostDevices[eth0], p.PodDevices[veth] = struct{}{}, struct{}{}
		p.PodCIDRs = prefixes("10.1.0.0/24")
		p.Workloads = map[netip.Addr]*state.Workload{pod: {Pod: model.Name{Namespace: "test", Name: "p"}, Device: veth}}
		c.change(p)
		s := state.New()
		s.Policy = p
		d := &Driver{state: s, unsure: c.unsure}
		w := &ways{own: map[netip.Addr]bool{node: true}, devices: map[netip.Addr]int{outside: eth0, node: 1, pod: veth}}
		if got := d.forbids(c.flow, w); got != c.want {
			t.Errorf("%s: forbidden: %v, want %v", name, got, c.want)
		}
	}
}

// A change that cannot be made in two transactions, as what is new and what is old do not go together, is made in one, and what
// comes of it is the same.
func TestTwiceInOne(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		d := openIn(t, testNS(t), o)
		withPorts := func(program state.ProgramID, first, last uint16) *state.State {
			s := isolated()
			ports := &state.Ports{ID: 0x100, Ranges: []state.PortRange{{Protocol: model.TCP, First: first, Last: last}}}
			key := model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "test", Name: string(program)}}
			s.Policy.PortSets[ports.ID] = ports
			s.Policy.Programs[program] = &state.Program{ID: program, Tiers: []state.Tier{{Name: "default", Default: model.Deny, Policies: []*state.PolicyRules{{Policy: key,
				Rules: []state.Rule{{Name: "ingress[0]", Action: model.Allow, Protocol: uint8(model.TCP), Destination: state.End{Ports: ports}}}}}}}}
			s.Policy.Workloads[netip.MustParseAddr("10.1.0.2")] = &state.Workload{Pod: model.Name{Namespace: "test", Name: "open"}, Device: 6, Ingress: program}
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
			d.doubt = true // have it read everything
			if n, text := adopt(t, d, want); n != 0 {
				t.Errorf("change %d: the kernel differs:\n%s", i, text)
			}
		}
	})
}
