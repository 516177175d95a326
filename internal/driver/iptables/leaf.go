package iptables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// chain is the name of the chain of a prefix, or of one that only this leads to.
func (t *tree) chain(p keyPrefix, parts ...int) string {
	if p.bits == 0 && len(parts) == 0 {
		return t.root
	}
	b := p.key.Addr.AsSlice()
	b = append(b, byte(p.key.Protocol), byte(p.bits))
	b = binary.BigEndian.AppendUint16(b, p.key.Port)
	for _, part := range parts {
		b = append(b, byte(part))
	}
	return named(t.kind, string(b))
}

// chains yields the chain of a prefix, and those that only this leads to.
func (t *tree) chains(p keyPrefix, keys []state.FrontendKey, yield func(name string, rules []string)) {
	if len(keys) <= leafSize {
		l := &leaf{tree: t, prefix: p, keys: keys, yield: yield}
		yield(t.chain(p), t.missing(l.rules()))
		return
	}
	at := t.common(keys, p.bits)
	var rules []string
	for _, c := range t.children(keys, at) {
		child := t.at(c[0], at+step)
		match := ""
		switch {
		case at < t.bits:
			match = t.end + netip.PrefixFrom(child.key.Addr, child.bits).String()
		case at == t.bits:
			match = "-p " + protocol(child.key.Protocol)
		default:
			match = portMatch(child.key.Protocol, child.key.Port, child.key.Port|(1<<(t.size()-child.bits)-1))
		}
		rules = append(rules, match+" -g "+t.chain(child))
	}
	yield(t.chain(p), t.missing(rules))
}

// missing adds where keys lead that the tree does not have.
func (t *tree) missing(rules []string) []string {
	if t.miss != "" {
		rules = append(rules, t.miss)
	}
	return rules
}

// leaf writes the chains of a prefix with few frontends.
type leaf struct {
	*tree
	prefix keyPrefix
	keys   []state.FrontendKey
	yield  func(name string, rules []string)
}

// rules are those of the leaf's own chain.
func (l *leaf) rules() (rules []string) {
	groups := map[int][]state.FrontendKey{} // by the number of backends
	for _, k := range l.keys {
		if n := len(l.goal[k].backends); n > 0 {
			groups[n] = append(groups[n], k)
		}
	}
	chains := map[int]string{}
	for n, members := range groups {
		switch {
		case n == 1: // its rule is the leaf's
		case len(members) == len(l.keys):
			return l.choose(n, members)
		default:
			chains[n] = l.tree.chain(l.prefix, n)
			l.yield(chains[n], l.choose(n, members))
		}
	}
	for _, k := range l.keys {
		g := l.goal[k]
		switch {
		case g.chain != "":
			rules = append(rules, l.match(k)+" -g "+g.chain)
		case len(g.backends) == 1:
			rules = append(rules, l.match(k)+" "+dnat(g.backends[0]))
		default:
			rules = append(rules, l.match(k)+" -g "+chains[len(g.backends)])
		}
	}
	return rules
}

// choose returns rules that choose one of n slots for some frontends.
func (l *leaf) choose(n int, members []state.FrontendKey) (rules []string) {
	c := choice{left: n}
	for slot := range n {
		if k := members[0]; len(members) == 1 {
			rules = append(rules, c.rule("-p "+protocol(k.Protocol)+" ", 1, dnat(l.goal[k].backends[slot])))
			continue
		}
		name := l.tree.chain(l.prefix, n, slot)
		var to []string
		for _, k := range members {
			to = append(to, l.match(k)+" "+dnat(l.goal[k].backends[slot]))
		}
		l.yield(name, to)
		rules = append(rules, c.rule("", 1, "-g "+name))
	}
	return rules
}

// match matches a frontend. Nothing but frontends comes here, so the port is asked for only where
// the address has several, or may have some elsewhere in the tree.
func (l *leaf) match(k state.FrontendKey) string {
	same := func(o state.FrontendKey) bool {
		return o.Addr == k.Addr && o.Protocol == k.Protocol && o.Port != k.Port
	}
	addr := l.end + netip.PrefixFrom(k.Addr, l.bits).String() + " "
	if k.Protocol == 0 {
		return addr[:len(addr)-1] + l.goal[k].device
	}
	if l.prefix.bits > l.bits || slices.ContainsFunc(l.keys, same) {
		return addr + portMatch(k.Protocol, k.Port, k.Port)
	}
	return addr + "-p " + protocol(k.Protocol)
}

func portMatch(p model.Protocol, first, last uint16) string {
	ports := fmt.Sprint(first)
	if first != last {
		ports += fmt.Sprint(":", last)
	}
	return fmt.Sprintf("-p %s -m %[1]s --dport %s", protocol(p), ports)
}

// dnat is the action that translates to a backend, for a rule that asks for the protocol.
func dnat(b netip.AddrPort) string { return "-j DNAT --to-destination " + b.String() }

// choice writes rules that together choose one of some, each as likely as the others.
type choice struct{ left int }

// rule is the next one: it stands for n of those that are left.
func (c *choice) rule(match string, n int, action string) string {
	if n < c.left {
		match += fmt.Sprintf("-m statistic --mode random --probability %.11f ", probability(n, c.left))
	}
	c.left -= n
	return match + action
}

// probability is n in all, as the kernel has it, in parts of 2^31.
func probability(n, all int) float64 {
	const whole = 1 << 31
	return float64((whole*n+all/2)/all) / whole
}
