package table

import (
	"context"
	"fmt"
	"strings"

	"sluice.dev/sluice/internal/kernel/nft"
)

// rewriteFrom is the number of elements from which a set that differs is written anew rather than
// read: reading costs the kernel more than writing, and the more the larger the set.
const rewriteFrom = 300_000

// Adoption works out what leads from what was found to what is wanted.
type Adoption struct {
	*Change
	Have   *Found            // nil: no table
	Deep   bool              // trust no note, read everything
	Reused map[*nft.Set]bool // sets of the kernel that go on with their elements; see Reuse
	Keep   Keeping           // nil: nothing that is not wanted stays
}

// Keeping says what stays in the kernel though it is not wanted.
type Keeping interface {
	// About reports whether the adoption is about a set. What it is not about stays.
	About(*nft.Set) bool
	// MayLack reports whether elements of the set may have to stay.
	MayLack(*nft.Set) bool
	// MustStay reports whether what is there stays in place of another element with its key.
	MustStay(there, wanted *nft.Element) bool
	// Rest plans what becomes of the elements of sets that were read and that nothing wants.
	Rest(map[*nft.Set]map[nft.ElementKey]nft.Element)
}

func (a *Adoption) about(s *nft.Set) bool   { return a.Keep == nil || a.Keep.About(s) }
func (a *Adoption) mayLack(s *nft.Set) bool { return a.Keep != nil && a.Keep.MayLack(s) }

// SameRuleset reports whether the kernel's sets, and chains that come and go, are those of a
// ruleset with this note.
func (a *Adoption) SameRuleset(note string) bool {
	if !strings.HasPrefix(a.Have.Notes[RulesetNote], note) || len(a.Have.Sets) != len(a.Table.Sets) || !a.SameSets() {
		return false
	}
	for name, c := range a.Refs.Chains {
		if c.Hook == nil && a.Have.Chains[name] && a.Have.Rules[name] != c.Rules {
			return false
		}
	}
	return true
}

// SameSets reports whether the kernel has all sets of this ruleset, whatever else.
func (a *Adoption) SameSets() bool {
	for _, s := range a.Table.Sets {
		if a.Have.Sets[s.Name] != s.Type() {
			return false
		}
	}
	return true
}

// Reuse has the sets go on that are there.
func (a *Adoption) Reuse() {
	a.Reused = map[*nft.Set]bool{}
	for _, s := range a.Table.Sets {
		_, a.Reused[s] = a.Have.Sets[s.Name]
	}
}

// Fill plans the elements: of kept sets the difference, of others all. Each yields those that are
// wanted, in the same way each time.
func (a *Adoption) Fill(ctx context.Context, each func(yield func(*nft.Element))) error {
	if a.Have == nil {
		each(a.Add)
		return nil
	}
	each(func(e *nft.Element) { a.Sums[e.Set.ID].Add(e) })
	content := map[*nft.Set]map[nft.ElementKey]nft.Element{}
	anew := false
	for _, s := range a.Table.Sets {
		if s.Dynamic || s == a.Table.Notes || !a.about(s) {
			continue
		}
		if a.worthReading(s) {
			elements, err := a.Table.Content(ctx, s)
			if err != nil {
				return fmt.Errorf("read set %s: %w", s.Name, err)
			}
			content[s] = elements
		}
		anew = anew || !a.Reused[s]
	}
	if len(content) == 0 && !anew {
		return nil
	}
	each(func(e *nft.Element) {
		old, known := content[e.Set]
		switch {
		case known && a.Reused[e.Set]:
			a.fillOne(old, e)
		case !a.Reused[e.Set]:
			delete(old, e.ElementKey)
			a.Batch.Add(e)
		}
	})
	if a.Keep != nil {
		a.Keep.Rest(content)
		return nil
	}
	for s, rest := range content {
		for _, e := range rest {
			if a.Reused[s] {
				a.Batch.Delete(&e)
			}
		}
	}
	return nil
}

