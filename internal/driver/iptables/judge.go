package iptables

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file translates programs of policy to chains. A chain is named after its rules, so that
// equal ones are one, and a chain of the right name has the right rules.
//
// A rule of iptables acts if all of its matches hold. A declared rule that asks for one of several
// things becomes a rule for each combination, while these are few. Otherwise it becomes chains that
// lead on: from an alternative that holds to the next list of alternatives, and where none holds to
// the rest of the program. So the cost is the sum of the alternatives, and no chain comes back with
// an outcome that only a mark could carry.

// mostCombined is how many rules a declared one may become, and mostNever how many sets a rule asks
// a packet not to be in.
const mostCombined, mostNever = 16, 16

// site is where programs judge.
type site struct {
	kind, table   string // of their chains
	allow, denied string // what befalls a packet
}

var (
	podSite   = site{"P-R", "filter", "-j RETURN", "-g " + deniedChain}
	hostSite  = site{"P-H", "filter", "-j RETURN", "-g " + dropChain(state.DropHost)}
	earlySite = site{"P-M", "mangle", "-j RETURN", "-g " + dropChain(state.DropHost)}
	rawSite   = site{"P-U", "raw", "-g " + noTrackChain, "-g " + dropChain(state.DropHost)}
	sites     = []site{podSite, hostSite, earlySite, rawSite}
)

// written is the chains of a program in one family.
type written struct {
	entry   string
	chains  map[string][]string
	lookups map[lookup]bool
}

// writer writes the chains of a program.
type writer struct {
	family
	site
	*written
}

// write translates a program.
func (f family) write(at site, p *state.Program) *written {
	w := writer{f, at, &written{chains: map[string][]string{}, lookups: map[lookup]bool{}}}
	end := at.allow
	if p.Default == model.Deny {
		end = at.denied
	}
	var names []string // for people, and for adoptions: no packet comes there
	for _, k := range p.Declared() {
		names = append(names, comment(k)+" -j RETURN")
	}
	w.entry = w.tiers(p.Tiers, end, names...)
	return w.written
}

// comment names a policy.
func comment(k model.PolicyKey) string {
	return `-m comment --comment "` + quotable(k.String(), 255) + `"`
}

