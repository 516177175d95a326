package remedy

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"sluice.dev/sluice/internal/model"
)

// templates write the kinds of policies. Kubernetes' fields are as in networking.k8s.io/v1 and
// policy.networking.k8s.io/v1beta1, Calico's as in projectcalico.org/v3.
var templates = map[model.Kind]*template.Template{
	model.NetworkPolicy: parse(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{.Name}}
  namespace: {{.Namespace}}
spec:
  podSelector: {{.Subject.Labels}}
  policyTypes: [{{.Type}}]
  {{.Direction}}:
  - {{.PeerField}}:
    - {{with .Peer}}{{if ne .Namespace $.Namespace}}namespaceSelector: {{.NamespaceLabels}}
      {{end}}podSelector: {{.Labels}}{{else}}ipBlock: {cidr: {{.Net}}}{{end}}
    ports:
    - {protocol: {{.Protocol}}, port: {{.Flow.DestinationPort}}}
`),
	model.ClusterPolicy: parse(`apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata:
  name: {{.Name}}
spec:
  tier: {{.ClusterTier}}
  priority: {{.Order}}
  subject:
    pods:
      namespaceSelector: {{.Subject.NamespaceLabels}}
      podSelector: {{.Subject.Labels}}
  {{.Direction}}:
  - action: Accept
    {{.PeerField}}:
    - {{with .Peer}}pods:
        namespaceSelector: {{.NamespaceLabels}}
        podSelector: {{.Labels}}{{else}}networks: [{{.Net}}]{{end}}
    protocols:
    - {{.ProtocolField}}: {destinationPort: {number: {{.Flow.DestinationPort}}}}
`),
	model.CalicoPolicy: parse(`apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata:
  name: {{.Name}}
  namespace: {{.Namespace}}
spec:
  tier: {{.Tier}}
{{with .Order}}  order: {{.}}
{{end}}  selector: {{.Subject.Expression}}
  types: [{{.Type}}]
  {{.Direction}}:
  - action: Allow
    protocol: {{.Protocol}}
{{if .ICMP}}    icmp: {type: {{.Flow.ICMPType}}}
{{end}}    {{.PeerEnd}}:
{{with .Peer}}{{if ne .Namespace $.Namespace}}      namespaceSelector: {{.NamespaceExpression}}
{{end}}      selector: {{.Expression}}
{{else}}      nets: [{{.Net}}]
{{end}}{{if .Flow.DestinationPort}}{{if eq .PeerEnd "source"}}    destination:
{{end}}      ports: [{{.Flow.DestinationPort}}]
{{end}}`),
}

func parse(text string) *template.Template {
	return template.Must(template.New("policy").Option("missingkey=error").Parse(text))
}

// What the templates ask of a draft.

func (d *draft) Net() string { return strconv.Quote(d.net.String()) }

func (d *draft) ICMP() bool { return strings.HasPrefix(d.Flow.ProtocolName(), "ICMP") }

func (d *draft) Type() string { return map[bool]string{true: "Egress", false: "Ingress"}[d.outward] }

func (d *draft) Direction() string { return strings.ToLower(d.Type()) }

func (d *draft) PeerField() string { return map[bool]string{true: "to", false: "from"}[d.outward] }

func (d *draft) PeerEnd() string {
	return map[bool]string{true: "destination", false: "source"}[d.outward]
}

// Order is "" where there is none.
func (d *draft) Order() string {
	if math.IsInf(d.order, 1) {
		return ""
	}
	return strconv.FormatFloat(d.order, 'f', -1, 64)
}

func (d *draft) ClusterTier() string {
	if d.Tier == model.BaselineTier.Name {
		return "Baseline"
	}
	return "Admin"
}

// Protocol is its name, or its number where policies have no name for it.
func (d *draft) Protocol() string {
	switch name, _, _ := strings.Cut(d.Flow.ProtocolName(), " "); {
	case d.ICMP():
		return name
	case d.Flow.Ported():
		return name
	}
	return strconv.Itoa(int(d.Flow.Protocol))
}

func (d *draft) ProtocolField() string { return strings.ToLower(d.Protocol()) }

func (s *selected) Namespace() string { return s.pod.Name.Namespace }

func (s *selected) NamespaceLabels() string {
	return fmt.Sprintf("{matchLabels: {%s: %q}}", model.MetadataNameLabel, s.Namespace())
}

func (s *selected) NamespaceExpression() string {
	return model.MetadataNameLabel + " == '" + s.Namespace() + "'"
}

// Labels selects the pods as Kubernetes writes it.
func (s *selected) Labels() string {
	var terms []string
	for _, k := range slices.Sorted(maps.Keys(s.labels)) {
		terms = append(terms, fmt.Sprintf("%s: %q", k, s.labels[k]))
	}
	text := "{matchLabels: {" + strings.Join(terms, ", ") + "}"
	if len(s.absent) > 0 {
		terms = nil
		for _, k := range s.absent {
			terms = append(terms, fmt.Sprintf("{key: %s, operator: DoesNotExist}", k))
		}
		text += ", matchExpressions: [" + strings.Join(terms, ", ") + "]"
	}
	return text + "}"
}

// Expression selects the pods in Calico's language, without their namespace.
func (s *selected) Expression() string {
	var terms []string
	for _, k := range slices.Sorted(maps.Keys(s.labels)) {
		terms = append(terms, k+" == '"+s.labels[k]+"'")
	}
	for _, k := range s.absent {
		terms = append(terms, "!has("+k+")")
	}
	return strings.Join(terms, " && ")
}
