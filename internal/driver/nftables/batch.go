package nftables

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// batch is a transaction, encoded as it is built: what the kernel does with
// it, it does at once or not at all. Where chains come or go it is three, each of them safe for traffic. It prints itself and
// can be sent once.
//
// Its parts are carried out in this order: notes that are no longer true, before, deletions, additions, after,
// notes. Elements are gathered by set, many to a message. The rules come before the
// elements: a rule that is bound to a filled map costs the kernel a walk of the map.
type batch struct {
	table                string
	before, after        part
	entries              part // of a new table: the chains that packets enter by themselves
	unnoted, notes       part // notes that are no longer true, and those that are afterwards
	deletions, additions map[*set]*part

	// stepwise: chains that are new, and what they look up, are there in a transaction of their own before anything
	// leads to them, and those that go, with what they look up, in one after nothing does. A packet keeps the rules that it
	// began with, but finds the elements of the moment; so one that is on its way would enter a chain that has no rules for it
	// yet, and come out of its end, or look in an old chain for elements that are gone. For the same reason the last is sent only when
	// the packets that were on their way during the one before have arrived.
	stepwise bool
	atOnce   bool // never stepwise
	// fresh: the table is new. Packets enter it in a transaction of its own, once all that they look up is there: the kernel
	// shows some sets' elements a moment after the others', and who finds a frontend but not yet its source ranges would be dropped.
	fresh bool

	// closed: its base chains accept everything, before their rules, and those of type nat are not there: it can be filled, and no packet
	// is judged by it.
	closed bool

	labels  []string // what each message does; its sequence number is the index here
	changes int      // operations, for people: elements, chains, sets
}

// part is a run of encoded messages.
type part struct {
	attrs
	message, list int // where the open message and its element list begin; message is -1 if none is open
}

func newBatch(table string) *batch {
	b := &batch{table: table, labels: []string{"commit"}, deletions: map[*set]*part{}, additions: map[*set]*part{}}
	for _, p := range []*part{&b.before, &b.entries, &b.after, &b.unnoted, &b.notes} {
		p.message = -1
	}
	return b
}

// maxList is the length at which a list of elements is closed and another
// message begun: an attribute cannot be longer than 64 KB.
const maxList = 60 << 10

func (b *batch) open(p *part, typ uint8, flags uint16, label string) {
	p.message = len(p.b)
	appendHeader(&p.attrs, typ, flags|unix.NLM_F_REQUEST, uint32(len(b.labels)), unix.NFPROTO_INET)
	b.labels = append(b.labels, label)
}

func (p *part) close() {
	if p.message >= 0 {
		binary.NativeEndian.PutUint32(p.b[p.message:], uint32(len(p.b)-p.message))
		p.message = -1
	}
}

// do appends a message of its own.
func (b *batch) do(p *part, typ uint8, flags uint16, label string, body func(*attrs)) {
	b.open(p, typ, flags, label)
	body(&p.attrs)
	p.close()
	b.changes++
}

func (b *batch) add(e *element)    { b.element(b.partOf(b.additions, e.set), e, false); b.changes++ }
func (b *batch) delete(e *element) { b.element(b.partOf(b.deletions, e.set), e, true); b.changes++ }

// note replaces a note, and removes it with an empty text; old is what it said
// before, "" if there was none.
func (b *batch) note(p *program, id uint32, old, text string) {
	if old != "" {
		b.element(&b.unnoted, p.noteElement(id, old), true)
		b.unnoted.closeList()
	}
	if text != "" {
		b.element(&b.notes, p.noteElement(id, text), false)
		b.notes.closeList()
	}
}

func (b *batch) partOf(parts map[*set]*part, s *set) *part {
	p := parts[s]
	if p == nil {
		p = &part{message: -1}
		parts[s] = p
	}
	return p
}

