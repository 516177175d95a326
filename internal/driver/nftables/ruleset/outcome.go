package ruleset

import (
	"fmt"

	"github.com/google/nftables/expr"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
)

// An outcome is what a chain returns to the chain that jumped to it: the two highest bits of the
// packet's mark, as a chain can return nothing else. Outside of a program these bits belong to
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

// guard returns the chain by which packets enter a program that uses their marks. It restores the
// bits when the program returns; otherwise the program ends with a verdict on the packet.
func (w *rulesWriter) guard(prog *table.DynamicChain) *table.DynamicChain {
	if !prog.Marks {
		return prog
	}
	d := newDraft()
	for _, f := range w.scope.families {
		if w.scope.pods { // or it would be accepted where it is denied, with its mark as that leaves it
			fp := w.family(f)
			d.add(rule("a pod always reaches itself").Family(f).In(fp.Policy.selves, f.Saddr, f.Daddr).Return())
		}
	}
	d.goTo(rule().Mark(expr.CmpOpEq, outcomeBits, nothing), prog)
	for _, o := range []uint32{yes, passed, yes | passed} {
		kept := newDraft()
		kept.add(rule().SetMark(outcomeBits, nothing))
		kept.jump(rule(), prog)
		kept.add(rule().SetMark(outcomeBits, o))
		d.goTo(rule().Mark(expr.CmpOpEq, outcomeBits, o), kept.done(w.scope.name+"-marked", fmt.Sprintf("packets that come with mark %#x of %#x leave with it", o, outcomeBits)))
	}
	return d.done(w.scope.name, prog.Comment)
}
