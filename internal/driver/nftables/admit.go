package nftables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/lib/sift"
	"sluice.dev/sluice/internal/state"
)

// This file is about carrying out a delta that the kernel refused as a whole: in parts, until it is
// known which of them it refuses. Those are set aside, and all others are in the kernel then.

// refused reports whether the kernel did not take what it was told.
func (d *Driver) refused(err error) bool { return table.Refused(err, d.Building) }

// admission carries out a delta in parts.
type admission struct {
	*Driver
	ctx   context.Context
	delta state.Delta
}

// admit carries out a delta that the kernel may refuse parts of: these are set aside. An error is
// about something else, and the kernel is between two parts then.
func (d *Driver) admit(ctx context.Context, delta state.Delta) error {
	a := &admission{d, ctx, delta}
	sieve := sift.Sieve[unit]{Apply: a.try, Refused: d.refused, SetAside: a.refuse}
	for _, units := range stages(&delta) {
		if err := sieve.Sift(units); err != nil {
			return err
		}
	}
	return nil
}

// stages are the units of a delta in the order in which they can be carried out one after the
// other: what is looked up is there before what looks it up, and goes after it. Services come
// before policy and are independent of it.
func stages(d *state.Delta) [][]unit {
	var constants, frontends, sets, rules, ends, denied, oldSets, oldRules []unit
	for kind, f := range fields {
		f.each(d, func(key any) {
			u := unit{unitKind(kind), key}
			to := &constants
			switch {
			case u.kind == frontendUnit:
				to = &frontends
			case u.isSet() && f.wanted(d, key):
				to = &sets
			case u.isSet():
				to = &oldSets
			case u.kind == rulesUnit && f.wanted(d, key):
				to = &rules
			case u.kind == rulesUnit:
				to = &oldRules
			case u.kind == workloadUnit, u.kind == hostUnit:
				to = &ends
			case u.kind == deniedUnit:
				to = &denied
			}
			*to = append(*to, u)
		})
	}
	return [][]unit{constants, frontends, sets, rules, ends, denied, oldSets, oldRules}
}

// try carries out those of the units that are not set aside.
func (a *admission) try(units []unit) error {
	units = slices.DeleteFunc(slices.Clone(units), a.aside.has)
	if len(units) == 0 {
		return nil
	}
	return a.apply(a.ctx, a.pick(units))
}

// pick is the part of the delta that names the units.
func (a *admission) pick(units []unit) (d state.Delta) {
	for _, u := range units {
		u.field().move(&a.delta, u.key, &d)
	}
	return a.aside.withStandIns(d)
}

// apply carries out a delta in one transaction. If it is refused, the kernel is as before.
func (d *Driver) apply(ctx context.Context, delta state.Delta) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p := d.planUpdate(delta)
	sent, err := d.commit(p.batch, p.of)
	if err == nil {
		p.done()
		return nil
	}
	return d.rollBack(ctx, p.of, sent, err)
}

// rollBack undoes what the first steps of a refused change left, and returns the refusal.
func (d *Driver) rollBack(ctx context.Context, of parts, sent uint32, refusal error) error {
	if !d.refused(refusal) {
		return refusal
	}
	d.adopted |= of
	if sent > 0 {
		if err := d.adoptNow(ctx, of.in(d.state, &state.State{}), driver.Keep{}); err != nil {
			return fmt.Errorf("undo the first steps of a change that was refused (%v): %v", refusal, err) // another kernel's answer is no refusal of the change
		}
	}
	return refusal
}

// refuse sets aside a unit that the kernel does not take.
func (a *admission) refuse(u unit, err error) error {
	if !u.field().wanted(&a.delta, u.key) {
		return err // what is to go cannot be set aside
	}
	switch {
	case u.kind == workloadUnit, u.kind == hostUnit:
		return a.refuseByRules(u, err)
	case u.isSet():
		for _, rules := range []ruleset.RulesByID{a.delta.Policy.Rules, maps.Clone(a.state.Policy.Rules)} {
			for id, p := range rules {
				if p == nil || a.aside.has(unit{rulesUnit, id}) || !refers(p, u) {
					continue
				}
				if err := a.setRulesAside(id, err); err != nil {
					return err
				}
			}
		}
	}
	return a.setAside(u, err)
}

