package calico

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/test/pagetest"
)

// field is a field of Calico's API, as of version 3.32.
type field struct {
	name   string
	sample string // that has it
	refuse string // that has it in a way that is refused; "": there is none
	note   string
	partly bool // what is refused, Calico takes
}

// section are the fields of a part of a resource.
type section struct {
	title  string
	fields []field
	reader any                       // the structure that they are read into
	read   func(sample string) error // reads a sample
}

func sections() []section {
	policy := func(head string) func(string) error {
		return func(sample string) error {
			_, err := GlobalNetworkPolicy(object(head+sample), nil)
			return err
		}
	}
	namespaced := func(sample string) error { _, err := NetworkPolicy(object(sample), nil); return err }
	inRule := func(sample string) error {
		_, err := GlobalNetworkPolicy(object("ingress: [{action: Allow, "+sample+"}]"), nil)
		return err
	}
	source := func(sample string) error { return inRule("protocol: TCP, source: {" + sample + "}") }
	return []section{
		{"NetworkPolicy and GlobalNetworkPolicy: `spec`", []field{
			{"tier", "tier: security", "tier: a.b", "a policy of a tier that does not exist [waits for it](#what-is-missing)", false},
			{"order", "order: 10", "", "without it a policy comes last; ties go by `namespace/name`", false},
			{"selector", "selector: app == 'a'", "", "the whole language, up to 16 KiB", false},
			{"serviceAccountSelector", "serviceAccountSelector: role == 'a'", "", "", false},
			{"types", "types: [Ingress, Egress]", "", "", false},
			{"ingress", "ingress: [{action: Allow}]", "", "", false},
			{"egress", "egress: [{action: Allow}]", "", "", false},
			{"performanceHints", "performanceHints: [AssumeNeededOnEveryNode]", "", "has no meaning here", false},
		}, policySpec{}, namespaced},
		{"GlobalNetworkPolicy alone: `spec`", []field{
			{"namespaceSelector", "namespaceSelector: team == 'a'", "", "", false},
			{"applyOnForward", "applyOnForward: true", "", "", false},
			{"doNotTrack", "applyOnForward: true, doNotTrack: true", "", "needs `applyOnForward`, as in Calico", false},
			{"preDNAT", "applyOnForward: true, preDNAT: true", "", "needs `applyOnForward`; ingress alone, as in Calico", false},
		}, globalPolicySpec{}, policy("")},
		{"Rules: an item of `ingress` or `egress`", []field{
			{"action", "protocol: TCP", "action: Reject", "`Allow`, `Deny`, `Pass`, `Log`", false},
			{"ipVersion", "ipVersion: 4", "", "", false},
			{"protocol", "protocol: UDPLite", "", "a name or a number", false},
			{"notProtocol", "notProtocol: 6", "", "", false},
			{"icmp", "protocol: ICMP, icmp: {type: 8, code: 0}", "", "", false},
			{"notICMP", "protocol: ICMP, notICMP: {type: 8}", "", "", false},
			{"source", "source: {nets: [10.0.0.0/8]}", "", "see below", false},
			{"destination", "destination: {nets: [10.0.0.0/8]}", "", "see below", false},
			{"http", "http: {methods: [GET]}", "", "", false},
			{"metadata", "metadata: {annotations: {a: b}}", "", "has no meaning here", false},
		}, rule{}, inRule},
		{"Ends: `source` or `destination` of a rule", []field{
			{"nets", "nets: [10.0.0.0/8]", "nets: [10.0.0.0/8, 'fd00::/8']", "of one family in a rule, as in Calico", false},
			{"notNets", "notNets: [10.0.0.0/8]", "", "", false},
			{"selector", "selector: app == 'a'", "selector: global()", "pods, network sets and host endpoints; also address lists from files (`sluice.dev/list == 'NAME'`)", false},
			{"notSelector", "notSelector: app == 'a'", "", "", false},
			{"namespaceSelector", "namespaceSelector: global()", "", "`projectcalico.org/name` is the namespace's name", false},
			{"serviceAccounts", "serviceAccounts: {names: [a], selector: role == 'a'}", "", "both `names` and `selector`", false},
			{"services", "services: {name: web, namespace: shop}", "services: {name: web, namespace: shop}, nets: [10.0.0.0/8]", "the source of ingress rules, the destination of egress rules; all endpoints of the Service's EndpointSlices, for a destination with their ports; nothing else of that end beside it but the ports of a source", false},
			{"ports", "ports: [80, '8000:8080', web]", "", "numbers, ranges, names of ports of pods", false},
			{"notPorts", "notPorts: [80]", "", "", false},
			{"domains", "domains: [example.com]", "", "", false},
		}, end{}, source},
		{"Tier: `spec`", []field{
			{"order", "order: 10", "", "without it a tier comes last; ties go by name", false},
			{"defaultAction", "defaultAction: Pass", "", "`Deny` (the default) or `Pass`", false},
		}, tierSpec{}, func(sample string) error { _, err := Tier(object(sample), nil); return err }},
		{"NetworkSet and GlobalNetworkSet: `spec`", []field{
			{"nets", "nets: [10.0.0.0/8]", "", "up to millions", false},
			{"allowedEgressDomains", "allowedEgressDomains: [example.com]", "", "", false},
		}, setSpec{}, func(sample string) error { _, err := GlobalNetworkSet(object(sample), nil); return err }},
		{"HostEndpoint: `spec`", []field{
			{"node", "node: n1, interfaceName: eth0", "", "", false},
			{"interfaceName", "node: n1, interfaceName: '*'", "", "", false},
			{"expectedIPs", "node: n1, expectedIPs: [192.0.2.1]", "", "", false},
			{"profiles", "node: n1, interfaceName: eth0, profiles: [projectcalico-default-allow]", "node: n1, interfaceName: eth0, profiles: [mine]", "`projectcalico-default-allow` alone", true},
			{"ports", "node: n1, interfaceName: eth0, ports: [{name: web, protocol: TCP, port: 80}]", "", "", false},
		}, hostEndpointSpec{}, func(sample string) error { _, err := HostEndpoint(object(sample), nil); return err }},
	}
}

