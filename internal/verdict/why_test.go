package verdict

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// testState is testNode with services.
func testState() *state.State {
	s := state.New()
	s.Policy = testNode()
	s.Services.Settings.ServiceCIDRs = []netip.Prefix{prefix("10.96.0.0/16")}
	s.Services.Settings.ClusterCIDRs = []netip.Prefix{prefix("10.1.0.0/16")}
	s.Services.Settings.LocalCIDRs = []netip.Prefix{prefix("10.1.0.0/24")}
	add := func(at string, port uint16, name string, f state.Frontend, backends ...string) {
		f.Service = model.Name{Namespace: "shop", Name: name}
		for _, b := range backends {
			f.Backends = append(f.Backends, netip.MustParseAddrPort(b))
		}
		s.Services.Frontends[state.FrontendKey{Addr: addr(at), Protocol: model.TCP, Port: port}] = &f
		if f.Kind == state.ClusterIP {
			s.Services.ClusterIPs[addr(at)] = struct{}{}
		}
	}
	db, far := "10.1.0.7:5432", "10.1.1.7:5432"
	add("10.96.0.1", 80, "db", state.Frontend{}, db, far)
	add("10.96.0.2", 80, "empty", state.Frontend{Reject: true})
	add("10.96.0.3", 80, "local", state.Frontend{})
	add("203.0.113.99", 80, "ranged", state.Frontend{Kind: state.LoadBalancer, SourceRanges: []netip.Prefix{prefix("192.0.2.0/24")}}, far)
	add("192.168.0.1", 30080, "db", state.Frontend{Kind: state.NodePort}, db, far)
	add("192.168.0.1", 30081, "kept", state.Frontend{Kind: state.NodePort, LocalOnly: true, Local: []netip.AddrPort{netip.MustParseAddrPort(db)}}, db, far)
	add("192.168.0.1", 30082, "away", state.Frontend{Kind: state.NodePort, LocalOnly: true}, far)
	return s
}

func ask(from, to string, protocol uint8, port uint16) Question {
	names := map[string]string{"10.1.0.5": "pod shop/web", "10.1.0.7": "pod shop/db", "10.1.1.7": "pod shop/db-1", "10.96.0.1": "service shop/db", "192.168.0.1": "node a"}
	return Question{
		From: addr(from), To: addr(to), Protocol: protocol, Port: port,
		Name: func(a netip.Addr) string { return names[a.String()] },
		Node: func(a netip.Addr) string {
			if prefix("10.1.1.0/24").Contains(a) {
				return "b"
			}
			if prefix("10.1.2.0/24").Contains(a) {
				return "c"
			}
			return ""
		},
		Route: func(a netip.Addr) (int, bool) {
			if a == addr("10.1.0.77") { // of a pod that is not declared yet
				return vethWeb, false
			}
			return eth0, a == addr("192.168.0.1")
		},
	}
}

