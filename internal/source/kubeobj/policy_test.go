package kubeobj_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
)

var policyEqual = cmp.Options{
	cmp.Comparer(func(a, b model.Selector) bool { return a.String() == b.String() }),
	equal,
}

// networkPolicy translates the policy shop/p with a spec.
func networkPolicy(t *testing.T, spec string) (*model.Policy, error) {
	t.Helper()
	var o networkingv1.NetworkPolicy
	if err := yaml.UnmarshalStrict([]byte("{metadata: {name: p, namespace: shop}, spec: "+spec+"}"), &o); err != nil {
		t.Fatal(err)
	}
	return kubeobj.NetworkPolicy(&o)
}

// clusterPolicy translates the policy p with a spec.
func clusterPolicy(t *testing.T, spec string) (*model.Policy, error) {
	t.Helper()
	var o policyv1beta1.ClusterNetworkPolicy
	if err := yaml.UnmarshalStrict([]byte("{metadata: {name: p}, spec: "+spec+"}"), &o); err != nil {
		t.Fatal(err)
	}
	return kubeobj.ClusterNetworkPolicy(&o)
}

// inShop selects pods of the namespace shop.
func inShop(terms ...model.Selector) model.Selector {
	return model.And(append(terms, pods(), model.Equal("projectcalico.org/namespace", "shop"))...)
}

func pods(terms ...model.Selector) model.Selector {
	return model.And(append(terms, model.Equal("projectcalico.org/orchestrator", "k8s"))...)
}

func selected(selectors ...model.Selector) [][]model.Peer {
	var peers []model.Peer
	for _, s := range selectors {
		peers = append(peers, model.Peer{Selector: s})
	}
	return [][]model.Peer{peers}
}

// allPorts are the ports of a NetworkPolicy's rule that names none.
var allPorts = []model.PolicyPort{
	{Protocol: model.TCP, Last: 65535}, {Protocol: model.UDP, Last: 65535}, {Protocol: model.SCTP, Last: 65535},
}

func allowed(name string, source, destination [][]model.Peer, ports ...model.PolicyPort) model.PolicyRule {
	r := model.PolicyRule{Name: name}
	r.Source.Peers, r.Destination.Peers, r.Destination.Ports = source, destination, ports
	if ports == nil {
		r.Destination.Ports = allPorts
	}
	return r
}

func networks(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, n := range list {
		out = append(out, netip.MustParsePrefix(n))
	}
	return out
}

