package nft

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// Batch is a transaction, encoded as it is built: the kernel carries it out at once or not at all.
// Where chains or lists come or go it is three transactions, each safe for traffic. It prints
// itself and can be sent once.
//
// Its segments are carried out in this order: notes that are no longer true, Before, deletions,
// additions, Turn, After, notes. Elements are gathered by set, many to a message. Most rules come
// before the elements: a rule that is bound to a filled map costs the kernel a walk of the map.
// Rules of base chains, by which packets come to all others, are in Turn.
type Batch struct {
	Table                string
	Family               uint8 // unix.NFPROTO_… of the table
	Before, Turn, After  segment
	entries              segment // of a new table: the chains that packets enter by themselves
	unnoted, notes       segment // notes that are no longer true, and those that are afterwards
	deletions, additions map[*Set]*segment
	flushed              map[*Set]bool
	// first… and last… are of the first and the last step.
	firstDeletions, firstAdditions map[*Set]*segment
	lastDeletions, lastAdditions   map[*Set]*segment
	standing, stood                map[*Set]*segment // elements of maps that stand in for others: they come, and go

	// Stepwise: one transaction creates the new chains and what they look up, the next leads
	// packets to them and away from the old ones, and a last one removes the old chains and what
	// those look up. A packet sees one generation of the ruleset, but the current elements of its
	// sets: in one transaction, a packet on its way could enter a chain that has no rules for it
	// yet, or look in an old chain for elements that are gone. For the same reason the last one is
	// sent only when the packets that were on their way during the one before have passed.
	Stepwise bool
	AtOnce   bool // never stepwise
	// Fresh: the table is new. A second transaction creates the chains that packets enter by
	// themselves, once all that packets look up is there: the kernel shows some sets' elements a
	// moment after the others'. What is Late comes in a third.
	Fresh bool

	// Closed: the base chains accept everything, before their rules, and there are none of type
	// nat: the table can be filled without any effect on packets.
	Closed bool

	// Counted are packets with which counters begin.
	Counted map[string]uint64

	labels  []string // what each message does; its sequence number is the index here
	Changes int      // operations, for people: elements, chains, sets
}

// segment is a run of encoded messages.
type segment struct {
	attr.Attrs
	set           *Set // that the elements are of
	message, list int  // where the open message and its element list begin; message is -1 if none is open
}

// NewBatch returns an empty batch for the table, of family inet.
func NewBatch(table string) *Batch {
	b := &Batch{Table: table, Family: unix.NFPROTO_INET, labels: []string{"commit"},
		deletions: map[*Set]*segment{}, additions: map[*Set]*segment{}, firstAdditions: map[*Set]*segment{}, lastDeletions: map[*Set]*segment{},
		firstDeletions: map[*Set]*segment{}, lastAdditions: map[*Set]*segment{}, standing: map[*Set]*segment{}, stood: map[*Set]*segment{},
		flushed: map[*Set]bool{}}
	for _, seg := range []*segment{&b.Before, &b.Turn, &b.entries, &b.After, &b.unnoted, &b.notes} {
		seg.message = -1
	}
	return b
}

// maxList is the length at which a list of elements is closed and another
// message begun: an attribute cannot be longer than 64 KB.
const maxList = 60 << 10

func (b *Batch) open(seg *segment, typ uint8, flags uint16, label string) {
	seg.message = len(seg.B)
	appendHeader(&seg.Attrs, typ, flags|unix.NLM_F_REQUEST, uint32(len(b.labels)), b.Family)
	b.labels = append(b.labels, label)
}

func (seg *segment) close() {
	if seg.message >= 0 {
		binary.NativeEndian.PutUint32(seg.B[seg.message:], uint32(len(seg.B)-seg.message))
		seg.message = -1
	}
}

// do appends a message of its own.
func (b *Batch) do(seg *segment, typ uint8, flags uint16, label string, body func(*attr.Attrs)) {
	b.open(seg, typ, flags, label)
	body(&seg.Attrs)
	seg.close()
	b.Changes++
}