func object(spec string) []byte {
	data, err := yaml.YAMLToJSON([]byte("{metadata: {name: x, namespace: shop}, spec: {" + spec + "}}"))
	if err != nil {
		panic(err)
	}
	return data
}

// The tables of Calico's fields in docs/policy.md say what the reading code does with each. They
// have every field that is read.
func TestPolicyPage(t *testing.T) {
	var b strings.Builder
	for i, s := range sections() {
		if i > 0 {
			fmt.Fprintln(&b)
		}
		fmt.Fprintf(&b, "**%s**\n\n| field | supported | |\n| --- | --- | --- |\n", s.title)
		listed := map[string]bool{}
		for _, f := range s.fields {
			listed[f.name] = true
			fmt.Fprintf(&b, "| `%s` | %s |\n", f.name, strings.TrimSpace(support(t, s, f)))
		}
		of := reflect.TypeOf(s.reader)
		for i := range of.NumField() {
			if name := of.Field(i).Tag.Get("json"); name != "" && !listed[name] {
				t.Errorf("%s: %s is read, and the page does not have it", s.title, name)
			}
		}
	}
	pagetest.Check(t, "../../../docs/policy.md", "Calico's fields", b.String())
}

// support reads the samples of a field, and says what came of it in the last two columns.
func support(t *testing.T, s section, f field) string {
	t.Helper()
	err := s.read(f.sample)
	switch {
	case err != nil:
		_, why, ok := strings.Cut(err.Error(), f.name+": ")
		if !ok {
			t.Errorf("%s: %s: %v", s.title, f.sample, err)
		}
		return "no | " + strings.TrimPrefix(strings.TrimPrefix(why, "is not supported"), ": ")
	case f.refuse == "":
		return "yes | " + f.note
	}
	if err := s.read(f.refuse); err == nil {
		t.Errorf("%s: %s is not refused", s.title, f.refuse)
	}
	if f.partly {
		return "partly | " + f.note
	}
	return "yes | " + f.note
}
