package compile

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// show prints what is programmed, one a line. Groups and named ports are
// written by their members, lists by their name.
func show(p *state.Policy) string {
	var b strings.Builder
	for _, a := range slices.SortedFunc(maps.Keys(p.Workloads), netip.Addr.Compare) {
		w := p.Workloads[a]
		fmt.Fprintf(&b, "%s %s dev %d", a, w.Pod, w.Device)
		if w.Bridged {
			b.WriteString(" bridged")
		}
		b.WriteString("\n")
		showRules(&b, p, "in", w.Ingress)
		showRules(&b, p, "out", w.Egress)
	}
	for _, index := range slices.Sorted(maps.Keys(p.Hosts)) {
		h := p.Hosts[index]
		fmt.Fprintf(&b, "%s %s\n", h.Name, h.Device)
		showRules(&b, p, "input", h.Input)
		showRules(&b, p, "output", h.Output)
		showRules(&b, p, "forward in", h.ForwardIn)
		showRules(&b, p, "forward out", h.ForwardOut)
		showRules(&b, p, "before dnat", h.PreDNAT)
		showRules(&b, p, "untracked in", h.UntrackedIn)
		showRules(&b, p, "untracked out", h.UntrackedOut)
	}
	if len(p.Denied.Lists) > 0 {
		b.WriteString("denied on")
		for _, d := range p.Denied.Devices {
			fmt.Fprintf(&b, " %s", d.Name)
		}
		b.WriteString(":")
		for _, l := range p.Denied.Lists {
			fmt.Fprintf(&b, " %s", l.Name)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func showRules(b *strings.Builder, p *state.Policy, what string, id state.RulesID) {
	judge := p.Rules[id]
	if judge == nil {
		return
	}
	for _, t := range judge.Tiers {
		fmt.Fprintf(b, "  %s %s", what, t.Name)
		var rules []state.Rule
		for _, own := range t.Policies {
			fmt.Fprintf(b, " %s", own.Policy.Name.Name)
			rules = append(rules, own.Rules...)
		}
		b.WriteString("\n")
		for _, r := range rules {
			fmt.Fprintf(b, "    %s %s", r.Name, r.Action)
			if r.Protocol != 0 {
				fmt.Fprintf(b, " proto %d", r.Protocol)
			}
			showEnd(b, p, "from", r.Source)
			showEnd(b, p, "to", r.Destination)
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "    else %s\n", t.Default)
	}
	fmt.Fprintf(b, "  %s else %s\n", what, judge.Default)
}

func showEnd(b *strings.Builder, p *state.Policy, what string, e state.End) {
	for _, t := range e.In {
		fmt.Fprintf(b, " %s %s", what, showTerm(p, t))
	}
	for _, t := range e.NotIn {
		fmt.Fprintf(b, " not %s %s", what, showTerm(p, t))
	}
	if e.Ports != nil {
		fmt.Fprintf(b, " %s port [%s]", what, showPorts(p, e.Ports))
	}
	if e.NotPorts != nil {
		fmt.Fprintf(b, " not %s port [%s]", what, showPorts(p, e.NotPorts))
	}
}

func showTerm(p *state.Policy, t state.Term) string {
	var parts []string
	for _, id := range t.Groups {
		for _, a := range slices.SortedFunc(maps.Keys(p.Groups[id]), netip.Addr.Compare) {
			parts = append(parts, a.String())
		}
	}
	if len(t.Lists) > 0 {
		parts = append(parts, showLists(p, t.Lists))
	}
	return "{" + strings.Join(parts, " ") + "}"
}

func showLists(p *state.Policy, refs []state.ListRef) string {
	var names []string
	for _, ref := range refs {
		names = append(names, fmt.Sprintf("<%s>%v%v", p.Lists[ref.ID].Name, ref.IPv4, ref.IPv6))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func showPorts(p *state.Policy, ports *state.Ports) string {
	var parts []string
	for _, r := range ports.Ranges {
		text := fmt.Sprintf("%v %d", r.Protocol, r.First)
		if r.Last != r.First {
			text += fmt.Sprintf("-%d", r.Last)
		}
		parts = append(parts, text)
	}
	var members []string
	for _, id := range ports.Named {
		for m := range p.NamedPorts[id] {
			members = append(members, fmt.Sprintf("%s %s:%d", m.Protocol, m.Addr, m.Port))
		}
	}
	slices.Sort(members)
	return strings.Join(append(parts, members...), ", ")
}

// pod p1 of shop at 10.0.0.1 and so on; labels by pairs.
func pod(n int, node string, kv ...string) *model.Pod {
	p := &model.Pod{
		Name: model.Name{Namespace: "shop", Name: fmt.Sprintf("p%d", n)}, Node: node,
		Labels: map[string]string{}, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})},
	}
	for i := 0; i < len(kv); i += 2 {
		p.Labels[kv[i]] = kv[i+1]
	}
	return p
}

func as(account string, p *model.Pod) *model.Pod {
	p.ServiceAccount = account
	return p
}

func in(namespace string, p *model.Pod) *model.Pod {
	p.Name.Namespace = namespace
	return p
}

// inShop selects pods of the namespace shop.
func inShop(terms ...model.Selector) model.Selector {
	return model.And(append(terms, model.Equal(model.OrchestratorLabel, "k8s"), model.Equal(model.NamespaceLabel, "shop"))...)
}

// networkPolicy is in the default tier and selects app web.
func networkPolicy(name string, change ...func(*model.Policy)) *model.Policy {
	p := &model.Policy{
		Key:  model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: name}},
		Tier: "default", Order: 1000, Subject: inShop(model.Equal("app", "web")),
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func ingress(rules ...model.PolicyRule) func(*model.Policy) {
	return func(p *model.Policy) { p.Ingress, p.IngressRules = true, rules }
}

func egress(rules ...model.PolicyRule) func(*model.Policy) {
	return func(p *model.Policy) { p.Egress, p.EgressRules = true, rules }
}

func from(peers ...model.Peer) model.PolicyRule {
	return model.PolicyRule{Name: "r", Source: model.RuleEnd{Peers: [][]model.Peer{peers}}}
}

func nets(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func toPorts(ports ...model.PolicyPort) model.PolicyRule {
	return model.PolicyRule{Name: "r", Destination: model.RuleEnd{Ports: ports}}
}

var app = func(v string) model.Peer { return model.Peer{Selector: inShop(model.Equal("app", v))} }

func TestPods(t *testing.T) {
	web := pod(1, "here", "app", "web")
	for _, tc := range []struct {
		name    string
		objects []any
		want    string
	}{
		{"a pod that no policy selects passes", []any{pod(1, "here"), networkPolicy("x", ingress())},
			"10.0.0.1 shop/p1 dev 0\n"},
		{"isolated in one direction", []any{web, networkPolicy("x", ingress())}, `
10.0.0.1 shop/p1 dev 0
  in default x
    else deny
  in else allow`},
		{"peers are pods of the whole cluster, in both families", []any{web,
			func() *model.Pod {
				p := pod(2, "there", "app", "db")
				p.IPs = append(p.IPs, netip.MustParseAddr("fd00::2"))
				return p
			}(), pod(3, "here", "app", "api"), in("prod", pod(4, "there", "app", "db")),
			networkPolicy("x", ingress(from(app("db"), app("api"))))}, `
10.0.0.1 shop/p1 dev 0
  in default x
    r allow from {10.0.0.2 10.0.0.3 fd00::2}
    else deny
  in else allow
10.0.0.3 shop/p3 dev 0`},
		{"pods on the host network, finished ones and those without an address are nobody", []any{web,
			func() *model.Pod { p := pod(2, "here", "app", "web"); p.HostNetwork = true; return p }(),
			func() *model.Pod { p := pod(3, "here", "app", "web"); p.Finished = true; return p }(),
			func() *model.Pod { p := pod(4, "here", "app", "web"); p.IPs = nil; return p }(),
			networkPolicy("x", ingress(from(app("web"))))}, `
10.0.0.1 shop/p1 dev 0
  in default x
    r allow from {10.0.0.1}
    else deny
  in else allow`},
		{"labels of the namespace, and none that are forged", []any{web,
			&model.Namespace{Name: "prod", Labels: map[string]string{"team": "red"}},
			in("prod", pod(2, "there")),
			pod(3, "there", "pcns.team", "red", model.NamespaceLabel, "prod"),
			networkPolicy("x", ingress(from(model.Peer{Selector: model.Equal("pcns.team", "red")})),
				egress(from(model.Peer{Selector: model.Equal("pcns.kubernetes.io/metadata.name", "prod")})))}, `
10.0.0.1 shop/p1 dev 0
  in default x
    r allow from {10.0.0.2}
    else deny
  in else allow
  out default x
    r allow from {10.0.0.2}
    else deny
  out else allow`},
		{"labels of the service account, and none that are forged", []any{web,
			&model.ServiceAccount{Name: model.Name{Namespace: "shop", Name: "seller"}, Labels: map[string]string{"role": "sales"}},
			as("seller", pod(2, "there")), as("buyer", pod(3, "there", "pcsa.role", "sales")),
			in("prod", as("seller", pod(4, "there"))), as("seller", pod(5, "here", "app", "db")),
			networkPolicy("x", ingress(from(model.Peer{Selector: model.Equal("pcsa.role", "sales")}))),
			networkPolicy("y", func(p *model.Policy) { p.Subject = model.Has("pcsa.role") }, egress())}, `
10.0.0.1 shop/p1 dev 0
  in default x
    r allow from {10.0.0.2 10.0.0.5}
    else deny
  in else allow
10.0.0.5 shop/p5 dev 0
  out default y
    else deny
  out else allow`},
		{"a block with exceptions is what is left of it", []any{web, networkPolicy("x", ingress(from(app("web"),
			model.Peer{Nets: nets("10.1.0.0/16")}, model.Peer{Nets: nets("10.2.0.0/29"), Except: nets("10.2.0.2/31", "10.2.0.3/32", "10.2.0.6/32")})))}, `
10.0.0.1 shop/p1 dev 0
  in default x
    r allow from {10.0.0.1 <10.1.0.0/16, 10.2.0.0/31, 10.2.0.4/31, 10.2.0.7/32>[16 31 32][]}
    else deny
  in else allow`},
		{"a peer that excludes a block with exceptions", []any{web, networkPolicy("x", ingress(model.PolicyRule{Name: "r", Source: model.RuleEnd{
			NotPeers: []model.Peer{app("web"), {Nets: nets("10.2.0.0/30"), Except: nets("10.2.0.0/31")}}}}))}, `
10.0.0.1 shop/p1 dev 0
  in default x
    r allow not from {10.0.0.1 <10.2.0.2/31>[31][]}
    else deny
  in else allow`},
		{"what nothing can match is left out", []any{web, networkPolicy("x", ingress(
			model.PolicyRule{Name: "no peer", Source: model.RuleEnd{Peers: [][]model.Peer{{}}}},
			model.PolicyRule{Name: "ports of a protocol without", Protocol: 1, Destination: model.RuleEnd{Ports: []model.PolicyPort{{First: 1, Last: 2}}}},
			model.PolicyRule{Name: "ports of another protocol", Protocol: 6, Destination: model.RuleEnd{Ports: []model.PolicyPort{{Protocol: model.UDP, First: 1, Last: 2}}}}))}, `
10.0.0.1 shop/p1 dev 0
  in default x
    else deny
  in else allow`},
		{"ports are sorted and joined", []any{web, networkPolicy("x", ingress(toPorts(
			model.PolicyPort{Protocol: model.UDP, First: 53, Last: 53}, model.PolicyPort{Protocol: model.TCP, First: 80, Last: 90},
			model.PolicyPort{Protocol: model.TCP, First: 85, Last: 95}, model.PolicyPort{Protocol: model.TCP, First: 96, Last: 96}, model.PolicyPort{Protocol: model.TCP, First: 98, Last: 98})))}, `
10.0.0.1 shop/p1 dev 0
  in default x
    r allow to port [TCP 80-96, TCP 98, UDP 53]
    else deny
  in else allow`},
		{"a port without a protocol is of the rule's, or of all", []any{web, networkPolicy("x", ingress(
			func() model.PolicyRule { r := toPorts(model.PolicyPort{First: 1, Last: 1}); r.Protocol = 17; return r }(), toPorts(model.PolicyPort{First: 1, Last: 1})))}, `
10.0.0.1 shop/p1 dev 0
  in default x
    r allow proto 17 to port [UDP 1]
    r allow to port [TCP 1, UDP 1, SCTP 1]
    else deny
  in else allow`},
		{"named ports: of this node's pods where only they can be meant", []any{
			named(web, "http", 80), named(pod(2, "there"), "http", 8080), named(pod(3, "here"), "dns", 53),
			networkPolicy("x", ingress(toPorts(model.PolicyPort{Protocol: model.TCP, Name: "http"})), egress(toPorts(model.PolicyPort{Protocol: model.TCP, Name: "http"})))}, `
10.0.0.1 shop/p1 dev 0
  in default x
    r allow to port [TCP 10.0.0.1:80]
    else deny
  in else allow
  out default x
    r allow to port [TCP 10.0.0.1:80, TCP 10.0.0.2:8080]
    else deny
  out else allow
10.0.0.3 shop/p3 dev 0`},
		{"named ports: one of several names, of a protocol or of any", []any{
			named(web, "http", 80), named(pod(2, "there"), "dns", 53), overUDP(named(pod(3, "there"), "http", 90)),
			networkPolicy("x", ingress(), egress(
				toPorts(model.PolicyPort{Protocol: model.TCP, Name: "http"}, model.PolicyPort{Protocol: model.TCP, Name: "dns"}, model.PolicyPort{Protocol: model.TCP, Name: "none"}),
				toPorts(model.PolicyPort{Name: "http"}), func() model.PolicyRule { r := toPorts(model.PolicyPort{Name: "http"}); r.Protocol = 17; return r }()))}, `
10.0.0.1 shop/p1 dev 0
  in default x
    else deny
  in else allow
  out default x
    r allow to port [TCP 10.0.0.1:80, TCP 10.0.0.2:53]
    r allow to port [TCP 10.0.0.1:80, UDP 10.0.0.3:90]
    r allow proto 17 to port [UDP 10.0.0.3:90]
    else deny
  out else allow`},
		{"tiers by their order, policies by theirs", []any{web,
			networkPolicy("b", ingress(from(app("web")))), networkPolicy("a", ingress()), networkPolicy("z", ingress(), func(p *model.Policy) { p.Order = 1 }),
			networkPolicy("base", ingress(), func(p *model.Policy) { p.Tier = "kube-baseline" }),
			networkPolicy("admin", ingress(), func(p *model.Policy) { p.Tier = "kube-admin" }),
			networkPolicy("own", ingress(), func(p *model.Policy) { p.Tier = "own" }), &model.Tier{Name: "own", Order: 5}}, `
10.0.0.1 shop/p1 dev 0
  in own own
    else deny
  in kube-admin admin
    else pass
  in default z a b
    r allow from {10.0.0.1}
    else deny
  in kube-baseline base
    else pass
  in else allow`},
		{"network sets that a selector selects", []any{web,
			networkSet(model.GlobalNetworkSet, "bad", "10.9.0.0/16", "fd00::/8", "10.9.1.0/24"),
			networkSet(model.AddressList, "good", "10.8.0.0/16"),
			networkPolicy("a", ingress(from(model.Peer{Selector: model.Equal("name", "bad")})))}, `
10.0.0.1 shop/p1 dev 0
  in default a
    r allow from {<GlobalNetworkSet bad>[16 24][8]}
    else deny
  in else allow`},
		{"policies before tracking and translation are nothing to pods", []any{web,
			networkPolicy("a", ingress(), func(p *model.Policy) { p.PreDNAT = true }), networkPolicy("b", ingress(), func(p *model.Policy) { p.DoNotTrack = true })},
			"10.0.0.1 shop/p1 dev 0\n"},
		{"of two pods with one address the one that stays is there", []any{
			func() *model.Pod { p := pod(1, "here"); p.Terminating = true; return p }(),
			func() *model.Pod { p := pod(1, "here", "app", "web"); p.Name.Name = "p2"; return p }(), networkPolicy("x", ingress())}, `
10.0.0.1 shop/p2 dev 0
  in default x
    else deny
  in else allow`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := compiled(config, model.Links{}, tc.objects...)
			if diff := gocmp.Diff(strings.TrimSpace(tc.want), strings.TrimSpace(show(c.Policy()))); diff != "" {
				t.Error(diff)
			}
			sound(t, c.Policy())
		})
	}
}

func named(p *model.Pod, name string, port uint16) *model.Pod {
	p = &model.Pod{Name: p.Name, Labels: p.Labels, IPs: p.IPs, Node: p.Node, Ports: []model.ContainerPort{{Name: name, Protocol: model.TCP, Port: port}}}
	return p
}

func overUDP(p *model.Pod) *model.Pod {
	p.Ports[0].Protocol = model.UDP
	return p
}

func networkSet(kind model.Kind, name string, n ...string) *model.NetworkSet {
	list := nets(n...)
	slices.SortFunc(list, netip.Prefix.Compare)
	return &model.NetworkSet{Key: model.NetworkSetKey{Kind: kind, Name: model.Name{Name: name}}, Labels: map[string]string{"name": name}, Nets: list}
}

var testLinks = model.Links{
	Links: []model.Link{
		{Index: 1, Name: "lo", Host: true}, {Index: 2, Name: "eth0", Host: true, Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")}},
		{Index: 3, Name: "eth1", Host: true, Addresses: []netip.Addr{netip.MustParseAddr("192.168.1.1")}},
		{Index: 4, Name: "pod1", Pod: true}, {Index: 5, Name: "br0", Bridge: true},
	},
	Routes: []model.LinkRoute{
		{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Link: 5}, {Prefix: netip.MustParsePrefix("10.0.0.1/32"), Link: 4},
	},
	Local: []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.1.1")},
}

func TestDevices(t *testing.T) {
	c := compiled(config, testLinks, pod(1, "here"), pod(2, "here"), func() *model.Pod {
		p := pod(3, "here")
		p.IPs = []netip.Addr{netip.MustParseAddr("10.7.0.1")}
		return p
	}())
	want := "10.0.0.1 shop/p1 dev 4\n10.0.0.2 shop/p2 dev 5 bridged\n10.7.0.1 shop/p3 dev 0\n"
	if diff := gocmp.Diff(want, show(c.Policy())); diff != "" {
		t.Error(diff)
	}
	p := c.Policy()
	if got := slices.Sorted(maps.Keys(p.PodDevices)); !slices.Equal(got, []int{4}) {
		t.Errorf("pod devices %v", got)
	}
	if got := slices.Sorted(maps.Keys(p.HostDevices)); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("host devices %v", got)
	}
}

func hostEndpoint(name, iface string, allow bool) *model.HostEndpoint {
	return &model.HostEndpoint{Name: name, Node: "here", Interface: iface, Labels: map[string]string{"host": "yes"}, DefaultAllow: allow}
}

// hostPolicy selects host endpoints.
func hostPolicy(name string, change ...func(*model.Policy)) *model.Policy {
	p := networkPolicy(name, change...)
	p.Key = model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: name}}
	p.Subject = model.Has("host")
	return p
}

