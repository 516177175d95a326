package compile

import (
	"cmp"

	"sluice.dev/sluice/internal/policy/compile/admission"
)

// Namespace implements admission.Demand.
func (v *variant) Namespace() string { return v.of.obj.Key.Name.Namespace }

// Selections implements admission.Demand by the keys of groups: of a variant that is refused by
// itself, they are as many as were counted.
func (v *variant) Selections(yield func(key string, size int) bool) {
	if v.progress != filling && v.progress != filled {
		for _, t := range v.tallies {
			if !yield(t.Key, t.Count) {
				return
			}
		}
		return
	}
	for _, g := range v.Groups {
		if !yield(g.Key(), g.Selected) {
			return
		}
	}
}

// Standing implements admission.Demand. One that was refused early has not been weighed yet.
func (v *variant) Standing() admission.Standing {
	switch {
	case v.progress == refusedAlone:
		return admission.RefusedAlone
	case v.progress == refusedTogether && !v.early:
		return admission.RefusedTogether
	}
	return admission.Admitted
}

// Compare implements admission.Demand.
func (v *variant) Compare(o *variant) int {
	return cmp.Or(compareVersions(v.of, o.of), cmp.Compare(v.of.serial, o.of.serial), cmp.Compare(v.index, o.index))
}

// selected is what the selectors of the variant select.
func (v *variant) selected() int { return admission.Sum(v.Selections) }

// beyond is how much of what the variant selects is not in sets yet; or in sets that have to go
// first.
func (vs *variants) beyond(v *variant) (n int) {
	for key, size := range v.Selections {
		if !vs.sets.Groups.Has(key, vs.limits.Crowded) {
			n += size
		}
	}
	return n
}

// counted are the variants whose selectors were counted.
func (vs *variants) counted() (list []*variant) {
	for v := range vs.all {
		if v.progress >= filling {
			list = append(list, v)
		}
	}
	return list
}

// weigh refuses the variants whose selectors select too much now, and takes up those that are
// refused and fit again, if that is due.
func (vs *variants) weigh() {
	if !vs.limits.IsDue() {
		return
	}
	crowded := false
	var again []*variant
	for v, now := range admission.Weigh(vs.limits, vs.counted()) {
		switch {
		case now == admission.RefusedAlone:
			vs.refuse(v, refusedAlone)
		case now == admission.RefusedTogether:
			vs.refuse(v, refusedTogether)
			crowded = true
		case v.progress == refusedAlone:
			vs.restart(v)
		case v.progress == refusedTogether:
			again = append(again, v)
		}
	}
	if vs.sets.Groups.Sweep(vs.since); vs.whole {
		vs.drain(all)
	}
	for _, v := range again {
		if vs.limits.Fits(vs.beyond(v)) {
			vs.restart(v)
		} else {
			crowded = true // until others have gone
		}
	}
	vs.limits.Weighed(crowded)
}

// drain empties groups that nobody holds. Others may fit once the last of them is gone.
func (vs *variants) drain(room int) {
	if done := vs.sets.Groups.Drain(room); done && vs.limits.Crowded {
		vs.limits.Soon()
	}
}