func TestWhy(t *testing.T) {
	icmpQuestion := ask("10.1.0.5", "10.1.0.7", 1, 0)
	icmpQuestion.ICMPType = 8
	tests := map[string]struct {
		q    Question
		want string
	}{
		"pod to pod": {ask("10.1.0.5", "10.1.0.7", 6, 5432), `
10.1.0.5 (pod shop/web) -> 10.1.0.7:5432 (pod shop/db), TCP 5432: allowed
  egress   allowed  shop/web  NetworkPolicy shop/tcp-only egress[0], tier default
  ingress  allowed  shop/db   NetworkPolicy shop/db ingress[0], tier default
`},
		"nothing allows it": {ask("10.1.0.5", "10.1.0.7", 6, 80), `
10.1.0.5 (pod shop/web) -> 10.1.0.7:80 (pod shop/db), TCP 80: denied
  egress   allowed  shop/web  NetworkPolicy shop/tcp-only egress[0], tier default
  ingress  denied   shop/db   isolated by NetworkPolicy shop/db, tier default, and no rule allows it
  missing: an ingress rule in NetworkPolicy shop/db (or another that selects shop/db) that allows TCP 80 from 10.1.0.5 (pod shop/web)
`},
		"neither way": {ask("10.1.0.5", "10.1.0.7", 17, 53), `
10.1.0.5 (pod shop/web) -> 10.1.0.7:53 (pod shop/db), UDP 53: denied
  egress   denied  shop/web  isolated by NetworkPolicy shop/tcp-only, tier default, and no rule allows it
  ingress  denied  shop/db   isolated by NetworkPolicy shop/db, tier default, and no rule allows it
  missing: an egress rule in NetworkPolicy shop/tcp-only (or another that selects shop/web) that allows UDP 53 to 10.1.0.7 (pod shop/db)
  missing: an ingress rule in NetworkPolicy shop/db (or another that selects shop/db) that allows UDP 53 from 10.1.0.5 (pod shop/web)
`},
		"a protocol without ports": {icmpQuestion, `
10.1.0.5 (pod shop/web) -> 10.1.0.7 (pod shop/db), ICMP 8: denied
  egress   denied  shop/web  isolated by NetworkPolicy shop/tcp-only, tier default, and no rule allows it
  ingress  denied  shop/db   isolated by NetworkPolicy shop/db, tier default, and no rule allows it
  missing: an egress rule that allows ICMP 8 in a policy of another kind, in a tier before default: NetworkPolicy knows TCP, UDP and SCTP alone
  missing: an ingress rule that allows ICMP 8 in a policy of another kind, in a tier before default: NetworkPolicy knows TCP, UDP and SCTP alone
`},
		"a service": {ask("10.1.0.5", "10.96.0.1", 6, 80), `
10.1.0.5 (pod shop/web) -> 10.96.0.1:80 (service shop/db), TCP 80: allowed
  service  allowed  shop/db (ClusterIP)  2 backends
  to 10.1.0.7:5432 (pod shop/db): allowed
    egress   allowed  shop/web  NetworkPolicy shop/tcp-only egress[0], tier default
    ingress  allowed  shop/db   NetworkPolicy shop/db ingress[0], tier default
  to 10.1.1.7:5432 (pod shop/db-1): allowed
    egress             allowed  shop/web       NetworkPolicy shop/tcp-only egress[0], tier default
    host, forward out  allowed  node-a (eth0)  no rule applies
    note: what may reach 10.1.1.7 (pod shop/db-1) is judged on node b
`},
		"one backend of two": {ask("192.0.2.1", "192.168.0.1", 6, 30080), `
192.0.2.1 -> 192.168.0.1:30080 (node a), TCP 30080: allowed to 1 of 2 backends
  host, untracked in     allowed  node-a (eth0)       no rule applies
  host, before services  allowed  node-a (eth0)       no rule applies
  service                allowed  shop/db (NodePort)  2 backends
  to 10.1.0.7:5432 (pod shop/db): denied
    ingress        denied   shop/db        isolated by NetworkPolicy shop/db, tier default, and no rule allows it
    host, forward  allowed  node-a (eth0)  no rule applies
    missing: an ingress rule in NetworkPolicy shop/db (or another that selects shop/db) that allows TCP 5432 from 192.0.2.1
  to 10.1.1.7:5432 (pod shop/db-1): allowed
    host, forward      allowed  node-a (eth0)  no rule applies
    host, forward out  allowed  node-a (eth0)  no rule applies
    note: what may reach 10.1.1.7 (pod shop/db-1) is judged on node b, which sees an address of this node as the client
`},
		"no endpoint": {ask("10.1.0.5", "10.96.0.2", 6, 80), `
10.1.0.5 (pod shop/web) -> 10.96.0.2:80, TCP 80: denied
  service  denied  shop/empty (ClusterIP)  refused: the service has no endpoint that is ready
`},
		"a host's firewall": {ask("192.0.2.1", "192.168.0.1", 6, 443), `
192.0.2.1 -> 192.168.0.1:443 (node a), TCP 443: denied
  host, untracked in     allowed  node-a (eth0)  no rule applies
  host, before services  allowed  node-a (eth0)  no rule applies
  host, in               denied   node-a (eth0)  isolated by GlobalNetworkPolicy node, tier default, and no rule allows it
  missing: an ingress rule in GlobalNetworkPolicy node (or another that selects node-a (eth0)) that allows TCP 443 from 192.0.2.1
`},
		"a rule denies": {ask("192.168.0.1", "192.0.2.1", 6, 25), `
192.168.0.1 (node a) -> 192.0.2.1:25, TCP 25: denied
  host, out  denied  node-a (eth0)  GlobalNetworkPolicy node smtp, tier default
`},
		"a node and its pod": {ask("192.168.0.1", "10.1.0.7", 17, 53), `
192.168.0.1 (node a) -> 10.1.0.7:53 (pod shop/db), UDP 53: allowed
  note: a node always reaches its own pods
`},
	}
	s := testState()
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := Why(s, tt.q)
			if text := "\n" + got.String(); text != tt.want {
				t.Errorf("got%s\nwant%s", text, tt.want)
			}
			b, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			var back Answer
			if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, got) {
				t.Errorf("as JSON and back: %+v, %v\nwant %+v\n%s", back, err, got, b)
			}
		})
	}
}