// Add and Delete add an element to its set, and delete it: of an Early one in the first step, and
// in the last one; of a Late one in the last step, also where all else takes one, and in the first.
func (b *Batch) Add(e *Element) { b.change(b.additions, b.firstAdditions, b.lastAdditions, e, false) }
func (b *Batch) Delete(e *Element) {
	b.change(b.deletions, b.lastDeletions, b.firstDeletions, e, true)
}

func (b *Batch) change(usual, early, late map[*Set]*segment, e *Element, remove bool) {
	switch {
	case b.flushed[e.Set]:
	case e.Set.Early:
		usual = early
	case e.Set.Late:
		usual = late
	}
	b.element(b.segmentOf(usual, e.Set), e, remove)
	b.Changes++
}

// DeleteLast deletes an element in the last step, of any set: what looks it up was led there by
// what the step before deletes.
func (b *Batch) DeleteLast(e *Element) {
	b.element(b.segmentOf(b.lastDeletions, e.Set), e, true)
	b.Stepwise = !b.AtOnce
	b.Changes++
}

// Replace deletes an element and adds another one with its key, in one step. Until then the map
// that stands in for the set has the new one, if there is one.
func (b *Batch) Replace(old, now *Element) {
	b.element(b.segmentOf(b.deletions, old.Set), old, true)
	b.element(b.segmentOf(b.additions, now.Set), now, false)
	b.Changes += 2
	if s := now.Set.StandIn; s != nil && !b.AtOnce {
		e := *now
		e.Set = s
		b.Stepwise = true
		b.element(b.segmentOf(b.standing, s), &e, false)
		b.element(b.segmentOf(b.stood, s), &e, true)
	}
}

// Hint adds an element that goes by itself. It does not count as a change.
func (b *Batch) Hint(e *Element) { b.element(b.segmentOf(b.additions, e.Set), e, false) }

// Changed reports whether elements of the set are added or deleted one by one.
func (b *Batch) Changed(s *Set) bool {
	for _, by := range []map[*Set]*segment{b.additions, b.deletions, b.firstAdditions, b.firstDeletions, b.lastAdditions, b.lastDeletions} {
		if by[s] != nil {
			return true
		}
	}
	return false
}

// Note replaces an element that says something of the table: it deletes old before all else of the
// batch, and adds now after all else. Neither counts as a change; both may be nil.
func (b *Batch) Note(old, now *Element) {
	if old != nil {
		b.element(&b.unnoted, old, true)
		b.unnoted.closeList()
	}
	if now != nil {
		b.element(&b.notes, now, false)
		b.notes.closeList()
	}
}

func (b *Batch) segmentOf(by map[*Set]*segment, s *Set) *segment {
	seg := by[s]
	if seg == nil {
		seg = &segment{set: s, message: -1}
		by[s] = seg
	}
	return seg
}

func (b *Batch) element(seg *segment, e *Element, remove bool) {
	if seg.message >= 0 && len(seg.B)-seg.list > maxList {
		seg.closeList()
	}
	if seg.message < 0 {
		typ, flags, label := uint8(unix.NFT_MSG_NEWSETELEM), uint16(unix.NLM_F_CREATE), "add elements to "
		if remove {
			typ, flags, label = unix.NFT_MSG_DELSETELEM, 0, "delete elements of "
		}
		b.open(seg, typ, flags, label+e.Set.Name)
		b.names(unix.NFTA_SET_ELEM_LIST_TABLE, unix.NFTA_SET_ELEM_LIST_SET, e.Set.Name)(&seg.Attrs)
		seg.list = seg.Begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	}
	e.Write(&seg.Attrs, remove)
}

func (seg *segment) closeList() {
	if seg.message >= 0 {
		seg.End(seg.list)
		seg.close()
	}
}

func (b *Batch) tableName(a *attr.Attrs) { a.String(unix.NFTA_TABLE_NAME, b.Table) }

// names writes the name of something in the table, under the attributes of its kind.
func (b *Batch) names(tableAttr, nameAttr uint16, name string) func(*attr.Attrs) {
	return func(a *attr.Attrs) {
		a.String(tableAttr, b.Table)
		a.String(nameAttr, name)
	}
}

// AddTable creates the table, or changes the flags of one that is there.
func (b *Batch) AddTable(flags uint32, comment string) {
	b.do(&b.Before, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, "create table "+b.name(), func(a *attr.Attrs) {
		b.tableName(a)
		a.Uint32(unix.NFTA_TABLE_FLAGS, flags)
		putComment(a, tableAttrUserdata, comment)
	})
}

