package verdict

import (
	"encoding/json"
	"net/netip"
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

// testCluster is testState as node a, node b with a pod of shop/db that takes connections from
// 192.168.0.1 alone, and node c, of which nothing is known.
func testCluster() *Cluster {
	b := state.New()
	b.Policy = state.NewPolicy()
	b.Policy.HostDevices[1] = struct{}{}
	b.Policy.PodCIDRs = []netip.Prefix{prefix("10.1.1.0/24")}
	for i, name := range []string{"db-1", "open"} {
		device := 20 + i
		b.Policy.PodDevices[device] = struct{}{}
		b.Policy.Workloads[netip.AddrFrom4([4]byte{10, 1, 1, byte(7 + i)})] = &state.Workload{Pod: model.Name{Namespace: "shop", Name: name}, Device: device}
	}
	b.Policy.Workloads[addr("10.1.1.7")].Ingress = "db"
	from := state.Term{Lists: []state.ListRef{{ID: 0x400, IPv4: []uint8{32}}}}
	b.Policy.Lists[0x400] = &state.List{Name: "192.168.0.1/32", Prefixes: []netip.Prefix{prefix("192.168.0.1/32")}}
	b.Policy.Rules["db"] = &state.Rules{ID: "db", Tiers: []state.Tier{{Name: "default", Default: model.Deny, Policies: []*state.PolicyRules{{Policy: np("db"), Rules: []state.Rule{
		{Name: "ingress[0]", Action: model.Allow, Source: state.End{In: []state.Term{from}}}}}}}}}
	names := map[string]model.Ref{
		"10.1.0.5": podRef(np("web").Name), "10.1.0.7": podRef(np("db").Name), "10.1.1.7": podRef(np("db-1").Name),
		"192.168.0.1": {Kind: model.NodeKind, Name: model.Name{Name: "a"}}, "192.168.0.2": {Kind: model.NodeKind, Name: model.Name{Name: "b"}},
	}
	homes := map[string]string{"192.168.0.1": "a", "192.168.0.2": "b"}
	return &Cluster{
		Here: "a",
		Nodes: map[string]*Node{
			"a": {State: testState(), Route: func(a netip.Addr) Way {
				if a == addr("10.1.0.77") { // of a pod that is not declared yet
					return Way{Device: vethWeb}
				}
				return Way{Device: eth0, Own: a == addr("192.168.0.1"), Sources: []netip.Addr{addr("192.168.0.1")}}
			}},
			"b": {State: b, Uplinks: []int{1}, Route: func(a netip.Addr) Way { return Way{Own: a == addr("192.168.0.2")} }},
		},
		Object: func(a netip.Addr) model.Ref { return names[a.String()] },
		Home: func(a netip.Addr) string {
			for i, node := range []string{"a", "b", "c"} {
				if netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 0}), 24).Contains(a) {
					return node
				}
			}
			return homes[a.String()]
		},
	}
}

func ask(from, to string, protocol uint8, port uint16) Question {
	return Question{From: addr(from), To: addr(to), Protocol: protocol, Port: port}
}

