package policy

import (
	"maps"
	"math"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
)

// Parts are filled in slices: their selectors are counted, then the groups made and filled, while nothing refers to them yet.
// What stood before a policy came or changed stands until its parts are filled. Only a pod that
// comes, or changes so that other policies select it, does not wait: until then they allow it nothing.

// all is room for whatever there is.
const all = math.MaxInt

// matchingCost is how many classes a selector is held against in the time in which an address is programmed.
const matchingCost = 16

// progress is how far a part is.
type progress uint8

const (
	unbuilt  progress = iota // its rules are not compiled yet
	counting                 // what its selectors select
	filling                  // it has groups, to which addresses are added
	filled
	tooMany // its selectors select too many addresses
	tooMuch // with those of others
)

func (p progress) refused() bool { return p >= tooMany }

// settled reports whether there is nothing more to do for it.
func (p progress) settled() bool { return p >= filled }

// advance goes on with a part as far as there is room for, which it takes.
func (c *Compiler) advance(p *part, room int) {
	began := c.room
	for !p.progress.settled() && began-c.room < room {
		c.room -= c.step(p, room-(began-c.room))
	}
	p.spent += began - c.room
	c.got[p.namespace()] += began - c.room
}

// step takes one step with a part that is not settled: at the most, one selector is counted, or one group made or filled as far as
// there is room for. It returns about how many elements a kernel takes in that time.
func (c *Compiler) step(p *part, room int) (spent int) {
	switch p.progress {
	case unbuilt:
		c.build(p)
		p.progress = counting
		if n := len(p.selectors) * c.size; n <= c.maxSelected.Most>>5 && c.total+n <= c.maxTogether.Most {
			c.holdGroups(p) // it need not be counted
		}
		return p.units
	case counting:
		if len(p.tallies) == len(p.selectors) {
			if beyond := c.beyond(p); beyond > 0 && c.total+beyond > c.maxTogether.Most && !p.host() {
				c.refuse(p, tooMuch)
				p.early = true
				c.weighSoon() // others may have to go for it
				return 1
			}
			if c.holdGroups(p); c.crowded || c.total > c.maxTogether.Most {
				c.weighSoon() // it may not be its turn
			}
			return 1
		}
		t, looked := c.holdTally(p.selectors[len(p.tallies)])
		p.tallies = append(p.tallies, t)
		if p.sum += t.count; p.sum > c.maxSelected.Most && p.selected() > c.maxSelected.Most {
			c.refuse(p, tooMany)
		}
		return 1 + looked/matchingCost
	}
	if p.ready == len(p.groups) {
		c.settle(p, filled)
		c.weighAfter(c.maxSelected.Most + 1 - p.selected())
		if c.weighAfter(c.maxTogether.Most + 1 - c.total); c.total > c.maxTogether.Most || p.selected() > c.maxSelected.Most {
			c.weighSoon() // more has come since it was counted
		}
		return 1
	}
	switch g := p.groups[p.ready]; {
	case !g.made:
		spent = 1 + c.make(g)/matchingCost
	case len(g.left) > 0:
		spent = c.move(g, room)
	default:
		p.ready++
	}
	return spent
}

// settle ends the way of a part: its rules change now.
func (c *Compiler) settle(p *part, now progress) {
	p.progress, p.early, p.resolved, c.stale = now, false, nil, true
	if now == filled {
		c.releaseTallies(p)
	}
}

// refuse takes a part's sets away, and counts what it selects from now on.
func (c *Compiler) refuse(p *part, why progress) {
	c.crowded = c.crowded || why == tooMuch
	if p.progress == why {
		if p.early {
			c.settle(p, why)
		}
		return
	}
	if len(p.tallies) == 0 && len(p.groups) > 0 {
		for _, g := range p.groups {
			t, _ := c.holdTally(g.selector)
			p.tallies = append(p.tallies, t)
		}
	}
	c.releaseSets(p)
	c.settle(p, why)
	if why == tooMany {
		c.weighAfter(p.selected() - c.maxSelected.Again)
	}
}

// restart takes up a part that was refused. One that is counted holds its groups from now on: otherwise greater ones might, until it is counted again.
func (c *Compiler) restart(p *part) {
	if p.progress == tooMuch {
		c.build(p)
		c.holdGroups(p)
		c.room -= p.units
	} else {
		p.progress = unbuilt
	}
	c.releaseTallies(p)
	p.spent, p.since = 0, c.since
	if !slices.Contains(c.queue, p) {
		c.queue = append(c.queue, p)
	}
}

// fill goes on with the parts that wait, for about so many elements. Half of them go to the namespaces that have got least so far, and there to the
// parts that have, so that no small part waits for large ones, nor for the many of another namespace; then the part that has waited longest gets what is left.
func (c *Compiler) fill(room int) {
	c.tidy()
	room = min(room, c.room)
	left, share := c.room-room, max(room/8, 1)
	waiting := map[string][]*part{}
	for _, p := range c.queue {
		waiting[p.namespace()] = append(waiting[p.namespace()], p)
	}
	maps.DeleteFunc(c.got, func(namespace string, _ int) bool { return len(waiting[namespace]) == 0 })
	least := func(until int) {
		for len(waiting) > 0 && c.room > until {
			first, found := "", false
			for namespace := range waiting {
				if !found || c.got[namespace] < c.got[first] {
					first, found = namespace, true
				}
			}
			list, i := waiting[first], 0
			for j, p := range list {
				if p.spent < list[i].spent {
					i = j
				}
			}
			if c.advance(list[i], min(share, c.room-until)); list[i].progress.settled() {
				if waiting[first] = slices.Delete(list, i, i+1); len(waiting[first]) == 0 {
					delete(waiting, first)
				}
			}
		}
	}
	least(left + room/2)
	if i := slices.IndexFunc(c.queue, func(p *part) bool { return !p.progress.settled() }); i >= 0 { // the queue is in the order in which they came
		c.advance(c.queue[i], c.room-left)
	}
	least(left)
	c.tidy()
}