func TestHosts(t *testing.T) {
	rule := model.PolicyRule{Name: "r", Protocol: 6}
	failsafe := Config{
		Node:             "here",
		FailsafeInbound:  []state.PortRange{{Protocol: model.TCP, First: 22, Last: 22}},
		FailsafeOutbound: []state.PortRange{{Protocol: model.UDP, First: 53, Last: 53}},
	}
	for _, tc := range []struct {
		name    string
		cfg     Config
		objects []any
		want    string
	}{
		{"nothing selects it: denied, with the failsafe ports open", failsafe, []any{hostEndpoint("h", "eth0", false)}, `
h eth0
  input failsafe ports
    failsafe allow to port [TCP 22]
    else pass
  input else deny
  output failsafe ports
    failsafe allow to port [UDP 53]
    else pass
  output else deny`},
		{"nothing selects it and its profile allows", failsafe, []any{hostEndpoint("h", "eth0", true)}, "h eth0"},
		{"a policy of its own connections", config, []any{hostEndpoint("h", "eth0", true), hostPolicy("x", ingress(rule))}, `
h eth0
  input default x
    r allow proto 6
    else deny
  input else allow`},
		{"a policy of forwarded ones too", config, []any{hostEndpoint("h", "eth0", true), hostPolicy("x", egress(rule), func(p *model.Policy) { p.ApplyOnForward = true })}, `
h eth0
  output default x
    r allow proto 6
    else deny
  output else allow
  forward out default x
    r allow proto 6
    else deny
  forward out else allow`},
		{"before translation nothing is denied by default", failsafe, []any{hostEndpoint("h", "eth0", true), hostPolicy("x", ingress(rule), func(p *model.Policy) { p.PreDNAT = true })}, `
h eth0
  before dnat failsafe ports
    failsafe allow to port [TCP 22]
    else pass
  before dnat default x
    r allow proto 6
    else pass
  before dnat else allow`},
		{"untracked: replies of the failsafe ports pass as well", failsafe, []any{hostEndpoint("h", "eth0", true), hostPolicy("x", ingress(rule), egress(), func(p *model.Policy) { p.DoNotTrack = true })}, `
h eth0
  untracked in failsafe untracked ports
    failsafe allow to port [TCP 22]
    failsafe replies allow from port [UDP 53]
    else pass
  untracked in default x
    r allow proto 6
    else pass
  untracked in else allow
  untracked out failsafe untracked ports
    failsafe allow to port [UDP 53]
    failsafe replies allow from port [TCP 22]
    else pass
  untracked out default x
    else pass
  untracked out else allow`},
		{"a name before an address before all; never a pod's interface, nor lo for all", config, []any{
			hostEndpoint("all", "*", true), hostEndpoint("name", "eth0", true), hostEndpoint("pod", "pod1", true),
			func() *model.HostEndpoint {
				h := hostEndpoint("addr", "", true)
				h.Addresses = []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.1.1")}
				return h
			}()}, "name eth0\naddr eth1"},
		{"all of the node's own", config, []any{hostEndpoint("all", "*", true)}, "all eth0\nall eth1"},
		{"another node's", config, []any{func() *model.HostEndpoint { h := hostEndpoint("h", "eth0", false); h.Node = "there"; return h }()}, ""},
		{"a pod's policy does not select it", config, []any{hostEndpoint("h", "eth0", true), networkPolicy("x", ingress(), func(p *model.Policy) {
			p.Subject = model.Equal(model.OrchestratorLabel, "k8s")
		})}, "h eth0"},
		{"its addresses are a peer", config, []any{pod(1, "here", "app", "web"),
			&model.HostEndpoint{Name: "h", Node: "there", Labels: map[string]string{"host": "yes"}, Addresses: []netip.Addr{netip.MustParseAddr("192.168.7.7")}},
			networkPolicy("x", ingress(from(model.Peer{Selector: model.Has("host")})))}, `
10.0.0.1 shop/p1 dev 4
  in default x
    r allow from {192.168.7.7}
    else deny
  in else allow`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := compiled(tc.cfg, testLinks, tc.objects...)
			if diff := gocmp.Diff(strings.TrimSpace(tc.want), strings.TrimSpace(show(c.Policy()))); diff != "" {
				t.Error(diff)
			}
			sound(t, c.Policy())
		})
	}
}

