package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/question"
	"sluice.dev/sluice/internal/policy/verdict"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// startPolicy runs an agent that enforces policy and knows its links.
func startPolicy(t *testing.T, change ...func(*Config)) *testAgent {
	t.Helper()
	links := make(chan model.Links, 1)
	links <- shopLinks()
	b := start(t, append([]func(*Config){func(c *Config) {
		c.Compiler = compile.New(compile.Config{Config: services.Config{Node: "node-a"}, Policy: true})
		c.Links = links
		c.Route = shopRoute
	}}, change...)...)
	b.source.deliver(shop()...)
	b.source.sync()
	eventually(t, "all is programmed", b.health.ready)
	return b
}

// shop is a node with the pods web, db and bridged; db admits only pods of app=api.
func shop() []store.Event {
	pod := func(name string, ips ...string) store.Event {
		p := &model.Pod{Name: model.Name{Namespace: "shop", Name: name}, Node: "node-a", Labels: map[string]string{"app": name}}
		for _, ip := range ips {
			p.IPs = append(p.IPs, netip.MustParseAddr(ip))
		}
		return store.Event{Kind: model.PodKind, Name: p.Name, Object: p}
	}
	in := model.Equal(model.NamespaceLabel, "shop")
	policy := &model.Policy{
		Key:  model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: "db"}},
		Tier: model.DefaultTier.Name, Order: 1000, Subject: model.And(in, model.Equal("app", "db")), Ingress: true,
		IngressRules: []model.PolicyRule{{Name: "ingress[0]", Protocol: uint8(model.TCP),
			Source:      model.RuleEnd{Peers: [][]model.Peer{{{Selector: model.And(in, model.Equal("app", "api"))}}}},
			Destination: model.RuleEnd{Ports: []model.PolicyPort{{Protocol: model.TCP, First: 5432, Last: 5432}}}}},
	}
	list := &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.AddressList, Name: model.Name{Name: "bad"}},
		Nets: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
	return append(web(1, "10.1.0.2"),
		pod("web", "10.1.0.1", "fd00::1"), pod("db", "10.1.0.2", "fd00::2"), pod("bridged", "10.1.0.9"),
		store.Event{Kind: model.NodeKind, Name: model.Name{Name: "node-a"}, Object: &model.Node{Name: "node-a",
			IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}},
		store.Event{Kind: model.NetworkPolicy, Name: policy.Key.Name, Object: policy},
		store.Event{Kind: model.AddressList, Name: list.Key.Name, Object: list},
	)
}

func shopLinks() model.Links {
	return model.Links{
		Links: []model.Link{
			{Index: 1, Name: "lo", Host: true}, {Index: 2, Name: "eth0", Host: true},
			{Index: 11, Name: "veth-web", Pod: true}, {Index: 12, Name: "veth-db", Pod: true},
			{Index: 13, Name: "cni0", Bridge: true, Host: true},
		},
		Routes: []model.LinkRoute{
			{Prefix: netip.MustParsePrefix("10.1.0.1/32"), Link: 11}, {Prefix: netip.MustParsePrefix("10.1.0.2/32"), Link: 12},
			{Prefix: netip.MustParsePrefix("10.1.0.8/29"), Link: 13},
			{Prefix: netip.MustParsePrefix("fd00::1/128"), Link: 11}, {Prefix: netip.MustParsePrefix("fd00::2/128"), Link: 12},
		},
		Local: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	}
}

func shopRoute(a netip.Addr) verdict.Way {
	return verdict.Way{Device: 2, Own: a == netip.MustParseAddr("192.0.2.1")}
}