// DeleteTable deletes the table with all that is in it, after all else.
func (b *Batch) DeleteTable() {
	b.do(&b.After, unix.NFT_MSG_DELTABLE, 0, "delete table "+b.name(), b.tableName)
}

// ReplaceTable deletes the table with all that is in it, before it is created anew.
func (b *Batch) ReplaceTable() {
	b.do(&b.Before, unix.NFT_MSG_DELTABLE, 0, "delete table "+b.name(), b.tableName)
}

// name is the table's, as nft writes it.
func (b *Batch) name() string {
	if b.Family == unix.NFPROTO_NETDEV {
		return "netdev " + b.Table
	}
	return "inet " + b.Table
}

// segmentFor is where a chain is created.
func (b *Batch) segmentFor(c Chain) *segment {
	if b.Fresh && c.Hook != nil {
		return &b.entries
	}
	return &b.Before
}

// rulesSegment is where its rules are.
func (b *Batch) rulesSegment(c Chain) *segment {
	if !b.Fresh && c.Hook != nil {
		return &b.Turn
	}
	return b.segmentFor(c)
}

// AddChain creates a chain without its rules: all chains come before the first rule that refers to
// one.
func (b *Batch) AddChain(c Chain) {
	if b.leavesOut(c) {
		return
	}
	b.do(b.segmentFor(c), unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, "create chain "+c.Name, func(a *attr.Attrs) { c.Write(a, b.Table) })
}

// leavesOut reports whether the chain is not there as long as the table is closed.
func (b *Batch) leavesOut(c Chain) bool { return b.Closed && c.Hook != nil && c.Hook.Type == TypeNAT }

// AddRules appends the rules of a chain to it.
func (b *Batch) AddRules(c Chain) { b.addRules(b.rulesSegment(c), c) }

func (b *Batch) addRules(seg *segment, c Chain) {
	if b.leavesOut(c) {
		return
	}
	if b.Closed && c.Hook != nil {
		c.Rules = append([]Rule{NewRule("closed until all is there").Accept()}, c.Rules...)
	}
	for i, r := range c.Rules {
		b.do(seg, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND,
			RuleLabel(c.Name, i), func(a *attr.Attrs) { r.Write(a, b.Table, c.Name) })
	}
	b.Changes -= len(c.Rules) // a chain with its rules is one change to people
}

// RuleLabel is what a message does that creates the i-th rule of a chain.
func RuleLabel(chain string, i int) string {
	return fmt.Sprintf("create rule %d of chain %s", i+1, chain)
}

// AddHelpers creates the objects that a chain's rules refer to.
func (b *Batch) AddHelpers(c Chain) {
	for _, h := range c.Helpers {
		b.do(b.segmentFor(c), unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE, "create helper "+h.Name, func(a *attr.Attrs) {
			b.names(unix.NFTA_OBJ_TABLE, unix.NFTA_OBJ_NAME, h.Name)(a)
			a.Uint32(unix.NFTA_OBJ_TYPE, objectHelper)
			data := a.Begin(unix.NFTA_OBJ_DATA)
			a.String(helperName, h.Helper)
			a.Bytes(helperProtocol, []byte{h.Protocol})
			a.End(data)
		})
	}
}

// DeleteHelper deletes the object of a name, which no rule may refer to.
func (b *Batch) DeleteHelper(seg *segment, name string) {
	b.do(seg, unix.NFT_MSG_DELOBJ, 0, "delete helper "+name, func(a *attr.Attrs) {
		b.names(unix.NFTA_OBJ_TABLE, unix.NFTA_OBJ_NAME, name)(a)
		a.Uint32(unix.NFTA_OBJ_TYPE, objectHelper)
	})
}

// DeleteRules removes the rules of a chain.
func (b *Batch) DeleteRules(seg *segment, chain string) {
	b.do(seg, unix.NFT_MSG_DELRULE, 0, "delete rules of chain "+chain, b.names(unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, chain))
	b.Changes--
}