// TestWhyInShort looks for what an answer must say.
func TestWhyInShort(t *testing.T) {
	s := testState()
	for name, tt := range map[string]struct {
		q    Question
		want []string
	}{
		"no such port":               {ask("10.1.0.5", "10.96.0.1", 6, 81), []string{"denied", "refused: the service has no such port"}},
		"no such service":            {ask("10.1.0.5", "10.96.9.9", 6, 80), []string{"denied", "that no service has"}},
		"internal policy":            {ask("10.1.0.5", "10.96.0.3", 6, 80), []string{"denied", "a Local traffic policy"}},
		"out of the source ranges":   {ask("10.1.0.5", "203.0.113.99", 6, 80), []string{"denied", "no source range of the service holds 10.1.0.5"}},
		"within the source ranges":   {ask("192.0.2.1", "203.0.113.99", 6, 80), []string{": allowed", "sees an address of this node"}},
		"local, from outside":        {ask("192.0.2.1", "192.168.0.1", 6, 30081), []string{"1 backend on this node; the client's address is kept"}},
		"local, from a pod":          {ask("10.1.0.5", "192.168.0.1", 6, 30081), []string{"2 backends"}},
		"local, and elsewhere":       {ask("192.0.2.1", "192.168.0.1", 6, 30082), []string{"denied", "no endpoint is on this node"}},
		"a pod that nobody knows":    {ask("10.1.0.5", "10.1.0.66", 6, 80), []string{"denied", "no known pod has"}},
		"a pod without an interface": {ask("10.1.0.9", "192.0.2.1", 6, 80), []string{"denied", "no pod is known that sends"}},
		"from a pod of another":      {ask("10.1.1.7", "10.1.0.7", 6, 80), []string{"denied", "judged on node b"}},
		"no end here":                {ask("192.0.2.9", "192.0.2.10", 6, 80), []string{"neither end is on this node"}},
		"behind a pod's interface":   {ask("10.1.0.77", "10.1.0.7", 6, 80), []string{"denied", "its pod is not known yet, or it is not its own"}},
		"to itself":                  {ask("10.1.0.7", "10.1.0.7", 17, 80), []string{"allowed", "reaches itself"}},
		"the node to itself":         {ask("192.168.0.1", "192.168.0.1", 6, 80), []string{"allowed", "the node reaches itself"}},
		"deny list":                  {ask("198.51.100.7", "192.168.0.1", 6, 22), []string{"denied", "GlobalNetworkSet bad", "at eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Why(s, tt.q).String()
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("does not say %q:\n%s", want, got)
				}
			}
		})
	}
}

// Without policy, what policy would judge is not spoken of, and pods are told apart by name alone.
func TestWhyWithoutPolicy(t *testing.T) {
	s := testState()
	s.Policy = nil
	if a := Why(s, Question{From: addr("10.1.0.5"), To: addr("10.96.0.1"), Protocol: 6, Port: 80}); !a.Allowed || len(a.Paths) != 2 {
		t.Errorf("without policy: %+v", a)
	}
	q := ask("10.1.0.5", "10.1.0.7", 6, 80)
	other := q.Node
	q.Here, q.Node = "a", func(a netip.Addr) string { return cmp.Or(other(a), "a") }
	for _, to := range []string{"10.1.0.7", "10.96.0.1", "10.1.1.7", "192.168.0.1"} {
		q.To = addr(to)
		if a := Why(s, q); !a.Allowed || strings.Contains(a.String(), "note:") {
			t.Errorf("without policy: %s", a)
		}
	}
	q.From = addr("10.1.1.7")
	q.To = addr("10.1.0.7")
	if a := Why(s, q); !a.Allowed || a.Elsewhere != nil {
		t.Errorf("from another node's pod to one of this node's: %s", a)
	}
}

// What does not concern this node is neither allowed nor denied by it.
func TestWhyElsewhere(t *testing.T) {
	s := testState()
	for _, c := range []struct {
		from, to string
		nodes    string
		verdict  string
	}{
		{"10.1.1.7", "10.1.1.8", "b", "not judged here: ask on node b"},
		{"10.1.1.7", "10.1.2.8", "b c", "not judged here: ask on node b and on node c"},
		{"10.1.1.7", "203.0.113.7", "b", "not judged here: ask on node b"},
		{"10.1.1.7", "10.96.0.1", "b", "not judged here: ask on node b"}, // translated there
		{"10.1.1.7", "10.1.0.7", "", "denied"},
		{"10.1.1.7", "192.168.0.1", "", "denied"},
		{"10.1.0.5", "10.1.1.7", "", "allowed"},
		{"192.168.0.1", "10.1.1.7", "", "allowed"},
		{"192.0.2.9", "10.1.1.7", "", "allowed"},   // by this node's firewall
		{"198.51.100.7", "10.1.1.7", "", "denied"}, // by its deny list
	} {
		got := Why(s, ask(c.from, c.to, 6, 80))
		if strings.Join(got.Elsewhere, " ") != c.nodes || got.Summary() != c.verdict || got.Allowed != (c.verdict == "allowed") {
			t.Errorf("%s -> %s: %s, on %q; want %s, on %q", c.from, c.to, got.Summary(), got.Elsewhere, c.verdict, c.nodes)
		}
	}
	s.Policy.Hosts, s.Policy.Denied = nil, state.Denied{}
	if got := Why(s, ask("203.0.113.7", "10.1.1.7", 6, 80)); strings.Join(got.Elsewhere, " ") != "b" {
		t.Errorf("from outside to another node's pod: %s", got)
	}
}