func TestNothingBeforeLinks(t *testing.T) {
	links := make(chan model.Links)
	b := start(t, func(c *Config) {
		c.Compiler = compile.New(compile.Config{Config: services.Config{Node: "node-a"}, Policy: true})
		c.Links = links
	})
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	if _, err := b.client.Plan(t.Context()); err == nil || !strings.Contains(err.Error(), "interfaces") {
		t.Fatalf("Plan before the links: %v", err)
	}
	if n := b.driver.applied(); n != 0 {
		t.Fatalf("%d plans applied before the node's interfaces were known", n)
	}
	links <- shopLinks()
	b.holds(t, web1)
	close(links)
	b.source.deliver(web(2, "10.1.0.2")...)
	b.holds(t, web1, web2)
}

// Where Pods are not read (--policy=false, or no right to), nothing is said of them.
func TestUnreadPods(t *testing.T) {
	b := start(t)
	svc := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.9")}, Selector: map[string]string{"app": "web"},
		Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}
	slice := &model.EndpointSlice{Name: model.Name{Namespace: "shop", Name: "web-1"}, Service: "web", Ports: []model.EndpointPort{{Protocol: model.TCP, Port: 80}}}
	for _, a := range []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"} {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.MustParseAddr(a)})
	}
	node := &model.Node{Name: "node-a", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for _, o := range []model.Object{svc, slice, node} {
		b.source.deliver(store.Event{Kind: o.Ref().Kind, Name: o.Ref().Name, Object: o})
	}
	b.source.sync()
	eventually(t, "all is programmed", b.health.ready)
	const why = "3 endpoints, none is ready"
	if s, err := b.client.Service(t.Context(), svc.Name); err != nil || !slices.Equal(s.Unserved, []string{"port 80: " + why}) {
		t.Errorf("Service: %q, %v", s.Unserved, err)
	}
	if s := b.Services(); len(s) != 1 || !slices.Equal(s[0].Unserved, []string{"port 80: " + why}) {
		t.Errorf("Services: %+v", s)
	}
	q := question.Question{From: question.ParseEnd("node-a"), To: question.ParseEnd("svc/shop/web"), Port: "80"}
	e, err := b.client.Explain(t.Context(), q)
	if note := "Service shop/web: " + why; err != nil || !strings.Contains(fmt.Sprintf("%+v", e), note) {
		t.Errorf("Explain: %+v, %v; want %q", e, err, note)
	}
}