func TestWhy(t *testing.T) {
	icmpQuestion := ask("10.1.0.5", "10.1.0.7", 1, 0)
	icmpQuestion.ICMPType = 8
	tests := map[string]struct {
		q    Question
		want string
	}{
		"pod to pod": {ask("10.1.0.5", "10.1.0.7", 6, 5432), `
allowed: 10.1.0.5 (pod shop/web) -> 10.1.0.7:5432 (pod shop/db), TCP 5432
  a  egress   allowed  shop/web  NetworkPolicy shop/tcp-only egress[0], tier default
  a  ingress  allowed  shop/db   NetworkPolicy shop/db ingress[0], tier default
`},
		"nothing allows it": {ask("10.1.0.5", "10.1.0.7", 6, 80), `
denied: 10.1.0.5 (pod shop/web) -> 10.1.0.7:80 (pod shop/db), TCP 80
  by shop/db, ingress: isolated by NetworkPolicy shop/db, tier default, and no rule allows it
  a  egress   allowed  shop/web  NetworkPolicy shop/tcp-only egress[0], tier default
  a  ingress  denied   shop/db
  missing: an ingress rule in NetworkPolicy shop/db (or another that selects shop/db) that allows TCP 80 from 10.1.0.5 (pod shop/web)
`},
		"neither way": {ask("10.1.0.5", "10.1.0.7", 17, 53), `
denied: 10.1.0.5 (pod shop/web) -> 10.1.0.7:53 (pod shop/db), UDP 53
  by shop/web, egress: isolated by NetworkPolicy shop/tcp-only, tier default, and no rule allows it
  by shop/db, ingress: isolated by NetworkPolicy shop/db, tier default, and no rule allows it
  a  egress   denied  shop/web
  a  ingress  denied  shop/db
  missing: an egress rule in NetworkPolicy shop/tcp-only (or another that selects shop/web) that allows UDP 53 to 10.1.0.7 (pod shop/db)
  missing: an ingress rule in NetworkPolicy shop/db (or another that selects shop/db) that allows UDP 53 from 10.1.0.5 (pod shop/web)
`},
		"a protocol without ports": {icmpQuestion, `
denied: 10.1.0.5 (pod shop/web) -> 10.1.0.7 (pod shop/db), ICMP 8
  by shop/web, egress: isolated by NetworkPolicy shop/tcp-only, tier default, and no rule allows it
  by shop/db, ingress: isolated by NetworkPolicy shop/db, tier default, and no rule allows it
  a  egress   denied  shop/web
  a  ingress  denied  shop/db
  missing: an egress rule that allows ICMP 8 to 10.1.0.7 (pod shop/db) in a policy of another kind: NetworkPolicy knows TCP, UDP and SCTP alone
  missing: an ingress rule that allows ICMP 8 from 10.1.0.5 (pod shop/web) in a policy of another kind: NetworkPolicy knows TCP, UDP and SCTP alone
`},
		"a service": {ask("10.1.0.5", "10.96.0.1", 6, 80), `
1 of 2 backends is denied: 10.1.0.5 (pod shop/web) -> 10.96.0.1:80 (service shop/db), TCP 80
  by shop/db-1, ingress: isolated by NetworkPolicy shop/db, tier default, and no rule allows it
  a  service  allowed  shop/db (ClusterIP)  2 backends
  a  egress   allowed  shop/web             NetworkPolicy shop/tcp-only egress[0], tier default
  to 10.1.1.7:5432 (pod shop/db-1): denied
    a  host, forward out  allowed  node-a (eth0)  no rule applies
    b  ingress            denied   shop/db-1
    missing: an ingress rule in NetworkPolicy shop/db (or another that selects shop/db-1) that allows TCP 5432 from 10.1.0.5 (pod shop/web)
  to 10.1.0.7:5432 (pod shop/db): allowed
    a  ingress  allowed  shop/db  NetworkPolicy shop/db ingress[0], tier default
`},
		"one backend of two": {ask("192.0.2.1", "192.168.0.1", 6, 30080), `
1 of 2 backends is denied: 192.0.2.1 -> 192.168.0.1:30080 (node a), TCP 30080
  warning: the client is hidden: policies on node b see 192.168.0.1, an address of node a, in place of 192.0.2.1; else it would be denied (isolated by NetworkPolicy shop/db, tier default, and no rule allows it)
    > set externalTrafficPolicy: Local on Service shop/db: policies see the client then, and nodes without an endpoint serve nobody outside
  by shop/db, ingress: isolated by NetworkPolicy shop/db, tier default, and no rule allows it
  a  host, untracked in     allowed  node-a (eth0)       no rule applies
  a  host, before services  allowed  node-a (eth0)       no rule applies
  a  service                allowed  shop/db (NodePort)  2 backends
  to 10.1.0.7:5432 (pod shop/db): denied
    a  ingress        denied   shop/db
    a  host, forward  allowed  node-a (eth0)  no rule applies
    missing: an ingress rule in NetworkPolicy shop/db (or another that selects shop/db) that allows TCP 5432 from 192.0.2.1
  to 10.1.1.7:5432 (pod shop/db-1): allowed
    a  host, forward      allowed  node-a (eth0)  no rule applies
    a  host, forward out  allowed  node-a (eth0)  no rule applies
    b  ingress            allowed  shop/db-1      NetworkPolicy shop/db ingress[0], tier default
    note: node b sees 192.168.0.1, an address of node a, as the client
`},
		"no endpoint": {ask("10.1.0.5", "10.96.0.2", 6, 80), `
denied: 10.1.0.5 (pod shop/web) -> 10.96.0.2:80 (service shop/empty), TCP 80
  by service shop/empty (ClusterIP): refused: the service has no endpoint that is ready
  a  service  denied  shop/empty (ClusterIP)
`},
		"a host's firewall": {ask("192.0.2.1", "192.168.0.1", 6, 443), `
denied: 192.0.2.1 -> 192.168.0.1:443 (node a), TCP 443
  by node-a (eth0), host, in: isolated by GlobalNetworkPolicy node, tier default, and no rule allows it
  a  host, untracked in     allowed  node-a (eth0)  no rule applies
  a  host, before services  allowed  node-a (eth0)  no rule applies
  a  host, in               denied   node-a (eth0)
  missing: an ingress rule in GlobalNetworkPolicy node (or another that selects node-a) that allows TCP 443 from 192.0.2.1
`},
		"a rule denies": {ask("192.168.0.1", "192.0.2.1", 6, 25), `
denied: 192.168.0.1 (node a) -> 192.0.2.1:25, TCP 25
  by node-a (eth0), host, out: GlobalNetworkPolicy node smtp, tier default
  a  host, out  denied  node-a (eth0)
`},
		"a node and its pod": {ask("192.168.0.1", "10.1.0.7", 17, 53), `
allowed: 192.168.0.1 (node a) -> 10.1.0.7:53 (pod shop/db), UDP 53
  note: a node always reaches its own pods
`},
	}
	c := testCluster()
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := c.Why(tt.q)
			if text := "\n" + got.String(); text != tt.want {
				t.Errorf("got%s\nwant%s", text, tt.want)
			}
			b, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			var back Answer
			if err := json.Unmarshal(b, &back); err != nil {
				t.Fatal(err)
			}
			if again, err := json.Marshal(back); err != nil || string(again) != string(b) || back.String() != got.String() {
				t.Errorf("as JSON and back: %v\n%s\nwant\n%s", err, again, b)
			}
		})
	}
}

