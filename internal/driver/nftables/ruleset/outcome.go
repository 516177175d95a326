package ruleset

import (
	"fmt"

	"github.com/google/nftables/expr"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
)

// An outcome is what a chain returns to the chain that jumped to it: the two highest bits of the
// packet's mark, as a chain can return nothing else. Outside of these chains the bits belong to
// others: guard saves and restores them.
const (
	nothing uint32 = 0
	yes     uint32 = 1 << 31 // it matches; it is allowed
	passed  uint32 = 1 << 30 // it passes to the next tier

	outcomeBits = yes | passed
)

// leave returns to the chain that jumped, with an outcome.
func leave(o uint32) func(*draft, nft.Rule) {
	return func(d *draft, r nft.Rule) {
		d.marks = true
		d.add(r.SetMark(outcomeBits, o).Return())
	}
}

// guard returns the chain by which packets enter chains that use their marks: first is the first of
// them. It restores the bits when that returns; otherwise packets end there with a verdict.
func (w *rulesWriter) guard(first *table.DynamicChain) *table.DynamicChain {
	if !first.Marks {
		return first
	}
	d := newDraft()
	for _, f := range w.scope.families {
		if w.scope.pods { // or it would be accepted where it is denied, with its mark as that leaves it
			fp := w.family(f)
			d.add(rule("a pod always reaches itself").Family(f).In(fp.Policy.selves, f.Saddr, f.Daddr).Return())
		}
	}
	d.goTo(rule().Mark(expr.CmpOpEq, outcomeBits, nothing), first)
	for _, o := range []uint32{yes, passed, yes | passed} {
		kept := newDraft()
		kept.add(rule().SetMark(outcomeBits, nothing))
		kept.jump(rule(), first)
		kept.add(rule().SetMark(outcomeBits, o))
		d.goTo(rule().Mark(expr.CmpOpEq, outcomeBits, o), kept.done(w.scope.name+"-marked", fmt.Sprintf("packets that come with mark %#x of %#x leave with it", o, outcomeBits)))
	}
	return d.done(w.scope.name, first.Comment)
}