func TestExplain(t *testing.T) {
	others := foreign.Rules{Legacy: foreign.Legacy{Chains: foreign.LegacyChains("ip", xtables.Parse(`*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
-A FORWARD -p tcp -m limit --limit 1/sec -j DROP
-A FORWARD -p tcp -m tcp --dport 81 -m comment --comment "no telnet" -j DROP
-A INPUT -p tcp -m tcp --dport 23 -j REJECT
`))}}
	b := startPolicy(t, func(c *Config) {
		c.OtherRules = func(context.Context) (foreign.Rules, error) { return others, nil }
	})
	lost := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "lost"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.9")}, Selector: map[string]string{"app": "web"},
		Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80, TargetName: "htp"}},
	}
	b.source.deliver(store.Event{Kind: model.ServiceKind, Name: lost.Name, Object: lost})
	if err := b.client.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	const why = `1 pod, none has a port named "htp" of TCP (they name none)`
	if s, err := b.client.Service(t.Context(), lost.Name); err != nil || len(s.Unserved) != 1 || s.Unserved[0] != "port 80: "+why {
		t.Errorf("a service without endpoints: %+v, %v", s, err)
	}
	for _, c := range []struct {
		from, to string
		family   int
		allowed  bool
		answers  int
		says     string
		obstacle string
		err      string
	}{
		{"shop/web", "shop/db:5432", 0, false, 2, "isolated by NetworkPolicy shop/db", "may", ""},
		{"shop/web", "shop/db:5432", 4, false, 1, "10.1.0.1 (pod shop/web)", "may", ""},
		{"shop/web", "shop/db:5432", 6, false, 1, "fd00::2", "", ""},
		{"shop/db", "shop/web:80", 4, true, 1, "no policy applies", "may", ""},
		{"shop/db", "shop/web:81", 4, false, 1, `rule 2 ("no telnet") of iptables-legacy chain ip filter FORWARD (forward) drops it; see that rule: iptables-legacy -t filter -S FORWARD 2`, "may", ""},
		{"shop/web", "svc/shop/web-1:http", 0, false, 1, "shop/web-1", "may", ""},
		{"shop/web", "svc/shop/lost", 0, false, 1, "note: Service shop/lost: " + why, "", ""},
		{"shop/web", "node-a:22", 0, true, 1, "node node-a", "", ""},
		{"shop/web", "node-a:23", 0, false, 1, "rule 1 of iptables-legacy chain ip filter INPUT (input) rejects it", "", ""},
		{"node-a", "shop/db/icmp", 0, true, 1, "ICMP 8", "", ""},
		{"shop/web", "[fd00::2]/icmp", 0, false, 1, "ICMPv6 128", "", ""},
		{"shop/bridged", "shop/db:5432", 6, false, 0, "", "", "not both have an IPv6 address"},
		{"shop/bridged", "[fd00::2]:80", 0, false, 0, "", "", "no address family is common"},
		{"svc/shop/web-1", "shop/db:5432", 0, false, 0, "", "", "selects no pod"},
		{"shop/wep", "shop/db:5432", 0, false, 0, "", "", "did you mean shop/web"},
	} {
		q, err := question.Parse(c.from, c.to)
		if err != nil {
			t.Fatal(err)
		}
		q.Family = c.family
		e, err := b.client.Explain(t.Context(), q)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s to %s: %v, want %q", c.from, c.to, err, c.err)
			}
			continue
		}
		text := fmt.Sprint(e.Connections)
		if err != nil || (e.Outcome == verdict.Allowed) != c.allowed || len(e.Connections) != c.answers || !strings.Contains(text, c.says) {
			t.Errorf("%s to %s: %v in %d answers, want allowed %t in %d that say %q: %v\n%s", c.from, c.to, e.Outcome, len(e.Connections), c.allowed, c.answers, c.says, err, text)
		}
		if seen := fmt.Sprint(e.Obstacles); (len(e.Obstacles) > 0) != (c.obstacle != "") || !strings.Contains(seen, c.obstacle) {
			t.Errorf("%s to %s meets %v, want %q", c.from, c.to, seen, c.obstacle)
		}
	}
}

func TestExplainWarns(t *testing.T) {
	b := start(t, func(c *Config) {
		c.OtherRules = func(context.Context) (foreign.Rules, error) { return foreign.Rules{}, errKernel }
	})
	q := question.Question{From: question.ParseEnd("10.0.0.1"), To: question.ParseEnd("10.0.0.2"), Port: "80"}
	if _, err := b.client.Explain(t.Context(), q); err == nil || !strings.Contains(err.Error(), errNotSynced.Error()) {
		t.Errorf("before all is read: %v", err)
	}
	b.source.sync()
	eventually(t, "all is programmed", b.health.ready)
	e, err := b.client.Explain(t.Context(), q)
	if text := strings.Join(e.Warnings, "\n"); err != nil || !strings.Contains(text, "--policy=false") || !strings.Contains(text, errKernel.Error()) {
		t.Errorf("warnings %q, %v", text, err)
	}
	if _, err := b.client.Policies(t.Context()); err == nil || !strings.Contains(err.Error(), "--policy=false") {
		t.Errorf("policies of an agent without: %v", err)
	}
	if err := b.client.Drops(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), "mode drops nothing") {
		t.Errorf("drops of an agent without: %v", err)
	}
}