// TestWhyInShort looks for what an answer must say.
func TestWhyInShort(t *testing.T) {
	c := testCluster()
	for name, tt := range map[string]struct {
		q    Question
		want []string
	}{
		"no such port":               {ask("10.1.0.5", "10.96.0.1", 6, 81), []string{"denied", "refused: the service has no such port"}},
		"no such service":            {ask("10.1.0.5", "10.96.9.9", 6, 80), []string{"denied", "that no service has"}},
		"internal policy":            {ask("10.1.0.5", "10.96.0.3", 6, 80), []string{"denied", "a Local traffic policy"}},
		"out of the source ranges":   {ask("10.1.0.5", "203.0.113.99", 6, 80), []string{"denied", "no source range of the service holds 10.1.0.5"}},
		"within the source ranges":   {ask("192.0.2.1", "203.0.113.99", 6, 80), []string{": allowed", "node b sees 192.168.0.1, an address of node a, as the client"}},
		"local, from outside":        {ask("192.0.2.1", "192.168.0.1", 6, 30081), []string{"1 backend on this node; the client's address is kept"}},
		"local, from a pod":          {ask("10.1.0.5", "192.168.0.1", 6, 30081), []string{"2 backends"}},
		"local, and elsewhere":       {ask("192.0.2.1", "192.168.0.1", 6, 30082), []string{"denied", "no endpoint is on this node"}},
		"a pod that nobody knows":    {ask("10.1.0.5", "10.1.0.66", 6, 80), []string{"denied", "no known pod has"}},
		"a pod without an interface": {ask("10.1.0.9", "192.0.2.1", 6, 80), []string{"denied", "no pod is known that sends"}},
		"from a pod of another":      {ask("10.1.1.7", "10.1.0.7", 6, 80), []string{"denied", "b  egress"}},
		"no end here":                {ask("192.0.2.9", "192.0.2.10", 6, 80), []string{"beyond node a is not judged"}},
		"behind a pod's interface":   {ask("10.1.0.77", "10.1.0.7", 6, 80), []string{"denied", "its pod is not known yet, or it is not its own"}},
		"to itself":                  {ask("10.1.0.7", "10.1.0.7", 17, 80), []string{"allowed", "reaches itself"}},
		"the node to itself":         {ask("192.168.0.1", "192.168.0.1", 6, 80), []string{"allowed", "the node reaches itself"}},
		"deny list":                  {ask("198.51.100.7", "192.168.0.1", 6, 22), []string{"denied", "GlobalNetworkSet bad", "at eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.Why(tt.q).String()
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("does not say %q:\n%s", want, got)
				}
			}
		})
	}
}