// tidy takes parts out of the queue that do not wait any more.
func (c *Compiler) tidy() {
	c.queue = slices.DeleteFunc(c.queue, func(p *part) bool {
		_, there := c.parts[p]
		return !there || p.progress.settled()
	})
}

// standing returns the policies of the list, but those whose parts are not filled yet as the endpoint has them: in the version before, or not
// at all.
func (c *Compiler) standing(e *endpoint, list []*policy) []*policy {
	if !slices.ContainsFunc(list, func(p *policy) bool { return p.fresh }) {
		return list
	}
	before := make(map[model.PolicyKey]*policy, len(e.policies))
	for _, p := range e.policies {
		before[p.obj.Key] = p
	}
	waiting := map[*policy]struct{}{}
	for _, s := range []stage{podIngress, podEgress} {
		held := s.held(list)
		for i, p := range held {
			if !p.fresh {
				continue
			}
			if o := c.prepare(p, s, allowsAfter(held, i, s)); !o.progress.settled() || !c.decided(o) && before[p.obj.Key] != nil {
				waiting[p], p.awaited = struct{}{}, true
			}
		}
	}
	if len(waiting) == 0 {
		return list
	}
	var stands []*policy
	for _, p := range list {
		if _, waits := waiting[p]; !waits {
			stands = append(stands, p)
		} else if old := before[p.obj.Key]; old != nil {
			stands = append(stands, old)
		}
	}
	slices.SortFunc(stands, comparePolicies)
	return stands
}

// prepare has the part of a policy filled before anyone uses it.
func (c *Compiler) prepare(p *policy, s stage, allowed bool) *part {
	i := partOf(s, allowed)
	if !slices.Contains(p.prepared, i) {
		c.hold(p, s, allowed)
		p.prepared = append(p.prepared, i)
	}
	return p.parts[i]
}

// decided reports whether a part's rules may take the place of others. One that was refused early is to be weighed first: if others go for it, what stood before goes on.
func (c *Compiler) decided(p *part) bool { return p.progress.settled() && (!p.early || c.whole) }

// recall marks the endpoints that wait for policies whose parts are filled.
func (c *Compiler) recall() {
	for p := range c.fresh {
		if p.awaited && c.complete(p) {
			p.awaited = false
			c.selectedBy(p.obj.Subject)
		}
	}
}

// introduce ends what was prepared for policies for which nobody waits any more.
func (c *Compiler) introduce() {
	for p := range c.fresh {
		if !p.awaited && c.complete(p) {
			c.unprepare(p)
		}
	}
}

// complete reports whether all parts of a policy that anyone uses are decided.
func (c *Compiler) complete(p *policy) bool {
	return !slices.ContainsFunc(p.parts[:], func(o *part) bool { return o != nil && !c.decided(o) })
}

func (c *Compiler) unprepare(p *policy) {
	p.fresh = false
	delete(c.fresh, p)
	for _, i := range p.prepared {
		c.release(p, i)
	}
	p.prepared = nil
}

// hurry reports whether a policy may change though its version before is not in force yet. If not, it is taken up when that
// one is, so that one which changes all the time is followed.
func (c *Compiler) hurry(key model.PolicyKey, gone bool) bool {
	old := c.policies[key]
	if old == nil || !old.fresh || old.outdated || gone || c.whole {
		delete(c.later, key)
		return true
	}
	c.wait(key)
	return false
}

// wait has a policy taken up, in this update or when the version before is in force.
func (c *Compiler) wait(key model.PolicyKey) {
	if _, waits := c.later[key]; !waits {
		c.later[key] = c.since
	}
}

// Waiting returns how many policies Step has left for later, and since when the first of them waits. What is being removed, pods that are to be
// followed, and policies that were refused and may fit now count as one.
func (c *Compiler) Waiting() (policies int, since time.Time) {
	first := true
	note := func(at time.Time) {
		if first || at.Before(since) {
			first, since = false, at
		}
	}
	waiting := map[model.PolicyKey]struct{}{}
	for _, p := range c.queue {
		waiting[p.of.obj.Key] = struct{}{}
		note(p.since)
	}
	for key, at := range c.later {
		waiting[key] = struct{}{}
		note(at)
	}
	for p := range c.fresh {
		waiting[p.obj.Key] = struct{}{}
		note(p.since)
	}
	for _, at := range c.latePods {
		note(at)
	}
	policies = len(waiting)
	for g := range c.draining {
		note(g.since)
	}
	if len(c.draining) > 0 || len(c.latePods) > 0 || c.moves >= c.due {
		policies++
	}
	return policies, since
}