// RewriteRules replaces all rules of a chain. A packet meets the old ones or the new ones.
func (b *Batch) RewriteRules(c Chain) { b.rewrite(b.rulesSegment(c), c) }

// TurnRules does so in Turn, in the transaction of the last elements that come.
func (b *Batch) TurnRules(c Chain) { b.rewrite(&b.Turn, c) }

func (b *Batch) rewrite(seg *segment, c Chain) {
	b.DeleteRules(seg, c.Name)
	b.addRules(seg, c)
	b.Changes++
}

// ChangeRules replaces the rules of those chains, named alike before and after, in which they
// differ.
func (b *Batch) ChangeRules(before, after []Chain) {
	for i, c := range after {
		if !c.SameRules(before[i]) {
			b.RewriteRules(c)
		}
	}
}

// DeleteChain removes a chain that has no rules and that nothing refers to.
func (b *Batch) DeleteChain(seg *segment, name string) {
	b.do(seg, unix.NFT_MSG_DELCHAIN, 0, "delete chain "+name, b.names(unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, name))
}

// AddSet creates a set without elements.
func (b *Batch) AddSet(s *Set) {
	b.do(&b.Before, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, "create set "+s.Name, func(a *attr.Attrs) { s.Write(a, b.Table) })
}

// DeleteSet deletes a set with its elements; nothing may refer to it.
func (b *Batch) DeleteSet(seg *segment, name string) {
	b.do(seg, unix.NFT_MSG_DELSET, 0, "delete set "+name, b.names(unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, name))
}

// FlushSet removes all elements of a set. Those that are added after the call come in the same
// step, which is that of the rules: an Early set, too, has what the rules of before look up until
// they go.
func (b *Batch) FlushSet(s *Set) {
	b.flushed[s] = true
	b.do(b.segmentOf(b.deletions, s), unix.NFT_MSG_DELSETELEM, 0, "empty set "+s.Name, b.names(unix.NFTA_SET_ELEM_LIST_TABLE, unix.NFTA_SET_ELEM_LIST_SET, s.Name))
}

// AddCounter creates a named counter.
func (b *Batch) AddCounter(name string) {
	b.do(&b.Before, unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE, "create counter "+name, func(a *attr.Attrs) {
		b.counter(a, name)
		data := a.Begin(unix.NFTA_OBJ_DATA)
		if n := b.Counted[name]; n > 0 {
			a.Bytes(unix.NFTA_COUNTER_PACKETS, binary.BigEndian.AppendUint64(nil, n))
		}
		a.End(data)
	})
}

// DeleteCounter deletes a named counter, which no rule may use.
func (b *Batch) DeleteCounter(name string) {
	b.do(&b.After, unix.NFT_MSG_DELOBJ, 0, "delete counter "+name, func(a *attr.Attrs) { b.counter(a, name) })
}

func (b *Batch) counter(a *attr.Attrs, name string) {
	b.names(unix.NFTA_OBJ_TABLE, unix.NFTA_OBJ_NAME, name)(a)
	a.Uint32(unix.NFTA_OBJ_TYPE, objectCounter)
}

// transactions are the segments in their order. The last one waits for packets on their way.
func (b *Batch) transactions() [last + 1][]*segment {
	before := slices.Concat([]*segment{&b.unnoted, &b.Before}, sorted(b.firstDeletions))
	after, late := []*segment{&b.After, &b.notes}, sorted(b.lastAdditions)
	deletions, additions := sorted(b.deletions), sorted(b.additions)
	first, last := sorted(b.firstAdditions), sorted(b.lastDeletions)
	if b.Stepwise {
		return [...][]*segment{
			slices.Concat(before, first, sorted(b.standing)),
			slices.Concat(deletions, additions, []*segment{&b.Turn}),
			slices.Concat(sorted(b.stood), last, late, after),
		}
	}
	elements := slices.Concat(deletions, last, first, additions, []*segment{&b.Turn}) // what goes may be in the way of what comes
	if b.Fresh {
		return [...][]*segment{slices.Concat(before, elements, []*segment{&b.After}), {&b.entries, &b.notes}, late}
	}
	return [...][]*segment{slices.Concat(before, elements, after), nil, late}
}

