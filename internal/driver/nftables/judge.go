package nftables

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file turns programs of policy into chains. A chain is named by its content, so
// that a chain of the right name is the right chain, and equal ones are one.

// bench is where a program judges: what differs between its places.
type bench struct {
	name     string // of its chains, with their digest
	families []family
	denied   string // the chain that what is denied goes to
	noTrack  bool   // what is allowed is not tracked
}

func (p *program) podBench(f family) bench {
	return bench{name: f.name + "-judge", families: []family{f}, denied: f.name + "-refused"}
}

var (
	hostBench      = bench{name: "host-judge", families: []family{ipv4, ipv6}, denied: dropChain(driver.ByHost)}
	untrackedBench = bench{name: "raw-judge", families: []family{ipv4, ipv6}, denied: dropChain(driver.ByHost), noTrack: true}
)

// ruling is a chain of a program, as it depends on others.
type ruling struct {
	chain
	counters []string // named counters that its rules use
	next     string   // the chain that it passes on to; "": none
}

// judge returns the chains of a program, the first first. Rules that pass to the next tier leave for the next chain;
// other tiers follow within one.
func (p *program) judge(b bench, prog *state.Program) []ruling {
	w := writer{program: p, bench: b, prog: prog}
	return w.from(0)
}

// writer writes the chains of one program.
type writer struct {
	*program
	bench bench
	prog  *state.Program
}

// from writes the chains of the tiers from the i-th on.
func (w *writer) from(i int) []ruling {
	r := ruling{}
	counters := map[string]bool{}
	count := func(rule rule, verdict string, policies ...model.PolicyKey) rule {
		for _, key := range policies {
			name := counterName(verdict, key)
			counters[name] = true
			rule = rule.add(&expr.Objref{Type: objectCounter, Name: name})
		}
		return rule
	}
	var rest []ruling
	open := true
	for ; open && i < len(w.prog.Tiers); i++ {
		t := w.prog.Tiers[i]
		if passes(t) && i+1 < len(w.prog.Tiers) {
			rest = w.from(i + 1)
			r.next = rest[0].name
		}
		for _, s := range t.Rules {
			for _, k := range w.matches(s) {
				k.comment = comment(s)
				switch s.Action {
				case model.Allow:
					r.rules = append(r.rules, w.allow(count(k, allowed, s.Policy)))
				case model.Deny:
					r.rules = append(r.rules, count(k, denied, s.Policy).goTo(w.bench.denied))
				case model.Pass:
					r.rules = append(r.rules, w.pass(k, r.next))
				case model.Log:
					r.rules = append(r.rules, k.log(s))
				}
			}
		}
		switch {
		case t.Default == model.Deny:
			k := newRule(truncate("no rule of tier " + t.Name + " allows it"))
			r.rules = append(r.rules, count(k, denied, t.Policies...).goTo(w.bench.denied))
			open = false
		case r.next != "":
			r.rules = append(r.rules, newRule("").goTo(r.next))
			open = false
		}
	}
	if open {
		r.rules = append(r.rules, w.end()...)
	}
	r.counters = slices.Sorted(maps.Keys(counters))
	r.comment = w.title()
	r.name = w.bench.name + "-" + digestRules(r.rules)
	return append([]ruling{r}, rest...)
}

// passes reports whether a rule of the tier passes to the next one, before its end.
func passes(t state.Tier) bool {
	return slices.ContainsFunc(t.Rules, func(r state.Rule) bool { return r.Action == model.Pass })
}

func (w *writer) allow(k rule) rule {
	if w.bench.noTrack {
		return k.add(&expr.Notrack{}).accept()
	}
	return k.ret()
}

// pass goes to the next tier; after the last one, the program's default follows.
func (w *writer) pass(k rule, next string) rule {
	switch {
	case next != "":
		return k.goTo(next)
	case w.prog.Default == model.Deny:
		return k.goTo(w.bench.denied)
	}
	return k.ret()
}

// end is what befalls what passed all tiers; at a chain's end, the kernel returns.
func (w *writer) end() []rule {
	if w.prog.Default == model.Deny {
		return []rule{newRule("nothing allows it").goTo(w.bench.denied)}
	}
	return nil
}