// refuseByRules finds out which of the rules of a workload or a host the kernel refuses, if it is
// some of them.
func (a *admission) refuseByRules(u unit, refusal error) error {
	var ids []state.RulesID
	picked := a.pick([]unit{u})
	collect := func(id state.RulesID) state.RulesID {
		if a.state.Policy.Rules[id] != nil && !slices.Contains(ids, id) {
			if _, stands := standsFor(id); !stands {
				ids = append(ids, id)
			}
		}
		return id
	}
	redirect(&picked, collect)
	suspects := make([][]state.RulesID, 0, len(ids)+1)
	for _, id := range ids {
		suspects = append(suspects, []state.RulesID{id})
	}
	if len(ids) > 1 {
		suspects = append(suspects, ids)
	}
	for _, of := range suspects {
		d := a.pick([]unit{u})
		for _, id := range of {
			put(&d.Policy.Rules, standInFor(id), standIn(a.state.Policy.Rules[id]))
		}
		redirect(&d, func(id state.RulesID) state.RulesID {
			if slices.Contains(of, id) {
				return standInFor(id)
			}
			return id
		})
		err := a.apply(a.ctx, d)
		if err == nil {
			for _, id := range of {
				if err := a.setRulesAside(id, refusal); err != nil {
					return err
				}
			}
			return nil
		}
		if !a.refused(err) {
			return err
		}
	}
	return a.setAside(u, refusal)
}

// setAside sets a unit aside and takes it out of the kernel. What has one value stays as it was.
func (a *admission) setAside(u unit, refusal error) error {
	f := u.field()
	var want, out state.Delta
	f.read(a.state, u.key, &want)
	f.move(&a.delta, u.key, &want)
	a.aside.put(u, a.blameFor(u, refusal), &want)
	if u.key == nil {
		return nil
	}
	f.takeOut(a.state, u.key, &out)
	if err := a.apply(a.ctx, out); err != nil {
		return fmt.Errorf("take out what was refused (%v): %w", refusal, err)
	}
	return nil
}

// setRulesAside sets rules aside and has their stand-in judge in their place.
func (a *admission) setRulesAside(id state.RulesID, refusal error) error {
	p := a.state.Policy.Rules[id]
	var out, want state.Delta
	if p != nil {
		put(&out.Policy.Rules, id, nil)
	} else {
		p = a.delta.Policy.Rules[id]
	}
	put(&want.Policy.Rules, id, p)
	put(&out.Policy.Rules, standInFor(id), standIn(p))
	u := unit{rulesUnit, id}
	a.aside.put(u, a.blameFor(u, refusal), &want)
	redirectFrom(&out, a.state, id, standInFor(id))
	if err := a.apply(a.ctx, out); err != nil {
		return fmt.Errorf("have nothing pass where rules were refused (%v): %w", refusal, err)
	}
	return nil
}

// retryAfter is how long a part stays set aside before an adoption tries it again, and mostRetried
// how many of them one tries.
const (
	retryAfter  = time.Minute
	mostRetried = 16
)

// retry tries again what was set aside longest ago.
func (d *Driver) retry(ctx context.Context) error {
	var due []unit
	for u, r := range d.aside.why {
		if time.Since(r.tried) >= retryAfter && d.adopted.hold(u.part()) {
			due = append(due, u)
		}
	}
	slices.SortFunc(due, func(x, y unit) int { return d.aside.why[x].tried.Compare(d.aside.why[y].tried) })
	var again state.Delta
	for _, u := range due[:min(len(due), mostRetried)] {
		if d.aside.has(u) {
			d.aside.retryUnit(u, &again, d.state)
		}
	}
	return d.admit(ctx, d.aside.retryNamed(again, d.state))
}