// What a pool with natOutgoing has leave the pods' network, others see with the node's address.
func TestWhyOutgoing(t *testing.T) {
	c := testCluster()
	set := &c.Nodes["a"].State.Services.Settings
	set.OutgoingCIDRs, set.PoolCIDRs = []netip.Prefix{prefix("10.1.0.0/24")}, []netip.Prefix{prefix("10.1.0.0/16"), prefix("192.0.2.128/25")}
	for name, tt := range map[string]struct {
		to   string
		says string // "": nothing of it
	}{
		"to the outside":            {"192.0.2.1", "note: it leaves with 192.168.0.1, an address of node a, as its source: natOutgoing of an IPPool"},
		"to a pool that is outside": {"192.0.2.129", ""},
		"to another node":           {"192.168.0.2", "node b sees 192.168.0.1, an address of node a, as the client"},
		"to a pod":                  {"10.1.1.8", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.Why(ask("10.1.0.7", tt.to, 6, 80)).String()
			if tt.says == "" && strings.Contains(got, "an address of node a") || !strings.Contains(got, tt.says) {
				t.Errorf("got\n%s\nwant %q", got, tt.says)
			}
		})
	}
	c.Nodes["a"].Route = func(netip.Addr) Way { return Way{Device: eth0} }
	if got := c.Why(ask("10.1.0.7", "192.0.2.1", 6, 80)).String(); !strings.Contains(got, "it leaves with an address of node a, as its source") {
		t.Errorf("by a way that is not known:\n%s", got)
	}
}

// Where policies see a node in place of the client, that is told if they would decide otherwise.
// What is judged on the node by which the client comes in sees it: source ranges, and policies of
// that node's pods.
func TestWhyHiddenClient(t *testing.T) {
	const remedy = "set externalTrafficPolicy: Local on Service shop/"
	for _, tt := range []struct {
		what     string
		admits   string // the one client of shop/db-1, on node b
		from, to string
		port     uint16
		want     string // the verdict, and what would be; "": nothing is hidden
		remedy   string
	}{
		{"a policy that admits the client", "192.0.2.1/32", "192.0.2.1", "203.0.113.99", 80, "denied, allowed", remedy + "ranged"},
		{"a policy that does not", "192.168.0.1/32", "192.0.2.1", "203.0.113.99", 80, "allowed, denied", remedy + "ranged"},
		{"a policy that admits neither", "198.51.100.9/32", "192.0.2.1", "203.0.113.99", 80, "denied", ""},
		{"source ranges", "192.168.0.1/32", "198.51.100.200", "203.0.113.99", 80, "denied", ""},
		{"an endpoint on the same node", "192.0.2.1/32", "192.0.2.1", "192.168.0.1", 30081, "denied", ""},
		{"a pod that asks by its node", "10.1.0.5/32", "10.1.0.5", "192.168.0.1", 30080, "denied, allowed", remedy + "db"},
		{"a client inside", "10.1.0.5/32", "10.1.0.5", "10.96.0.1", 80, "allowed", ""},
		{"a client outside that asks the cluster IP", "192.0.2.1/32", "192.0.2.1", "10.96.0.1", 80, "denied, allowed", ""},
		{"the node itself", "192.0.2.1/32", "192.168.0.1", "203.0.113.99", 80, "denied", ""},
	} {
		c := testCluster()
		front := c.Nodes["a"].State.Services.Frontends[state.FrontendKey{Addr: addr("203.0.113.99"), Protocol: model.TCP, Port: 80}]
		front.SourceRanges = []netip.Prefix{prefix("192.0.2.0/24"), prefix("192.168.0.0/24")}
		list := c.Nodes["b"].State.Policy.Lists[0x400]
		list.Prefixes = []netip.Prefix{prefix(tt.admits)}
		a := c.Why(ask(tt.from, tt.to, 6, tt.port))
		got, says := a.Outcome.String(), ""
		for _, p := range a.Paths {
			if h := p.HiddenClient; h != nil {
				got, says = p.Outcome.String()+", "+h.Otherwise.String(), h.Remedy
				if h.Client != addr(tt.from) || h.Seen != addr("192.168.0.1") || h.Entry != "a" || h.Node != "b" {
					t.Errorf("%s: %+v", tt.what, h)
				}
			}
		}
		if got != tt.want || !strings.HasPrefix(says, tt.remedy) || tt.remedy == "" && says != "" {
			t.Errorf("%s: %s, remedy %q; want %s, %q\n%s", tt.what, got, says, tt.want, tt.remedy, a)
		}
		if lines := strings.Split(a.String(), "\n"); strings.Contains(tt.want, ", ") != strings.HasPrefix(lines[1], "  warning: the client is hidden: ") {
			t.Errorf("%s: the second line says %q", tt.what, lines[1])
		}
	}
}

