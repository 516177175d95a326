package foreign

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// set is a set or map of another program.
type set struct {
	width    int // of keys, in bytes
	elements []element
}

// element is a key, or all keys from one to another.
type element struct {
	from, to []byte // both included; nil: all that no other element has
	words    bool   // from and to are of several fields, of four bytes or more
	action          // of maps of verdicts
}

// set reads one of the table's, once.
func (t *table) set(name string) (*set, error) {
	if known := t.sets[name]; known != nil {
		return known, nil
	}
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	of, err := conn.GetSetByName(t.of, name)
	if err != nil {
		return nil, fmt.Errorf("read set %s of table %s: %w", name, t.of.Name, err)
	}
	of.Table = t.of // which the answer names without its family
	elements, err := conn.GetSetElements(of)
	if err != nil {
		return nil, fmt.Errorf("read elements of set %s of table %s: %w", name, t.of.Name, err)
	}
	s := newSet(of, elements)
	t.sets[name] = s
	return s, nil
}

func newSet(of *nftables.Set, elements []nftables.SetElement) *set {
	s := &set{width: int(of.KeyType.Bytes)}
	for _, e := range elements {
		if len(e.Key) > 0 {
			s.width = len(e.Key)
		}
	}
	if of.Interval && !of.Concatenation {
		s.elements = intervals(elements)
		return s
	}
	for _, e := range elements {
		n := element{from: e.Key, to: e.Key, action: verdictOf(e)}
		if len(e.KeyEnd) > 0 {
			n.to, n.words = e.KeyEnd, true
		}
		s.elements = append(s.elements, n)
	}
	return s
}

// intervals pairs the beginnings of intervals with their ends, which are elements of their own, the
// first key behind each.
func intervals(elements []nftables.SetElement) (found []element) {
	slices.SortStableFunc(elements, func(a, b nftables.SetElement) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		return int(is(b.IntervalEnd).bit()) - int(is(a.IntervalEnd).bit()) // one ends where the next begins
	})
	for i, e := range elements {
		switch {
		case e.IntervalEnd:
			continue
		case len(e.Key) == 0: // the catch-all element
			found = append(found, element{action: verdictOf(e)})
			continue
		}
		to := bytes.Repeat([]byte{0xff}, len(e.Key))
		if i+1 < len(elements) {
			to = before(elements[i+1].Key)
		}
		found = append(found, element{from: e.Key, to: to, action: verdictOf(e)})
	}
	return found
}

// before is the key before.
func before(key []byte) []byte {
	b := bytes.Clone(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]--; b[i] != 0xff {
			break
		}
	}
	return b
}

// verdictOf reads the verdict that a map has for an element; none: the zero action, of yes.
func verdictOf(e nftables.SetElement) action {
	const code, chain = 1, 2 // NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN
	a := action{matches: yes}
	if v := attr.Find(e.Val, code); len(v) == 4 {
		a.does = does[expr.VerdictKind(int32(binary.BigEndian.Uint32(v)))]
		a.chain = unix.ByteSliceToString(attr.Find(e.Val, chain))
	}
	return a
}

// holds is whether the element has a key.
func (e *element) holds(key bits) answer {
	switch {
	case e.from == nil:
		return yes
	case !e.words:
		return key.within(e.from, e.to)
	}
	all := yes
	for i := 0; i < len(key); i += 4 {
		j := min(i+4, len(key))
		all = all.and(key[i:j].within(e.from[i:j], e.to[i:j]))
	}
	return all
}

// has is whether an element has the key.
func (s *set) has(key bits) answer {
	found := no
	for i := range s.elements {
		switch s.elements[i].holds(key) {
		case yes:
			return yes
		case maybe:
			found = maybe
		}
	}
	return found
}

// verdicts are those that the map may have for a key, of a rule whose condition is that.
func (s *set) verdicts(key bits, matches answer) (found []action) {
	var rest *element
	for i := range s.elements {
		e := &s.elements[i]
		if e.from == nil {
			rest = e
			continue
		}
		if has := e.holds(key); has != no {
			found = append(found, e.action.where(matches.and(has)))
			if has == yes {
				return found
			}
		}
	}
	switch {
	case rest != nil && len(found) == 0:
		found = append(found, rest.action.where(matches))
	case rest != nil:
		found = append(found, rest.action.where(maybe))
	}
	return found
}