func (b *batch) element(p *part, e *element, remove bool) {
	if p.message >= 0 && len(p.b)-p.list > maxList {
		p.closeList()
	}
	if p.message < 0 {
		typ, flags, label := uint8(unix.NFT_MSG_NEWSETELEM), uint16(unix.NLM_F_CREATE), "add elements to "
		if remove {
			typ, flags, label = unix.NFT_MSG_DELSETELEM, 0, "delete elements of "
		}
		b.open(p, typ, flags, label+e.set.name)
		p.str(unix.NFTA_SET_ELEM_LIST_TABLE, b.table)
		p.str(unix.NFTA_SET_ELEM_LIST_SET, e.set.name)
		p.list = p.begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	}
	e.write(&p.attrs, remove)
}

func (p *part) closeList() {
	if p.message >= 0 {
		p.end(p.list)
		p.close()
	}
}

func (b *batch) tableName(a *attrs) { a.str(unix.NFTA_TABLE_NAME, b.table) }

// addTable creates the table, or changes the flags of one that is there.
func (b *batch) addTable(flags uint32) {
	b.do(&b.before, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, "create table inet "+b.table, func(a *attrs) {
		b.tableName(a)
		a.u32(unix.NFTA_TABLE_FLAGS, flags)
		var u userdata
		u.str(udataComment, "Sluice's services. It is kept in step by sluice run and removed by sluice cleanup.")
		a.bytes(tableAttrUserdata, u.b)
	})
}

// addProgram creates the program's sets and counters, but for those that are there, and its chains.
func (b *batch) addProgram(p *program, there map[*set]bool, counted map[string]bool) {
	for _, name := range p.counters {
		if !counted[name] {
			b.addCounter(name)
		}
	}
	for _, s := range p.sets {
		if !there[s] {
			b.addSet(s)
		}
	}
	// All chains before the first rule, as rules refer to chains.
	for _, c := range p.chains {
		b.addChain(c)
	}
	for _, c := range p.chains {
		b.addRules(c)
	}
}

// partFor is where a chain and its rules are created.
func (b *batch) partFor(c chain) *part {
	if b.fresh && c.hook != nil {
		return &b.entries
	}
	return &b.before
}

func (b *batch) addChain(c chain) {
	if b.leavesOut(c) {
		return
	}
	b.do(b.partFor(c), unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, "create chain "+c.name, func(a *attrs) { c.write(a, b.table) })
}

// leavesOut reports whether the chain is not there as long as the table is closed.
func (b *batch) leavesOut(c chain) bool { return b.closed && c.hook != nil && c.hook.kind == natHook }

func (b *batch) addRules(c chain) {
	if b.leavesOut(c) {
		return
	}
	if b.closed && c.hook != nil {
		c.rules = append([]rule{newRule("closed until all is there").accept()}, c.rules...)
	}
	for i, r := range c.rules {
		b.do(b.partFor(c), unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND,
			ruleLabel(c.name, i), func(a *attrs) { r.write(a, b.table, c.name) })
	}
	b.changes -= len(c.rules) // a chain with its rules is one change to people
}

// ruleLabel is what a message does that creates the i-th rule of a chain.
func ruleLabel(chain string, i int) string {
	return fmt.Sprintf("create rule %d of chain %s", i+1, chain)
}

// deleteRules removes the rules of a chain, or of all with "".
func (b *batch) deleteRules(p *part, chain string) {
	b.do(p, unix.NFT_MSG_DELRULE, 0, "delete rules of chain "+chain, func(a *attrs) {
		a.str(unix.NFTA_RULE_TABLE, b.table)
		if chain != "" {
			a.str(unix.NFTA_RULE_CHAIN, chain)
		}
	})
	b.changes--
}

// deleteChain removes a chain that has no rules and that nothing refers to.
func (b *batch) deleteChain(p *part, name string) {
	b.do(p, unix.NFT_MSG_DELCHAIN, 0, "delete chain "+name, func(a *attrs) {
		a.str(unix.NFTA_CHAIN_TABLE, b.table)
		a.str(unix.NFTA_CHAIN_NAME, name)
	})
}

