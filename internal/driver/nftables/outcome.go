package nftables

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
)

// outcome is what a chain that was jumped to leaves for the one that jumped: in the two highest bits of
// the packet's mark, as nothing else outlives a chain. They are somebody else's when the packet comes to a program and
// when it leaves: guard sees to that, so that nobody but the program's own chains ever sees them changed.
type outcome uint32

const (
	nothing outcome = 0
	yes     outcome = 1 << 31 // it matches; it is allowed
	passed  outcome = 1 << 30 // it passes to the next tier

	outcomeMask = yes | passed
)

func (o outcome) bytes() []byte { return binary.NativeEndian.AppendUint32(nil, uint32(o)) }

// outcome goes on if the outcome is (or is not) this one.
func (r rule) outcome(op expr.CmpOp, o outcome) rule {
	return r.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: outcomeMask.bytes(), Xor: nothing.bytes()}).
		compare(op, o.bytes())
}

func (r rule) setOutcome(o outcome) rule {
	return r.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: (^outcomeMask).bytes(), Xor: o.bytes()},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: firstRegister})
}

// leave returns to the chain that jumped, with an outcome.
func leave(o outcome) func(*draft, rule) {
	return func(d *draft, r rule) {
		d.marks = true
		d.add(r.setOutcome(o).ret())
	}
}

// guard returns the chain by which packets come to a program that uses their marks. The bits are put back when the
// program returns; it ends otherwise only with the packet.
func (w *writer) guard(prog *ruling) *ruling {
	if !prog.marks {
		return prog
	}
	d := newDraft()
	for _, f := range w.place.families {
		if w.place.pods { // or it would be accepted where it is denied, with its mark as that leaves it
			fp := w.family(f)
			d.add(newRule("a pod always reaches itself").family(f).in([]field{f.saddr, f.daddr}, fp.policy.selves).ret())
		}
	}
	d.goTo(newRule("").outcome(expr.CmpOpEq, nothing), prog)
	for _, o := range []outcome{yes, passed, yes | passed} {
		kept := newDraft()
		kept.add(newRule("").setOutcome(nothing))
		kept.jump(newRule(""), prog)
		kept.add(newRule("").setOutcome(o))
		d.goTo(newRule("").outcome(expr.CmpOpEq, o), kept.done(w.place.name+"-marked", fmt.Sprintf("packets that come with mark %#x of %#x leave with it", uint32(o), uint32(outcomeMask))))
	}
	return d.done(w.place.name, prog.comment)
}
