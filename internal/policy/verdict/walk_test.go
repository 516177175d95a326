package verdict

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// The interfaces of the node that tests use.
const (
	eth0, bridge, vethWeb, vethDB, vethNew = 2, 3, 10, 11, 12
)

// testNode is a node with two pods of its own, each on a pair, one behind a bridge, a host
// endpoint, and a deny list. shop/db accepts TCP 5432 from the web group alone, shop/web may send
// nothing but TCP.
func testNode() *state.Policy {
	p := testPolicy()
	pod := func(a string, name string, device int, ingress, egress state.RulesID) {
		p.Workloads[addr(a)] = &state.Workload{Pod: model.Name{Namespace: "shop", Name: name}, Device: device, Bridged: device == bridge, Ingress: ingress, Egress: egress}
	}
	pod("10.1.0.5", "web", vethWeb, "", "tcp-only")
	pod("fd00::5", "web", vethWeb, "", "tcp-only")
	pod("10.1.0.7", "db", vethDB, "db", "")
	pod("10.1.0.8", "bridged", bridge, "", "tcp-only")
	pod("10.1.0.9", "lost", 0, "", "")
	p.PodDevices = map[int]struct{}{vethWeb: {}, vethDB: {}}
	p.HostDevices = map[int]struct{}{1: {}, eth0: {}, bridge: {}}
	p.PodCIDRs = []netip.Prefix{prefix("10.1.0.0/24")}
	p.Denied = state.Denied{Devices: []state.Device{{Index: eth0, Name: "eth0"}}, Lists: []*state.List{p.Lists[badRef.ID]}}
	allow := func(key model.PolicyKey, tier string, r state.Rule) state.Tier {
		r.Action = model.Allow
		return state.Tier{Name: tier, Default: model.Deny, Policies: []*state.PolicyRules{{Policy: key, Rules: []state.Rule{r}}}}
	}
	rules := func(id state.RulesID, last model.Action, tiers ...state.Tier) {
		p.Rules[id] = &state.Rules{ID: id, Tiers: tiers, Default: last}
	}
	web := state.End{In: []state.Term{{Groups: []state.SetID{webGroup}}}}
	rules("db", model.Allow, allow(np("db"), "default", state.Rule{Name: "ingress[0]", Source: web, Destination: state.End{Ports: tcpPorts(5432, 5432)}}))
	rules("tcp-only", model.Allow, allow(np("tcp-only"), "default", state.Rule{Name: "egress[0]", Protocol: 6}))
	gnp := model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "node"}}
	port := func(n uint16) state.Rule {
		return state.Rule{Name: "rule", Destination: state.End{Ports: tcpPorts(n, n)}}
	}
	rules("ssh", model.Deny, allow(gnp, "default", port(22)))
	rules("not-smtp", model.Allow, state.Tier{Name: "default", Default: model.Pass, Policies: []*state.PolicyRules{{Policy: gnp, Rules: []state.Rule{
		{Name: "smtp", Action: model.Deny, Destination: state.End{Ports: tcpPorts(25, 25)}}}}}})
	rules("none", model.Deny)
	p.Hosts[eth0] = &state.Host{Name: "node-a", Device: "eth0", Input: "ssh", Output: "not-smtp", ForwardIn: "not-smtp", ForwardOut: "not-smtp", UntrackedIn: "not-smtp", PreDNAT: "not-smtp"}
	return p
}

func flow(from, to string, protocol uint8, port uint16) Flow {
	return Flow{Source: addr(from), Destination: addr(to), Protocol: protocol, SourcePort: 40000, DestinationPort: port}
}

