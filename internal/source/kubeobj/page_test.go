package kubeobj

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/pagetest"
)

// samples have each field of a kind of policy: the spec, or the rule that has the field. The note
// is what else there is to say.
type samples map[string]struct{ text, note string }

var networkPolicySamples = samples{
	"podSelector":                        {"podSelector: {matchExpressions: [{key: a, operator: NotIn, values: [b]}]}", ""},
	"policyTypes":                        {"policyTypes: [Ingress, Egress]", ""},
	"ingress":                            {"ingress: [{}]", "`egress`, too"},
	"ingress[].ports":                    {"ports: [{port: 80}]", "without any: all ports of TCP, UDP and SCTP, and no other protocol"},
	"ingress[].ports[].protocol":         {"ports: [{protocol: SCTP}]", ""},
	"ingress[].ports[].port":             {"ports: [{port: web}]", "a number, or the name of a container's port"},
	"ingress[].ports[].endPort":          {"ports: [{port: 8000, endPort: 8100}]", ""},
	"ingress[].from":                     {"from: []", "`egress[].to`, too"},
	"ingress[].from[].podSelector":       {"from: [{podSelector: {}}]", ""},
	"ingress[].from[].namespaceSelector": {"from: [{namespaceSelector: {matchLabels: {a: b}}}]", ""},
	"ingress[].from[].ipBlock":           {"from: [{ipBlock: {cidr: 10.0.0.0/8}}]", ""},
	"ingress[].from[].ipBlock.cidr":      {"from: [{ipBlock: {cidr: 'fd00::/8'}}]", ""},
	"ingress[].from[].ipBlock.except":    {"from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]", ""},
}

var clusterPolicySamples = samples{
	"tier":                           {"tier: Baseline", "`Admin` or `Baseline`"},
	"priority":                       {"priority: 1000", "ties go by name"},
	"subject":                        {"subject: {namespaces: {}}", ""},
	"subject.namespaces":             {"subject: {namespaces: {matchLabels: {a: b}}}", ""},
	"subject.pods":                   {"subject: {pods: {namespaceSelector: {}, podSelector: {}}}", ""},
	"subject.pods.namespaceSelector": {"subject: {pods: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {}}}", ""},
	"subject.pods.podSelector":       {"subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {a: b}}}}", ""},
	"ingress":                        {"ingress: [{action: Accept, from: [{namespaces: {}}]}]", "`egress`, too"},
	"ingress[].name":                 {"name: dns", ""},
	"ingress[].action":               {"action: Pass", "`Accept`, `Deny`, `Pass`"},
	"ingress[].from":                 {"from: [{namespaces: {}}]", "`egress[].to`, too"},
	"ingress[].from[].namespaces":    {"from: [{namespaces: {matchLabels: {a: b}}}]", ""},
	"ingress[].from[].pods":          {"from: [{pods: {namespaceSelector: {}, podSelector: {}}}]", ""},
	"ingress[].from[].pods.namespaceSelector":          {"from: [{pods: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {}}}]", ""},
	"ingress[].from[].pods.podSelector":                {"from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {a: b}}}}]", ""},
	"egress[].to[].nodes":                              {"to: [{nodes: {}}]", ""},
	"egress[].to[].networks":                           {"to: [{networks: [10.0.0.0/8, 'fd00::/8']}]", ""},
	"egress[].to[].domainNames":                        {"to: [{domainNames: [example.com]}]", ""},
	"ingress[].protocols":                              {"protocols: [{destinationNamedPort: web}]", "without any: every protocol"},
	"ingress[].protocols[].tcp":                        {"protocols: [{tcp: {destinationPort: {number: 80}}}, {udp: {destinationPort: {number: 53}}}, {sctp: {destinationPort: {number: 1}}}]", "`udp` and `sctp`, too"},
	"ingress[].protocols[].tcp.destinationPort":        {"protocols: [{tcp: {destinationPort: {number: 80}}}]", ""},
	"ingress[].protocols[].tcp.destinationPort.number": {"protocols: [{tcp: {destinationPort: {number: 80}}}]", ""},
	"ingress[].protocols[].tcp.destinationPort.range":  {"protocols: [{tcp: {destinationPort: {range: {start: 8000, end: 8100}}}}]", ""},
	"ingress[].protocols[].destinationNamedPort":       {"protocols: [{destinationNamedPort: web}]", "of the experimental channel"},
}

