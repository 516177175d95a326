package compile

import (
	"maps"
	"slices"

	"sluice.dev/sluice/internal/policy/compile/objects"
)

// Variants are filled in slices: their selectors are counted, then the groups follow them and are
// filled, while nothing refers to them yet.

// advance goes on with a variant as far as there is room for, which it takes.
func (vs *variants) advance(v *variant, room int) {
	began := vs.room
	for !v.progress.settled() && began-vs.room < room {
		vs.room -= vs.step(v, room-(began-vs.room))
	}
	v.spent += began - vs.room
	vs.got[v.Namespace()] += began - vs.room
}

// step takes one step with a variant that is not settled: at most, one selector is counted, or one
// group follows its selector, or is filled as far as there is room for. It returns about how many
// elements a kernel takes in that time.
func (vs *variants) step(v *variant, room int) (spent int) {
	switch v.progress {
	case unbuilt:
		return vs.build(v)
	case counting:
		return vs.count(v)
	}
	if v.ready == len(v.Groups) {
		vs.settle(v, filled)
		vs.limits.Filled(v.selected())
		return 1
	}
	spent, done := vs.sets.Groups.Fill(v.Groups[v.ready], room)
	if done {
		v.ready++
	}
	return spent
}

// build compiles the rules of a variant. What its selectors select need not be counted where it is
// little, whatever that is.
func (vs *variants) build(v *variant) (spent int) {
	v.Rules = vs.sets.Build(v.from, v.local)
	v.progress = counting
	if n := len(v.Selectors) * vs.objects.Size; n <= vs.limits.Alone.Most>>5 && vs.limits.Fits(n) {
		vs.holdGroups(v)
	}
	return v.Units
}

// holdGroups gives a variant its groups, which are to be filled.
func (vs *variants) holdGroups(v *variant) {
	vs.sets.HoldGroups(&v.Rules, v.tallies)
	v.progress, v.ready = filling, 0
}

// count counts what the next selector of a variant selects; after the last one, the variant gets
// its groups if there is room for them.
func (vs *variants) count(v *variant) (spent int) {
	if len(v.tallies) < len(v.Selectors) {
		t, looked := vs.sets.Tallies.Hold(v.Selectors[len(v.tallies)])
		v.tallies = append(v.tallies, t)
		if v.sum += t.Count; v.sum > vs.limits.Alone.Most && v.selected() > vs.limits.Alone.Most {
			vs.refuse(v, refusedAlone)
		}
		return 1 + looked/objects.MatchingCost
	}
	if beyond := vs.beyond(v); beyond > 0 && !vs.limits.Fits(beyond) && !v.host() {
		vs.refuse(v, refusedTogether)
		v.early = true
		vs.limits.Soon() // others may have to go for it
		return 1
	}
	if vs.holdGroups(v); vs.limits.Crowded || !vs.limits.Fits(0) {
		vs.limits.Soon() // it may not be its turn
	}
	return 1
}

// settle ends the way of a variant: its rules change now.
func (vs *variants) settle(v *variant, now progress) {
	v.progress, v.early, v.resolved, vs.stale = now, false, nil, true
	if now == filled {
		vs.releaseTallies(v)
	}
}

// refuse takes a variant's sets away, and counts what it selects from now on.
func (vs *variants) refuse(v *variant, why progress) {
	vs.limits.Crowded = vs.limits.Crowded || why == refusedTogether
	if v.progress == why {
		if v.early {
			vs.settle(v, why)
		}
		return
	}
	if len(v.tallies) == 0 && len(v.Groups) > 0 {
		for _, s := range v.Selectors {
			t, _ := vs.sets.Tallies.Hold(s)
			v.tallies = append(v.tallies, t)
		}
	}
	vs.sets.Release(&v.Rules)
	vs.settle(v, why)
	if why == refusedAlone {
		vs.limits.After(v.selected() - vs.limits.Alone.Again)
	}
}

// restart takes up a variant that was refused. One that is counted holds its groups from now on:
// otherwise larger ones might, until it is counted again.
func (vs *variants) restart(v *variant) {
	if v.progress == refusedTogether {
		v.Rules = vs.sets.Build(v.from, v.local)
		vs.holdGroups(v)
		vs.room -= v.Units
	} else {
		v.progress = unbuilt
	}
	vs.releaseTallies(v)
	v.spent, v.since = 0, vs.since
	if !slices.Contains(vs.queue, v) {
		vs.queue = append(vs.queue, v)
	}
}

// refill checks the limits and fills what waits; where the update may change all, until nothing is
// left to check.
func (vs *variants) refill(room int) {
	for again := true; again; again = vs.whole && vs.limits.IsDue() {
		vs.weigh()
		vs.fill(room)
	}
}

// fill goes on with the variants that wait, for about so many elements. Half of them go to those
// that got least so far, then the variant that has waited longest gets what is left.
func (vs *variants) fill(room int) {
	vs.tidy()
	room = min(room, vs.room)
	left, share := vs.room-room, max(room/8, 1)
	waiting := map[string][]*variant{}
	for _, v := range vs.queue {
		waiting[v.Namespace()] = append(waiting[v.Namespace()], v)
	}
	maps.DeleteFunc(vs.got, func(namespace string, _ int) bool { return len(waiting[namespace]) == 0 })
	vs.fillLeast(waiting, left+room/2, share)
	if i := slices.IndexFunc(vs.queue, func(v *variant) bool { return !v.progress.settled() }); i >= 0 { // the queue is in the order in which they came
		vs.advance(vs.queue[i], vs.room-left)
	}
	vs.fillLeast(waiting, left, share)
	vs.tidy()
}

// fillLeast gives shares to the namespace that has got least so far, and there to the variant that
// has, until so much room is left. So no small variant waits for large ones, nor for the many of
// another namespace.
func (vs *variants) fillLeast(waiting map[string][]*variant, until, share int) {
	for len(waiting) > 0 && vs.room > until {
		first, found := "", false
		for namespace := range waiting {
			if !found || vs.got[namespace] < vs.got[first] {
				first, found = namespace, true
			}
		}
		list, i := waiting[first], 0
		for j, v := range list {
			if v.spent < list[i].spent {
				i = j
			}
		}
		if vs.advance(list[i], min(share, vs.room-until)); list[i].progress.settled() {
			if waiting[first] = slices.Delete(list, i, i+1); len(waiting[first]) == 0 {
				delete(waiting, first)
			}
		}
	}
}

// tidy takes variants out of the queue that do not wait any more.
func (vs *variants) tidy() {
	vs.queue = slices.DeleteFunc(vs.queue, func(v *variant) bool {
		_, there := vs.all[v]
		return !there || v.progress.settled()
	})
}
