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
// lead on, from an alternative that holds to the next list of alternatives, and at last to one that
// marks the packet: a chain can return nothing else. So the cost is the sum of the alternatives.
// The same mark has tiers follow one another where they are too many to lead on to each other.

// mostCombined is how many rules a declared one may become, and mostNever how many sets a rule asks
// a packet not to be in.
const mostCombined, mostNever = 16, 16

// mostNested is how many chains of tiers lead on to each other: the kernel follows no more than
// sixteen in all, where iptables is of the variant nft.
const mostNested = 4

// matched is the bit of a packet's mark by which a chain says that it matches, or allows.
const matched = "0x2000/0x2000"

const (
	matchedChain   = policyPrefix + "MATCHED"
	unmatchedChain = policyPrefix + "UNMATCHED"
)

var (
	setMatched = line{text: "-j MARK --set-xmark " + matched}
	unmark     = line{text: "-j MARK --set-xmark 0x0/0x2000"}
	ifMatch    = match{text: "-m mark --mark " + matched + " "}
)

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
	decide  map[ruleAt]decision
}

// ruleAt is a rule, by its chain and its place there.
type ruleAt struct {
	chain string
	index int
}

// decision is what a rule means for policies.
type decision struct {
	of      []model.PolicyKey
	allowed bool
}

// line is a rule.
type line struct {
	text string
	decision
}

// writer writes the chains of a program.
type writer struct {
	family
	site
	*written
}

