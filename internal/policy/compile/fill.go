package compile

import (
	"maps"
	"slices"

	"sluice.dev/sluice/internal/policy/compile/objects"
)

// Parts are filled in slices: their selectors are counted, then the groups follow them and are
// filled, while nothing refers to them yet.

// advance goes on with a variant as far as there is room for, which it takes.
func (ps *variants) advance(p *variant, room int) {
	began := ps.room
	for !p.progress.settled() && began-ps.room < room {
		ps.room -= ps.step(p, room-(began-ps.room))
	}
	p.spent += began - ps.room
	ps.got[p.Namespace()] += began - ps.room
}

// step takes one step with a variant that is not settled: at most, one selector is counted, or one
// group follows its selector, or is filled as far as there is room for. It returns about how many
// elements a kernel takes in that time.
func (ps *variants) step(p *variant, room int) (spent int) {
	switch p.progress {
	case unbuilt:
		return ps.build(p)
	case counting:
		return ps.count(p)
	}
	if p.ready == len(p.Groups) {
		ps.settle(p, filled)
		ps.limits.Filled(p.selected())
		return 1
	}
	spent, done := ps.sets.Groups.Fill(p.Groups[p.ready], room)
	if done {
		p.ready++
	}
	return spent
}

// build compiles the rules of a variant. What its selectors select need not be counted where it is
// little, whatever that is.
func (ps *variants) build(p *variant) (spent int) {
	p.Rules = ps.sets.Build(p.from, p.local)
	p.progress = counting
	if n := len(p.Selectors) * ps.objects.Size; n <= ps.limits.Alone.Most>>5 && ps.limits.Fits(n) {
		ps.holdGroups(p)
	}
	return p.Units
}

// holdGroups gives a variant its groups, which are to be filled.
func (ps *variants) holdGroups(p *variant) {
	ps.sets.HoldGroups(&p.Rules, p.tallies)
	p.progress, p.ready = filling, 0
}

// count counts what the next selector of a variant selects; after the last one, the variant gets
// its groups if there is room for them.
func (ps *variants) count(p *variant) (spent int) {
	if len(p.tallies) < len(p.Selectors) {
		t, looked := ps.sets.Tallies.Hold(p.Selectors[len(p.tallies)])
		p.tallies = append(p.tallies, t)
		if p.sum += t.Count; p.sum > ps.limits.Alone.Most && p.selected() > ps.limits.Alone.Most {
			ps.refuse(p, refusedAlone)
		}
		return 1 + looked/objects.MatchingCost
	}
	if beyond := ps.beyond(p); beyond > 0 && !ps.limits.Fits(beyond) && !p.host() {
		ps.refuse(p, refusedTogether)
		p.early = true
		ps.limits.Soon() // others may have to go for it
		return 1
	}
	if ps.holdGroups(p); ps.limits.Crowded || !ps.limits.Fits(0) {
		ps.limits.Soon() // it may not be its turn
	}
	return 1
}

// settle ends the way of a variant: its rules change now.
func (ps *variants) settle(p *variant, now progress) {
	p.progress, p.early, p.resolved, ps.stale = now, false, nil, true
	if now == filled {
		ps.releaseTallies(p)
	}
}

// refuse takes a variant's sets away, and counts what it selects from now on.
func (ps *variants) refuse(p *variant, why progress) {
	ps.limits.Crowded = ps.limits.Crowded || why == refusedTogether
	if p.progress == why {
		if p.early {
			ps.settle(p, why)
		}
		return
	}
	if len(p.tallies) == 0 && len(p.Groups) > 0 {
		for _, s := range p.Selectors {
			t, _ := ps.sets.Tallies.Hold(s)
			p.tallies = append(p.tallies, t)
		}
	}
	ps.sets.Release(&p.Rules)
	ps.settle(p, why)
	if why == refusedAlone {
		ps.limits.After(p.selected() - ps.limits.Alone.Again)
	}
}

// restart takes up a variant that was refused. One that is counted holds its groups from now on:
// otherwise larger ones might, until it is counted again.
func (ps *variants) restart(p *variant) {
	if p.progress == refusedTogether {
		p.Rules = ps.sets.Build(p.from, p.local)
		ps.holdGroups(p)
		ps.room -= p.Units
	} else {
		p.progress = unbuilt
	}
	ps.releaseTallies(p)
	p.spent, p.since = 0, ps.since
	if !slices.Contains(ps.queue, p) {
		ps.queue = append(ps.queue, p)
	}
}

// refill checks the limits and fills what waits; where the update may change all, until nothing is
// left to check.
func (ps *variants) refill(room int) {
	for again := true; again; again = ps.whole && ps.limits.IsDue() {
		ps.weigh()
		ps.fill(room)
	}
}

// fill goes on with the variants that wait, for about so many elements. Half of them go to those
// that got least so far, then the variant that has waited longest gets what is left.
func (ps *variants) fill(room int) {
	ps.tidy()
	room = min(room, ps.room)
	left, share := ps.room-room, max(room/8, 1)
	waiting := map[string][]*variant{}
	for _, p := range ps.queue {
		waiting[p.Namespace()] = append(waiting[p.Namespace()], p)
	}
	maps.DeleteFunc(ps.got, func(namespace string, _ int) bool { return len(waiting[namespace]) == 0 })
	ps.fillLeast(waiting, left+room/2, share)
	if i := slices.IndexFunc(ps.queue, func(p *variant) bool { return !p.progress.settled() }); i >= 0 { // the queue is in the order in which they came
		ps.advance(ps.queue[i], ps.room-left)
	}
	ps.fillLeast(waiting, left, share)
	ps.tidy()
}

// fillLeast gives shares to the namespace that has got least so far, and there to the variant that
// has, until so much room is left. So no small variant waits for large ones, nor for the many of
// another namespace.
func (ps *variants) fillLeast(waiting map[string][]*variant, until, share int) {
	for len(waiting) > 0 && ps.room > until {
		first, found := "", false
		for namespace := range waiting {
			if !found || ps.got[namespace] < ps.got[first] {
				first, found = namespace, true
			}
		}
		list, i := waiting[first], 0
		for j, p := range list {
			if p.spent < list[i].spent {
				i = j
			}
		}
		if ps.advance(list[i], min(share, ps.room-until)); list[i].progress.settled() {
			if waiting[first] = slices.Delete(list, i, i+1); len(waiting[first]) == 0 {
				delete(waiting, first)
			}
		}
	}
}

// tidy takes variants out of the queue that do not wait any more.
func (ps *variants) tidy() {
	ps.queue = slices.DeleteFunc(ps.queue, func(p *variant) bool {
		_, there := ps.all[p]
		return !there || p.progress.settled()
	})
}