// worthReading reports whether the set's elements matter to the plan. A large set that differs is
// emptied instead, and then has none.
func (a *Adoption) worthReading(s *nft.Set) bool {
	switch {
	case a.Reused[s] && a.agrees(s):
		return false
	case a.mayLack(s):
		return a.Have.Sets[s.Name] == s.Type()
	case !a.Reused[s]:
		return false
	case max(a.Sums[s.ID].Count, a.Have.Noted(s).Count) >= rewriteFrom && a.Table.mayRewrite(s):
		a.Batch.FlushSet(s)
		a.Reused[s] = false
		return false
	}
	return true
}

// agrees reports whether the note on the set says that it holds what is wanted.
func (a *Adoption) agrees(s *nft.Set) bool {
	_, noted := a.Have.note(s) // a note goes before what it says is no longer true: without one, a set may hold anything
	return noted && !a.Deep && a.Have.Noted(s) == a.Sums[s.ID]
}

func (a *Adoption) fillOne(old map[nft.ElementKey]nft.Element, e *nft.Element) {
	there, ok := old[e.ElementKey]
	delete(old, e.ElementKey)
	switch {
	case ok && there.SameValue(e):
	case ok && a.Keep != nil && a.Keep.MustStay(&there, e):
		a.Sums[e.Set.ID].Remove(e)
		a.Sums[e.Set.ID].Add(&there)
	case ok:
		a.Batch.Replace(&there, e)
		a.Led = a.Led || e.Set.Verdict
	default:
		a.Batch.Add(e)
	}
}

// PlanChains creates the chains and counters that are missing, and deletes those of before that
// nothing refers to any more, which it returns. Base chains that stay have no rules then. Anew: all
// rules are written.
func (a *Adoption) PlanChains(before *ChainRefs, anew bool, stays func(entry string) bool) (gone []string) {
	if a.Have == nil {
		a.Refs.Create(a.Batch, before)
		return nil
	}
	for name, found := range before.Chains {
		hooked := found.Hook != nil
		switch _, used := a.Refs.Chains[name]; {
		case used && hooked && anew:
			found.Rules = -1
			before.Chains[name] = found
		case used:
		case hooked && stays(name):
			a.Refs.Idle(name, *found.Hook)
		case hooked || anew:
			a.Batch.DeleteRules(&a.Batch.Turn, name) // so that none is bound to sets that go, and no packet is in it then
		}
	}
	return a.Refs.ChangeFrom(before, a.Batch)
}

// WriteNotes writes down what the kernel will hold.
func (a *Adoption) WriteNotes(ruleset string) {
	t, noted := a.Table, map[uint32]string{}
	if a.Have != nil && a.Reused[t.Notes] {
		noted = a.Have.Notes
	}
	if !strings.HasPrefix(noted[RulesetNote], ruleset) {
		t.WriteNote(a.Batch, RulesetNote, noted[RulesetNote], ruleset)
	}
	for _, s := range t.Sets {
		if !a.about(s) {
			continue // where it has no note, nothing is known of it
		}
		if n := noteOf(s, a.Sums[s.ID]); n != noted[s.ID] {
			t.WriteNote(a.Batch, s.ID, noted[s.ID], n)
		}
	}
	for id := range noted {
		if int(id) > len(t.Sets) {
			t.WriteNote(a.Batch, id, noted[id], "")
		}
	}
}

// Adopted has the table hold what the adoption leads to. The notes of a table that anyone could
// change while no agent ran are believed for now, so that it serves at once; a later comparison
// reads it all. First: nothing was known of it before.
func (a *Adoption) Adopted(first bool) {
	t := a.Table
	a.Done()
	t.Owned = t.CanOwn() && (a.Have == nil || a.Have.Flags&nft.FlagPersist != 0)
	t.Doubt = first && !t.Owned && a.Have != nil && !a.Deep
}