// The tables of Kubernetes' own policies in docs/policy.md say what the reading code does with each
// field of the API.
func TestPolicyPage(t *testing.T) {
	var b strings.Builder
	fmt.Fprintln(&b, "**NetworkPolicy (`networking.k8s.io/v1`): `spec`**")
	table(t, &b, reflect.TypeFor[networkingv1.NetworkPolicySpec](), networkPolicySamples, "podSelector: {}", "", func(text []byte) (*model.Policy, error) {
		return DecodeNetworkPolicy(text, nil)
	})
	fmt.Fprintln(&b, "\n**ClusterNetworkPolicy (`policy.networking.k8s.io/v1beta1`, `v1alpha2`): `spec`**")
	table(t, &b, reflect.TypeFor[policyv1beta1.ClusterNetworkPolicySpec](), clusterPolicySamples, "tier: Admin, priority: 1, subject: {namespaces: {}}",
		"action: Accept, from: [{namespaces: {}}]", func(text []byte) (*model.Policy, error) { return DecodeClusterNetworkPolicy(text, nil) })
	pagetest.Check(t, "../../../docs/policy.md", "Kubernetes' fields", b.String())
}

// table writes a line for each field of an API. Head and rule are what a spec and a rule need.
func table(t *testing.T, b *strings.Builder, api reflect.Type, samples samples, head, rule string, read func([]byte) (*model.Policy, error)) {
	t.Helper()
	fmt.Fprint(b, "\n| field | supported | |\n| --- | --- | --- |\n")
	var all []string
	for _, f := range fieldsOf(api, "") {
		if f = plain(f); !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	if len(all) != len(samples) {
		t.Errorf("%d fields, %d samples", len(all), len(samples))
	}
	for _, f := range all {
		s, ok := samples[f]
		if !ok {
			t.Errorf("there is no sample of %s", f)
			continue
		}
		directions := []string{""}
		if direction, _, in := strings.Cut(f, "[]."); in {
			directions = []string{direction}
			if direction == "ingress" {
				directions = append(directions, "egress")
			}
		}
		answer := "yes | " + s.note
		for _, direction := range directions {
			spec := merged(head, s.text)
			if direction != "" {
				in := merged(rule, s.text)
				if direction == "egress" {
					in = strings.ReplaceAll(in, "from:", "to:")
				}
				spec = fmt.Sprintf("%s, %s: [{%s}]", head, direction, in)
			}
			text, err := yaml.YAMLToJSON([]byte("{metadata: {name: x, namespace: shop}, spec: {" + spec + "}}"))
			if err != nil {
				t.Fatalf("%s: %v", spec, err)
			}
			if _, err := read(text); err != nil {
				_, why, ok := strings.Cut(err.Error(), f[strings.LastIndexByte(f, '.')+1:]+": ")
				if answer = "no | " + why; !ok {
					t.Errorf("%s: %v", spec, err)
				}
			}
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", f, strings.TrimSpace(answer))
	}
}

// merged is a list of fields with another one, which takes the place of one of its name.
func merged(fields, another string) string {
	name, _, _ := strings.Cut(another, ":")
	var kept []string
	for _, f := range []string{"podSelector: {}", "tier: Admin", "priority: 1", "subject: {namespaces: {}}", "action: Accept", "from: [{namespaces: {}}]"} {
		if strings.Contains(fields, f) && !strings.HasPrefix(f, name+":") && !(name == "to" && strings.HasPrefix(f, "from:")) {
			kept = append(kept, f)
		}
	}
	return strings.Join(append(kept, another), ", ")
}

// plain has one name for what is the same in both directions and for all protocols.
func plain(field string) string {
	if after, ok := strings.CutPrefix(field, "egress"); ok && !slices.Contains([]string{"[].to[].nodes", "[].to[].networks", "[].to[].domainNames"}, after) {
		field = "ingress" + strings.Replace(after, "[].to", "[].from", 1)
	}
	field = strings.NewReplacer("[].udp", "[].tcp", "[].sctp", "[].tcp").Replace(field)
	return strings.TrimSuffix(strings.TrimSuffix(field, ".start"), ".end")
}

// fieldsOf are all fields of a type of the API, in their order.
func fieldsOf(api reflect.Type, within string) (all []string) {
	suffix := "."
	for api.Kind() == reflect.Pointer || api.Kind() == reflect.Slice {
		if api.Kind() == reflect.Slice {
			suffix = "[]."
		}
		api = api.Elem()
	}
	if api.Kind() != reflect.Struct || api == reflect.TypeFor[metav1.LabelSelector]() || api == reflect.TypeFor[intstr.IntOrString]() {
		return nil
	}
	if within != "" {
		within += suffix
	}
	for i := range api.NumField() {
		name, _, _ := strings.Cut(api.Field(i).Tag.Get("json"), ",")
		all = append(append(all, within+name), fieldsOf(api.Field(i).Type, within+name)...)
	}
	return all
}
