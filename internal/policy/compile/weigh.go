package compile

import (
	"cmp"

	"sluice.dev/sluice/internal/policy/compile/admission"
)

// Namespace implements admission.Claim.
func (p *variant) Namespace() string { return p.of.obj.Key.Name.Namespace }

// Selections implements admission.Claim by the keys of groups: of a variant that is refused by
// itself, they are as many as were counted.
func (p *variant) Selections(yield func(key string, size int) bool) {
	if p.progress != filling && p.progress != filled {
		for _, t := range p.tallies {
			if !yield(t.Key, t.Count) {
				return
			}
		}
		return
	}
	for _, g := range p.Groups {
		if !yield(g.Key(), g.Selected) {
			return
		}
	}
}

// Standing implements admission.Claim. One that was refused early has not been weighed yet.
func (p *variant) Standing() admission.Standing {
	switch {
	case p.progress == refusedAlone:
		return admission.RefusedAlone
	case p.progress == refusedTogether && !p.early:
		return admission.RefusedTogether
	}
	return admission.Admitted
}

// Compare implements admission.Claim.
func (p *variant) Compare(o *variant) int {
	return cmp.Or(comparePolicies(p.of, o.of), cmp.Compare(p.of.serial, o.of.serial), cmp.Compare(p.index, o.index))
}

// selected is what the selectors of the variant select.
func (p *variant) selected() int { return admission.Sum(p.Selections) }

// beyond is how much of what the variant selects is not in sets yet; or in sets that have to go
// first.
func (ps *variants) beyond(p *variant) (n int) {
	for key, size := range p.Selections {
		if !ps.sets.Groups.Has(key, ps.limits.Crowded) {
			n += size
		}
	}
	return n
}

// counted are the variants whose selectors were counted.
func (ps *variants) counted() (list []*variant) {
	for p := range ps.all {
		if p.progress >= filling {
			list = append(list, p)
		}
	}
	return list
}

// weigh refuses the variants whose selectors select too much now, and takes up those that are
// refused and fit again, if that is due.
func (ps *variants) weigh() {
	if !ps.limits.IsDue() {
		return
	}
	crowded := false
	var again []*variant
	for p, now := range admission.Weigh(ps.limits, ps.counted()) {
		switch {
		case now == admission.RefusedAlone:
			ps.refuse(p, refusedAlone)
		case now == admission.RefusedTogether:
			ps.refuse(p, refusedTogether)
			crowded = true
		case p.progress == refusedAlone:
			ps.restart(p)
		case p.progress == refusedTogether:
			again = append(again, p)
		}
	}
	if ps.sets.Groups.Sweep(ps.since); ps.whole {
		ps.drain(all)
	}
	for _, p := range again {
		if ps.limits.Fits(ps.beyond(p)) {
			ps.restart(p)
		} else {
			crowded = true // until others have gone
		}
	}
	ps.limits.Weighed(crowded)
}

// drain empties groups that nobody holds. Others may fit once the last of them is gone.
func (ps *variants) drain(room int) {
	if done := ps.sets.Groups.Drain(room); done && ps.limits.Crowded {
		ps.limits.Soon()
	}
}
