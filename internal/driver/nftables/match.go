package nftables

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// question is what a declared rule asks of packets of one family.
type question struct {
	always rule     // what is asked once
	oneOf  [][]test // of each list, one must hold
	never  []inSet  // none of these may hold
}

// test goes on if something holds.
type test func(rule) rule

// inSet holds if the number and the fields are in the set.
type inSet struct {
	id     state.SetID
	set    *set
	fields []field
}

func (s inSet) test(r rule) rule { return r.lookup(s.id, s.set, false, s.fields...) }
func (s inSet) not(r rule) rule  { return r.lookup(s.id, s.set, true, s.fields...) }

// matches returns rules, without an end, of which one goes on if s matches. None: s matches nothing here.
func (w *writer) matches(d *draft, f family, s *state.Rule, comment string) []rule {
	q := w.family(f).ask(s)
	if slices.ContainsFunc(q.oneOf, func(tests []test) bool { return len(tests) == 0 }) {
		return nil
	}
	q.always.comment = comment
	if rules := q.inline(w.limits); rules != nil {
		return rules
	}
	first, chain := q.apart(f, w.limits)
	d.jump(first, chain)
	d.marks = true
	return []rule{newRule(comment).outcome(expr.CmpOpEq, yes).setOutcome(nothing)}
}

// inline multiplies out; nil: that is more rules, or longer ones, than is good.
func (q question) inline(l limits) []rule {
	rules := []rule{q.always}
	for _, tests := range q.oneOf {
		if len(rules)*len(tests) > l.inline {
			return nil
		}
		var product []rule
		for _, r := range rules {
			for _, t := range tests {
				product = append(product, t(r))
			}
		}
		rules = product
	}
	for i, r := range rules {
		for _, s := range q.never {
			if r = s.not(r); !r.fits(l) {
				return nil
			}
		}
		if !r.fits(l) {
			return nil
		}
		rules[i] = r
	}
	return rules
}

// apart asks in a chain of its own, which leaves yes or nothing: one list of tests after the other, each in
// a chain too. first is for the rule that jumps there: it has what fits of all that can be asked at once.
func (q question) apart(f family, l limits) (first rule, match *ruling) {
	first = q.always
	d := newDraft()
	full := false
	for _, s := range q.never {
		if !full {
			r := s.not(first)
			if full = !r.fits(l); !full {
				first = r
				continue
			}
		}
		d.add(s.test(newRule("").family(f)).ret())
	}
	var rest [][]test
	for _, tests := range q.oneOf {
		if len(tests) == 1 {
			if r := tests[0](first); r.fits(l) {
				first = r
				continue
			}
		}
		rest = append(rest, tests)
	}
	if len(rest) == 0 {
		leave(yes)(d, newRule(""))
	}
	for i, tests := range rest {
		one := newDraft()
		for _, t := range tests {
			leave(yes)(one, t(newRule("").family(f)))
		}
		d.jump(newRule(""), one.done(f.name+"-one-of", ""))
		if i < len(rest)-1 {
			d.add(newRule("").outcome(expr.CmpOpNeq, yes).ret())
			d.add(newRule("").setOutcome(nothing))
		}
	}
	return first, d.done(f.name+"-match", "")
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
	return matcher{fp, w.program.policy.ports}
}

// ask lists what s asks for, cheap questions first.
func (m matcher) ask(s *state.Rule) question {
	q := question{always: m.protocol(newRule("").family(m.ip), s)}
	m.askPorts(&q, &s.Source, fieldSport, m.ip.saddr)
	m.askPorts(&q, &s.Destination, fieldDport, m.ip.daddr)
	m.askAddress(&q, &s.Source, m.ip.saddr)
	m.askAddress(&q, &s.Destination, m.ip.daddr)
	return q
}

func (m matcher) protocol(r rule, s *state.Rule) rule {
	if s.Protocol != 0 {
		r = r.proto(s.Protocol)
	}
	if s.NotProtocol != 0 {
		r = r.notProto(s.NotProtocol)
	}
	if s.ICMP != nil {
		r = r.icmp(expr.CmpOpEq, *s.ICMP)
	}
	if s.NotICMP != nil {
		r = r.icmp(expr.CmpOpNeq, *s.NotICMP)
	}
	return r
}

// icmp compares type and, if one is given, code; as one value, so that "not both" is one question.
func (r rule) icmp(op expr.CmpOp, i model.ICMP) rule {
	value := []byte{i.Type}
	if i.Code >= 0 {
		value = append(value, byte(i.Code))
	}
	return r.append(payload(expr.PayloadBaseTransportHeader, 0, uint32(len(value)))(firstRegister)).compare(op, value)
}

// askPorts asks for the ports of one end.
func (m matcher) askPorts(q *question, e *state.End, port, addr field) {
	if e.Ports != nil {
		var tests []test
		if ranges := e.Ports.Ranges; len(ranges) == 1 {
			tests = append(tests, func(r rule) rule { return r.inRange(ranges[0], port) })
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

func (m matcher) named(id state.SetID, port, addr field) inSet {
	return inSet{id, m.policy.named, []field{addr, fieldProto, port}}
}

// portSets has one for each size of block that the ranges are made of.
func (m matcher) portSets(p *state.Ports, port field) (sets []inSet) {
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
func portsIn(ports *set, id state.SetID, size int, port field) inSet {
	return inSet{portsID(id, size), ports, []field{fieldProto, masked(port, portBlocks[size])}}
}

// inRange asks for one range.
func (r rule) inRange(one state.PortRange, port field) rule {
	r = r.proto(uint8(one.Protocol))
	first, last := binary.BigEndian.AppendUint16(nil, one.First), binary.BigEndian.AppendUint16(nil, one.Last)
	switch {
	case one.First == 0 && one.Last == 0xffff:
		return r
	case one.First == one.Last:
		return r.append(port.load(firstRegister)).compare(expr.CmpOpEq, first)
	}
	return r.between(port.load, first, last)
}

// askAddress asks for the address of one end.
func (m matcher) askAddress(q *question, e *state.End, addr field) {
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
func (m matcher) term(t state.Term, addr field) (sets []inSet) {
	for _, id := range t.Groups {
		sets = append(sets, inSet{groupID(id), m.policy.members, []field{addr}})
	}
	for _, l := range t.Lists {
		for _, bits := range m.lengths(l) {
			sets = append(sets, inSet{listID(l.ID, bits), m.policy.members, []field{masked(addr, int(bits))}})
		}
	}
	return sets
}

func (m matcher) lengths(l state.ListRef) []uint8 {
	if m.ip.bits == ipv4.bits {
		return l.IPv4
	}
	return l.IPv6
}

// masked is the field with all bits after the first so many zero.
func masked(f field, bits int) field {
	if bits == 8*f.size {
		return f
	}
	mask := make([]byte, f.size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	f.mask = func(reg uint32) expression {
		return libExpr(&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(f.size), Mask: mask, Xor: make([]byte, f.size)})
	}
	return f
}

// groupID, listID and portsID are the numbers by which packets are looked up.
func groupID(id state.SetID) state.SetID            { return id | 0xff }
func listID(id state.SetID, bits uint8) state.SetID { return id | state.SetID(bits) }
func portsID(id state.SetID, size int) state.SetID  { return id | state.SetID(portBlocks[size]) }

// portBlocks are the sizes of blocks that ranges of ports are made of, as the number of leading bits that
// the ports of a block share. Few of them: each is a look-up.
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