// title names the policies of the program, as many as a comment holds.
func (w *writer) title() string {
	var names []string
	for _, t := range w.prog.Tiers {
		for _, k := range t.Policies {
			names = append(names, k.String())
		}
	}
	return truncate(strings.Join(names, ", "))
}

// log writes to the kernel's log, as Calico's action Log does.
func (r rule) log(s state.Rule) rule {
	return r.add(&expr.Log{Key: 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_LEVEL, Level: expr.LogLevelInfo,
		Data: []byte(truncate("sluice: " + s.Policy.String() + " " + s.Name + ": "))})
}

func comment(s state.Rule) string { return truncate(s.Policy.String() + " " + s.Name) }

func truncate(s string) string { return s[:min(len(s), nftCommentMax)] }

// digestRules identifies rules by all that the kernel is told of them.
func digestRules(rules []rule) string {
	var a attrs
	for _, r := range rules {
		r.write(&a, TableName, "")
	}
	sum := sha256.Sum256(a.b) // what is hashed is for tenants to choose
	return hex.EncodeToString(sum[:16])
}

func digestName(s string) string { return fmt.Sprintf("%016x", xxhash.Sum64String(s)) }

// matches returns the rules, without a verdict, that match what s matches: more than one where
// s asks for one of several things. None: s matches nothing here.
func (w *writer) matches(s state.Rule) (rules []rule) {
	for _, f := range w.bench.families {
		if s.Family == 0 || int(s.Family) == f.version() {
			rules = append(rules, w.family(f).matches(s)...)
		}
	}
	return rules
}

// matcher writes what rules ask of packets of one family.
type matcher struct {
	*familyProgram
	ports *set
}

func (w *writer) family(f family) matcher {
	fp := w.program.fam[0]
	if f.bits == ipv6.bits {
		fp = w.program.fam[1]
	}
	return matcher{fp, w.policy.ports}
}

// matches multiplies out what s asks for, cheap questions first.
func (m matcher) matches(s state.Rule) []rule {
	rules := []rule{newRule("").family(m.ip)}
	rules = all(rules, m.protocol(s)...)
	rules = m.portsOf(rules, s.Source, fieldSport, m.ip.saddr)
	rules = m.portsOf(rules, s.Destination, fieldDport, m.ip.daddr)
	rules = m.addresses(rules, s.Source, m.ip.saddr)
	return m.addresses(rules, s.Destination, m.ip.daddr)
}

// step appends a question to a rule.
type step func(rule) rule

// all lets each rule ask all the steps.
func all(rules []rule, steps ...step) []rule {
	for _, ask := range steps {
		for i, r := range rules {
			rules[i] = ask(r)
		}
	}
	return rules
}

// each makes a rule of each rule with each of the steps.
func each(rules []rule, steps []step) (product []rule) {
	for _, r := range rules {
		for _, ask := range steps {
			c := r
			c.exprs = slices.Clip(r.exprs) // each grows on its own
			product = append(product, ask(c))
		}
	}
	return product
}

func (m matcher) protocol(s state.Rule) (steps []step) {
	if s.Protocol != 0 {
		steps = append(steps, func(r rule) rule { return r.proto(s.Protocol) })
	}
	if s.NotProtocol != 0 {
		steps = append(steps, func(r rule) rule {
			return r.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister}).compare(expr.CmpOpNeq, []byte{s.NotProtocol})
		})
	}
	if s.ICMP != nil {
		steps = append(steps, func(r rule) rule { return r.icmp(expr.CmpOpEq, *s.ICMP) })
	}
	if s.NotICMP != nil {
		steps = append(steps, func(r rule) rule { return r.icmp(expr.CmpOpNeq, *s.NotICMP) })
	}
	return steps
}

// icmp compares type and, if one is given, code; as one value, so that "not both" is one question.
func (r rule) icmp(op expr.CmpOp, i model.ICMP) rule {
	value := []byte{i.Type}
	if i.Code >= 0 {
		value = append(value, byte(i.Code))
	}
	r.exprs = append(r.exprs, payload(expr.PayloadBaseTransportHeader, 0, uint32(len(value)))(firstRegister))
	return r.compare(op, value)
}

