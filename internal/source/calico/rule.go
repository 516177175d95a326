package calico

import (
	"cmp"
	"encoding/json"

	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

type rule struct {
	Action      string              `json:"action"`
	IPVersion   *int                `json:"ipVersion"`
	Protocol    *intstr.IntOrString `json:"protocol"`
	NotProtocol *intstr.IntOrString `json:"notProtocol"`
	ICMP        *icmp               `json:"icmp"`
	NotICMP     *icmp               `json:"notICMP"`
	Source      end                 `json:"source"`
	Destination end                 `json:"destination"`
	Metadata    json.RawMessage     `json:"metadata"`
}

type icmp struct {
	Type *int `json:"type"`
	Code *int `json:"code"`
}

// end is what a rule asks of one end of a connection: an EntityRule.
type end struct {
	Nets              []string             `json:"nets"`
	NotNets           []string             `json:"notNets"`
	Selector          string               `json:"selector"`
	NotSelector       string               `json:"notSelector"`
	NamespaceSelector string               `json:"namespaceSelector"`
	ServiceAccounts   *serviceAccounts     `json:"serviceAccounts"`
	Services          *serviceMatch        `json:"services"`
	Ports             []intstr.IntOrString `json:"ports"`
	NotPorts          []intstr.IntOrString `json:"notPorts"`
}

// serviceAccounts selects the pods that run as one of the named accounts, or as one that
// the selector selects; both must hold where both are given.
type serviceAccounts struct {
	Names    []string `json:"names"`
	Selector string   `json:"selector"`
}

// serviceMatch names a Service, by default one of the policy's namespace.
type serviceMatch struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// ruleOf translates a rule for a direction of a policy of a namespace, "" for a global one.
func ruleOf(data []byte, direction, name, namespace string, f *fault.List) model.PolicyRule {
	where := "spec." + name
	var in rule
	if !strict(data, &in, where, f) {
		return model.PolicyRule{Name: name, Action: model.Deny}
	}
	out := model.PolicyRule{Name: name, Action: action(where+".action", in.Action, f)}
	out.Protocol = protocol(where+".protocol", in.Protocol, f)
	out.NotProtocol = protocol(where+".notProtocol", in.NotProtocol, f)
	out.ICMP = icmpOf(where+".icmp", in.ICMP, out.Protocol, f)
	out.NotICMP = icmpOf(where+".notICMP", in.NotICMP, out.Protocol, f)
	family := familyOf(where, &in, &out, f)
	out.Source = family.end(where+".source", &in.Source, out.Protocol, namespace, f)
	out.Destination = family.end(where+".destination", &in.Destination, out.Protocol, namespace, f)
	out.Family = family.family
	if in.Source.Services != nil {
		peer := in.Source.service(where+".source", namespace, direction == ingress, f)
		out.Source.Peers = append(out.Source.Peers, []model.Peer{{Service: peer}})
	}
	if in.Destination.Services != nil {
		to := in.Destination.service(where+".destination", namespace, direction == egress, f)
		if len(in.Destination.Ports)+len(in.Destination.NotPorts) > 0 {
			f.Reject(where+".destination.ports", "can't stand beside services, which have ports of their own")
		}
		out.Destination.Ports = []model.PolicyPort{{Service: to}}
	}
	return out
}

// service is the Service that an end names. As in Calico, an end that does names nothing else,
// and is not the policy's own: applies tells whether it is the other one.
func (e *end) service(where, namespace string, applies bool, f *fault.List) model.Name {
	field, name := where+".services", model.Name{Namespace: cmp.Or(e.Services.Namespace, namespace), Name: e.Services.Name}
	checkName(field+".name", name.Name, f)
	if name.Namespace == "" {
		f.Reject(field+".namespace", "is missing; a GlobalNetworkPolicy has to name the namespace of the service")
	} else {
		checkName(field+".namespace", name.Namespace, f)
	}
	if !applies {
		f.Reject(field, "can stand in the source of ingress rules and the destination of egress rules alone")
	}
	if e.Selector+e.NotSelector+e.NamespaceSelector != "" || e.ServiceAccounts != nil || len(e.Nets)+len(e.NotNets) > 0 {
		f.Reject(field, "can't stand beside selectors, serviceAccounts, nets and notNets; make it a rule of its own")
	}
	return name
}

func action(field, text string, f *fault.List) model.Action {
	a, known := map[string]model.Action{"Allow": model.Allow, "Deny": model.Deny, "Pass": model.Pass, "Log": model.Log}[text]
	if !known {
		f.Reject(field, "%q is none of Allow, Deny, Log and Pass", text)
		return model.Deny
	}
	return a
}

// ruleFamily is the one family that a rule is about; 0 as long as nothing says it.
// Like Calico, it takes the family of a rule's networks, negated ones too, for that of the
// rule, and has no rules with networks of both.
type ruleFamily struct {
	family uint8
	from   string // the field that says it
}

func familyOf(where string, in *rule, out *model.PolicyRule, f *fault.List) *ruleFamily {
	var r ruleFamily
	if in.IPVersion != nil {
		field := where + ".ipVersion"
		if *in.IPVersion != 4 && *in.IPVersion != 6 {
			f.Reject(field, "%d is neither 4 nor 6", *in.IPVersion)
			return &r
		}
		r.is(uint8(*in.IPVersion), field, f)
	}
	if v := icmpFamily(out.Protocol); v != 0 {
		r.is(v, where+".protocol", f)
	}
	// A rule for all but one family's ICMP is not about that family alone.
	if v := icmpFamily(out.NotProtocol); v != 0 && in.IPVersion != nil && v != r.family {
		f.Reject(where+".notProtocol", "is of IPv%d, but %s says IPv%d", v, r.from, r.family)
	}
	return &r
}

// is notes what a field says of the family.
func (r *ruleFamily) is(family uint8, field string, f *fault.List) {
	switch r.family {
	case 0:
		r.family, r.from = family, field
	case family:
	default:
		f.Reject(field, "is of IPv%d, but %s says IPv%d", family, r.from, r.family)
	}
}

func (r *ruleFamily) end(where string, in *end, protocol uint8, namespace string, f *fault.List) model.RuleEnd {
	var out model.RuleEnd
	if s, ok := in.peers(where, namespace, f); ok {
		out.Peers = append(out.Peers, []model.Peer{{Selector: s}})
	}
	if p, ok := r.nets(where+".nets", in.Nets, f); ok {
		out.Peers = append(out.Peers, []model.Peer{p})
	}
	if p, ok := r.nets(where+".notNets", in.NotNets, f); ok {
		out.NotPeers = append(out.NotPeers, p)
	}
	if in.NotSelector != "" {
		out.NotPeers = append(out.NotPeers, model.Peer{Selector: fault.Read(f, where+".notSelector", in.NotSelector, ParseSelector)})
	}
	out.Ports = ports(where+".ports", in.Ports, protocol, f)
	out.NotPorts = ports(where+".notPorts", in.NotPorts, protocol, f)
	return out
}

func (r *ruleFamily) nets(field string, in []string, f *fault.List) (p model.Peer, ok bool) {
	p.Nets = fault.ReadAll(f, field+"[%d]", in, parseNet)
	for _, n := range p.Nets {
		family := uint8(4)
		if n.Addr().Is6() {
			family = 6
		}
		r.is(family, field, f)
	}
	return p, len(p.Nets) > 0
}

// peers joins what an end says of pods, network sets and host endpoints into
// one selector; ok is false if it says nothing.
//
// As soon as one of its selectors is given, notSelector too, an end in a
// namespaced policy is in the policy's own namespace, unless a namespaceSelector says
// otherwise.
func (e *end) peers(where, namespace string, f *fault.List) (s model.Selector, ok bool) {
	var terms []model.Selector
	if e.Selector != "" {
		terms = append(terms, fault.Read(f, where+".selector", e.Selector, ParseSelector))
	}
	if e.ServiceAccounts != nil {
		if names := e.ServiceAccounts.Names; len(names) > 0 {
			terms = append(terms, model.In(model.ServiceAccountLabel, names...))
		}
		terms = append(terms, accounts(where+".serviceAccounts.selector", e.ServiceAccounts.Selector, f)...)
	}
	switch {
	case e.NamespaceSelector != "":
		terms = append(terms, fault.Read(f, where+".namespaceSelector", e.NamespaceSelector, parsePeerNamespaces))
	case namespace != "" && (len(terms) > 0 || e.NotSelector != ""):
		terms = append(terms, model.Equal(model.NamespaceLabel, namespace))
	}
	return model.And(terms...), len(terms) > 0
}