func TestPolicies(t *testing.T) {
	b := startPolicy(t)
	key := model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: "db"}}
	b.driver.counts(driver.PolicyCounter{Policy: key, Allowed: 3, Denied: 4})
	b.source.fault(model.Issue{Object: key, Source: "db.yaml", Reason: "its port is odd", InForce: model.InForceLast},
		model.Issue{Object: model.Ref{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: "new"}}, Reason: "it has no selector", InForce: model.InForceNothing},
		model.Issue{Object: model.Ref{Kind: "NetworkPolicy without a name"}, Reason: "name it"}, model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "web-1"}}.Issue("its port is odd"))
	got, err := b.client.Policies(t.Context())
	if err != nil || len(got) != 2 {
		t.Fatalf("policies: %+v, %v", got, err)
	}
	p := got[0]
	if p.Name != "db" || p.Pods != 1 || *p.Allowed != 3 || *p.Denied != 4 || !slices.Equal(p.Issues, []string{"its port is odd; in force: its last good version"}) {
		t.Errorf("policy: %+v, allowed %d, denied %d", p, *p.Allowed, *p.Denied)
	}
	if p := got[1]; p.Name != "new" || p.Namespace != "shop" || p.Tier != "" || !slices.Equal(p.Issues, []string{"it has no selector; in force: nothing of it"}) {
		t.Errorf("a policy that is not in force: %+v", p)
	}
	s, err := b.client.Status(t.Context())
	if err != nil || s.Policy == nil {
		t.Fatalf("status: %+v, %v", s, err)
	}
	want := &PolicyStatus{Policies: 1, Selected: 1, Local: 3, Rules: 1, AddressLists: map[string]int{"bad": 1}, Bridged: []string{"shop/bridged"}}
	if diff := cmp.Diff(want, s.Policy); diff != "" {
		t.Errorf("policy status (-want +got):\n%s", diff)
	}
	if text := s.Policy.Bridge(); !strings.Contains(text, "1 pod behind a bridge: judged by address alone") || !strings.Contains(text, "shop/bridged") {
		t.Error(text)
	}
	w := httptest.NewRecorder()
	b.metrics.handler(nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"sluice_policies 1", "sluice_policy_local_pods 1", `sluice_address_list_entries{name="bad"} 1`,
		`sluice_policy_packets_total{kind="NetworkPolicy",name="db",namespace="shop",verdict="allowed"} 3`,
		`sluice_policy_packets_total{kind="NetworkPolicy",name="db",namespace="shop",verdict="denied"} 4`,
		`sluice_dropped_packets_total{reason="policy"} 0`,
	} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("no %s in the metrics", line)
		}
	}
}

// The reason why a policy is refused is given once.
func TestRefusedPolicyIsExplainedOnce(t *testing.T) {
	b := startPolicy(t)
	key := model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: "odd"}}
	b.source.deliver(store.Event{Kind: model.NetworkPolicy, Name: key.Name, Object: &model.Policy{Key: key, Tier: model.DefaultTier.Name,
		Subject: model.Equal(model.NamespaceLabel, "shop"), Ingress: true, Refused: "its port is odd"}})
	b.source.fault(model.Issue{Object: key, Reason: "its port is odd", InForce: model.InForceDeny})
	eventually(t, "the policy is refused", func() bool {
		got, err := b.client.Policies(t.Context())
		i := slices.IndexFunc(got, func(p PolicyReport) bool { return p.Name == "odd" })
		return err == nil && i >= 0 && got[i].Refused == "its port is odd" && got[i].Issues == nil
	})
}

// A policy that is ignored judges nothing, and is named wherever faults are.
func TestIgnoredPolicyIsNamed(t *testing.T) {
	b := startPolicy(t)
	key := model.PolicyKey{Kind: model.CalicoPolicy, Name: model.Name{Namespace: "shop", Name: "odd"}}
	b.source.deliver(store.Event{Kind: key.Kind, Name: key.Name, Object: &model.Policy{Key: key, Tier: model.DefaultTier.Name, Refused: "its port is odd", Ignored: true}})
	b.source.fault(model.Issue{Object: key, Reason: "ignored: its port is odd", InForce: model.InForceNothing})
	eventually(t, "it is known", func() bool {
		s, err := b.client.Status(t.Context())
		return err == nil && slices.Equal(s.Policy.Ignored, []string{"NetworkPolicy.projectcalico.org shop/odd"}) && s.Policy.Refused == nil && s.Policy.Rules == 1
	})
	got, err := b.client.Policies(t.Context())
	if err != nil || len(got) != 2 || !slices.Equal(got[1].Issues, []string{"ignored: its port is odd; in force: nothing of it"}) {
		t.Errorf("policies: %+v, %v", got, err)
	}
	text := scrape(t, b.metrics.handler(nil), "/metrics")
	if line := `sluice_issue{kind="NetworkPolicy.projectcalico.org",name="odd",namespace="shop",reason="ignored: its port is odd",source=""} 1`; !strings.Contains(text, line+"\n") {
		t.Errorf("no %s in the metrics", line)
	}
}