func TestDenyLists(t *testing.T) {
	cfg := Config{Node: "here", DenyLists: []string{"bad", "none", "bad"}, DenyDevices: []string{"eth1", "eth0", "eth7"}}
	c := compiled(cfg, testLinks, networkSet(model.AddressList, "bad", "1.2.3.4/32", "fd00::/8"), networkSet(model.GlobalNetworkSet, "none", "1.2.3.5/32"))
	if got, want := show(c.Policy()), "denied on eth0 eth1: AddressList bad\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	want := []model.Issue{
		model.Ref{Kind: "AddressList", Name: model.Name{Name: "none"}}.Issue("is to be denied and is not known: name its file with --address-list none=FILE"),
		{Object: model.Ref{Kind: "interface", Name: model.Name{Name: "eth7"}}, Reason: "is named by --deny-device and this node has no interface of that name, so no deny list holds there"},
	}
	if diff := gocmp.Diff(want, c.Issues()); diff != "" {
		t.Error(diff)
	}
}

func TestIssues(t *testing.T) {
	c := compiled(config, testLinks,
		pod(1, "here"), func() *model.Pod { p := pod(1, "here"); p.Name.Name = "p2"; return p }(),
		hostEndpoint("h1", "eth7", false), hostEndpoint("h2", "", false), hostEndpoint("h3", "eth0", false), hostEndpoint("h4", "eth0", false))
	want := []model.Issue{
		model.Ref{Kind: model.HostEndpointKind, Name: model.Name{Name: "h1"}}.Issue(`interface "eth7" is not one of the node's own, so nothing is programmed for it`),
		model.Ref{Kind: model.HostEndpointKind, Name: model.Name{Name: "h2"}}.Issue("no interface of this node has an address of it, so nothing is programmed for it"),
		model.Ref{Kind: model.HostEndpointKind, Name: model.Name{Name: "h4"}}.Issue(`interface "eth0" belongs to HostEndpoint h3, so nothing is programmed for it`),
		model.Ref{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: "p2"}}.Issue("address 10.0.0.1 is Pod shop/p1's too, whose policies hold there; delete one of them"),
	}
	if diff := gocmp.Diff(want, c.Issues()); diff != "" {
		t.Error(diff)
	}
}

