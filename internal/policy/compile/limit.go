package compile

import (
	"cmp"
	"fmt"
	"iter"
	"math"

	"sluice.dev/sluice/internal/lib/fair"
)

// Each selector takes a set of its own, so that without bounds the sets come to the number of
// selectors times that of pods.
var (
	maxSelected = fair.Bound{Most: 1 << 20, Again: 7 << 17} // by the selectors of a policy in one direction
	maxTogether = fair.Bound{Most: 1 << 22, Again: 7 << 19} // by those of all policies that apply to anything here
)

// limits bound what selectors may select, and say when that is to be checked again.
type limits struct {
	selected, together fair.Bound // the constants, but in tests
	groups             *groups
	tallies            *tallies
	due                int  // the moves at which variants are weighed
	crowded            bool // some variants are too much with others
}

// moves are the sizes of all that came to groups and tallies and went.
func (l *limits) moves() int { return l.groups.moves + l.tallies.moves }

// isDue reports whether so much has moved that variants are to be weighed.
func (l *limits) isDue() bool { return l.moves() >= l.due }

// after has variants weighed when so much has come or gone, but not for every little.
func (l *limits) after(moves int) {
	l.due = min(l.due, l.moves()+max(moves, min(l.selected.Most>>6, l.together.Most>>8), 1))
}

// soon has variants weighed in any case.
func (l *limits) soon() { l.due = l.moves() }

// fits reports whether groups may select so much more.
func (l *limits) fits(more int) bool { return l.groups.total+more <= l.together.Most }

// filled has variants weighed when a variant that is filled now may come to select too much.
func (l *limits) filled(p *variant) {
	l.after(l.selected.Most + 1 - p.selected())
	if l.after(l.together.Most + 1 - l.groups.total); !l.fits(0) || p.selected() > l.selected.Most {
		l.soon() // more has come since it was counted
	}
}

// beyond is how much of what the variant selects is not in sets yet; or in sets that have to go
// first.
func (l *limits) beyond(p *variant) (n int) {
	for key, size := range p.selections {
		if g := l.groups.all[key]; g == nil || l.crowded && g.refs == 0 {
			n += size
		}
	}
	return n
}

// selections yields the selectors of the variant, by the keys of their groups, with how much they
// select: of one that is refused by itself, of as many as were counted.
func (p *variant) selections(yield func(key string, size int) bool) {
	if p.progress != filling && p.progress != filled {
		for _, t := range p.tallies {
			if !yield(t.key, t.count) {
				return
			}
		}
		return
	}
	for _, g := range p.groups {
		if !yield(g.key, g.selected) {
			return
		}
	}
}

// selected is what the selectors of the variant select.
func (p *variant) selected() (n int) {
	for _, size := range p.selections {
		n += size
	}
	return n
}

// weigh refuses the variants whose selectors select too much now, and takes up those that are
// refused and fit again, if that is due.
//
// Where all are too much together, those go without whose turn comes last: see fair.Turns.
func (ps *variants) weigh() {
	l := &ps.limits
	if !l.isDue() {
		return
	}
	l.due = math.MaxInt
	known, total, crowded := map[string]struct{}{}, 0, false
	var again []*variant
	for _, p := range ps.inTurn() {
		n, more := p.selected(), 0
		for key, size := range p.selections {
			if _, shared := known[key]; !shared {
				more += size
			}
		}
		refused := p.progress.refused()
		switch {
		case n > l.selected.Limit(p.progress == refusedAlone):
			ps.refuse(p, refusedAlone)
			l.after(n - l.selected.Again)
			continue
		case p.progress == refusedAlone:
			ps.restart(p) // as not all of its selectors were counted
			continue
		case total+more > l.together.Limit(refused && !p.early):
			ps.refuse(p, refusedTogether)
			crowded = true
			continue
		case refused:
			again = append(again, p)
		}
		l.after(l.selected.Most + 1 - n)
		for key := range p.selections {
			known[key] = struct{}{}
		}
		total += more
	}
	if ps.sets.groups.sweep(ps.since); ps.whole {
		ps.drain(all)
	}
	for _, p := range again {
		if l.fits(l.beyond(p)) {
			ps.restart(p)
		} else {
			crowded = true // until others have gone
		}
	}
	if l.crowded = crowded; crowded {
		l.after(1)
	}
	l.after(l.together.Most + 1 - l.groups.total)
}

// drain empties groups that nobody holds. Others may fit once the last of them is gone.
func (ps *variants) drain(room int) {
	if done := ps.sets.groups.drain(room); done && ps.limits.crowded {
		ps.limits.soon()
	}
}

// inTurn returns the variants whose selectors were counted, in the order in which they may have
// their sets.
func (ps *variants) inTurn() []*variant {
	var counted []*variant
	for p := range ps.all {
		if p.progress >= filling {
			counted = append(counted, p)
		}
	}
	return fair.Turns(counted,
		(*variant).namespace,
		func(p *variant) iter.Seq2[string, int] { return p.selections },
		func(a, b *variant) int {
			return cmp.Or(comparePolicies(a.of, b.of), cmp.Compare(a.of.serial, b.of.serial), cmp.Compare(a.index, b.index))
		})
}

// tooManySelected says why a policy that was read is not applied.
func tooManySelected(limit int) string {
	return fmt.Sprintf("its selectors select more than %d addresses in one direction, each selector counted by itself and a network set as one; it allows nothing until then: use fewer selectors, or ones that select less", limit)
}

// tooManyTogether says the same of one that is too much with others.
func tooManyTogether(namespace string, limit int) string {
	who := "the policies of its namespace are among those that select most"
	if namespace == "" {
		who = "it is among those that select most"
	}
	return fmt.Sprintf("the selectors of all policies that apply here select more than %d addresses, each selector counted once, and %s; it allows nothing until then: use fewer selectors, or ones that select less", limit, who)
}