// What other nodes decide is answered here: both ends of a connection, whichever node they are on.
func TestExplainOnOtherNodes(t *testing.T) {
	b := startPolicy(t)
	for i, node := range []string{"node-b", "node-c"} {
		pod := &model.Pod{Name: model.Name{Namespace: "far", Name: node}, Node: node, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 2, 0, byte(i + 1)})}}
		n := &model.Node{Name: node, IPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 2)})}, PodCIDRs: []netip.Prefix{netip.PrefixFrom(pod.IPs[0], 32)}}
		b.source.deliver(store.Event{Kind: model.PodKind, Name: pod.Name, Object: pod}, store.Event{Kind: model.NodeKind, Name: model.Name{Name: node}, Object: n})
	}
	key := model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "far", Name: "closed"}}
	b.source.deliver(store.Event{Kind: model.NetworkPolicy, Name: key.Name, Object: &model.Policy{Key: key, Tier: model.DefaultTier.Name,
		Subject: model.Equal(model.NamespaceLabel, "far"), Ingress: true}})
	for _, c := range []struct{ from, to, says string }{
		{"far/node-b", "far/node-c:80", "by far/node-c, ingress: isolated by NetworkPolicy far/closed"},
		{"shop/web", "far/node-c:80", "node-c  ingress  denied   far/node-c"},
		{"far/node-b", "shop/db:80", "node-a  ingress  denied   shop/db"},
		{"far/node-b", "shop/web:80", "node-a  ingress  allowed  shop/web"},
		{"far/node-b", "svc/shop/web-1:http", "node-b  service  allowed  shop/web-1 (ClusterIP)"},
		{"node/node-c", "far/node-b:80", "node-b  ingress  denied  far/node-b"},
		{"node/node-c", "far/node-c:80", "a node always reaches its own pods"},
		{"203.0.113.9", "far/node-c:80", "node-c  ingress  denied  far/node-c"},
		{"far/node-b", "203.0.113.9:80", "what is beyond node node-b is not judged"},
		{"far/node-b", "10.2.0.2:80", "(pod far/node-c)"},
	} {
		q, err := question.Parse(c.from, c.to)
		if err != nil {
			t.Fatal(err)
		}
		e, err := b.client.Explain(t.Context(), q)
		text := fmt.Sprint(e.Connections)
		want := verdict.Allowed
		if strings.Contains(text, " denied ") {
			want = verdict.Denied
		}
		warning := "" // what comes in by another node may meet deny lists there
		if c.from == "203.0.113.9" {
			warning = "node node-c is taken to have this node's flags, which name no deny lists"
		}
		if err != nil || e.Outcome != want || strings.Join(e.Warnings, "") != warning || len(e.Ask) > 0 || !strings.Contains(text, c.says) {
			t.Errorf("%s to %s: %v, %v, want %v and %q:\n%s%v", c.from, c.to, e.Outcome, err, want, c.says, text, e.Warnings)
		}
	}
}

