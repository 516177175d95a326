package ruleset

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// question is what a declared rule matches, of packets of one family.
type question struct {
	always nft.Rule // what is asked once
	oneOf  [][]test // of each list, one must hold
	never  []inSet  // none of these may hold
}

// test goes on if something holds.
type test func(nft.Rule) nft.Rule

// inSet holds if the number and the fields are in the set.
type inSet struct {
	number uint32
	set    *nft.Set
	fields []nft.Field
}

func (s inSet) test(r nft.Rule) nft.Rule { return r.Lookup(s.number, s.set, false, s.fields...) }
func (s inSet) not(r nft.Rule) nft.Rule  { return r.Lookup(s.number, s.set, true, s.fields...) }

// matches returns rules, without an end, of which one goes on if s matches. None: s matches nothing
// here.
func (w *rulesWriter) matches(d *draft, f nft.Family, s *state.Rule, comment string) []nft.Rule {
	q := w.family(f).ask(s)
	if slices.ContainsFunc(q.oneOf, func(tests []test) bool { return len(tests) == 0 }) {
		return nil
	}
	q.always.Comment = comment
	if rules := q.inline(w.limits); rules != nil {
		return rules
	}
	first, chain := q.apart(f, w.limits)
	d.jump(first, chain)
	d.marks = true
	return []nft.Rule{rule(comment).Mark(expr.CmpOpEq, outcomeBits, yes).SetMark(outcomeBits, nothing)}
}

// inline writes one rule for each combination of tests; nil: that exceeds the limits.
func (q question) inline(l limits) []nft.Rule {
	rules := []nft.Rule{q.always}
	for _, tests := range q.oneOf {
		if len(rules)*len(tests) > l.inline {
			return nil
		}
		var product []nft.Rule
		for _, r := range rules {
			for _, t := range tests {
				product = append(product, t(r))
			}
		}
		rules = product
	}
	for i, r := range rules {
		for _, s := range q.never {
			if r = s.not(r); !l.hold(r) {
				return nil
			}
		}
		if !l.hold(r) {
			return nil
		}
		rules[i] = r
	}
	return rules
}

// apart writes a chain of its own, which leaves yes or nothing; each list of tests is a chain, too.
// first is for the rule that jumps there: it has as many of the tests as fit.
func (q question) apart(f nft.Family, l limits) (first nft.Rule, match *table.DynamicChain) {
	first = q.always
	d := newDraft()
	full := false
	for _, s := range q.never {
		if !full {
			r := s.not(first)
			if full = !l.hold(r); !full {
				first = r
				continue
			}
		}
		d.add(s.test(rule().Family(f)).Return())
	}
	var rest [][]test
	for _, tests := range q.oneOf {
		if len(tests) == 1 {
			if r := tests[0](first); l.hold(r) {
				first = r
				continue
			}
		}
		rest = append(rest, tests)
	}
	if len(rest) == 0 {
		leave(yes)(d, rule())
	}
	for i, tests := range rest {
		one := newDraft()
		for _, t := range tests {
			leave(yes)(one, t(rule().Family(f)))
		}
		d.jump(rule(), one.done(f.Name+"-one-of", ""))
		if i < len(rest)-1 {
			d.add(rule().Mark(expr.CmpOpNeq, outcomeBits, yes).Return())
			d.add(rule().SetMark(outcomeBits, nothing))
		}
	}
	return first, d.done(f.Name+"-match", "")
}

// matcher writes what rules match, of packets of one family.
type matcher struct {
	*Family
	ports *nft.Set
}

func (w *rulesWriter) family(f nft.Family) matcher {
	fp := w.Ruleset.Families[0]
	if f.Bits == nft.IPv6.Bits {
		fp = w.Ruleset.Families[1]
	}
	return matcher{fp, w.Ruleset.Policy.ports}
}

// ask lists what s matches, cheap tests first.
func (m matcher) ask(s *state.Rule) question {
	q := question{always: m.protocol(rule().Family(m.IP), s)}
	m.askPorts(&q, &s.Source, nft.Sport, m.IP.Saddr)
	m.askPorts(&q, &s.Destination, nft.Dport, m.IP.Daddr)
	m.askAddress(&q, &s.Source, m.IP.Saddr)
	m.askAddress(&q, &s.Destination, m.IP.Daddr)
	return q
}

func (m matcher) protocol(r nft.Rule, s *state.Rule) nft.Rule {
	if s.Protocol != 0 {
		r = r.Proto(s.Protocol)
	}
	if s.NotProtocol != 0 {
		r = r.NotProto(s.NotProtocol)
	}
	if s.ICMP != nil {
		r = icmp(r, expr.CmpOpEq, *s.ICMP)
	}
	if s.NotICMP != nil {
		r = icmp(r, expr.CmpOpNeq, *s.NotICMP)
	}
	return r
}

// icmp compares type and, if one is given, code; as one value, so that "not both" is one question.
func icmp(r nft.Rule, op expr.CmpOp, i model.ICMP) nft.Rule {
	if i.Code < 0 {
		return r.Is(op, nft.ICMPType, []byte{i.Type})
	}
	return r.Is(op, nft.ICMP, []byte{i.Type, byte(i.Code)})
}

