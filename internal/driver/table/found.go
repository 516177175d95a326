package table

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
)

// Found is what the kernel holds of a table except for the elements.
type Found struct {
	*nft.Table
	Notes map[uint32]string // by key
}

// Read returns what the kernel holds of the table except for the elements, or nil if there is none.
func (t *Table) Read(ctx context.Context) (*Found, error) {
	found, err := t.Sock.ReadTable(ctx, t.Name)
	if found == nil || err != nil {
		return nil, err
	}
	have := &Found{found, map[uint32]string{}}
	if _, ok := have.Sets[t.Notes.Name]; ok {
		err = t.Sock.ReadSet(ctx, t.Name, t.Notes, func(e nft.Element) {
			have.Notes[nft.NativeUint32(e.Key[:4])] = e.Comment
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read notes: %w", err)
	}
	return have, nil
}

// Refs are the chains and counters that were found; of rules, nothing is known but their number.
func (f *Found) Refs() *ChainRefs {
	r := NewChainRefs()
	if f == nil {
		return r
	}
	for name := range f.Counters {
		r.Counters[name] = 1
	}
	for name := range f.Chains {
		c := nft.Chain{Name: name}
		if h, hooked := f.Hooks[name]; hooked {
			c.Hook = &h
		}
		r.Chains[name] = refCounted{DynamicChain: &DynamicChain{Chain: c}, Rules: f.Rules[name]}
	}
	return r
}

// Content is all that the kernel holds in the set.
func (t *Table) Content(ctx context.Context, s *nft.Set) (map[nft.ElementKey]nft.Element, error) {
	elements := map[nft.ElementKey]nft.Element{}
	err := t.Sock.ReadSet(ctx, t.Name, s, func(e nft.Element) { elements[e.ElementKey] = e })
	return elements, err
}

// note is what the table says of a set; false: nothing. Another ruleset may number its sets
// otherwise.
func (f *Found) note(s *nft.Set) (text string, ok bool) {
	is := func(text string) bool { return strings.HasPrefix(text, s.Name+":") }
	if text := f.Notes[s.ID]; is(text) {
		return text, true
	}
	for _, text := range f.Notes {
		if is(text) {
			return text, true
		}
	}
	return "", false
}

// Noted is what the note on a set says; no note is the sum of an empty set.
func (f *Found) Noted(s *nft.Set) (n Sum) {
	if f == nil {
		return Sum{}
	}
	note, _ := f.note(s)
	_, err := fmt.Sscanf(note, s.Name+": %d elements, digest %x", &n.Count, &n.digest)
	if note != "" && err != nil {
		return Sum{Count: -1} // another ruleset's: agrees with nothing
	}
	return n
}

// Sum stands for a set's content: the number of its elements and the exclusive or of their digests.
type Sum struct {
	Count  int
	digest uint64
}

// Add and Remove count an element in, and out.
func (s *Sum) Add(e *nft.Element)    { s.Count++; s.digest ^= e.Digest() }
func (s *Sum) Remove(e *nft.Element) { s.Count--; s.digest ^= e.Digest() }

// noteOf is the note on a set; a set that was never filled has none.
func noteOf(s *nft.Set, sum Sum) string {
	if sum == (Sum{}) {
		return ""
	}
	return fmt.Sprintf("%s: %d elements, digest %016x", s.Name, sum.Count, sum.digest)
}

// RulesetNote is the key of the note on the ruleset; the others are ids of sets.
const RulesetNote = 0

// WriteNote replaces a note, and removes it with an empty text; old is what it said before, "" if
// there was none.
func (l *Layout) WriteNote(b *nft.Batch, id uint32, old, text string) {
	b.Note(l.noteElement(id, old), l.noteElement(id, text))
}

// noteElement is what a note says in the comment of an element; nil without a text.
func (l *Layout) noteElement(id uint32, text string) *nft.Element {
	if text == "" {
		return nil
	}
	e := nft.Element{Set: l.Notes, Comment: text}
	e.AppendUint32(id)
	return &e
}

// Recall adds to sets that packets fill what they hold in another table, if that is there and has
// such sets: what still lives, and is right. What comes while it is read may be missing.
func (c *Change) Recall(ctx context.Context, from string, sets []*nft.Set, right func(*nft.Element) bool) (there bool, err error) {
	t := c.Table
	var have *nft.Table
	err = nft.Uninterrupted(func() (err error) { have, err = t.Sock.ReadTable(ctx, from); return err })
	if err != nil || have == nil {
		return false, err
	}
	for _, s := range sets {
		if have.Sets[s.Name] != s.Type() {
			continue
		}
		added := map[nft.ElementKey]bool{} // the kernel may list an element twice
		err := t.Sock.ReadSet(ctx, from, s, func(e nft.Element) {
			if e.Life != nil && e.Life.Expires > 0 && !added[e.ElementKey] && len(added) < int(s.Size) && right(&e) {
				added[e.ElementKey] = true
				c.Batch.Add(&e)
			}
		})
		if err != nil && !errors.Is(err, nft.ErrInterrupted) && !errors.Is(err, unix.ENOENT) {
			return true, err
		}
	}
	return true, nil
}

// Forget deletes elements, so many in a transaction of delete; those of one of which some are gone
// meanwhile one by one, as the kernel refuses all of it then.
func Forget(elements []nft.Element, atOnce int, delete func([]nft.Element) error) error {
	for chunk := range slices.Chunk(elements, atOnce) {
		err := delete(chunk)
		if gone := errors.Is(err, unix.ENOENT); gone && len(chunk) > 1 {
			err = Forget(chunk, 1, delete)
		} else if gone {
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Delete deletes elements in a transaction of its own.
func (t *Table) Delete(elements []nft.Element) error {
	b := t.Batch()
	for i := range elements {
		b.Delete(&elements[i])
	}
	_, err := t.Commit(b)
	return err
}