// buffers are the encoded segments of a transaction. The last message asks for the acknowledgement.
func buffers(segments []*segment) (bufs [][]byte, ackSeq uint32) {
	var last *segment
	for _, seg := range segments {
		seg.closeList()
		if len(seg.B) > 0 {
			bufs = append(bufs, seg.B)
			last = seg
		}
	}
	if last == nil {
		return nil, 0
	}
	at := lastMessage(last.B)
	flags := binary.NativeEndian.Uint16(last.B[at+6:])
	binary.NativeEndian.PutUint16(last.B[at+6:], flags|unix.NLM_F_ACK)
	return bufs, binary.NativeEndian.Uint32(last.B[at+8:])
}

// sorted are the segments of all sets, in the order of the sets' numbers.
func sorted(by map[*Set]*segment) (list []*segment) {
	for _, seg := range by {
		list = append(list, seg)
	}
	slices.SortFunc(list, func(a, b *segment) int { return cmp.Compare(a.set.ID, b.set.ID) })
	return list
}

func lastMessage(b []byte) (at int) {
	for next := 0; next < len(b); next += int(binary.NativeEndian.Uint32(b[next:])) {
		at = next
	}
	return at
}

// String prints the operations, one a line.
func (b *Batch) String() string {
	var out strings.Builder
	b.Before.print(&out, b.labels)
	b.entries.print(&out, b.labels)
	for _, seg := range slices.Concat(sorted(b.firstDeletions), sorted(b.deletions), sorted(b.lastDeletions)) {
		seg.printElements(&out, "delete")
	}
	for _, seg := range slices.Concat(sorted(b.firstAdditions), sorted(b.additions), sorted(b.lastAdditions)) {
		seg.printElements(&out, "add")
	}
	b.After.print(&out, b.labels)
	return out.String()
}

// EachMessage yields type, sequence number and attributes of each message.
func EachMessage(b []byte, yield func(typ uint16, seq uint32, body []byte)) {
	for len(b) > 0 {
		n := binary.NativeEndian.Uint32(b)
		yield(binary.NativeEndian.Uint16(b[4:])&0xff, binary.NativeEndian.Uint32(b[8:]), b[unix.SizeofNlMsghdr+nfgenmsgLen:n])
		b = b[n:]
	}
}

func (seg *segment) print(out *strings.Builder, labels []string) {
	EachMessage(seg.B, func(typ uint16, seq uint32, _ []byte) {
		if typ != unix.NFT_MSG_NEWRULE && typ != unix.NFT_MSG_DELRULE {
			fmt.Fprintln(out, labels[seq])
		}
	})
}

func (seg *segment) printElements(out *strings.Builder, verb string) {
	seg.closeList()
	EachMessage(seg.B, func(_ uint16, _ uint32, body []byte) {
		list := attr.Find(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		if list == nil {
			fmt.Fprintf(out, "empty set %s\n", seg.set.Name)
		}
		for _, v := range attr.All(list) {
			e := ReadElement(seg.set, v)
			fmt.Fprintf(out, "%s element %s { %s }\n", verb, seg.set.Name, &e)
		}
	})
}

// Send commits the batch and returns the number of transactions that it took: up to three, none if
// it is empty. Where the first of several fails, as elements are in the way that a later one would
// have removed, nothing has happened, and all of it is tried as one.
func (b *Batch) Send(s *Socket) (sent uint32, err error) {
	sent, err = b.sendAll(s)
	if err != nil && b.Stepwise && sent == 0 {
		b.Stepwise = false
		return b.sendAll(s)
	}
	return sent, err
}

// last is the step that removes what packets could reach before, and fills what spares them rules.
const last = 2

// waits reports whether a segment of the last step has anything but notes.
func (b *Batch) waits(seg *segment) bool { return seg != &b.notes && len(seg.B) > 0 }

func (b *Batch) sendAll(s *Socket) (sent uint32, err error) {
	for i, segments := range b.transactions() {
		bufs, ack := buffers(segments)
		if bufs == nil {
			continue
		}
		if i == last && slices.ContainsFunc(segments, b.waits) {
			AwaitPackets()
		}
		if err := s.commit(bufs, ack, b.labels); err != nil {
			return sent, err
		}
		sent++
	}
	return sent, nil
}
