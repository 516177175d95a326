package calico_test

import (
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/calico"
)

// decoders are the functions under test, by the kinds of the API.
var decoders = map[string]func([]byte) (model.Object, error){
	"Tier":                object(calico.Tier),
	"GlobalNetworkPolicy": object(calico.GlobalNetworkPolicy),
	"NetworkPolicy":       object(calico.NetworkPolicy),
	"GlobalNetworkSet":    object(calico.GlobalNetworkSet),
	"NetworkSet":          object(calico.NetworkSet),
	"HostEndpoint":        object(calico.HostEndpoint),
}

func object[T any, P interface {
	*T
	model.Object
}](f func([]byte, error) (P, error)) func([]byte) (model.Object, error) {
	return func(text []byte) (model.Object, error) {
		if o, err := f(text, nil); o != nil {
			return o, err
		} else {
			return nil, err
		}
	}
}

func policyOf(o model.Object) *model.Policy {
	p, _ := o.(*model.Policy)
	return p
}

// equal compares selectors by what they print, and empty slices and maps with nil ones.
var equal = cmp.Options{
	cmp.Comparer(func(a, b model.Selector) bool { return a.String() == b.String() }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

func decode(t *testing.T, kind, text string) (model.Object, error) {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return decoders[kind](data)
}

// checkError holds that an error says all of want, and is nil if there is nothing to say.
func checkError(t *testing.T, err error, want []string) {
	t.Helper()
	if err == nil {
		if len(want) > 0 {
			t.Errorf("no error; want %q", want)
		}
		return
	}
	if len(want) == 0 {
		t.Errorf("error: %v", err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
}

func selector(text string) model.Selector {
	s, err := calico.ParseSelector(text)
	if err != nil {
		panic(err)
	}
	return s
}

func nets(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, n := range list {
		out = append(out, netip.MustParsePrefix(n))
	}
	return out
}

func selects(text string) []model.Peer { return []model.Peer{{Selector: selector(text)}} }

func within(list ...string) []model.Peer { return []model.Peer{{Nets: nets(list...)}} }

// A policy is written here as its spec alone, in the namespace shop if it has one.
func policyText(spec string) string {
	return "metadata: {name: p, namespace: shop}\nspec:\n  " + strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ")
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		name string
		kind string // "" for GlobalNetworkPolicy
		spec string
		want model.Policy
	}{
		{
			name: "empty", spec: "selector: all()",
			want: model.Policy{Subject: selector("all()"), Ingress: true},
		},
		{
			name: "tier and order", spec: "{tier: security, order: -1.5, selector: role == 'db', types: [Egress], performanceHints: [AssumeNeededOnEveryNode]}",
			want: model.Policy{Tier: "security", Order: -1.5, Subject: selector("role == 'db'"), Egress: true},
		},
		{
			name: "types from rules", spec: "egress: [{action: Allow}]",
			want: model.Policy{
				Subject: selector(""), Egress: true,
				EgressRules: []model.PolicyRule{{Name: "egress[0]"}},
			},
		},
		{
			name: "types from rules of both directions", spec: "{egress: [{action: Pass}], ingress: [{action: Deny}, {action: Log, metadata: {annotations: {a: b}}}]}",
			want: model.Policy{
				Subject: selector(""), Ingress: true, Egress: true,
				IngressRules: []model.PolicyRule{{Name: "ingress[0]", Action: model.Deny}, {Name: "ingress[1]", Action: model.Log}},
				EgressRules:  []model.PolicyRule{{Name: "egress[0]", Action: model.Pass}},
			},
		},
		{
			name: "rules of a type that is not given", spec: "{types: [Ingress], egress: [{action: Allow}]}",
			want: model.Policy{Subject: selector(""), Ingress: true, IgnoresEgress: true},
		},
		{
			name: "namespaces", spec: "{selector: role == 'db', namespaceSelector: team == 'a'}",
			want: model.Policy{Subject: selector("role == 'db' && pcns.team == 'a'"), Ingress: true},
		},
		{
			name: "all namespaces", spec: "namespaceSelector: all()",
			want: model.Policy{Subject: selector("has(projectcalico.org/namespace)"), Ingress: true},
		},
		{
			name: "service accounts", spec: "{selector: role == 'db', serviceAccountSelector: team == 'a' || projectcalico.org/name == 'x'}",
			want: model.Policy{Subject: selector("role == 'db' && (pcsa.team == 'a' || projectcalico.org/serviceaccount == 'x')"), Ingress: true},
		},
		{
			name: "all service accounts", spec: "serviceAccountSelector: all()",
			want: model.Policy{Subject: selector("has(projectcalico.org/serviceaccount)"), Ingress: true},
		},
		{
			name: "service accounts that are not", spec: "{serviceAccountSelector: team != 'a', namespaceSelector: has(b)}",
			want: model.Policy{Subject: selector("has(pcns.b) && pcsa.team != 'a' && has(projectcalico.org/serviceaccount)"), Ingress: true},
		},
		{
			name: "service accounts of the namespace", kind: "NetworkPolicy", spec: "serviceAccountSelector: has(a)",
			want: model.Policy{Subject: selector("has(pcsa.a) && projectcalico.org/namespace == 'shop'"), Ingress: true},
		},
		{
			name: "not tracked", spec: "{doNotTrack: true, applyOnForward: true, types: [Ingress, Egress]}",
			want: model.Policy{Subject: selector(""), Ingress: true, Egress: true, DoNotTrack: true, ApplyOnForward: true},
		},
		{
			name: "before translation", spec: "{preDNAT: true, applyOnForward: true, ingress: [{action: Deny}]}",
			want: model.Policy{
				Subject: selector(""), Ingress: true, PreDNAT: true, ApplyOnForward: true,
				IngressRules: []model.PolicyRule{{Name: "ingress[0]", Action: model.Deny}},
			},
		},
		{
			name: "namespaced", kind: "NetworkPolicy", spec: "selector: role == 'db' || role == 'cache'",
			want: model.Policy{Subject: selector("(role == 'db' || role == 'cache') && projectcalico.org/namespace == 'shop'"), Ingress: true},
		},
		{
			name: "namespaced, all", kind: "NetworkPolicy", spec: "selector: all()",
			want: model.Policy{Subject: selector("projectcalico.org/namespace == 'shop'"), Ingress: true},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			kind := c.kind
			c.want.Key = model.PolicyKey{Kind: model.CalicoPolicy, Name: model.Name{Namespace: "shop", Name: "p"}}
			if kind == "" {
				kind = "GlobalNetworkPolicy"
				c.want.Key = model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "p"}}
			}
			if c.want.Tier == "" {
				c.want.Tier, c.want.Order = "default", math.Inf(1)
			}
			got, err := decode(t, kind, policyText(c.spec))
			checkError(t, err, nil)
			if diff := cmp.Diff(&c.want, policyOf(got), equal); diff != "" {
				t.Errorf("wrong policy (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRules(t *testing.T) {
	const own = "projectcalico.org/namespace == 'shop'"
	for _, c := range []struct {
		name   string
		rule   string
		want   model.PolicyRule // of a global policy
		inShop *model.PolicyRule
	}{
		{name: "anything", rule: "{action: Allow}"},
		{
			name: "protocol", rule: "{action: Allow, protocol: TCP, notProtocol: UDP}",
			want: model.PolicyRule{Protocol: 6, NotProtocol: 17},
		},
		{name: "protocol in small letters", rule: "{action: Allow, protocol: sctp}", want: model.PolicyRule{Protocol: 132}},
		{name: "protocol UDPLite", rule: "{action: Allow, protocol: UDPLite}", want: model.PolicyRule{Protocol: 136}},
		{name: "protocol by number", rule: "{action: Allow, protocol: 47, notProtocol: '50'}", want: model.PolicyRule{Protocol: 47, NotProtocol: 50}},
		{name: "family", rule: "{action: Allow, ipVersion: 6}", want: model.PolicyRule{Family: 6}},
		{
			name: "ICMP", rule: "{action: Allow, protocol: ICMP, icmp: {type: 8, code: 0}, notICMP: {type: 3}}",
			want: model.PolicyRule{Family: 4, Protocol: 1, ICMP: &model.ICMP{Type: 8}, NotICMP: &model.ICMP{Type: 3, Code: -1}},
		},
		{
			name: "ICMPv6", rule: "{action: Allow, protocol: 58, ipVersion: 6, icmp: {}}",
			want: model.PolicyRule{Family: 6, Protocol: 58},
		},
		{name: "all but ICMP", rule: "{action: Allow, notProtocol: ICMP}", want: model.PolicyRule{NotProtocol: 1}},
		{
			name: "ports", rule: "{action: Allow, protocol: TCP, source: {notPorts: [1]}, destination: {ports: [80, '443', '8000:8080', web, 0x50], notPorts: [8001]}}",
			want: model.PolicyRule{
				Protocol: 6,
				Source:   model.RuleEnd{NotPorts: []model.PolicyPort{{First: 1, Last: 1}}},
				Destination: model.RuleEnd{
					Ports: []model.PolicyPort{
						{First: 80, Last: 80}, {First: 443, Last: 443}, {First: 8000, Last: 8080}, {Name: "web"}, {First: 80, Last: 80},
					},
					NotPorts: []model.PolicyPort{{First: 8001, Last: 8001}},
				},
			},
		},
		{
			name: "networks", rule: "{action: Allow, source: {nets: [10.1.2.3/8, 192.0.2.1], notNets: [10.2.0.0/16]}}",
			want: model.PolicyRule{Family: 4, Source: model.RuleEnd{Peers: [][]model.Peer{within("10.0.0.0/8", "192.0.2.1/32")}, NotPeers: within("10.2.0.0/16")}},
		},
		{
			name: "networks of IPv6", rule: "{action: Allow, ipVersion: 6, destination: {notNets: ['fd00::/8']}}",
			want: model.PolicyRule{Family: 6, Destination: model.RuleEnd{NotPeers: within("fd00::/8")}},
		},
		{
			name: "selector", rule: "{action: Allow, source: {selector: a == 'b'}}",
			want:   model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects("a == 'b'")}}},
			inShop: &model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects("a == 'b' && " + own)}}},
		},
		{
			name: "everything that is known", rule: "{action: Allow, source: {selector: all()}}",
			want:   model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects("all()")}}},
			inShop: &model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects(own)}}},
		},
		{
			name: "selector and networks", rule: "{action: Allow, destination: {selector: has(a), nets: [10.0.0.0/8]}}",
			want:   model.PolicyRule{Family: 4, Destination: model.RuleEnd{Peers: [][]model.Peer{selects("has(a)"), within("10.0.0.0/8")}}},
			inShop: &model.PolicyRule{Family: 4, Destination: model.RuleEnd{Peers: [][]model.Peer{selects("has(a) && " + own), within("10.0.0.0/8")}}},
		},
		{
			name: "not a selector", rule: "{action: Allow, source: {notSelector: has(a)}}",
			want:   model.PolicyRule{Source: model.RuleEnd{NotPeers: selects("has(a)")}},
			inShop: &model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects(own)}, NotPeers: selects("has(a)")}},
		},
		{
			name: "namespaces", rule: "{action: Allow, source: {namespaceSelector: team == 'a', selector: has(a)}}",
			want: model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects("has(a) && pcns.team == 'a'")}}},
		},
		{
			name: "a namespace by its name", rule: "{action: Allow, source: {namespaceSelector: projectcalico.org/name == 'dns'}}",
			want: model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects("projectcalico.org/namespace == 'dns'")}}},
		},
		{
			name: "not in a namespace", rule: "{action: Allow, source: {namespaceSelector: global(), selector: has(a)}}",
			want: model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects("has(a) && !has(projectcalico.org/namespace)")}}},
		},
		{
			name: "service accounts", rule: "{action: Allow, source: {serviceAccounts: {names: [b, a]}}}",
			want:   model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects("projectcalico.org/serviceaccount in {'a', 'b'}")}}},
			inShop: &model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects("projectcalico.org/serviceaccount in {'a', 'b'} && " + own)}}},
		},
		{
			name: "service accounts by their labels", rule: "{action: Allow, destination: {serviceAccounts: {selector: team == 'a'}}}",
			want:   model.PolicyRule{Destination: model.RuleEnd{Peers: [][]model.Peer{selects("pcsa.team == 'a'")}}},
			inShop: &model.PolicyRule{Destination: model.RuleEnd{Peers: [][]model.Peer{selects("pcsa.team == 'a' && " + own)}}},
		},
		{
			name: "service accounts by all there is", rule: "{action: Allow, source: {serviceAccounts: {names: [b, a], selector: '!has(team)'}, selector: has(y), namespaceSelector: has(x)}}",
			want: model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects(
				"projectcalico.org/serviceaccount in {'a', 'b'} && !has(pcsa.team) && has(projectcalico.org/serviceaccount) && has(pcns.x) && has(y)")}}},
		},
		{name: "no service accounts", rule: "{action: Allow, source: {serviceAccounts: {}}}"},
		{
			name: "service accounts of namespaces", rule: "{action: Allow, source: {serviceAccounts: {names: [a]}, namespaceSelector: has(x), selector: has(y)}}",
			want: model.PolicyRule{Source: model.RuleEnd{Peers: [][]model.Peer{selects("projectcalico.org/serviceaccount == 'a' && has(pcns.x) && has(y)")}}},
		},
		{
			name: "a service", rule: "{action: Allow, protocol: TCP, source: {services: {name: x, namespace: dev}, ports: [80]}}",
			want: model.PolicyRule{Protocol: 6, Source: model.RuleEnd{
				Peers: [][]model.Peer{{{Service: model.Name{Namespace: "dev", Name: "x"}}}}, Ports: []model.PolicyPort{{First: 80, Last: 80}},
			}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Name = "ingress[0]"
			inShop := c.want
			if c.inShop != nil {
				inShop = *c.inShop
				inShop.Name = "ingress[0]"
			}
			for kind, want := range map[string]model.PolicyRule{"GlobalNetworkPolicy": c.want, "NetworkPolicy": inShop} {
				got, err := decode(t, kind, policyText("ingress: ["+c.rule+"]"))
				checkError(t, err, nil)
				if err != nil {
					continue
				}
				if diff := cmp.Diff([]model.PolicyRule{want}, policyOf(got).IngressRules, equal); diff != "" {
					t.Errorf("wrong rule of a %s (-want +got):\n%s", kind, diff)
				}
			}
		})
	}
}