// Where the driver carries out no policy, none decides, whatever is declared.
func TestExplainWithoutPolicy(t *testing.T) {
	b := startPolicy(t, func(c *Config) { c.Driver = unable{c.Driver.(*fakeDriver), driver.Policy} })
	e, err := b.client.Explain(t.Context(), question.Question{From: question.ParseEnd("shop/web"), To: question.ParseEnd("shop/db"), Port: "80"})
	if err != nil || e.Outcome != verdict.Allowed || !strings.Contains(strings.Join(e.Warnings, ""), "does not carry out policy") {
		t.Errorf("%s, %v, warnings %q", e.Outcome, err, e.Warnings)
	}
	if s, err := b.client.Status(t.Context()); err != nil || s.Policy != nil {
		t.Errorf("status has %+v, %v", s.Policy, err)
	}
}

// While the kernel has what an earlier agent left there, every answer may be wrong.
func TestExplainWarnsOfWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startPolicy(t, apart, before(t, web(2, "10.1.0.9")), func(c *Config) {
			c.Source.(*fakeSource).lacks("policy.yaml: it is at fault")
		})
		eventually(t, "something is kept", func() bool { return b.Status().Kept == 1 })
		e, err := b.client.Explain(t.Context(), question.Question{From: question.ParseEnd("shop/db"), To: question.ParseEnd("shop/web"), Port: "80"})
		if text := strings.Join(e.Warnings, "\n"); err != nil || !strings.Contains(text, "still judged by what it programmed") || !strings.Contains(text, "policy.yaml: it is at fault") || !strings.Contains(text, "until that is mended or deleted") {
			t.Errorf("warnings %q, %v", text, err)
		}
		b.source.lacks()
		eventually(t, "nothing is kept", func() bool { return b.Status().Kept == 0 })
		if e, err := b.client.Explain(t.Context(), question.Question{From: question.ParseEnd("shop/db"), To: question.ParseEnd("shop/web"), Port: "80"}); err != nil || len(e.Warnings) > 0 {
			t.Errorf("warnings once nothing is kept: %q, %v", e.Warnings, err)
		}
	})
}