// Without policy, what policy would judge is not spoken of.
func TestWhyWithoutPolicy(t *testing.T) {
	c := testCluster()
	for _, n := range c.Nodes {
		n.State.Policy = nil
	}
	for _, to := range []string{"10.1.0.7", "10.96.0.1", "10.1.1.7", "192.168.0.1"} {
		if a := c.Why(ask("10.1.0.5", to, 6, 80)); a.Outcome != Allowed || strings.Contains(a.String(), "note:") {
			t.Errorf("without policy: %s", a)
		}
	}
	if a := c.Why(ask("10.1.0.5", "10.96.0.1", 6, 80)); len(a.Paths) != 2 {
		t.Errorf("without policy: %+v", a)
	}
}

// Both ends decide, whichever node they are on, and what is not known is told.
func TestWhyOnOtherNodes(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		port     uint16
		want     string
		says     string
	}{
		{"10.1.1.8", "10.1.1.7", 80, "denied", "isolated by NetworkPolicy shop/db"},
		{"10.1.1.7", "10.1.1.8", 80, "allowed", ""},
		{"10.1.1.7", "10.1.2.8", 80, "unknown", "what this node makes of it is not known here"},
		{"10.1.1.7", "203.0.113.7", 80, "allowed", "of no pod or node of the cluster"},
		{"10.1.1.8", "10.1.0.7", 80, "denied", "isolated by NetworkPolicy shop/db"},
		{"10.1.1.8", "10.1.0.7", 5432, "denied", "from 10.1.1.8"},
		{"10.1.0.5", "10.1.1.7", 80, "denied", "b  ingress"},
		{"10.1.0.5", "10.1.1.8", 80, "allowed", "b  ingress"},
		{"10.1.0.5", "192.168.0.2", 80, "allowed", ""},
		{"192.168.0.1", "10.1.1.7", 80, "allowed", ""},
		{"192.168.0.2", "10.1.1.7", 80, "allowed", "a node always reaches its own pods"},
		{"192.0.2.9", "10.1.1.7", 80, "denied", "from 192.0.2.9"},
		{"192.0.2.9", "192.168.0.1", 30080, "denied", "1 of 2 backends is denied"},                             // node a's own
		{"192.0.2.9", "192.168.0.1", 30080, "denied", "node b sees 192.168.0.1, an address of node a, as the"}, // and b lets it in
		{"10.1.1.8", "192.168.0.1", 30081, "denied", ""},
	} {
		a := testCluster().Why(ask(tt.from, tt.to, 6, tt.port))
		if a.Outcome.String() != tt.want || !strings.Contains(a.String(), tt.says) {
			t.Errorf("want %s and %q, got %s", tt.want, tt.says, a)
		}
	}
}