func (b *batch) addSet(s *set) {
	b.do(&b.before, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, "create set "+s.name, func(a *attrs) { s.write(a, b.table) })
}

func (b *batch) deleteSet(p *part, name string) {
	b.do(p, unix.NFT_MSG_DELSET, 0, "delete set "+name, func(a *attrs) {
		a.str(unix.NFTA_SET_TABLE, b.table)
		a.str(unix.NFTA_SET_NAME, name)
	})
}

// flushSet removes all elements of a set, in the transaction that writes them anew.
func (b *batch) flushSet(s *set) {
	p := &b.before
	if !s.lookedUp() {
		p = b.partOf(b.deletions, s)
	}
	b.do(p, unix.NFT_MSG_DELSETELEM, 0, "empty set "+s.name, func(a *attrs) {
		a.str(unix.NFTA_SET_ELEM_LIST_TABLE, b.table)
		a.str(unix.NFTA_SET_ELEM_LIST_SET, s.name)
	})
}

// lookedUp reports whether the set is filled before, and emptied after, the rules that look it up.
func (s *set) lookedUp() bool { return s.policy && !s.verdict && len(s.key) > 1 }

// transactions are the parts in their order.
func (b *batch) transactions() [][]*part {
	lookedUp := func(s *set) bool { return b.stepwise && s.lookedUp() }
	others := func(s *set) bool { return !lookedUp(s) }
	first := append([]*part{&b.unnoted, &b.before}, sortedParts(b.additions, lookedUp)...)
	second := append(sortedParts(b.deletions, others), sortedParts(b.additions, others)...)
	third := append(sortedParts(b.deletions, lookedUp), &b.after, &b.notes)
	if b.stepwise {
		return [][]*part{first, second, third}
	}
	if b.fresh {
		return [][]*part{slices.Concat(first, second, []*part{&b.after}), {&b.entries, &b.notes}}
	}
	return [][]*part{slices.Concat(first, second, third)}
}

// buffers are the encoded parts of a transaction. The last message asks for the acknowledgement.
func buffers(parts []*part) (bufs [][]byte, ackSeq uint32) {
	var last *part
	for _, p := range parts {
		p.closeList()
		if len(p.b) > 0 {
			bufs = append(bufs, p.b)
			last = p
		}
	}
	if last == nil {
		return nil, 0
	}
	at := lastMessage(last.b)
	flags := binary.NativeEndian.Uint16(last.b[at+6:])
	binary.NativeEndian.PutUint16(last.b[at+6:], flags|unix.NLM_F_ACK)
	return bufs, binary.NativeEndian.Uint32(last.b[at+8:])
}

// sortedParts are the parts of the sets in the program's order, of all or of some.
func sortedParts(parts map[*set]*part, some func(*set) bool) (sorted []*part) {
	keys := slices.SortedFunc(maps.Keys(parts), func(a, b *set) int { return cmp.Compare(a.id, b.id) })
	for _, s := range keys {
		if some == nil || some(s) {
			sorted = append(sorted, parts[s])
		}
	}
	return sorted
}

func lastMessage(b []byte) (at int) {
	for next := 0; next < len(b); next += int(binary.NativeEndian.Uint32(b[next:])) {
		at = next
	}
	return at
}

// String prints the operations, one a line.
func (b *batch) String() string {
	var out strings.Builder
	b.before.print(&out, b.labels)
	b.entries.print(&out, b.labels)
	for _, group := range []struct {
		verb  string
		parts map[*set]*part
	}{{"delete", b.deletions}, {"add", b.additions}} {
		keys := slices.SortedFunc(maps.Keys(group.parts), func(a, b *set) int { return cmp.Compare(a.id, b.id) })
		for _, s := range keys {
			group.parts[s].printElements(&out, group.verb, s)
		}
	}
	b.after.print(&out, b.labels)
	return out.String()
}