// A broken counter is an error for those who ask, and does not end the metrics.
func TestCountersFail(t *testing.T) {
	b := startPolicy(t)
	b.driver.mu.Lock()
	b.driver.countErr = errKernel
	b.driver.mu.Unlock()
	if _, err := b.client.Policies(t.Context()); err == nil || !strings.Contains(err.Error(), errKernel.Error()) {
		t.Errorf("policies: %v", err)
	}
	w := httptest.NewRecorder()
	b.metrics.handler(nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if !strings.Contains(w.Body.String(), "sluice_policies 1\n") {
		t.Error("no metrics of policy")
	}
}

func flow(from, to string, port uint16) verdict.Flow {
	return verdict.Flow{Source: netip.MustParseAddr(from), Destination: netip.MustParseAddr(to),
		Protocol: uint8(model.TCP), SourcePort: 40000, DestinationPort: port}
}

func TestDropsHaveNames(t *testing.T) {
	b := startPolicy(t)
	back := flow("10.1.0.2", "10.1.0.1", 40000)
	back.SourcePort = 5432
	for _, c := range []struct {
		packet         Packet
		from, to, says string
	}{
		{Packet{Reason: state.DropPolicy, Flow: flow("10.1.0.1", "10.1.0.2", 5432), In: 11, Out: 12},
			"shop/web:40000", "shop/db:5432", "shop/db, ingress: isolated by NetworkPolicy shop/db"},
		{Packet{Reason: state.DropPolicy, Flow: flow("10.1.0.2", "10.1.0.1", 80), In: 12, Out: 11},
			"shop/db:40000", "shop/web:80", "have changed since"},
		{Packet{Reason: state.DropCut, Flow: back, In: 12, Out: 11},
			"shop/db:5432", "shop/web:40000", "established, and forbidden since: shop/db, ingress: isolated"},
		{Packet{Reason: state.DropCut, Flow: flow("10.1.0.2", "10.1.0.1", 80), In: 12, Out: 11},
			"shop/db:40000", "shop/web:80", "established, and forbidden since"},
		{Packet{Reason: state.DropSpoofed, Flow: flow("10.1.0.7", "192.0.2.1", 22), In: 11},
			"10.1.0.7:40000", "node node-a:22", "no known pod behind veth-web has this address"},
		{Packet{Reason: state.DropStray, Flow: flow("10.1.0.2", "203.0.113.9", 41000), In: 12, Out: 2},
			"shop/db:40000", "203.0.113.9:41000", "if they go on, see that requests come to the pod by this node"},
		{Packet{Reason: state.DropUnknownPod, Flow: flow("203.0.113.9", "10.1.0.77", 80), In: 2, Out: 2},
			"203.0.113.9:40000", "10.1.0.77:80", "no pod that is known"},
		{Packet{Reason: state.DropUnknownDevice, Flow: flow("203.0.113.9", "10.0.0.1", 80), In: 99},
			"203.0.113.9:40000", "service shop/web-1:80", "not known yet which pod is behind its interface"},
	} {
		d := b.explain(c.packet)
		if d.From.Short() != c.from || d.To.Short() != c.to || !strings.Contains(d.Says, c.says) {
			t.Errorf("%s -> %s: %s\nwant %s -> %s: %s", d.From.Short(), d.To.Short(), d.Says, c.from, c.to, c.says)
		}
	}
	d := b.explain(Packet{Reason: state.DropPolicy, Flow: verdict.Flow{Source: netip.MustParseAddr("fd00::1"), Destination: netip.MustParseAddr("fd00::2"), Protocol: 58, ICMPType: 128}, In: 11, Out: 12})
	if d.Protocol != "ICMPv6 128" || d.Interface != "veth-web" || d.Step == nil || d.Step.Stage != verdict.Ingress {
		t.Errorf("%+v", d)
	}
}

// dropKernel stands in for the kernel's log of drops.
type dropKernel struct {
	packets chan Packet
	opened  chan context.Context
	err     error
}

func newDropKernel() *dropKernel {
	return &dropKernel{packets: make(chan Packet), opened: make(chan context.Context, 1)}
}

func (k *dropKernel) open(ctx context.Context) (iter.Seq[Packet], error) {
	if k.err != nil {
		return nil, k.err
	}
	k.opened <- ctx // taking it fails if it is open already
	return func(yield func(Packet) bool) {
		for {
			select {
			case <-ctx.Done():
				<-k.opened
				return
			case p, ok := <-k.packets:
				if !ok {
					<-k.opened
					return
				}
				yield(p)
			}
		}
	}, nil
}

func TestDropLogIsOpenWhileWatched(t *testing.T) {
	k := newDropKernel()
	d := dropLog{open: k.open}
	first, err := d.watch()
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.watch()
	if err != nil {
		t.Fatal(err)
	}
	k.packets <- Packet{In: 1}
	if (<-first.packets).In != 1 || (<-second.packets).In != 1 {
		t.Error("not both are told")
	}
	d.leave(first)
	if len(k.opened) != 1 {
		t.Error("the log was closed while somebody watches")
	}
	k.packets <- Packet{In: 2}
	if (<-second.packets).In != 2 {
		t.Error("the second is not told")
	}
	d.leave(second)
	if len(k.opened) != 0 {
		t.Error("the log is open though nobody watches")
	}
	third, err := d.watch()
	if err != nil {
		t.Fatal(err)
	}
	d.leave(third)
	k.err = errKernel
	if _, err := d.watch(); !errors.Is(err, errKernel) {
		t.Errorf("a log that can't be opened: %v", err)
	}
	k.err = nil
	if w, err := d.watch(); err != nil {
		t.Error(err)
	} else {
		d.leave(w)
	}
}

func TestSlowWatcherLosesAlone(t *testing.T) {
	k := newDropKernel()
	d := dropLog{open: k.open}
	slow, err := d.watch()
	if err != nil {
		t.Fatal(err)
	}
	defer d.leave(slow)
	for n := range dropBacklog + 5 {
		k.packets <- Packet{In: n, Lost: n % 2}
	}
	eventually(t, "all came", func() bool {
		received, lost := slow.received.Load(), slow.lost.Load()
		return received == dropBacklog && lost == 5+(dropBacklog+5)/2
	})
}

// Drops from before the watcher began are not missed, also where they could not be counted then.
func TestTallyWithoutFirstCount(t *testing.T) {
	d := newFakeDriver()
	d.drop(15)
	d.mu.Lock()
	d.countErr = errKernel
	d.mu.Unlock()
	tally, w := newTally(t.Context(), d), &dropWatcher{packets: make(chan Packet, 4)}
	w.take(Packet{})
	w.take(Packet{})
	d.drop(2)
	d.mu.Lock()
	d.countErr = nil
	d.mu.Unlock()
	for range 3 {
		if got := tally.missed(t.Context(), w); got != nil {
			t.Fatalf("of 2 drops, both shown, it misses %+v", got)
		}
	}
	d.drop(3)
	tally.missed(t.Context(), w)
	if got := tally.missed(t.Context(), w); got == nil || got.Limited != 3 {
		t.Errorf("of 3 drops that are not shown, it misses %+v", got)
	}
	d.mu.Lock()
	d.dropped = 2 // of a new table
	d.mu.Unlock()
	tally.missed(t.Context(), w)
	if got := tally.missed(t.Context(), w); got == nil || got.Limited != 5 {
		t.Errorf("of 5 drops that are not shown, 2 of a new table, it misses %+v", got)
	}
}

func TestDropsStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newDropKernel()
		b := startPolicy(t, apart, func(c *Config) { c.Drops = k.open })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		packet := Packet{Time: time.Now(), Reason: state.DropPolicy, Flow: flow("10.1.0.1", "10.1.0.2", 5432), In: 11, Out: 12}
		var drops []Drop
		var missed Missed
		enough := errors.New("enough")
		started := func() {
			b.driver.mu.Lock()
			if b.driver.dropRead == 0 {
				t.Error("the stream begins before drops are counted: some would never be said to be missed")
			}
			b.driver.mu.Unlock()
			go func() { b.driver.drop(10); k.packets <- packet }()
		}
		err := b.client.Drops(ctx, started, func(r DropReport) error {
			if r.Drop != nil {
				drops = append(drops, *r.Drop)
			}
			if r.Missed != nil {
				missed = *r.Missed
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) || len(drops) != 1 || !strings.Contains(drops[0].Says, "isolated") {
			t.Errorf("drops: %+v, %v", drops, err)
		}
		if missed.Limited == 0 || missed.Limited > 10 || missed.Lost != 0 {
			t.Errorf("missed: %+v", missed)
		}
		eventually(t, "the log is closed", func() bool { return len(k.opened) == 0 })
		err = b.client.Drops(ctx, func() { close(k.packets) }, func(DropReport) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "has ended") {
			t.Errorf("when the log ends: %v", err)
		}
		k.err = errKernel
		if err := b.client.Drops(ctx, nil, nil); err == nil || !strings.Contains(err.Error(), errKernel.Error()) {
			t.Errorf("when the log can't be opened: %v", err)
		}
	})
}

func TestPodsWithoutRoute(t *testing.T) {
	var s PolicyStatus
	s.CountPods(&state.Policy{Workloads: map[netip.Addr]*state.Workload{
		netip.MustParseAddr("10.1.0.1"): {Pod: model.Name{Namespace: "shop", Name: "web"}, Device: 4},
		netip.MustParseAddr("10.1.0.2"): {Pod: model.Name{Namespace: "shop", Name: "lost"}},
	}})
	if !slices.Equal(s.Unrouted, []string{"shop/lost"}) || !strings.HasPrefix(s.NoRoute(), "1 pod to which no route leads") {
		t.Errorf("%v: %s", s.Unrouted, s.NoRoute())
	}
}