// TestServiceRules holds which Service a rule names.
func TestServiceRules(t *testing.T) {
	got, err := decode(t, "NetworkPolicy", policyText("egress: [{action: Deny, destination: {services: {name: x}}}]"))
	checkError(t, err, nil)
	want := []model.PolicyRule{{Name: "egress[0]", Action: model.Deny, Destination: model.RuleEnd{Ports: []model.PolicyPort{{Service: model.Name{Namespace: "shop", Name: "x"}}}}}}
	if diff := cmp.Diff(want, policyOf(got).EgressRules, equal); diff != "" {
		t.Errorf("wrong rule (-want +got):\n%s", diff)
	}
	_, err = decode(t, "GlobalNetworkPolicy", policyText("ingress: [{action: Allow, source: {services: {name: x}}}]"))
	checkError(t, err, []string{"spec.ingress[0].source.services.namespace: is missing; a GlobalNetworkPolicy has to name"})
}

// TestRefusedPolicies holds that whatever is at fault in a rule leaves a policy that denies.
func TestRefusedPolicies(t *testing.T) {
	for _, c := range []struct {
		rule string
		errs []string
	}{
		{"{}", []string{`spec.egress[1].action: "" is none of Allow, Deny, Log and Pass`}},
		{"{action: allow}", []string{`spec.egress[1].action: "allow"`}},
		{"{action: Allow, http: {methods: [GET]}}", []string{"spec.egress[1].http: is not supported: rules are about addresses, protocols and ports"}},
		{"{action: Allow, destination: {services: {name: X}}}", []string{`spec.egress[1].destination.services.name: "X" is no name`}},
		{"{action: Allow, destination: {services: {name: x, namespace: X}}}", []string{`spec.egress[1].destination.services.namespace: "X" is no name`}},
		{"{action: Allow, destination: {services: {namespace: x}}}", []string{"spec.egress[1].destination.services.name: is missing"}},
		{"{action: Allow, destination: {services: {name: x, namespace: dev, port: 80}}}", []string{"spec.egress[1].destination.services.port: is not supported"}},
		{"{action: Allow, source: {services: {name: x, namespace: dev}}}", []string{"spec.egress[1].source.services: can stand in the source of ingress rules and the destination of egress rules alone"}},
		{"{action: Allow, protocol: TCP, destination: {services: {name: x, namespace: dev}, ports: [80]}}", []string{"spec.egress[1].destination.ports: can't stand beside services"}},
		{"{action: Allow, destination: {services: {name: x, namespace: dev}, selector: all()}}", []string{"spec.egress[1].destination.services: can't stand beside selectors"}},
		{"{action: Allow, destination: {services: {name: x, namespace: dev}, notNets: [10.0.0.0/8]}}", []string{"spec.egress[1].destination.services: can't stand beside selectors"}},
		{"{action: Allow, destination: {domains: [x]}}", []string{"spec.egress[1].destination.domains: is not supported: rules are about addresses"}},
		{"{action: Allow, source: {serviceAccounts: {selector: a = 'b'}}}", []string{"spec.egress[1].source.serviceAccounts.selector: at 3: expected =="}},
		{"{action: Allow, source: {serviceAccounts: {selector: global()}}}", []string{"source.serviceAccounts.selector: at 1: global() has a meaning in the namespaceSelector of a rule only"}},
		{"{action: Allow, source: {serviceAccounts: {name: [a]}}}", []string{"spec.egress[1].source.serviceAccounts.name: is not supported"}},
		{"{Action: Allow}", []string{"spec.egress[1].Action: is not supported"}},
		{"{action: Allow, ipVersion: 5}", []string{"spec.egress[1].ipVersion: 5 is neither 4 nor 6"}},
		{"{action: Allow, ipVersion: x}", []string{"spec.egress[1].ipVersion: string found where a whole number belongs"}},
		{"{action: Allow, protocol: 6.5}", []string{"spec.egress[1].protocol: number 6.5 found where a whole number belongs"}},
		{"{action: Allow, source: []}", []string{"spec.egress[1].source: list found where an object belongs"}},
		{"{action: Allow, source: {nets: 10.0.0.0/8}}", []string{"spec.egress[1].source.nets: string found where a list belongs"}},
		{"{action: Allow, protocol: GRE}", []string{`spec.egress[1].protocol: "GRE" is none of`}},
		{"{action: Allow, protocol: 256}", []string{`spec.egress[1].protocol: "256" is none of`}},
		{"{action: Allow, notProtocol: 0}", []string{`spec.egress[1].notProtocol: "0" is none of`}},
		{"{action: Allow, protocol: ICMP, ipVersion: 6}", []string{"spec.egress[1].protocol: is of IPv4, but spec.egress[1].ipVersion says IPv6"}},
		{"{action: Allow, notProtocol: ICMPv6, ipVersion: 4}", []string{"spec.egress[1].notProtocol: is of IPv6"}},
		{"{action: Allow, protocol: ICMPv6, source: {nets: [10.0.0.0/8]}}", []string{"spec.egress[1].source.nets: is of IPv4, but spec.egress[1].protocol says IPv6"}},
		{"{action: Allow, icmp: {type: 8}}", []string{"spec.egress[1].icmp: needs the protocol ICMP or ICMPv6"}},
		{"{action: Allow, protocol: TCP, notICMP: {type: 8}}", []string{"spec.egress[1].notICMP: needs the protocol"}},
		{"{action: Allow, protocol: ICMP, icmp: {code: 1}}", []string{"spec.egress[1].icmp.code: needs a type"}},
		{"{action: Allow, protocol: ICMP, icmp: {type: 255}}", []string{"spec.egress[1].icmp.type: 255 is not in 0-254"}},
		{"{action: Allow, protocol: ICMP, icmp: {type: 3, code: 256}}", []string{"spec.egress[1].icmp.code: 256 is not in 0-255"}},
		{"{action: Allow, destination: {ports: [80]}}", []string{"spec.egress[1].destination.ports: needs the protocol TCP, UDP or SCTP"}},
		{"{action: Allow, protocol: UDPLite, source: {notPorts: [80]}}", []string{"spec.egress[1].source.notPorts: needs the protocol"}},
		{"{action: Allow, protocol: TCP, destination: {ports: [0]}}", []string{"spec.egress[1].destination.ports[0]: 0 is not in 1-65535"}},
		{"{action: Allow, protocol: TCP, destination: {ports: [1, '1:65536']}}", []string{"spec.egress[1].destination.ports[1]: 1:65536 is not in 1-65535"}},
		{"{action: Allow, protocol: TCP, destination: {ports: ['2:1']}}", []string{"destination.ports[0]: 2:1: the first port is above the last"}},
		{"{action: Allow, protocol: TCP, destination: {ports: ['a:b']}}", []string{`destination.ports[0]: "a:b" is no port`}},
		{"{action: Allow, protocol: TCP, destination: {ports: ['a b']}}", []string{`destination.ports[0]: "a b" is no port`}},
		{"{action: Allow, source: {nets: [10.0.0.0/33]}}", []string{`spec.egress[1].source.nets[0]: "10.0.0.0/33" is no address range`}},
		{"{action: Allow, source: {nets: [10.0.0.0/8, 'fd00::/8']}}", []string{"source.nets: is of IPv6, but spec.egress[1].source.nets says IPv4"}},
		{"{action: Allow, source: {nets: [10.0.0.0/8]}, destination: {notNets: ['fd00::/8']}}", []string{"destination.notNets: is of IPv6, but spec.egress[1].source.nets says IPv4"}},
		{"{action: Allow, ipVersion: 6, source: {nets: [10.0.0.0/8]}}", []string{"source.nets: is of IPv4, but spec.egress[1].ipVersion says IPv6"}},
		{"{action: Allow, source: {selector: a = 'b'}}", []string{"spec.egress[1].source.selector: at 3: expected =="}},
		{"{action: Allow, source: {notSelector: a}}", []string{"spec.egress[1].source.notSelector: at 2: expected"}},
		{"{action: Allow, source: {namespaceSelector: '('}}", []string{"spec.egress[1].source.namespaceSelector: at 2: expected"}},
		{"{action: Allow, source: {selector: global()}}", []string{"source.selector: at 1: global() has a meaning in the namespaceSelector of a rule only"}},
		{"{action: Allow, source: {namespaceSelector: '!global()'}}", []string{"source.namespaceSelector: at 2: global() can't be combined"}},
		{"{action: x, ipVersion: 7, protocol: z}", []string{"spec.egress[1].action", "; spec.egress[1].ipVersion", "; spec.egress[1].protocol"}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			got, err := decode(t, "NetworkPolicy", policyText("{selector: has(a), ingress: [], types: [Ingress, Egress], egress: [{action: Allow}, "+c.rule+"]}"))
			checkError(t, err, c.errs)
			if err == nil {
				return
			}
			want := &model.Policy{
				Key:  model.PolicyKey{Kind: model.CalicoPolicy, Name: model.Name{Namespace: "shop", Name: "p"}},
				Tier: "default", Order: math.Inf(1), Subject: selector("has(a) && projectcalico.org/namespace == 'shop'"),
				Ingress: true, Egress: true, Refused: err.Error(),
			}
			if diff := cmp.Diff(want, policyOf(got), equal); diff != "" {
				t.Errorf("wrong policy (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnknownFields holds that a policy with a field that there is not denies what its selector
// selects.
func TestUnknownFields(t *testing.T) {
	for _, c := range []struct {
		kind, text, field string
		want              model.Policy
	}{
		{
			"GlobalNetworkPolicy", policyText("{selector: has(a), mode: strict, order: 7, types: [Egress], egress: [{action: Allow}]}"), "spec.mode",
			model.Policy{Subject: selector("has(a)"), Order: 7, Egress: true},
		},
		{
			"GlobalNetworkPolicy", policyText("{selector: all(), namespaceSelector: has(b), serviceAccountSelector: has(c), Order: 7, ingress: [{action: Pass, x: y}]}"), "spec.Order",
			model.Policy{Subject: selector("has(pcns.b) && has(pcsa.c)"), Order: math.Inf(1), Ingress: true},
		},
		{
			"NetworkPolicy", policyText("{selector: has(a), applyOnForward: true}"), "spec.applyOnForward",
			model.Policy{Subject: selector("has(a) && projectcalico.org/namespace == 'shop'"), Order: math.Inf(1), Ingress: true},
		},
		{
			"GlobalNetworkPolicy", policyText("selector: has(a)") + "\nextra: 1", "extra",
			model.Policy{Subject: selector("has(a)"), Order: math.Inf(1), Ingress: true},
		},
	} {
		got, err := decode(t, c.kind, c.text)
		checkError(t, err, []string{c.field + ": is not supported"})
		if err == nil || policyOf(got) == nil {
			t.Errorf("%s: nothing denies", c.text)
			continue
		}
		c.want.Key, c.want.Tier, c.want.Refused = policyOf(got).Key, "default", err.Error()
		if diff := cmp.Diff(&c.want, policyOf(got), equal); diff != "" {
			t.Errorf("%s: wrong policy (-want +got):\n%s", c.text, diff)
		}
	}
}

// TestUnknownPlaces holds that a policy denies of which subject and directions are known, and
// something else is not.
func TestUnknownPlaces(t *testing.T) {
	for _, c := range []struct{ spec, fault string }{
		{`"order":"first"`, "spec.order: string found where a number belongs"},
		{`"order":1,"order":2`, "spec.order: is there twice"},
		{`"order":[1]`, "spec.order: list found where a number belongs"},
		{`"tier":"a.b"`, `spec.tier: "a.b" is no name of a tier`},
		{`"tier":5`, "spec.tier: number found where a string belongs"},
		{`"types":["Ingress","Ingress"]`, "spec.types[1]: Ingress is there twice"},
		{`"preDNAT":true,"doNotTrack":true,"applyOnForward":true`, "spec.preDNAT: can't be true beside doNotTrack"},
		{`"preDNAT":true`, "spec.applyOnForward: must be true where preDNAT is"},
		{`"doNotTrack":true`, "spec.applyOnForward: must be true where doNotTrack is"},
	} {
		got, err := decoders["GlobalNetworkPolicy"]([]byte(`{"metadata":{"name":"p"},"spec":{"selector":"has(a)","ingress":[{"action":"Allow"}],` + c.spec + "}}"))
		checkError(t, err, []string{c.fault})
		p := policyOf(got)
		if err == nil || p == nil {
			t.Errorf("%s: nothing denies", c.spec)
			continue
		}
		if p.Refused != err.Error() || !p.Ingress || p.Egress || len(p.IngressRules) != 0 || p.Tier != "default" || p.Subject.String() != "has(a)" || p.Key.Name.Name != "p" {
			t.Errorf("%s: got %+v", c.spec, p)
		}
	}
	for _, spec := range []string{"{preDNAT: true, applyOnForward: true, egress: [{action: Allow}]}", "{preDNAT: true, applyOnForward: true, types: [Egress]}"} {
		got, err := decode(t, "GlobalNetworkPolicy", policyText(spec))
		checkError(t, err, []string{"spec.preDNAT: is about ingress only"})
		if policyOf(got) == nil || !policyOf(got).Egress || policyOf(got).Refused == "" {
			t.Errorf("%s: got %+v", spec, policyOf(got))
		}
	}
}

// TestUnknownSubjects holds that nothing is denied where it is not known to whom.
func TestUnknownSubjects(t *testing.T) {
	for _, c := range []struct {
		kind, text string
		errs       []string
	}{
		{"GlobalNetworkPolicy", policyText("selector: a = 'b'"), []string{"spec.selector: at 3: expected =="}},
		{"GlobalNetworkPolicy", policyText("selector: global()"), []string{"spec.selector: at 1: global() has a meaning"}},
		{"GlobalNetworkPolicy", policyText("namespaceSelector: global()"), []string{"spec.namespaceSelector: at 1: global() has a meaning"}},
		{"GlobalNetworkPolicy", policyText("serviceAccountSelector: a = 'b'"), []string{"spec.serviceAccountSelector: at 3: expected =="}},
		{"NetworkPolicy", policyText("{selector: has(a), serviceAccountSelector: global()}"), []string{"spec.serviceAccountSelector: at 1: global() has a meaning"}},
		{"GlobalNetworkPolicy", policyText("{selecter: has(a), namespaceSelector: has(b), serviceAccountSelector: has(c)}"), []string{"spec.selecter: is not supported"}},
		{"GlobalNetworkPolicy", policyText("{selector: has(a), mode: x, types: [ingress]}"), []string{"spec.mode: is not supported", `spec.types[0]: "ingress" is neither`}},
		{"NetworkPolicy", policyText("namespaceSelector: has(a)"), []string{"spec.namespaceSelector: is not supported"}},
		{"NetworkPolicy", policyText("applyOnForward: true"), []string{"spec.applyOnForward: is not supported"}},
		{"GlobalNetworkPolicy", policyText("selecter: has(a)"), []string{"spec.selecter: is not supported"}},
		{"GlobalNetworkPolicy", policyText("selector: [a]"), []string{"spec.selector: list found where a string belongs"}},
		{"GlobalNetworkPolicy", policyText("{order: first, selector: a = 'b'}"), []string{"spec.selector: at 3", "spec.order: string found where a number belongs"}},
		{"GlobalNetworkPolicy", policyText("doNotTrack: 1"), []string{"spec.doNotTrack: number found where true or false belongs"}},
		{"GlobalNetworkPolicy", policyText("types: [ingress]"), []string{`spec.types[0]: "ingress" is neither`}},
		{"GlobalNetworkPolicy", "spec: {selector: all()}", []string{"metadata.name: is missing"}},
		{"GlobalNetworkPolicy", "metadata: {name: A_b}", []string{`metadata.name: "A_b" is no name`}},
		{"NetworkPolicy", "metadata: {name: a, namespace: a/b}", []string{`metadata.namespace: "a/b" is no name`}},
		{"NetworkPolicy", "metadata: {name: a}\nextra: 1", []string{"extra: is not supported"}},
		{"NetworkPolicy", "metadata: {name: 1}", []string{"metadata.name: number found where a string belongs"}},
		{"NetworkPolicy", "[]", []string{"list found where an object belongs"}},
	} {
		got, err := decode(t, c.kind, c.text)
		checkError(t, err, c.errs)
		if got != nil {
			t.Errorf("%s: got %+v", c.text, got)
		}
	}
	got, err := decoders["GlobalNetworkPolicy"]([]byte(`{"metadata":{"name":"p"},"spec":{"selector":"all()","selector":"has(a)"}}`))
	checkError(t, err, []string{"spec.selector: is there twice"})
	if got != nil {
		t.Errorf("a selector that is there twice: got %+v", got)
	}
	_, err = decoders["GlobalNetworkPolicy"]([]byte(`{"metadata":`))
	checkError(t, err, []string{"unexpected end of JSON input"})
}

// TestStoredPolicy reads what Calico makes of a policy where it stores it.
func TestStoredPolicy(t *testing.T) {
	const text = `
apiVersion: crd.projectcalico.org/v1
kind: NetworkPolicy
metadata:
  name: default.web
  namespace: shop
  uid: 1234
  annotations:
    projectcalico.org/metadata: '{"uid":"5678","creationTimestamp":"2024-01-01T00:00:00Z"}'
  managedFields: [{manager: x}]
spec: {tier: default, order: 10, selector: all(), types: [Ingress]}
status: {conditions: []}
`
	got, err := decode(t, "NetworkPolicy", text)
	checkError(t, err, nil)
	want := &model.Policy{
		Key:  model.PolicyKey{Kind: model.CalicoPolicy, Name: model.Name{Namespace: "shop", Name: "web"}},
		Tier: "default", Order: 10, Subject: selector("projectcalico.org/namespace == 'shop'"), Ingress: true,
	}
	if diff := cmp.Diff(want, policyOf(got), equal); diff != "" {
		t.Errorf("wrong policy (-want +got):\n%s", diff)
	}
	for _, c := range []struct{ metadata, tier, want string }{
		{"{name: default.a.b}", "default", "a.b"},
		{"{name: security.a}", "security", "security.a"},
		{"{name: default.a}", "security", "default.a"},
		{`{name: default.x, annotations: {projectcalico.org/metadata: '{"name":"own"}'}}`, "default", "own"},
	} {
		got, err := decode(t, "GlobalNetworkPolicy", "metadata: "+c.metadata+"\nspec: {tier: "+c.tier+"}")
		checkError(t, err, nil)
		if err == nil && policyOf(got).Key.Name.Name != c.want {
			t.Errorf("%s in tier %s is named %q, want %q", c.metadata, c.tier, policyOf(got).Key.Name.Name, c.want)
		}
	}
	_, err = decode(t, "NetworkPolicy", "metadata: {name: a, annotations: {projectcalico.org/metadata: 'x'}}")
	checkError(t, err, []string{"metadata.annotations[projectcalico.org/metadata]: invalid character"})
}