// askPorts asks for the ports of one end.
func (m matcher) askPorts(q *question, e *state.End, port, addr nft.Field) {
	if e.Ports != nil {
		var tests []test
		if ranges := e.Ports.Ranges; len(ranges) == 1 {
			tests = append(tests, func(r nft.Rule) nft.Rule { return inRange(r, ranges[0], port) })
		} else {
			for _, s := range m.portSets(e.Ports, port) {
				tests = append(tests, s.test)
			}
		}
		for _, id := range e.Ports.Named {
			tests = append(tests, m.named(id, port, addr).test)
		}
		q.oneOf = append(q.oneOf, tests)
	}
	if e.NotPorts != nil {
		q.never = append(q.never, m.portSets(e.NotPorts, port)...)
		for _, id := range e.NotPorts.Named {
			q.never = append(q.never, m.named(id, port, addr))
		}
	}
}

func (m matcher) named(id state.SetID, port, addr nft.Field) inSet {
	return inSet{namedNumber(id), m.Policy.named, []nft.Field{addr, nft.L4Proto, port}}
}

// portSets has one for each size of block that the ranges are made of.
func (m matcher) portSets(p *state.Ports, port nft.Field) (sets []inSet) {
	var used [len(portBlocks)]bool
	for _, r := range p.Ranges {
		eachBlock(r, func(size int, _ uint16) { used[size] = true })
	}
	for size, is := range used {
		if is {
			sets = append(sets, portsIn(m.ports, p.ID, size, port))
		}
	}
	return sets
}

// portsIn looks for the block of this size that holds the port.
func portsIn(ports *nft.Set, id state.SetID, size int, port nft.Field) inSet {
	return inSet{portsNumber(id, size), ports, []nft.Field{nft.L4Proto, nft.Masked(port, portBlocks[size])}}
}

// inRange asks for one range.
func inRange(r nft.Rule, one state.PortRange, port nft.Field) nft.Rule {
	r = r.Proto(uint8(one.Protocol))
	first, last := binary.BigEndian.AppendUint16(nil, one.First), binary.BigEndian.AppendUint16(nil, one.Last)
	switch {
	case one.First == 0 && one.Last == 0xffff:
		return r
	case one.First == one.Last:
		return r.Is(expr.CmpOpEq, port, first)
	}
	return r.Between(port, first, last)
}

// askAddress asks for the address of one end.
func (m matcher) askAddress(q *question, e *state.End, addr nft.Field) {
	for _, t := range e.NotIn {
		q.never = append(q.never, m.term(t, addr)...)
	}
	for _, t := range e.In {
		tests := []test{}
		for _, s := range m.term(t, addr) {
			tests = append(tests, s.test)
		}
		q.oneOf = append(q.oneOf, tests)
	}
}

// term has one for each of its groups, and for each length of prefix in a list.
func (m matcher) term(t state.Term, addr nft.Field) (sets []inSet) {
	for _, id := range t.Groups {
		sets = append(sets, inSet{groupNumber(id), m.Policy.members, []nft.Field{addr}})
	}
	for _, l := range t.Lists {
		for _, bits := range m.lengths(l) {
			sets = append(sets, inSet{listNumber(l.ID, bits), m.Policy.members, []nft.Field{nft.Masked(addr, int(bits))}})
		}
	}
	return sets
}

func (m matcher) lengths(l state.ListRef) []uint8 {
	if m.IP.Bits == nft.IPv4.Bits {
		return l.IPv4
	}
	return l.IPv6
}

// In the kernel's sets each set of the state has 256 numbers: the lengths of the prefixes of a
// list, or of the blocks of ports, and one for the members of a group, which have no length.
const (
	numbersOfSet = 8 // bits
	wholeAddress = 1<<numbersOfSet - 1
)

func groupNumber(id state.SetID) uint32            { return uint32(id)<<numbersOfSet | wholeAddress }
func listNumber(id state.SetID, bits uint8) uint32 { return uint32(id)<<numbersOfSet | uint32(bits) }
func portsNumber(id state.SetID, size int) uint32  { return listNumber(id, uint8(portBlocks[size])) }
func namedNumber(id state.SetID) uint32            { return uint32(id) << numbersOfSet }

// portBlocks are the sizes of blocks that ranges of ports are made of, as the number of leading
// bits that the ports of a block share. Few of them: each is a look-up.
var portBlocks = [...]int{0, 4, 8, 12, 16}

// eachBlock yields the blocks that make up a range: the index of their size, and their first port.
func eachBlock(r state.PortRange, yield func(size int, first uint16)) {
	for from := int(r.First); from <= int(r.Last); {
		size := 0
		for width := 1 << 16; from%width != 0 || from+width-1 > int(r.Last); width = 1 << (16 - portBlocks[size]) {
			size++
		}
		yield(size, uint16(from))
		from += 1 << (16 - portBlocks[size])
	}
}