// eachMessage yields type, sequence number and attributes of each message.
func (p *part) eachMessage(yield func(typ uint16, seq uint32, body []byte)) {
	for b := p.b; len(b) > 0; {
		n := binary.NativeEndian.Uint32(b)
		yield(binary.NativeEndian.Uint16(b[4:])&0xff, binary.NativeEndian.Uint32(b[8:]), b[unix.SizeofNlMsghdr+nfgenmsgLen:n])
		b = b[n:]
	}
}

func (p *part) print(out *strings.Builder, labels []string) {
	p.eachMessage(func(typ uint16, seq uint32, _ []byte) {
		if typ != unix.NFT_MSG_NEWRULE && typ != unix.NFT_MSG_DELRULE {
			fmt.Fprintln(out, labels[seq])
		}
	})
}

func (p *part) printElements(out *strings.Builder, verb string, s *set) {
	p.closeList()
	p.eachMessage(func(_ uint16, _ uint32, body []byte) {
		list := findAttr(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		if list == nil {
			fmt.Fprintf(out, "empty set %s\n", s.name)
		}
		eachAttr(list, func(_ uint16, v []byte) bool {
			e := readElement(s, v)
			fmt.Fprintf(out, "%s element %s { %s }\n", verb, s.name, &e)
			return true
		})
	})
}

// send commits the batch and returns the number of transactions that it took: up to three, none if it
// is empty. Where the first of several fails, as elements are in the way that a later one would have removed, nothing has happened,
// and all of it is tried as one.
func (b *batch) send(s *socket) (sent uint32, err error) {
	sent, err = b.sendAll(s)
	if err != nil && b.stepwise && sent == 0 {
		b.stepwise = false
		return b.sendAll(s)
	}
	return sent, err
}

// last is the step that removes what packets were led to before.
const last = 2

// removes says whether a part of the last step is not only about notes.
func (b *batch) removes(p *part) bool { return p != &b.notes && len(p.b) > 0 }

func (b *batch) sendAll(s *socket) (sent uint32, err error) {
	for i, parts := range b.transactions() {
		bufs, ack := buffers(parts)
		if bufs == nil {
			continue
		}
		if i == last && slices.ContainsFunc(parts, b.removes) {
			awaitPackets()
		}
		if err := s.commit(bufs, ack, b.labels); err != nil {
			return sent, err
		}
		sent++
	}
	return sent, nil
}

func (c chain) write(a *attrs, table string) {
	a.str(unix.NFTA_CHAIN_TABLE, table)
	a.str(unix.NFTA_CHAIN_NAME, c.name)
	if c.hook != nil {
		h := a.begin(unix.NFTA_CHAIN_HOOK)
		a.u32(unix.NFTA_HOOK_HOOKNUM, c.hook.num)
		a.u32(unix.NFTA_HOOK_PRIORITY, uint32(c.hook.priority))
		if c.hook.device != "" {
			a.str(unix.NFTA_HOOK_DEV, c.hook.device)
		}
		a.end(h)
		a.u32(unix.NFTA_CHAIN_POLICY, chainPolicyAccept)
		a.str(unix.NFTA_CHAIN_TYPE, c.hook.kind)
	}
	if c.comment != "" {
		var u userdata
		u.str(udataComment, c.comment)
		a.bytes(chainAttrUserdata, u.b)
	}
}

func (r rule) write(a *attrs, table, chain string) {
	a.str(unix.NFTA_RULE_TABLE, table)
	a.str(unix.NFTA_RULE_CHAIN, chain)
	list := a.begin(unix.NFTA_RULE_EXPRESSIONS)
	a.b = append(a.b, r.exprs.b...)
	a.end(list)
	if r.comment != "" {
		var u userdata
		u.str(udataComment, r.comment)
		a.bytes(unix.NFTA_RULE_USERDATA, u.b)
	}
}