func TestViews(t *testing.T) {
	order := 1000.0
	c := compiled(config, testLinks, pod(1, "here", "app", "web"), pod(2, "here", "app", "web"), pod(3, "there", "app", "web"), hostEndpoint("h", "eth0", false),
		networkPolicy("b", ingress()), networkPolicy("a", func(p *model.Policy) { p.Refused = "no good" }),
		hostPolicy("host", ingress(), func(p *model.Policy) { p.Order, p.Tier = math.Inf(1), "kube-admin" }))
	want := []View{
		{Kind: "GlobalNetworkPolicy", Name: "host", Tier: "kube-admin", HostEndpoints: 1},
		{Kind: "NetworkPolicy", Namespace: "shop", Name: "a", Tier: "default", Order: &order, Pods: 2, Refused: "no good"},
		{Kind: "NetworkPolicy", Namespace: "shop", Name: "b", Tier: "default", Order: &order, Pods: 2},
	}
	if diff := gocmp.Diff(want, c.Views()); diff != "" {
		t.Error(diff)
	}
}

// What a change costs a driver: its members one by one, and Rules only where rules change.
func TestDeltas(t *testing.T) {
	web, db := pod(1, "here", "app", "web"), pod(2, "there", "app", "db")
	set := networkSet(model.GlobalNetworkSet, "bad", "10.9.0.0/16")
	wider := networkSet(model.GlobalNetworkSet, "bad", "10.9.0.0/16", "10.7.0.0/24")
	policy := networkPolicy("x", ingress(from(app("db"), model.Peer{Selector: model.Has("name")})))
	for _, tc := range []struct {
		name  string
		event any
		want  string
	}{
		{"a pod joins a group", pod(3, "there", "app", "db"), "1 groups with 1"},
		{"a pod leaves a group", pod(2, "there", "app", "api"), "1 groups with 1"},
		{"a pod changes its address", func() *model.Pod { p := pod(2, "there", "app", "db"); p.IPs = pod(9, "").IPs; return p }(), "1 groups with 2"},
		{"a pod that is of no interest", pod(4, "there", "app", "api"), ""},
		{"a pod that is ready now", func() *model.Pod { p := pod(2, "there", "app", "db"); p.Ready = true; return p }(), ""},
		{"a list with other networks of the same lengths", networkSet(model.GlobalNetworkSet, "bad", "10.8.0.0/16"), "1 lists"},
		{"a list with another length", wider, "2 rules 1 workloads 1 lists"},
		{"a list that nobody selects", func() *model.NetworkSet {
			set := networkSet(model.GlobalNetworkSet, "other", "10.8.0.0/16")
			set.Labels = nil
			return set
		}(), ""},
		{"another list that is selected", networkSet(model.GlobalNetworkSet, "other", "10.8.0.0/16"), "2 rules 1 workloads 1 lists"},
		{"a policy that is written anew and is the same", networkPolicy("x", ingress(from(model.Peer{Selector: model.Has("name")}, app("db")))), ""},
		{"a policy that selects no pod here", networkPolicy("y", ingress(), func(p *model.Policy) { p.Subject = model.Has("nothing") }), ""},
		{"a pod that comes with the same policies", pod(5, "here", "app", "web"), "1 workloads"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHistory(config, sets.IDSpace)
			h.apply(t, event(web), event(db), event(set), event(policy))
			if got := summary(h.apply(t, event(tc.event))); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			same(t, h.compiler, h.fresh())
		})
	}
}