// portsOf asks for the ports of one end.
func (m matcher) portsOf(rules []rule, e state.End, port, addr field) []rule {
	if e.Ports != nil {
		var steps []step
		if len(e.Ports.Ranges) > 0 {
			steps = append(steps, func(r rule) rule { return m.inPorts(r, e.Ports, port) })
		}
		for _, id := range e.Ports.Named {
			steps = append(steps, func(r rule) rule { return r.lookup(id, m.policy.named, false, addr, fieldProto, port) })
		}
		rules = each(rules, steps)
	}
	if e.NotPorts == nil {
		return rules
	}
	if len(e.NotPorts.Ranges) > 0 {
		rules = all(rules, func(r rule) rule { return r.lookup(e.NotPorts.ID, m.ports, true, fieldProto, port) })
	}
	for _, id := range e.NotPorts.Named {
		rules = all(rules, func(r rule) rule { return r.lookup(id, m.policy.named, true, addr, fieldProto, port) })
	}
	return rules
}

// inPorts asks for one of the ranges; a single one is written into the rule.
func (m matcher) inPorts(r rule, p *state.Ports, port field) rule {
	if len(p.Ranges) > 1 {
		return r.lookup(p.ID, m.ports, false, fieldProto, port)
	}
	one := p.Ranges[0]
	r = r.proto(uint8(one.Protocol))
	first, last := binary.BigEndian.AppendUint16(nil, one.First), binary.BigEndian.AppendUint16(nil, one.Last)
	switch {
	case one.First == 0 && one.Last == 0xffff:
		return r
	case one.First == one.Last:
		r.exprs = append(r.exprs, port.load(firstRegister))
		return r.compare(expr.CmpOpEq, first)
	}
	return r.between(port.load, first, last)
}

// addresses asks for the address of one end.
func (m matcher) addresses(rules []rule, e state.End, addr field) []rule {
	for _, t := range e.NotIn {
		for _, ask := range m.term(t, addr, true) {
			rules = all(rules, ask)
		}
	}
	for _, t := range e.In {
		rules = each(rules, m.term(t, addr, false))
	}
	return rules
}

// term returns a question for each of the sets in the term, and for each length of prefix in a list.
func (m matcher) term(t state.Term, addr field, not bool) (steps []step) {
	for _, id := range t.Groups {
		steps = append(steps, func(r rule) rule { return r.lookup(groupID(id), m.policy.members, not, addr) })
	}
	for _, l := range t.Lists {
		for _, bits := range m.lengths(l) {
			steps = append(steps, func(r rule) rule {
				return r.lookup(listID(l.ID, bits), m.policy.members, not, m.network(addr, bits))
			})
		}
	}
	return steps
}

func (m matcher) lengths(l state.ListRef) []uint8 {
	if m.ip.bits == ipv4.bits {
		return l.IPv4
	}
	return l.IPv6
}

// network is the field with all bits after the prefix zero.
func (m matcher) network(addr field, bits uint8) field {
	if int(bits) == m.ip.bits {
		return addr
	}
	mask := make([]byte, addr.size)
	for i := range int(bits) {
		mask[i/8] |= 1 << (7 - i%8)
	}
	addr.mask = func(reg uint32) expression {
		return libExpr(&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(addr.size), Mask: mask, Xor: make([]byte, addr.size)})
	}
	return addr
}

// groupID and listID are the numbers by which packets are looked up in members.
func groupID(id state.SetID) state.SetID            { return id | 0xff }
func listID(id state.SetID, bits uint8) state.SetID { return id | state.SetID(bits) }

// lookup goes on if the number and the fields are in the set (or are not).
func (r rule) lookup(id state.SetID, s *set, not bool, fields ...field) rule {
	r = r.constant(uint32(id))
	r.loadAt(firstRegister+1, fields)
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.name, SetID: s.id, Invert: not})
}

func (f family) version() int {
	if f.bits == ipv4.bits {
		return 4
	}
	return 6
}
