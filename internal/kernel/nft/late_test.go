package nft

import (
	"slices"
	"testing"
)

// TestLate has an element of a Late set come in a step of its own where all else takes fewer than
// three, and go in the first.
func TestLate(t *testing.T) {
	usual, late := &Set{ID: 1, Name: "usual", Key: []Field{Mark}}, &Set{ID: 2, Name: "late", Key: []Field{Mark}, Late: true}
	for _, set := range []func(*Batch){func(*Batch) {}, func(b *Batch) { b.Stepwise = true }, func(b *Batch) { b.Fresh = true }} {
		b := NewBatch("t")
		set(b)
		for _, s := range []*Set{usual, late} {
			b.Add(&Element{Set: s})
			b.Delete(&Element{Set: s})
		}
		steps := b.transactions()
		in := func(p *segment) int {
			return slices.IndexFunc(steps[:], func(step []*segment) bool { return slices.Contains(step, p) })
		}
		if in(b.firstDeletions[late]) != 0 || in(b.lastAdditions[late]) != last || in(b.additions[usual]) >= last || !b.Changed(late) {
			t.Errorf("stepwise %t, fresh %t: deleted in step %d, added in %d", b.Stepwise, b.Fresh, in(b.firstDeletions[late]), in(b.lastAdditions[late]))
		}
	}
}
