package nftables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file says whose object the kernel refused.

// blame is why a unit was refused, and whose policies are at fault.
type blame struct {
	err      error
	policies []model.PolicyKey // of rules: who declared the one, or all of their policies if the kernel named none
}

// blameFor finds out who declared what the kernel refused.
func (d *Driver) blameFor(u unit, refusal error) blame {
	b := blame{err: refusal}
	id, _ := u.key.(state.RulesID)
	rules := policyOf(d.state).Rules[id]
	if rules == nil {
		return b
	}
	// The chains are written again if need be: they are forgotten once the kernel takes something.
	for _, c := range d.ruleset.ChainsOf(rules) {
		for i, rule := range c.Rules {
			if strings.Contains(refusal.Error(), nft.RuleLabel(c.Name, i)) {
				b.policies = ruleset.DeclaredBy(rules, rule.Comment)
			}
		}
	}
	return b
}

// publishSetAside makes SetAside return what is set aside now.
func (d *Driver) publishSetAside() {
	var all []driver.SetAside
	for u, r := range d.aside.why {
		all = append(all, d.explain(u, r.blame)...)
	}
	d.Publish(all)
}

// explain names the objects that a unit was made of.
func (d *Driver) explain(u unit, b blame) []driver.SetAside {
	one := func(kind string, name model.Name, of, inForce string) []driver.SetAside {
		return []driver.SetAside{{Kind: kind, Name: name, InForce: inForce, Reason: fmt.Sprintf("the kernel refuses %s: %s; everything else works", of, table.Reason(b.err))}}
	}
	held := &d.aside.held
	switch key := u.key.(type) {
	case state.FrontendKey:
		f := held.Services.Frontends[key]
		return one("Service", f.Service, "what is made of it for "+key.String(), model.InForceRest)
	case state.RulesID:
		return d.explainRules(key, held.Policy.Rules[key], b)
	case netip.Addr:
		if w := held.Policy.Workloads[key]; u.kind == workloadUnit {
			return one("Pod", w.Pod, "its address "+key.String(), model.InForceNothing)
		}
		return one("Service", d.serviceAt(key), "an entry for the address "+key.String(), model.InForceRest)
	case state.SetID:
		if l := held.Policy.Lists[key]; u.kind == listUnit {
			return one("list", model.Name{Name: l.Name}, "what is made of it", model.InForceNothing)
		}
		return nil // the rules that look it up are set aside, too
	case int:
		if h := held.Policy.Hosts[key]; u.kind == hostUnit {
			return one("HostEndpoint", model.Name{Name: h.Name}, "what leads to its policies at "+h.Device, model.InForceNothing)
		}
		return one("interface", model.Name{Name: fmt.Sprint("number ", key)}, "an entry for it", model.InForceNothing)
	}
	kind, of, last := "settings", "what is made of the node's address ranges", true
	switch u.kind {
	case deniedUnit:
		kind, of, last = "deny lists", "what is made of them", len(d.state.Policy.Denied.Lists) > 0
	case podCIDRsUnit:
		kind, of, last = "pod CIDRs", "what is made of them", len(d.state.Policy.PodCIDRs) > 0
	}
	if last {
		return one(kind, model.Name{}, of, model.InForceLast)
	}
	return one(kind, model.Name{}, of, model.InForceNothing) // the table is new
}

func (d *Driver) explainRules(id state.RulesID, p *state.Rules, b blame) (all []driver.SetAside) {
	policies, what := b.policies, "a rule of it"
	if policies == nil {
		policies, what = p.Declared(), "what is made of it"
		if len(policies) > 1 {
			what += " and of the other policies of the same pods"
		}
	}
	reason := fmt.Sprintf("the kernel refuses %s: %s; nothing is allowed at %s, everything else works", what, table.Reason(b.err), d.judgedBy(standInFor(id)))
	for _, k := range policies {
		all = append(all, driver.SetAside{Kind: string(k.Kind), Name: k.Name, Reason: reason, InForce: model.InForceDeny})
	}
	return all
}

// judgedBy names the pods and host endpoints that the rules judge, the first few.
func (d *Driver) judgedBy(id state.RulesID) string {
	names := map[string]bool{}
	for _, w := range d.state.Policy.Workloads {
		if w.Ingress == id || w.Egress == id {
			names["pod "+w.Pod.String()] = true
		}
	}
	for _, h := range d.state.Policy.Hosts {
		for _, of := range h.RulesIDs() {
			if *of == id {
				names["host endpoint "+h.Name] = true
			}
		}
	}
	return model.FirstFew(slices.Sorted(maps.Keys(names)), 3)
}

// serviceAt is a service that has the address.
func (d *Driver) serviceAt(a netip.Addr) (name model.Name) {
	for _, all := range []map[state.FrontendKey]*state.Frontend{d.state.Services.Frontends, d.aside.held.Services.Frontends} {
		for k, f := range all {
			if k.Addr == a && (name == model.Name{} || f.Service.Compare(name) < 0) {
				name = f.Service
			}
		}
	}
	return name
}
