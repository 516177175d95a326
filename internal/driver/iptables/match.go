package iptables

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file translates what a declared rule asks for.

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
func (q *question) combined(l limits) (all []match, few bool) {
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
		if all = both; len(all) > l.combined {
			return nil, false
		}
	}
	if len(q.never) > l.never {
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