// quotable is a text as it may stand between quotes, and not longer than iptables takes.
func quotable(s string, most int) string {
	s = strings.NewReplacer(`"`, "_", `\`, "_").Replace(model.Printable(s))
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// add adds a chain and returns its name.
func (w writer) add(rules []string) string {
	name := named(w.kind, strings.Join(rules, "\n"))
	w.chains[name] = rules
	return name
}

// clause is a rule, and what befalls a packet that it matches.
type clause struct {
	*state.Rule
	action string
}

// tiers writes tiers and returns their first chain. Those that nothing passes on to by name go on
// in one chain.
func (w writer) tiers(tiers []state.Tier, end string, last ...string) string {
	var rules []clause
	for i, t := range tiers {
		next := ""
		if passes(t) {
			next = "-g " + w.tiers(tiers[i+1:], end)
		}
		for _, own := range t.Policies {
			for j := range own.Rules {
				r := &own.Rules[j]
				rules = append(rules, clause{r, w.action(own.Policy, r, next)})
			}
		}
		switch {
		case t.Default == model.Deny:
			return w.add(append(w.rules(rules, w.denied), last...))
		case next != "":
			return w.add(append(w.rules(rules, next), last...))
		}
	}
	return w.add(append(w.rules(rules, end), last...))
}

// passes reports whether a rule of the tier passes to the next.
func passes(t state.Tier) bool {
	return slices.ContainsFunc(t.Policies, func(own *state.PolicyRules) bool {
		return slices.ContainsFunc(own.Rules, func(r state.Rule) bool { return r.Action == model.Pass })
	})
}

func (w writer) action(key model.PolicyKey, r *state.Rule, next string) string {
	switch r.Action {
	case model.Allow:
		if key.Kind == model.Failsafe { // tracked, as replies to what others have sent are among it
			return "-j RETURN"
		}
		return w.allow
	case model.Deny:
		return w.denied
	case model.Pass:
		return next
	}
	return `-j LOG --log-prefix "` + quotable("sluice: "+key.String()+" "+r.Name, 28) + ` " --log-level 6`
}

// rules returns what the rules become, and then the end.
func (w writer) rules(rules []clause, end string) (lines []string) {
	for i, r := range rules {
		q := w.ask(r.Rule)
		if q == nil {
			continue // nothing matches
		}
		if all, few := q.combined(); few {
			for _, m := range all {
				lines = append(lines, m.String()+r.action)
			}
			continue
		}
		rest := "-g " + w.add(w.rules(rules[i+1:], end))
		action := r.action
		if r.Action == model.Log {
			action = "-g " + w.add([]string{action, rest})
		}
		for _, m := range q.never {
			lines = append(lines, m.String()+rest)
		}
		return append(lines, w.oneOf(q.lists, action, rest)...)
	}
	return append(lines, end)
}

// oneOf writes lists of alternatives of which one must hold each, one list after the other.
func (w writer) oneOf(lists [][]match, action, rest string) (lines []string) {
	then := action
	if len(lists) > 1 {
		then = "-g " + w.add(w.oneOf(lists[1:], action, rest))
	}
	for _, m := range lists[0] {
		lines = append(lines, m.String()+then)
	}
	return append(lines, rest)
}

// match is what one rule asks for. Whatever asks for ports asks for the protocol too.
type match struct {
	protocol, notProtocol uint8 // 0: any
	text, not             string
}

// String is the text, with a blank behind, if there is any.
func (m match) String() (s string) {
	switch {
	case m.protocol != 0:
		s = "-p " + number(m.protocol) + " "
	case m.notProtocol != 0:
		s = "! -p " + number(m.notProtocol) + " "
	}
	return s + m.text
}

// number names those protocols that iptables looks up matches by.
func number(protocol uint8) string {
	switch protocol {
	case icmp:
		return "icmp"
	case icmpv6:
		return "ipv6-icmp"
	case uint8(model.TCP), uint8(model.UDP), uint8(model.SCTP):
		return strings.ToLower(model.Protocol(protocol).String())
	}
	return fmt.Sprint(protocol)
}

const icmp, icmpv6 = 1, 58

// and asks for both; false: nothing matches.
func (m match) and(o match) (match, bool) {
	both := match{protocol: max(m.protocol, o.protocol), notProtocol: max(m.notProtocol, o.notProtocol), text: m.text + o.text}
	if m.protocol != 0 && o.protocol != 0 && m.protocol != o.protocol || both.protocol != 0 && both.protocol == both.notProtocol {
		return both, false
	}
	return both, true
}

// without asks for the one and not for the other. It is not possible in one rule if the other is of
// a protocol and the one of any.
func (m match) without(o match) (_ match, holds, possible bool) {
	switch {
	case o.protocol != 0 && m.protocol == 0 && m.notProtocol != o.protocol:
		return m, false, false
	case o.protocol != 0 && m.protocol != o.protocol:
		return m, true, true
	}
	m.text += o.not
	return m, o.not != "", true
}

// question is what a declared rule asks for: of each list that one holds, and that none of never
// does.
type question struct {
	lists [][]match
	never []match
}

// combined returns a match for each combination, unless they are too many.
func (q *question) combined() (all []match, few bool) {
	all = []match{{}}
	for _, list := range q.lists {
		var both []match
		for _, a := range all {
			for _, b := range list {
				if m, can := a.and(b); can {
					both = append(both, m)
				}
			}
		}
		if all = both; len(all) > mostCombined {
			return nil, false
		}
	}
	if len(q.never) > mostNever {
		return nil, false
	}
	kept := all[:0]
	for _, m := range all {
		holds := true
		for _, n := range q.never {
			next, can, possible := m.without(n)
			if !possible {
				return nil, false
			}
			m, holds = next, holds && can
		}
		if holds {
			kept = append(kept, m)
		}
	}
	return kept, true
}

// ask returns what a rule asks for in the family; nil: nothing matches.
func (w writer) ask(r *state.Rule) *question {
	version := uint8(4)
	if w.v6 {
		version = 6
	}
	if r.Family != 0 && r.Family != version {
		return nil
	}
	base := match{protocol: r.Protocol, notProtocol: r.NotProtocol}
	for _, i := range []*model.ICMP{r.ICMP, r.NotICMP} {
		switch {
		case i == nil:
		case r.Protocol != w.icmp():
			return nil // the type is of the other family's protocol
		default:
			base.text += w.icmpType(*i, i == r.NotICMP)
		}
	}
	q := &question{lists: [][]match{{base}}}
	w.ports(q, &r.Source, "src", "sport")
	w.ports(q, &r.Destination, "dst", "dport")
	w.addresses(q, &r.Source, "src")
	w.addresses(q, &r.Destination, "dst")
	if slices.ContainsFunc(q.lists, func(list []match) bool { return len(list) == 0 }) {
		return nil
	}
	return q
}

// icmp is the family's protocol of ICMP.
func (f family) icmp() uint8 {
	if f.v6 {
		return icmpv6
	}
	return icmp
}

func (f family) icmpType(i model.ICMP, not bool) string {
	name, option := "icmp", "--icmp-type "
	if f.v6 {
		name, option = "icmp6", "--icmpv6-type "
	}
	if not {
		option = "! " + option
	}
	text := fmt.Sprintf("-m %s %s%d", name, option, i.Type)
	if i.Code >= 0 {
		text += fmt.Sprint("/", i.Code)
	}
	return text + " "
}

// in matches packets whose fields a set has.
func (w writer) in(l lookup, fields string) match {
	w.lookups[l] = true
	set := "--match-set " + w.lookupName(l) + " " + fields + " "
	return match{text: "-m set " + set, not: "-m set ! " + set}
}

func (w writer) addresses(q *question, e *state.End, field string) {
	for _, t := range e.NotIn {
		q.never = append(q.never, w.term(t, field)...)
	}
	for _, t := range e.In {
		q.lists = append(q.lists, w.term(t, field))
	}
}

// term has one for each set of the union.
func (w writer) term(t state.Term, field string) (all []match) {
	for _, id := range t.Groups {
		all = append(all, w.in(lookup{kind: groupLookup, id: id}, field))
	}
	for _, l := range t.Lists {
		lengths := l.IPv4
		if w.v6 {
			lengths = l.IPv6
		}
		if len(lengths) > 0 {
			all = append(all, w.in(lookup{kind: listLookup, id: l.ID}, field))
		}
	}
	return all
}

func (w writer) ports(q *question, e *state.End, field, option string) {
	if e.Ports != nil {
		q.lists = append(q.lists, w.portsOf(e.Ports, field, option))
	}
	if e.NotPorts != nil {
		q.never = append(q.never, w.portsOf(e.NotPorts, field, option)...)
	}
}

// mostPorts is how many ports a rule names, where a range counts as two.
const mostPorts = 15

// portsOf has one for the ranges of each protocol, and one for each name.
func (w writer) portsOf(p *state.Ports, field, option string) (all []match) {
	for _, protocol := range protocols {
		m := match{protocol: uint8(protocol)}
		var list []string
		ports := 0
		for _, r := range p.Ranges {
			if r.Protocol != protocol {
				continue
			}
			text := fmt.Sprint(r.First)
			if ports++; r.First != r.Last {
				text += fmt.Sprint(":", r.Last)
				ports++
			}
			list = append(list, text)
		}
		switch {
		case len(list) == 0:
			continue
		case list[0] == "0:65535":
		case len(list) == 1:
			m.text = fmt.Sprintf("-m %s --%s %s ", number(uint8(protocol)), option, list[0])
			m.not = fmt.Sprintf("-m %s ! --%s %s ", number(uint8(protocol)), option, list[0])
		case ports <= mostPorts:
			m.text = fmt.Sprintf("-m multiport --%ss %s ", option, strings.Join(list, ","))
			m.not = fmt.Sprintf("-m multiport ! --%ss %s ", option, strings.Join(list, ","))
		default:
			in := w.in(lookup{portsLookup, p.ID, protocol}, field)
			m.text, m.not = in.text, in.not
		}
		all = append(all, m)
	}
	for _, id := range p.Named {
		all = append(all, w.in(lookup{kind: namedLookup, id: id}, field+","+field))
	}
	return all
}