// fromPorts gives the pod open a policy about ports that clients send from.
func fromPorts(action model.Action, first, last uint16) func(*Cluster) {
	return func(c *Cluster) {
		b := c.Nodes["b"].State.Policy
		b.Workloads[addr("10.1.1.8")].Ingress = "ports"
		b.Rules["ports"] = &state.Rules{ID: "ports", Default: model.Allow, Tiers: []state.Tier{{Name: "default", Default: model.Pass, Policies: []*state.PolicyRules{{Policy: np("ports"), Rules: []state.Rule{
			{Name: "egress[0]", Action: action, Source: state.End{Ports: &state.Ports{Ranges: []state.PortRange{{Protocol: model.TCP, First: first, Last: last}}}}}}}}}}}
	}
}

// Where it is not known by which interface a packet comes, which lists a node has, or which address
// it gives a client, that makes a difference only if it makes one to the outcome.
func TestWhyUnknown(t *testing.T) {
	hostEndpoint := func(rules state.RulesID) func(*Cluster) {
		return func(c *Cluster) {
			b := c.Nodes["b"]
			b.Uplinks = []int{1, 2}
			b.State.Policy.HostDevices[2] = struct{}{}
			b.State.Policy.Hosts[2] = &state.Host{Name: "b-eth1", Device: "eth1", Input: rules}
			b.State.Policy.Rules["none"] = &state.Rules{ID: "none", Default: model.Deny}
		}
	}
	for _, tt := range []struct {
		what     string
		change   func(*Cluster)
		from, to string
		port     uint16
		want     string
		says     string
	}{
		{"a host endpoint that denies", hostEndpoint("none"), "10.1.0.5", "192.168.0.2", 80, "unknown", "whether it comes in by this host endpoint's interface is known on node b alone"},
		{"a host endpoint that denies nothing", hostEndpoint(""), "10.1.0.5", "192.168.0.2", 80, "allowed", ""},
		{"and a policy that denies", hostEndpoint("none"), "10.1.0.5", "10.1.1.7", 80, "denied", ""},
		{"deny lists", func(c *Cluster) { c.Nodes["b"].Hidden.DenyLists = true }, "10.1.0.5", "10.1.1.8", 80, "unknown", "deny lists come from files of its own"},
		{"deny lists do not matter within a node", func(c *Cluster) { c.Nodes["b"].Hidden.DenyLists = true }, "10.1.1.7", "10.1.1.8", 80, "allowed", ""},
		{"address lists", func(c *Cluster) { c.Nodes["b"].Hidden.Lists = true }, "10.1.1.7", "10.1.1.8", 80, "unknown", "address lists from files"},
		{"the client's port", fromPorts(model.Deny, 40000, 65535), "10.1.0.5", "10.1.1.8", 80, "unknown", "it depends on the port that the client sends from"},
		{"ports that no client uses", fromPorts(model.Deny, 1, 1023), "10.1.0.5", "10.1.1.8", 80, "allowed", ""},
		{"all ports", fromPorts(model.Deny, 32768, 60999), "10.1.0.5", "10.1.1.8", 80, "denied", "NetworkPolicy shop/ports egress[0]"},
		{"the client's address", func(c *Cluster) {
			c.Nodes["a"].Route = func(a netip.Addr) Way {
				return Way{Device: eth0, Own: a == addr("192.168.0.1"), Sources: []netip.Addr{addr("192.168.0.1"), addr("10.1.0.0")}}
			}
		}, "192.0.2.9", "203.0.113.99", 80, "unknown", "which address node b sees as the client: one of [192.168.0.1 10.1.0.0]"},
		{"no address", func(c *Cluster) {
			c.Nodes["a"].Route = func(a netip.Addr) Way { return Way{Device: eth0, Own: a == addr("192.168.0.1")} }
		}, "192.0.2.9", "203.0.113.99", 80, "unknown", "it is not known which"},
	} {
		c := testCluster()
		tt.change(c)
		c.Nodes["a"].State.Services.Frontends[state.FrontendKey{Addr: addr("203.0.113.99"), Protocol: model.TCP, Port: 80}].SourceRanges = nil
		a := c.Why(ask(tt.from, tt.to, 6, tt.port))
		if a.Outcome.String() != tt.want || !strings.Contains(a.String(), tt.says) {
			t.Errorf("%s: want %s and %q, got %s", tt.what, tt.want, tt.says, a)
		}
	}
}