func summary(d state.PolicyDelta) string {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(len(d.Rules), "rules")
	add(len(d.Workloads), "workloads")
	for _, g := range slices.SortedFunc(maps.Values(d.Groups), func(a, b map[netip.Addr]bool) int { return cmp.Compare(len(a), len(b)) }) {
		add(len(d.Groups), fmt.Sprintf("groups with %d", len(g)))
	}
	add(len(d.NamedPorts), "named")
	add(len(d.PortSets), "ports")
	add(len(d.Lists), "lists")
	return strings.Join(parts, " ")
}

// What of a pod changes without its labels and addresses is noticed too.
func TestSmallChanges(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	second := func() *model.Pod { p := pod(1, "here"); p.Name.Name = "p2"; return p }()
	h.apply(t, event(named(pod(1, "here", "app", "web"), "http", 80)), event(second),
		event(networkPolicy("x", ingress(toPorts(model.PolicyPort{Protocol: model.TCP, Name: "http"})))))
	if got := summary(h.apply(t, event(named(pod(1, "here", "app", "web"), "http", 81)))); got != "1 named" {
		t.Errorf("another port: %q", got)
	}
	dying := named(pod(1, "here", "app", "web"), "http", 81)
	dying.Terminating = true
	if got := summary(h.apply(t, event(dying))); got != "1 workloads" {
		t.Errorf("a pod with the same address gets it: %q", got)
	}
	if got, want := show(h.compiler.Policy()), "10.0.0.1 shop/p2 dev 0\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	same(t, h.compiler, h.fresh())
}

