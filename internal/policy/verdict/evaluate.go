package verdict

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

const (
	icmp   = 1
	icmpv6 = 58
)

// Ported reports whether the flow's protocol has ports that policies can name.
func (f Flow) Ported() bool {
	switch model.Protocol(f.Protocol) {
	case model.TCP, model.UDP, model.SCTP:
		return true
	}
	return false
}

// Evaluate returns the verdict of the rules on a flow. Without rules it is allowed; those that are
// not in p deny it, as nobody knows what they would have said.
func Evaluate(p *state.Policy, id state.RulesID, f Flow) Verdict {
	if id == "" {
		return Verdict{Outcome: Allowed}
	}
	rules := p.Rules[id]
	if rules == nil {
		return Verdict{}
	}
	for i := range rules.Tiers {
		if v, final := evaluateTier(p, &rules.Tiers[i], f); final {
			return v
		}
	}
	return Verdict{Outcome: outcomeOf(rules.Default)}
}

// evaluateTier returns the verdict of one tier; it is not final where the next tier decides.
func evaluateTier(p *state.Policy, t *state.Tier, f Flow) (v Verdict, final bool) {
	for n, own := range t.Policies {
		for i := range own.Rules {
			r := &own.Rules[i]
			if r.Action == model.Log || !Matches(p, r, f) {
				continue
			}
			v := Verdict{Outcome: outcomeOf(r.Action), Decider: Decider{Tier: t.Name, Policy: own.Policy, Rule: r.Name}}
			if r.Action == model.Deny {
				v.Asked = declared(t.Policies[:n+1])
			}
			return v, r.Action != model.Pass
		}
	}
	if t.Default == model.Pass {
		return Verdict{}, false
	}
	return Verdict{Outcome: outcomeOf(t.Default), Decider: Decider{Tier: t.Name}, Isolating: declared(t.Policies)}, true
}

// declared are the policies that rules are of.
func declared(list []*state.PolicyRules) (keys []model.PolicyKey) {
	for _, own := range list {
		keys = append(keys, own.Policy)
	}
	return keys
}

func outcomeOf(a model.Action) Outcome {
	if a == model.Allow {
		return Allowed
	}
	return Denied
}

// Matches reports whether all that a rule asks for holds.
func Matches(p *state.Policy, r *state.Rule, f Flow) bool {
	switch {
	case r.Family == 4 && !f.Source.Is4(), r.Family == 6 && !f.Source.Is6(),
		r.Protocol != 0 && r.Protocol != f.Protocol,
		r.NotProtocol != 0 && r.NotProtocol == f.Protocol,
		r.ICMP != nil && !isICMP(r.ICMP, f),
		r.NotICMP != nil && isICMP(r.NotICMP, f):
		return false
	}
	return matchesEnd(p, &r.Source, f.Source, f.Protocol, f.SourcePort) &&
		matchesEnd(p, &r.Destination, f.Destination, f.Protocol, f.DestinationPort)
}

func isICMP(m *model.ICMP, f Flow) bool {
	return (f.Protocol == icmp || f.Protocol == icmpv6) &&
		f.ICMPType == m.Type && (m.Code < 0 || int16(f.ICMPCode) == m.Code)
}

func matchesEnd(p *state.Policy, e *state.End, a netip.Addr, protocol uint8, port uint16) bool {
	for i := range e.In {
		if !holds(p, &e.In[i], a) {
			return false
		}
	}
	for i := range e.NotIn {
		if holds(p, &e.NotIn[i], a) {
			return false
		}
	}
	at := state.NamedPort{Addr: a, Protocol: model.Protocol(protocol), Port: port}
	return (e.Ports == nil || onPort(p, e.Ports, at)) && (e.NotPorts == nil || !onPort(p, e.NotPorts, at))
}

// holds reports whether an address is in one of the term's sets.
func holds(p *state.Policy, t *state.Term, a netip.Addr) bool {
	for _, id := range t.Groups {
		if _, ok := p.Groups[id][a]; ok {
			return true
		}
	}
	for _, ref := range t.Lists {
		if listed(p, ref, a) {
			return true
		}
	}
	return false
}

// listed looks for each length of prefix that the list has, shortest first.
func listed(p *state.Policy, ref state.ListRef, a netip.Addr) bool {
	lengths := ref.IPv4
	if a.Is6() {
		lengths = ref.IPv6
	}
	list := p.Lists[ref.ID]
	return list != nil && onList(list, a, lengths)
}

// onList reports whether a prefix of one of the lengths in the list holds the address.
func onList(list *state.List, a netip.Addr, lengths []uint8) bool {
	for _, n := range lengths {
		want, err := a.Prefix(int(n))
		if err != nil {
			continue
		}
		if _, ok := slices.BinarySearchFunc(list.Prefixes, want, netip.Prefix.Compare); ok {
			return true
		}
	}
	return false
}

// onPort reports whether one of the ports matches; they are those of TCP, UDP and SCTP alone.
func onPort(p *state.Policy, ports *state.Ports, at state.NamedPort) bool {
	for _, r := range ports.Ranges {
		if r.Protocol == at.Protocol && r.First <= at.Port && at.Port <= r.Last {
			return true
		}
	}
	return slices.ContainsFunc(ports.Named, func(id state.SetID) bool {
		_, named := p.NamedPorts[id][at]
		return named
	})
}
