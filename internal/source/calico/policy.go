package calico

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"sluice.dev/sluice/internal/model"
)

// policySpec is what both kinds of policies have. Rules are decoded one by one,
// so that a fault in one leaves the rest of the policy known.
type policySpec struct {
	Tier             string            `json:"tier"`
	Order            *float64          `json:"order"`
	Selector         string            `json:"selector"`
	ServiceAccounts  string            `json:"serviceAccountSelector"`
	Types            []string          `json:"types"`
	Ingress          []json.RawMessage `json:"ingress"`
	Egress           []json.RawMessage `json:"egress"`
	PerformanceHints json.RawMessage   `json:"performanceHints"`
}

type globalPolicySpec struct {
	policySpec
	NamespaceSelector string `json:"namespaceSelector"`
	ApplyOnForward    bool   `json:"applyOnForward"`
	DoNotTrack        bool   `json:"doNotTrack"`
	PreDNAT           bool   `json:"preDNAT"`
}

// namespacedPolicy translates a NetworkPolicy: its subjects, and what its
// rules select, are in its own namespace unless a rule says otherwise.
func namespacedPolicy(data []byte, f *faults) *model.Policy {
	m, spec := open[policySpec](data, f)
	p := policy(model.CalicoPolicy, &m, &spec, f)
	p.Key.Name.Namespace = m.namespace(f)
	p.Subject = model.And(model.Equal(model.NamespaceLabel, p.Key.Name.Namespace), subject(&spec, f))
	return rules(p, &spec, f)
}

// globalPolicy translates a GlobalNetworkPolicy, whose namespaceSelector and
// serviceAccountSelector leave host endpoints out, as they have neither.
func globalPolicy(data []byte, f *faults) *model.Policy {
	m, spec := open[globalPolicySpec](data, f)
	p := policy(model.GlobalNetworkPolicy, &m, &spec.policySpec, f)
	p.Subject = subject(&spec.policySpec, f)
	if spec.NamespaceSelector != "" {
		in, err := parseNamespaces(spec.NamespaceSelector, false)
		if err != nil {
			f.reject("spec.namespaceSelector", "%v", err)
		}
		p.Subject = model.And(in, p.Subject)
	}
	p.ApplyOnForward, p.DoNotTrack, p.PreDNAT = spec.ApplyOnForward, spec.DoNotTrack, spec.PreDNAT
	checkHooks(p, f)
	return rules(p, &spec.policySpec, f)
}

// policy is what a policy is before its rules are known.
func policy(kind model.PolicyKind, m *metadata, spec *policySpec, f *faults) *model.Policy {
	p := &model.Policy{Tier: model.DefaultTier.Name, Order: orderOf(spec.Order)}
	if spec.Tier != "" {
		p.Tier = spec.Tier
		if why := validation.IsDNS1123Label(spec.Tier); len(why) > 0 {
			f.reject("spec.tier", "%q is no name of a tier: %s", spec.Tier, strings.Join(why, ", "))
		}
	}
	p.Key = model.PolicyKey{Kind: kind, Name: model.Name{Name: policyName(m.Name, p.Tier)}}
	p.Ingress, p.Egress = policyTypes(spec, f)
	return p
}

// policyName drops the prefix that Calico puts before the names of policies in
// the default tier where it stores them; users know them without it.
func policyName(name, tier string) string {
	if tier == model.DefaultTier.Name {
		return strings.TrimPrefix(name, tier+".")
	}
	return name
}

// policyTypes are the directions of a policy. Without any given they are
// those that it has rules for, and ingress if there are no rules.
func policyTypes(spec *policySpec, f *faults) (ingress, egress bool) {
	if len(spec.Types) == 0 {
		egress = len(spec.Egress) > 0
		return len(spec.Ingress) > 0 || !egress, egress
	}
	for i, t := range spec.Types {
		field := fmt.Sprintf("spec.types[%d]", i)
		switch {
		case t == "Ingress" && !ingress:
			ingress = true
		case t == "Egress" && !egress:
			egress = true
		case t == "Ingress", t == "Egress":
			f.reject(field, "%s is there twice", t)
		default:
			f.reject(field, "%q is neither Ingress nor Egress", t)
		}
	}
	return ingress, egress
}

// checkHooks holds policies that come before connection tracking or before
// address translation to what Calico allows of them.
func checkHooks(p *model.Policy, f *faults) {
	if p.DoNotTrack && p.PreDNAT {
		f.reject("spec.preDNAT", "can't be true beside doNotTrack")
	}
	if p.DoNotTrack && !p.ApplyOnForward {
		f.reject("spec.applyOnForward", "must be true where doNotTrack is")
	}
	if p.PreDNAT && !p.ApplyOnForward {
		f.reject("spec.applyOnForward", "must be true where preDNAT is")
	}
	if p.PreDNAT && p.Egress {
		f.reject("spec.preDNAT", "is about ingress only: there can't be egress rules or the type Egress")
	}
}

// selector translates the selector of subjects; the empty one is all of them.
func selector(field, text string, f *faults) model.Selector {
	s, err := ParseSelector(text)
	if err != nil {
		f.reject(field, "%v", err)
	}
	return s
}

// subject translates what both kinds of policies say of whom they apply to: pods
// must have the labels and, where that is asked for, such a service account.
func subject(spec *policySpec, f *faults) model.Selector {
	terms := accounts("spec.serviceAccountSelector", spec.ServiceAccounts, f)
	return model.And(append(terms, selector("spec.selector", spec.Selector, f))...)
}

// accounts translates a selector of service accounts; there is none if it is empty.
func accounts(field, text string, f *faults) []model.Selector {
	if text == "" {
		return nil
	}
	s, err := parseAccounts(text)
	if err != nil {
		f.reject(field, "%v", err)
	}
	return []model.Selector{s}
}

// rules adds its rules to a policy of which all else is known. It returns nil
// if that is not so, as a fault there leaves open whom the policy applies to and
// how.
//
// A field that Calico does not have is no such fault. What narrows a policy down in the API
// (up to Calico 3.30: selector, namespaceSelector, serviceAccountSelector) is all read here, so
// that the policy is about what its selector says. Unless there is none: the unknown field may
// be meant as one, and without it the policy would be about everything.
func rules(p *model.Policy, spec *policySpec, f *faults) *model.Policy {
	known := len(f.reasons) == f.unknown && (f.unknown == 0 || spec.Selector != "")
	for i, data := range spec.Ingress {
		r := ruleOf(data, fmt.Sprintf("ingress[%d]", i), p.Key.Name.Namespace, f)
		if p.Ingress {
			p.IngressRules = append(p.IngressRules, r)
		}
	}
	for i, data := range spec.Egress {
		r := ruleOf(data, fmt.Sprintf("egress[%d]", i), p.Key.Name.Namespace, f)
		if p.Egress {
			p.EgressRules = append(p.EgressRules, r)
		}
	}
	if !known {
		return nil
	}
	return p
}