// write translates a program.
func (f family) write(at site, p *state.Program) *written {
	w := writer{f, at, &written{chains: map[string][]string{}, lookups: map[lookup]bool{}, decide: map[ruleAt]decision{}}}
	end := at.allow
	if p.Default == model.Deny {
		end = at.denied
	}
	var names []line // for people, and for adoptions: no packet comes there
	for _, k := range p.Declared() {
		names = append(names, line{text: comment(k) + " -j RETURN"})
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
func (w writer) add(lines []line) string {
	rules := make([]string, len(lines))
	for i, l := range lines {
		rules[i] = l.text
	}
	name := named(w.kind, strings.Join(rules, "\n"))
	w.chains[name] = rules
	for i, l := range lines {
		if at := (ruleAt{name, i}); len(l.of) > 0 {
			w.decide[at] = l.decision
		}
	}
	return name
}

// tiers writes tiers, and then the end and some lines more, and returns their first chain.
func (w writer) tiers(tiers []state.Tier, end string, last ...line) string {
	stages := stagesOf(tiers)
	if len(stages) > mostNested {
		var lines []line
		called := w
		called.allow, w.chains[matchedChain] = "-g "+matchedChain, []string{setMatched.text}
		for _, s := range stages {
			lines = append(lines, line{text: "-j " + w.add(called.stage(s, "-j RETURN", unmark))}, ifMatch.then(w.then(line{text: w.allow})))
		}
		return w.add(append(append(lines, line{text: end}), last...))
	}
	next := end
	for i, s := range slices.Backward(stages) {
		lines := w.stage(s, next)
		if i == 0 {
			lines = append(lines, last...)
		}
		next = "-g " + w.add(lines)
	}
	return strings.TrimPrefix(next, "-g ")
}

// stagesOf splits tiers after each that has a rule which passes to the next. What follows a tier
// that passes nothing on is left out.
func stagesOf(tiers []state.Tier) (all [][]state.Tier) {
	var stage []state.Tier
	for i, t := range tiers {
		stage = append(stage, t)
		switch {
		case passes(t) && i+1 < len(tiers):
			all = append(all, stage)
			stage = nil
		case t.Default == model.Deny:
			return append(all, stage)
		}
	}
	return append(all, stage)
}

// stage returns the rules of tiers of which the last alone may have some that pass, after some
// lines.
func (w writer) stage(tiers []state.Tier, next string, lines ...line) []line {
	end := line{text: next}
	for _, t := range tiers {
		for _, own := range t.Policies {
			for i := range own.Rules {
				r := &own.Rules[i]
				lines = append(lines, w.rule(r, w.action(own.Policy, r, next))...)
			}
		}
		if t.Default == model.Deny {
			end.text = w.denied
			for _, own := range t.Policies {
				end.of = append(end.of, own.Policy)
			}
		}
	}
	return append(lines, end)
}

// passes reports whether a rule of the tier passes to the next.
func passes(t state.Tier) bool {
	return slices.ContainsFunc(t.Policies, func(own *state.PolicyRules) bool {
		return slices.ContainsFunc(own.Rules, func(r state.Rule) bool { return r.Action == model.Pass })
	})
}

func (w writer) action(key model.PolicyKey, r *state.Rule, next string) line {
	of := []model.PolicyKey{key}
	switch {
	case r.Action == model.Pass:
		return line{text: next}
	case r.Action == model.Deny:
		return line{w.denied, decision{of, false}}
	case r.Action == model.Log:
		return line{text: `-j LOG --log-prefix "` + quotable("sluice: "+key.String()+" "+r.Name, 28) + ` " --log-level 6`}
	case key.Kind == model.Failsafe: // tracked, as replies to what others have sent are among it
		return line{"-j RETURN", decision{of, true}}
	}
	return line{w.allow, decision{of, true}}
}

// rule returns what a declared rule becomes.
func (w writer) rule(r *state.Rule, action line) (lines []line) {
	q := w.ask(r)
	if q == nil {
		return nil // nothing matches
	}
	if all, few := q.combined(); few {
		for _, m := range all {
			lines = append(lines, m.then(action))
		}
		return lines
	}
	lines = []line{unmark}
	for _, m := range q.never {
		lines = append(lines, m.then(line{text: "-j RETURN"}))
	}
	lines = []line{{text: "-j " + w.add(append(lines, w.oneOf(q.lists)...))}}
	if r.Action == model.Log {
		return append(lines, ifMatch.then(action), unmark)
	}
	return append(lines, ifMatch.then(w.then(action)))
}

// then is an action that takes the mark off the packet, unless that is for others to do.
func (w writer) then(action line) line {
	w.chains[unmatchedChain] = []string{unmark.text}
	switch action.text {
	case w.denied, "-g " + matchedChain:
	case "-j RETURN":
		action.text = "-g " + unmatchedChain
	default:
		action.text = "-g " + w.add([]line{unmark, {text: action.text}})
	}
	return action
}

// oneOf writes lists of alternatives of which one must hold each, one list after the other.
func (w writer) oneOf(lists [][]match) []line {
	then := line{text: "-g " + matchedChain}
	if w.chains[matchedChain] = []string{setMatched.text}; len(lists) > 1 {
		then.text = "-g " + w.add(w.oneOf(lists[1:]))
	}
	return w.among(lists[0], then)
}

// among writes alternatives. Many ranges of ports are parted by what ports they are between.
func (w writer) among(list []match, then line) (lines []line) {
	parts := list
	if n := (len(list) + leafSize - 1) / leafSize; n > 1 {
		parts = nil
		for part := range slices.Chunk(list, n) {
			span, can := part[0].until(part[len(part)-1])
			if !can {
				parts = append(parts, part...)
				continue
			}
			lines = append(lines, span.then(line{text: "-g " + w.add(w.among(part, then))}))
		}
	}
	for _, m := range parts {
		lines = append(lines, m.then(then))
	}
	return lines
}

// match is what one rule asks for. Whatever asks for ports asks for the protocol too.
type match struct {
	protocol, notProtocol uint8 // 0: any
	text, not             string

	// Of ports: the option that asks for them, and what they are between.
	option      string
	first, last uint16
}

// until is what all ports from those of one match to those of another are between.
func (m match) until(o match) (match, bool) {
	span := rangeOf(m.protocol, m.option, m.first, o.last)
	return span, m.option != "" && m.option == o.option && m.protocol == o.protocol
}

// rangeOf asks for ports between two.
func rangeOf(protocol uint8, option string, first, last uint16) match {
	ports := fmt.Sprint(first)
	if first != last {
		ports += fmt.Sprint(":", last)
	}
	m := match{protocol: protocol, option: option, first: first, last: last}
	if first > 0 || last < 0xffff {
		m.text = fmt.Sprintf("-m %s --%s %s ", number(protocol), option, ports)
		m.not = fmt.Sprintf("-m %s ! --%s %s ", number(protocol), option, ports)
	}
	return m
}

// then is a rule that does something if the match holds.
func (m match) then(do line) line {
	do.text = m.text + do.text
	switch {
	case m.protocol != 0:
		do.text = "-p " + number(m.protocol) + " " + do.text
	case m.notProtocol != 0:
		do.text = "! -p " + number(m.notProtocol) + " " + do.text
	}
	return do
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
		all = append(all, w.in(lookup{groupLookup, id}, field))
	}
	for _, l := range t.Lists {
		lengths := l.IPv4
		if w.v6 {
			lengths = l.IPv6
		}
		if len(lengths) > 0 {
			all = append(all, w.in(lookup{listLookup, l.ID}, field))
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

// portsOf has some for the ranges of each protocol, and one for each name.
func (w writer) portsOf(p *state.Ports, field, option string) (all []match) {
	for _, protocol := range protocols {
		var some []state.PortRange
		left := mostPorts
		for _, r := range p.Ranges {
			if r.Protocol != protocol {
				continue
			}
			if left < 2 {
				all = append(all, portsIn(some, option))
				some, left = nil, mostPorts
			}
			some = append(some, r)
			left -= min(2, 1+int(r.Last-r.First))
		}
		if len(some) > 0 {
			all = append(all, portsIn(some, option))
		}
	}
	for _, id := range p.Named {
		all = append(all, w.in(lookup{namedLookup, id}, field+","+field))
	}
	return all
}

// portsIn asks for one of some ranges of a protocol.
func portsIn(ranges []state.PortRange, option string) match {
	m := rangeOf(uint8(ranges[0].Protocol), option, ranges[0].First, ranges[len(ranges)-1].Last)
	if len(ranges) == 1 {
		return m
	}
	var list []string
	for _, r := range ranges {
		text := fmt.Sprint(r.First)
		if r.First != r.Last {
			text += fmt.Sprint(":", r.Last)
		}
		list = append(list, text)
	}
	m.text = fmt.Sprintf("-m multiport --%ss %s ", option, strings.Join(list, ","))
	m.not = fmt.Sprintf("-m multiport ! --%ss %s ", option, strings.Join(list, ","))
	return m
}