func TestNetworkPolicy(t *testing.T) {
	has, eq, in, not := model.Has, model.Equal, model.In, model.Not
	for _, c := range []struct {
		name, spec string
		want       model.Policy
	}{
		{
			name: "deny all", spec: "{podSelector: {}}",
			want: model.Policy{Subject: inShop(), Ingress: true},
		},
		{
			name: "deny all egress", spec: "{podSelector: {matchLabels: {app: web, tier: front}}, policyTypes: [Egress]}",
			want: model.Policy{Subject: inShop(eq("app", "web"), eq("tier", "front")), Egress: true},
		},
		{
			name: "types from rules", spec: "{podSelector: {}, egress: [{}]}",
			want: model.Policy{Subject: inShop(), Ingress: true, Egress: true, EgressRules: []model.PolicyRule{allowed("egress[0]", nil, nil)}},
		},
		{
			name: "types that are given", spec: "{podSelector: {}, policyTypes: [Ingress], egress: [{}], ingress: [{}]}",
			want: model.Policy{Subject: inShop(), Ingress: true, IngressRules: []model.PolicyRule{allowed("ingress[0]", nil, nil)}, IgnoresEgress: true},
		},
		{
			name: "all operators",
			spec: `{podSelector: {matchExpressions: [{key: a, operator: In, values: ['y', x]}, {key: b, operator: NotIn, values: [z]},
				{key: c, operator: Exists}, {key: d/e, operator: DoesNotExist}]}}`,
			want: model.Policy{Subject: inShop(in("a", "x", "y"), not(eq("b", "z")), has("c"), not(has("d/e"))), Ingress: true},
		},
		{
			name: "peers",
			spec: `{podSelector: {}, ingress: [{from: [
				{podSelector: {matchLabels: {a: b}}},
				{podSelector: {}},
				{namespaceSelector: {}},
				{namespaceSelector: {matchLabels: {team: x}, matchExpressions: [{key: env, operator: NotIn, values: [test]}]}},
				{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: dns}}, podSelector: {matchExpressions: [{key: a, operator: Exists}]}},
				]}]}`,
			want: model.Policy{Subject: inShop(), Ingress: true, IngressRules: []model.PolicyRule{allowed("ingress[0]", selected(
				inShop(eq("a", "b")), inShop(), pods(), pods(eq("pcns.team", "x"), not(eq("pcns.env", "test"))),
				pods(eq("pcns.kubernetes.io/metadata.name", "dns"), has("a")),
			), nil)}},
		},
		{
			name: "address ranges",
			spec: `{podSelector: {}, policyTypes: [Egress], egress: [{to: [
				{ipBlock: {cidr: 10.1.2.3/8, except: [10.1.0.0/16, 10.2.0.1/32]}}, {ipBlock: {cidr: 'fd00::/8'}}, {ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}]}]}`,
			want: model.Policy{Subject: inShop(), Egress: true, EgressRules: []model.PolicyRule{allowed("egress[0]", nil, [][]model.Peer{{
				{Nets: networks("10.0.0.0/8"), Except: networks("10.1.0.0/16", "10.2.0.1/32")},
				{Nets: networks("fd00::/8")},
				{Nets: networks("0.0.0.0/0"), Except: networks("10.0.0.0/8")},
			}})}},
		},
		{
			name: "ports",
			spec: `{podSelector: {}, ingress: [{}, {ports: [{port: 80}, {port: 53, protocol: UDP}, {protocol: SCTP}, {},
				{port: web}, {port: dns, protocol: UDP}, {port: 8000, endPort: 8080}, {port: 1, endPort: 65535}, {port: 7, endPort: 7}]}]}`,
			want: model.Policy{Subject: inShop(), Ingress: true, IngressRules: []model.PolicyRule{
				allowed("ingress[0]", nil, nil),
				allowed("ingress[1]", nil, nil,
					model.PolicyPort{Protocol: model.TCP, First: 80, Last: 80}, model.PolicyPort{Protocol: model.UDP, First: 53, Last: 53},
					allPorts[2], allPorts[0],
					model.PolicyPort{Protocol: model.TCP, Name: "web"}, model.PolicyPort{Protocol: model.UDP, Name: "dns"},
					model.PolicyPort{Protocol: model.TCP, First: 8000, Last: 8080}, model.PolicyPort{Protocol: model.TCP, First: 1, Last: 65535},
					model.PolicyPort{Protocol: model.TCP, First: 7, Last: 7}),
			}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Key = model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: "p"}}
			c.want.Tier, c.want.Order = "default", 1000
			got, err := networkPolicy(t, c.spec)
			checkError(t, err, nil)
			if diff := cmp.Diff(&c.want, got, policyEqual); diff != "" {
				t.Errorf("wrong policy (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRefusedNetworkPolicy: a fault in a rule leaves a policy that isolates, and allows what could
// be read: the peers and ports without a fault.
func TestRefusedNetworkPolicy(t *testing.T) {
	for _, c := range []struct {
		rule string
		errs []string
		rest string
	}{
		{"{from: [{}, {ipBlock: {cidr: 10.2.0.0/16, except: [10.1.0.0/16]}}]}", []string{
			"spec.ingress[1].from[0].podSelector: is missing", "; spec.ingress[1].from[1].ipBlock.except[0]: 10.1.0.0/16 is not inside 10.2.0.0/16",
		}, ""},
		{"{from: [{ipBlock: {cidr: 10.2.0.0/16, except: [10.2.0.0/16]}}]}", []string{"from[0].ipBlock.except[0]: 10.2.0.0/16 is not smaller than 10.2.0.0/16"}, ""},
		{"{from: [{ipBlock: {cidr: 10.2.0.0/16, except: [10.0.0.0/8]}}]}", []string{"from[0].ipBlock.except[0]: 10.0.0.0/8 is not inside"}, ""},
		{"{from: [{ipBlock: {cidr: 10.2.0.0/16, except: ['fd00::/64']}}]}", []string{"from[0].ipBlock.except[0]: fd00::/64 is not inside"}, ""},
		{"{from: [{ipBlock: {cidr: 10.2.0.0/16, except: [10.2.0.1]}}]}", []string{`from[0].ipBlock.except[0]: "10.2.0.1" is no address range`}, ""},
		{"{from: [{ipBlock: {cidr: 10.2.0/16}}]}", []string{`spec.ingress[1].from[0].ipBlock.cidr: "10.2.0/16" is no address range`}, ""},
		{"{from: [{ipBlock: {cidr: ''}}]}", []string{"from[0].ipBlock.cidr"}, ""},
		{"{from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}", []string{"from[0].ipBlock: can't stand beside"}, ""},
		{"{from: [{podSelector: {matchLabels: {'a b': c}}}]}", []string{`from[0].podSelector.matchLabels[a b]: "a b" is no label key`}, ""},
		{"{from: [{podSelector: {matchLabels: {a: 'b c'}}}]}", []string{`from[0].podSelector.matchLabels[a]: "b c" is no label value`}, ""},
		{"{from: [{namespaceSelector: {matchExpressions: [{key: a, operator: in, values: [x]}]}}]}", []string{`from[0].namespaceSelector.matchExpressions[0].operator: "in" is none of`}, ""},
		{"{from: [{namespaceSelector: {matchExpressions: [{key: a, operator: In}]}}]}", []string{"matchExpressions[0].values: In needs a value"}, ""},
		{"{from: [{namespaceSelector: {matchExpressions: [{key: a, operator: Exists, values: [x]}]}}]}", []string{"matchExpressions[0].values: Exists takes no values"}, ""},
		{"{from: [{namespaceSelector: {matchExpressions: [{operator: NotIn, values: ['-']}]}}]}", []string{"matchExpressions[0].key", `matchExpressions[0].values[0]: "-" is no label value`}, ""},
		{"{ports: [{port: 0}]}", []string{"spec.ingress[1].ports[0].port: 0 is not in 1-65535"}, ""},
		{"{ports: [{port: 80}, {port: 65536}]}", []string{"ports[1].port: 65536"}, ", {ports: [{port: 80}]}"},
		{"{from: [{ipBlock: {cidr: 10.2.0/16}}, {ipBlock: {cidr: 010.003.000.000/16}}]}", []string{"from[0].ipBlock.cidr"}, ", {from: [{ipBlock: {cidr: 10.3.0.0/16}}]}"},
		{"{ports: [{protocol: ICMP}]}", []string{`ports[0].protocol: "ICMP" is none of`}, ""},
		{"{ports: [{port: 80, endPort: 79}]}", []string{"ports[0].endPort: 79 is below port 80"}, ""},
		{"{ports: [{port: 80, endPort: 65536}]}", []string{"ports[0].endPort: 65536"}, ""},
		{"{ports: [{endPort: 80}]}", []string{"ports[0].endPort: 80 needs the number of a first port"}, ""},
		{"{ports: [{port: web, endPort: 80}]}", []string{"ports[0].endPort: 80 needs the number"}, ""},
		{"{ports: [{port: not_a_port}]}", []string{`ports[0].port: "not_a_port" is no name of a port`}, ""},
		{"{ports: [{port: ''}]}", []string{`ports[0].port: "" is no name of a port`}, ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			got, err := networkPolicy(t, "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress], ingress: [{}, "+c.rule+"], egress: [{}]}")
			checkError(t, err, c.errs)
			if err == nil {
				return
			}
			want, good := networkPolicy(t, "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress], ingress: [{}"+c.rest+"], egress: [{}]}")
			checkError(t, good, nil)
			want.Refused = err.Error()
			if diff := cmp.Diff(want, got, policyEqual); diff != "" {
				t.Errorf("wrong policy (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNetworkPolicyOfUnknownSubject: a policy denies nothing if it is unknown to whom it applies.
func TestNetworkPolicyOfUnknownSubject(t *testing.T) {
	for _, c := range []struct {
		spec string
		errs []string
	}{
		{"{podSelector: {matchLabels: {'': x}}}", []string{"spec.podSelector.matchLabels[]"}},
		{"{podSelector: {matchExpressions: [{key: a, operator: Is}]}}", []string{`spec.podSelector.matchExpressions[0].operator: "Is"`}},
		{"{podSelector: {}, policyTypes: [ingress]}", []string{`spec.policyTypes[0]: "ingress" is neither Ingress nor Egress`}},
	} {
		got, err := networkPolicy(t, c.spec)
		checkError(t, err, c.errs)
		if got != nil {
			t.Errorf("%s: got %+v", c.spec, got)
		}
	}
	got, err := kubeobj.NetworkPolicy(&networkingv1.NetworkPolicy{})
	checkError(t, err, []string{"metadata.name: is missing", "metadata.namespace: is missing"})
	if got != nil {
		t.Errorf("a policy without a name: got %+v", got)
	}
}

func TestClusterNetworkPolicy(t *testing.T) {
	has, eq := model.Has, model.Equal
	rule := func(name string, action model.Action, source, destination [][]model.Peer, ports ...model.PolicyPort) model.PolicyRule {
		r := model.PolicyRule{Name: name, Action: action}
		r.Source.Peers, r.Destination.Peers, r.Destination.Ports = source, destination, ports
		return r
	}
	for _, c := range []struct {
		name, spec string
		want       model.Policy
	}{
		{
			name: "no rules", spec: "{tier: Admin, priority: 0, subject: {namespaces: {}}}",
			want: model.Policy{Tier: "kube-admin", Subject: pods()},
		},
		{
			name: "actions and peers",
			spec: `{tier: Baseline, priority: 1000, subject: {pods: {namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {app: web}}}},
				ingress: [{name: from friends, action: Accept, from: [{namespaces: {matchLabels: {team: b}}},
						{pods: {namespaceSelector: {}, podSelector: {matchExpressions: [{key: x, operator: Exists}]}}}]},
					{action: Pass, from: [{namespaces: {}}]}, {action: Deny, from: [{namespaces: {}}]}],
				egress: [{action: Deny, to: [{networks: [10.0.0.1/8, 'fd00::/8']}, {namespaces: {}}, {pods: {namespaceSelector: {}, podSelector: {}}}]}]}`,
			want: model.Policy{
				Tier: "kube-baseline", Order: 1000, Subject: pods(eq("pcns.team", "a"), eq("app", "web")), Ingress: true, Egress: true,
				IngressRules: []model.PolicyRule{
					rule("from friends", model.Allow, selected(pods(eq("pcns.team", "b")), pods(has("x"))), nil),
					rule("ingress[1]", model.Pass, selected(pods()), nil),
					rule("ingress[2]", model.Deny, selected(pods()), nil),
				},
				EgressRules: []model.PolicyRule{
					rule("egress[0]", model.Deny, nil, [][]model.Peer{{{Nets: networks("10.0.0.0/8", "fd00::/8")}, {Selector: pods()}, {Selector: pods()}}}),
				},
			},
		},
		{
			name: "protocols",
			spec: `{tier: Admin, priority: 5, subject: {namespaces: {matchLabels: {a: b}}}, ingress: [{action: Accept, from: [{namespaces: {}}], protocols: [
				{tcp: {destinationPort: {number: 80}}}, {udp: {destinationPort: {range: {start: 5000, end: 6000}}}}, {sctp: {destinationPort: {number: 1}}}, {destinationNamedPort: web}]}]}`,
			want: model.Policy{
				Tier: "kube-admin", Order: 5, Subject: pods(eq("pcns.a", "b")), Ingress: true,
				IngressRules: []model.PolicyRule{rule("ingress[0]", model.Allow, selected(pods()), nil,
					model.PolicyPort{Protocol: model.TCP, First: 80, Last: 80}, model.PolicyPort{Protocol: model.UDP, First: 5000, Last: 6000},
					model.PolicyPort{Protocol: model.SCTP, First: 1, Last: 1}, model.PolicyPort{Name: "web"})},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Key = model.PolicyKey{Kind: model.ClusterPolicy, Name: model.Name{Name: "p"}}
			got, err := clusterPolicy(t, c.spec)
			checkError(t, err, nil)
			if diff := cmp.Diff(&c.want, got, policyEqual); diff != "" {
				t.Errorf("wrong policy (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRefusedClusterNetworkPolicy: a fault in a rule leaves a policy that denies.
func TestRefusedClusterNetworkPolicy(t *testing.T) {
	const to, named = "{action: Accept, to: [{namespaces: {}}], protocols: ", "{destinationNamedPort: web}"
	for _, c := range []struct {
		rule string
		errs []string
	}{
		{"{action: Accept, to: [{nodes: {}}]}", []string{"spec.egress[1].to[0].nodes: is an experimental field and not supported"}},
		{"{action: Accept, to: [{domainNames: [a.example]}]}", []string{"spec.egress[1].to[0].domainNames: is an experimental field and not supported"}},
		{"{action: Accept, to: []}", []string{"spec.egress[1].to: is empty"}},
		{"{action: Accept, to: [{}]}", []string{"spec.egress[1].to[0].namespaces: is missing"}},
		{"{action: Accept, to: [{namespaces: {}, networks: [10.0.0.0/8]}]}", []string{"to[0].networks: can't stand beside"}},
		{"{action: Accept, to: [{namespaces: {}, pods: {namespaceSelector: {}, podSelector: {}}}]}", []string{"to[0].pods: can't stand beside namespaces"}},
		{"{action: Accept, to: [{networks: [10.0.0.0/8, x]}]}", []string{`to[0].networks[1]: "x" is no address range`}},
		{"{action: Accept, to: [{pods: {namespaceSelector: {matchLabels: {'': x}}, podSelector: {matchLabels: {a: '-'}}}}]}",
			[]string{"to[0].pods.namespaceSelector.matchLabels[]", "to[0].pods.podSelector.matchLabels[a]"}},
		{"{action: Allow, to: [{namespaces: {}}]}", []string{`spec.egress[1].action: "Allow" is none of Accept, Deny and Pass`}},
		{"{name: " + strings.Repeat("a", 101) + ", action: Deny, to: [{namespaces: {}}]}", []string{"spec.egress[1].name: has 101 characters"}},
		{to + "[]}", []string{"spec.egress[1].protocols: is empty"}},
		{to + "[{}]}", []string{"protocols[0].tcp: exactly one of", "not 0 of them"}},
		{to + "[{tcp: {destinationPort: {number: 1}}, destinationNamedPort: web}]}", []string{"not 2 of them"}},
		{to + "[{tcp: {}}]}", []string{"protocols[0].tcp.destinationPort: is missing"}},
		{to + "[{udp: {destinationPort: {}}}]}", []string{"protocols[0].udp.destinationPort: needs either number or range"}},
		{to + "[{udp: {destinationPort: {number: 1, range: {start: 1, end: 2}}}}]}", []string{"protocols[0].udp.destinationPort: needs either"}},
		{to + "[{sctp: {destinationPort: {number: 65536}}}]}", []string{"protocols[0].sctp.destinationPort.number: 65536"}},
		{to + "[{tcp: {destinationPort: {range: {start: 2, end: 2}}}}]}", []string{"protocols[0].tcp.destinationPort.range: the start, 2, is not below the end, 2"}},
		{to + "[{tcp: {destinationPort: {range: {start: 0, end: 70000}}}}]}", []string{"range.start: 0 is not", "range.end: 70000 is not"}},
		{to + "[{destinationNamedPort: no_port}]}", []string{`protocols[0].destinationNamedPort: "no_port" is no name of a port`}},
		{"{action: Accept, to: [{networks: [10.0.0.0/8]}], protocols: [" + named + "]}", []string{"protocols[0].destinationNamedPort: can't stand in a rule with networks"}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			got, err := clusterPolicy(t, "{tier: Admin, priority: 7, subject: {namespaces: {}}, egress: [{action: Deny, to: [{namespaces: {}}]}, "+c.rule+"]}")
			checkError(t, err, c.errs)
			if err == nil {
				return
			}
			want := &model.Policy{
				Key:  model.PolicyKey{Kind: model.ClusterPolicy, Name: model.Name{Name: "p"}},
				Tier: "kube-admin", Order: 7, Subject: pods(), Egress: true, Refused: err.Error(),
			}
			if diff := cmp.Diff(want, got, policyEqual); diff != "" {
				t.Errorf("wrong policy (-want +got):\n%s", diff)
			}
		})
	}
	got, err := clusterPolicy(t, "{tier: Admin, priority: 7, subject: {namespaces: {}}, ingress: [{action: Deny, from: []}, {action: Deny, from: [{}]}]}")
	checkError(t, err, []string{"spec.ingress[0].from: is empty", "spec.ingress[1].from[0].namespaces: is missing"})
	if got == nil || !got.Ingress || got.Egress || got.Refused == "" {
		t.Errorf("faults of ingress: got %+v", got)
	}
}

// TestClusterNetworkPolicyOfUnknownPlace: a policy denies if only its place among others is
// unknown.
func TestClusterNetworkPolicyOfUnknownPlace(t *testing.T) {
	const rest = "subject: {namespaces: {}}, egress: [{action: Accept, to: [{namespaces: {}}]}]}"
	for _, c := range []struct {
		spec string
		errs []string
	}{
		{"{tier: admin, " + rest, []string{`spec.tier: "admin" is neither Admin nor Baseline`}},
		{"{" + rest, []string{`spec.tier: "" is neither`}},
		{"{tier: Admin, priority: 1001, " + rest, []string{"spec.priority: 1001 is not in 0-1000"}},
		{"{tier: Admin, priority: -1, " + rest, []string{"spec.priority: -1"}},
		{"{tier: x, priority: 2000, " + rest, []string{"spec.tier", "spec.priority"}},
	} {
		got, err := clusterPolicy(t, c.spec)
		checkError(t, err, c.errs)
		if err == nil || got == nil {
			t.Errorf("%s: nothing denies", c.spec)
			continue
		}
		if got.Refused != err.Error() || got.Tier != "kube-admin" || got.Ingress || !got.Egress || len(got.EgressRules) != 0 || got.Subject.String() != pods().String() {
			t.Errorf("%s: got %+v", c.spec, got)
		}
	}
}

// TestClusterNetworkPolicyOfUnknownSubject: a policy denies nothing if it is unknown to whom it
// applies.
func TestClusterNetworkPolicyOfUnknownSubject(t *testing.T) {
	for _, c := range []struct {
		spec string
		errs []string
	}{
		{"{tier: admin, subject: {}}", []string{`spec.tier: "admin" is neither`, "spec.subject.namespaces: is missing"}},
		{"{tier: Admin, subject: {}}", []string{"spec.subject.namespaces: is missing"}},
		{"{tier: Admin, subject: {namespaces: {}, pods: {namespaceSelector: {}, podSelector: {}}}}", []string{"spec.subject.pods: can't stand beside namespaces"}},
		{"{tier: Admin, subject: {namespaces: {matchLabels: {a: '?'}}}}", []string{"spec.subject.namespaces.matchLabels[a]"}},
	} {
		got, err := clusterPolicy(t, c.spec)
		checkError(t, err, c.errs)
		if got != nil {
			t.Errorf("%s: got %+v", c.spec, got)
		}
	}
}