// Another label of a service account moves its pods, and nobody else's.
func TestServiceAccountChanges(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	account := func(name, role string) store.Event {
		return event(&model.ServiceAccount{Name: model.Name{Namespace: "shop", Name: name}, Labels: map[string]string{"role": role}})
	}
	h.apply(t, event(pod(1, "here", "app", "web")), account("seller", "sales"), account("buyer", "sales"),
		event(as("seller", pod(2, "there"))), event(as("seller", pod(3, "there"))), event(as("buyer", pod(4, "there"))),
		event(networkPolicy("x", ingress(from(model.Peer{Selector: model.Equal("pcsa.role", "sales")})))))
	for _, step := range []struct {
		name  string
		event store.Event
		want  string
	}{
		{"another label", account("seller", "other"), "1 groups with 2"},
		{"the label is back", account("seller", "sales"), "1 groups with 2"},
		{"nothing new", account("seller", "sales"), ""},
		{"the account goes", store.Event{Kind: model.ServiceAccountKind, Name: model.Name{Namespace: "shop", Name: "buyer"}}, ""},
		{"the last pod that ran as it goes", store.Event{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: "p4"}}, "1 groups with 1"},
		{"a pod gets an account that is gone for good", event(as("buyer", pod(2, "there"))), "1 groups with 1"},
	} {
		if got := summary(h.apply(t, step.event)); got != step.want {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
		same(t, h.compiler, h.fresh())
	}
}