// text writes steps in short: "egress+ ingress-policy".
func text(steps []Step) string {
	var words []string
	for _, s := range steps {
		word := string(s.Stage) + "+"
		if !s.Allowed() {
			word = string(s.Stage) + "-" + string(s.Drop)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestForward(t *testing.T) {
	p := testNode()
	tests := map[string]struct {
		flow    Flow
		in, out int
		want    string
	}{
		"pod to pod":                      {flow("10.1.0.5", "10.1.0.7", 6, 5432), vethWeb, vethDB, "egress+ ingress+"},
		"interfaces not known":            {flow("10.1.0.5", "10.1.0.7", 6, 5432), 0, 0, "egress+ ingress+"},
		"the wrong port":                  {flow("10.1.0.5", "10.1.0.7", 6, 5433), vethWeb, vethDB, "egress+ ingress-policy"},
		"neither may":                     {flow("10.1.0.5", "10.1.0.7", 17, 5432), vethWeb, vethDB, "egress-policy ingress-policy"},
		"to itself":                       {flow("10.1.0.7", "10.1.0.7", 17, 1), vethDB, vethDB, "itself+"},
		"as if it were itself":            {flow("10.1.0.7", "10.1.0.7", 17, 1), vethWeb, vethDB, "source-spoofed"},
		"another's address":               {flow("10.1.0.7", "8.8.8.8", 6, 53), vethWeb, eth0, "source-spoofed"},
		"any address":                     {flow("192.0.2.1", "8.8.8.8", 6, 53), vethWeb, eth0, "source-spoofed"},
		"a pod's address from outside":    {flow("10.1.0.5", "10.1.0.7", 6, 5432), eth0, vethDB, "source-unknown-pod"},
		"an unknown pod's":                {flow("10.1.0.77", "10.1.0.7", 6, 5432), eth0, vethDB, "source-unknown-pod"},
		"from an unknown interface":       {flow("192.0.2.1", "10.1.0.7", 6, 5432), vethNew, vethDB, "source-unknown-device"},
		"from a pod without an interface": {flow("10.1.0.9", "8.8.8.8", 6, 53), 0, eth0, "source-unknown-pod"},
		"behind a bridge":                 {flow("10.1.0.8", "8.8.8.8", 17, 53), bridge, eth0, "egress-policy host, forward out+"},
		"to an unknown pod":               {flow("192.0.2.1", "10.1.0.77", 6, 80), eth0, 0, "destination-unknown-pod"},
		"from outside":                    {flow("192.0.2.1", "10.1.0.7", 6, 5432), eth0, vethDB, "ingress-policy host, forward+"},
		"through the node":                {flow("192.0.2.1", "192.0.3.1", 6, 25), eth0, eth0, "host, forward-host host, forward out-host"},
		"out, by the host endpoint":       {flow("10.1.0.5", "192.0.2.1", 6, 25), vethWeb, eth0, "egress+ host, forward out-host"},
		"IPv6":                            {flow("fd00::5", "fd01::1", 17, 53), vethWeb, 0, "egress-policy"},
		"of nobody's business":            {flow("192.0.2.1", "192.0.3.1", 6, 80), 0, 0, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := text(Forward(p, tt.flow, tt.in, tt.out)); got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestInput(t *testing.T) {
	p := testNode()
	solicitation := flow("fe80::1", "ff02::1:ff00:1", 58, 0)
	solicitation.ICMPType = 135
	tests := map[string]struct {
		flow Flow
		in   int
		want string
	}{
		"from a pod":                     {flow("10.1.0.5", "192.168.0.1", 6, 22), vethWeb, "egress+"},
		"what a pod may not":             {flow("10.1.0.5", "192.168.0.1", 17, 53), vethWeb, "egress-policy"},
		"spoofed":                        {flow("192.0.2.1", "192.168.0.1", 6, 22), vethWeb, "source-spoofed"},
		"from outside":                   {flow("192.0.2.1", "192.168.0.1", 6, 22), eth0, "host, in+"},
		"from outside, denied":           {flow("192.0.2.1", "192.168.0.1", 6, 23), eth0, "host, in-host"},
		"by a pod's interface: ND":       {solicitation, vethDB, ""},
		"by an unknown interface: ND":    {solicitation, vethNew, ""},
		"by an unknown interface: other": {flow("fe80::1", "fd00::1", 6, 80), vethNew, "source-unknown-device"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := text(Input(p, tt.flow, tt.in)); got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestOutputAndArrive(t *testing.T) {
	p := testNode()
	if got := text(Output(p, flow("192.168.0.1", "10.1.0.7", 17, 1), vethDB)); got != "" {
		t.Errorf("the node to its own pod: %q", got)
	}
	if got := text(Output(p, flow("192.168.0.1", "192.0.2.1", 6, 25), eth0)); got != "host, out-host" {
		t.Errorf("the node, denied: %q", got)
	}
	if got := text(Arrive(p, flow("198.51.100.7", "192.168.0.1", 6, 80), eth0)); got != "deny list-deny-list" {
		t.Errorf("from a denied address: %q", got)
	}
	if got := text(Arrive(p, flow("198.51.100.7", "192.168.0.1", 6, 80), eth0+100)); got != "" {
		t.Errorf("from a denied address, where no deny lists are: %q", got)
	}
	if got := text(Arrive(p, flow("192.0.2.1", "192.168.0.1", 6, 25), eth0)); got != "host, untracked in-host host, before services-host" {
		t.Errorf("at a host endpoint: %q", got)
	}
	p.Hosts[eth0] = &state.Host{Name: "node-a", Device: "eth0", UntrackedIn: "ssh", PreDNAT: "none"}
	if got := text(Arrive(p, flow("192.0.2.1", "192.168.0.1", 6, 22), eth0)); got != "host, untracked in+" {
		t.Errorf("untracked: %q", got)
	}
}

// TestDenied has the first step that denies be the one.
func TestDenied(t *testing.T) {
	p := testNode()
	s, ok := Denial(Forward(p, flow("10.1.0.5", "10.1.0.7", 17, 5432), vethWeb, vethDB))
	if !ok || s.Stage != Egress || s.Subject() != "shop/web" {
		t.Errorf("got %+v, %v", s, ok)
	}
	if s, ok := Denial(nil); ok {
		t.Errorf("no step denies: %+v", s)
	}
}

// TestMasquerades agrees with the kernel's chains ip-source and ip-keep.
func TestMasquerades(t *testing.T) {
	set := state.Settings{ClusterCIDRs: []netip.Prefix{prefix("10.1.0.0/16")}, LocalCIDRs: []netip.Prefix{prefix("10.1.0.0/24")}}
	for _, all := range []bool{false, true} {
		set.MasqueradeAll = all
		for _, tt := range []struct {
			what   string
			f      state.Frontend
			client string
			own    bool
			want   bool
		}{
			{"a cluster IP, from a pod", state.Frontend{}, "10.1.0.5", false, all},
			{"a cluster IP, from outside", state.Frontend{}, "192.0.2.9", false, true},
			{"a cluster IP, in a family without known pods", state.Frontend{}, "2001:db8::9", false, all},
			{"an external frontend", state.Frontend{Kind: state.NodePort}, "10.1.0.5", false, true},
			{"a Local one, from this node's pod", state.Frontend{Kind: state.NodePort, LocalOnly: true}, "10.1.0.5", false, false},
			{"a Local one, from another node's pod", state.Frontend{Kind: state.NodePort, LocalOnly: true}, "10.1.1.5", false, true},
			{"a Local one, from outside", state.Frontend{Kind: state.NodePort, LocalOnly: true}, "192.0.2.9", false, false},
			{"a Local one, from the node", state.Frontend{Kind: state.NodePort, LocalOnly: true}, "192.168.0.1", true, true},
		} {
			if got := masquerades(set, &tt.f, addr(tt.client), tt.own); got != tt.want {
				t.Errorf("%s, with --masquerade-all %v: %v", tt.what, all, got)
			}
		}
	}
}
