package calico

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// policySpec is what both kinds of policies have. Rules, tier and order are decoded
// one by one, so that a fault in one leaves the rest of the policy known.
type policySpec struct {
	Tier             json.RawMessage   `json:"tier"`
	Order            json.RawMessage   `json:"order"`
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
func namespacedPolicy(data []byte, f *fault.List) *model.Policy {
	m, spec := open[policySpec](data, f)
	p := &model.Policy{Key: model.PolicyKey{Kind: model.CalicoPolicy, Name: model.Name{Namespace: m.namespace(f), Name: m.Name}}}
	p.Subject = model.And(model.Equal(model.NamespaceLabel, p.Key.Name.Namespace), subject(&spec, f))
	return policy(p, &spec, f)
}

// globalPolicy translates a GlobalNetworkPolicy, whose namespaceSelector and
// serviceAccountSelector leave host endpoints out, as they have neither.
func globalPolicy(data []byte, f *fault.List) *model.Policy {
	m, spec := open[globalPolicySpec](data, f)
	p := &model.Policy{Key: model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: m.Name}}}
	p.Subject = subject(&spec.policySpec, f)
	if spec.NamespaceSelector != "" {
		p.Subject = model.And(fault.Read(f, "spec.namespaceSelector", spec.NamespaceSelector, parseNamespaces), p.Subject)
	}
	p.ApplyOnForward, p.DoNotTrack, p.PreDNAT = spec.ApplyOnForward, spec.DoNotTrack, spec.PreDNAT
	return policy(p, &spec.policySpec, f)
}

// policy adds what both kinds have to a policy of which name and subject are
// known. It returns nil if the faults so far leave open whom it applies to, or in
// which direction.
//
// A field that Calico does not have is no such fault. What narrows a policy down in the API
// (up to Calico 3.30: selector, namespaceSelector, serviceAccountSelector) is all read here, so
// that the policy is about what its selector says. Unless there is none: the unknown field may
// be meant as one, and without it the policy would be about everything.
func policy(p *model.Policy, spec *policySpec, f *fault.List) *model.Policy {
	known := !f.Any() || spec.Selector != ""
	p.Ingress, p.Egress = policyTypes(spec, f)
	known = known && f.Known()
	p.Tier, p.Order = policyTier(spec.Tier, f), policyOrder(spec.Order, f)
	p.Key.Name.Name = policyName(p.Key.Name.Name, p.Tier)
	checkHooks(p, f)
	rules(p, spec, f)
	if !known {
		return nil
	}
	return p
}

// policyTier is the tier that a policy names, or the default one. One that can't be
// read counts as the default one, which is always there.
func policyTier(text json.RawMessage, f *fault.List) string {
	if len(text) == 0 {
		return model.DefaultTier.Name
	}
	var tier string
	strict(text, &tier, "spec.tier", f)
	if tier == "" {
		return model.DefaultTier.Name
	}
	if len(validation.IsDNS1123Label(tier)) > 0 {
		f.Reject("spec.tier", "%q is no name of a tier: that has at most 63 lower-case letters, digits and '-', and begins and ends with a letter or digit", tier)
		return model.DefaultTier.Name
	}
	return tier
}

func policyOrder(text json.RawMessage, f *fault.List) float64 {
	var order *float64
	if len(text) > 0 {
		strict(text, &order, "spec.order", f)
	}
	return orderOf(order)
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
func policyTypes(spec *policySpec, f *fault.List) (ingress, egress bool) {
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
			f.Aside(field, "%s is there twice", t)
		default:
			f.Reject(field, "%q is neither Ingress nor Egress", t)
		}
	}
	return ingress, egress
}

// checkHooks holds policies that come before connection tracking or before
// address translation to what Calico allows of them.
func checkHooks(p *model.Policy, f *fault.List) {
	if p.DoNotTrack && p.PreDNAT {
		f.Reject("spec.preDNAT", "can't be true beside doNotTrack")
	}
	if p.DoNotTrack && !p.ApplyOnForward {
		f.Reject("spec.applyOnForward", "must be true where doNotTrack is")
	}
	if p.PreDNAT && !p.ApplyOnForward {
		f.Reject("spec.applyOnForward", "must be true where preDNAT is")
	}
	if p.PreDNAT && p.Egress {
		f.Reject("spec.preDNAT", "is about ingress only: there can't be egress rules or the type Egress")
	}
}

// subject translates what both kinds of policies say of whom they apply to: pods
// must have the labels and, where that is asked for, such a service account.
func subject(spec *policySpec, f *fault.List) model.Selector {
	terms := accounts("spec.serviceAccountSelector", spec.ServiceAccounts, f)
	return model.And(append(terms, fault.Read(f, "spec.selector", spec.Selector, ParseSelector))...)
}

// accounts translates a selector of service accounts; there is none if it is empty.
func accounts(field, text string, f *fault.List) []model.Selector {
	if text == "" {
		return nil
	}
	return []model.Selector{fault.Read(f, field, text, parseAccounts)}
}

// The directions of rules, as policies name them.
const (
	ingress = "ingress"
	egress  = "egress"
)

// rules adds its rules to a policy of which all else is known. Those of a direction
// that it does not apply to are read, too.
func rules(p *model.Policy, spec *policySpec, f *fault.List) {
	rulesOf := func(direction string, list []json.RawMessage, applies bool) (all []model.PolicyRule) {
		for i, data := range list {
			if r := ruleOf(data, direction, fmt.Sprintf("%s[%d]", direction, i), p.Key.Name.Namespace, f); applies {
				all = append(all, r)
			}
		}
		return all
	}
	p.IngressRules, p.EgressRules = rulesOf(ingress, spec.Ingress, p.Ingress), rulesOf(egress, spec.Egress, p.Egress)
	p.IgnoresIngress, p.IgnoresEgress = !p.Ingress && len(spec.Ingress) > 0, !p.Egress && len(spec.Egress) > 0
}
