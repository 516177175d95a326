package nftables

import (
	"maps"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file is about what the kernel refused: it is not programmed, but remembered with its desired
// value, until the kernel takes it.

// aside is what the kernel refused.
type aside struct {
	why  map[unit]refusal
	held state.Delta // what each of them is wanted to be
}

// refusal is why a unit was refused, and when it was tried last.
type refusal struct {
	blame
	tried time.Time
}

func newAside() *aside { return &aside{why: map[unit]refusal{}} }

func (a *aside) clone() *aside {
	c := &aside{why: maps.Clone(a.why)}
	for u := range a.why {
		u.field().move(&a.held, u.key, &c.held)
	}
	return c
}

// addFrom takes over what another one has of some parts.
func (a *aside) addFrom(from *aside, of parts) {
	for u, r := range from.why {
		if of.hold(u.part()) {
			u.field().move(&from.held, u.key, &a.held)
			a.why[u] = r
		}
	}
}

func (a *aside) has(u unit) bool { _, ok := a.why[u]; return ok }

// put sets a unit aside; from says what it is wanted to be.
func (a *aside) put(u unit, b blame, from *state.Delta) {
	u.field().move(from, u.key, &a.held)
	a.why[u] = refusal{b, time.Now()}
}

func (a *aside) remove(u unit) {
	u.field().forget(&a.held, u.key)
	delete(a.why, u)
}

// The stand-in of rules that were set aside has their failsafe ports, and allows nothing else.
const standInPrefix = "set aside "

func standInFor(id state.RulesID) state.RulesID { return standInPrefix + id }

// standsFor names the rules that a stand-in stands for.
func standsFor(id state.RulesID) (state.RulesID, bool) {
	of, is := strings.CutPrefix(string(id), standInPrefix)
	return state.RulesID(of), is
}

func standIn(p *state.Rules) *state.Rules {
	s := &state.Rules{ID: standInFor(p.ID), Default: model.Deny}
	for _, t := range p.Tiers {
		foreign := func(own *state.PolicyRules) bool { return own.Policy.Kind != model.Failsafe }
		if len(t.Policies) > 0 && !slices.ContainsFunc(t.Policies, foreign) {
			s.Tiers = append(s.Tiers, t)
		}
	}
	return s
}

// rulesOf names the rules, or their stand-in where they were set aside.
func (a *aside) rulesOf(id state.RulesID) state.RulesID {
	if a.has(unit{rulesUnit, id}) {
		return standInFor(id)
	}
	return id
}

// end is a workload or a host: what rules judge.
type end[V any] interface {
	*V
	RulesIDs() []*state.RulesID
}

// redirected is a copy of a workload or host with f applied to the names of its rules.
func redirected[V any, P end[V]](v P, f func(state.RulesID) state.RulesID) P {
	if v == nil {
		return nil
	}
	c := P(new(V))
	*c = *v
	for _, id := range c.RulesIDs() {
		*id = f(*id)
	}
	return c
}

// withStandIns redirects the workloads and hosts of a delta to the stand-ins of rules that were set
// aside.
func (a *aside) withStandIns(d state.Delta) state.Delta {
	if len(a.why) == 0 {
		return d
	}
	redirect(&d, a.rulesOf)
	return d
}

// redirect applies f to the rules of a delta's workloads and hosts, in new maps.
func redirect(d *state.Delta, f func(state.RulesID) state.RulesID) {
	redirectNamed(&d.Policy.Workloads, f)
	redirectNamed(&d.Policy.Hosts, f)
}

func redirectNamed[K comparable, V any, P end[V]](named *map[K]P, f func(state.RulesID) state.RulesID) {
	before := *named
	*named = nil
	for k, v := range before {
		put(named, k, redirected(v, f))
	}
}

// redirectAll applies f to the rules of workloads or hosts, in a delta and as far as that does not
// say otherwise.
func redirectAll[K, V comparable, P end[V]](all map[K]P, named *map[K]P, f func(state.RulesID) state.RulesID) {
	for k, v := range all {
		if n, is := (*named)[k]; is {
			v = n
		}
		if v == nil {
			continue
		}
		if c := redirected(v, f); *c != *v {
			put(named, k, c)
		}
	}
}

// retryNamed has the delta try again what it names of what was set aside: whole, with what was set
// aside for it. What stays aside stays out of the delta. s is what the kernel holds.
func (a *aside) retryNamed(d state.Delta, s *state.State) state.Delta {
	if len(a.why) == 0 {
		return d
	}
	d = cloneDelta(d)
	for u := range maps.Clone(a.why) {
		f := u.field()
		if !a.has(u) || !f.names(&d, u.key) {
			continue
		}
		f.move(&d, u.key, &a.held)
		f.forget(&d, u.key)
		a.retryUnit(u, &d, s)
	}
	// What depends on something that stays aside stays aside with it.
	for id, p := range maps.Clone(d.Policy.Rules) {
		if because, is := a.misses(p); is {
			a.put(unit{rulesUnit, id}, a.why[because].blame, &d)
			delete(d.Policy.Rules, id)
			d.Policy.Rules[standInFor(id)] = standIn(p)
		}
	}
	return a.withStandIns(d)
}

// retryUnit has the delta try a unit again, as it is held; one that is not wanted any more is
// forgotten.
func (a *aside) retryUnit(u unit, d *state.Delta, s *state.State) {
	f := u.field()
	wanted := f.wanted(&a.held, u.key)
	if wanted {
		f.move(&a.held, u.key, d)
	}
	a.remove(u)
	if id, is := u.key.(state.RulesID); is {
		put(&d.Policy.Rules, standInFor(id), nil)
		if wanted {
			redirectFrom(d, s, standInFor(id), id)
		}
	}
	if !wanted || !u.isSet() {
		return
	}
	for id, p := range maps.Clone(a.held.Policy.Rules) {
		if refers(p, u) {
			a.retryUnit(unit{rulesUnit, id}, d, s)
		}
	}
}

// redirectFrom redirects the state's workloads and hosts from some rules to others, in the delta
// and as far as that does not say otherwise.
func redirectFrom(d *state.Delta, s *state.State, from, to state.RulesID) {
	change := func(id state.RulesID) state.RulesID {
		if id == from {
			return to
		}
		return id
	}
	redirectAll(s.Policy.Workloads, &d.Policy.Workloads, change)
	redirectAll(s.Policy.Hosts, &d.Policy.Hosts, change)
}

// misses returns the set that rules refer to and that was set aside.
func (a *aside) misses(p *state.Rules) (unit, bool) {
	if p == nil {
		return unit{}, false
	}
	for u := range a.why {
		if u.isSet() && refers(p, u) {
			return u, true
		}
	}
	return unit{}, false
}

// refers reports whether rules look something up in the set.
func refers(p *state.Rules, u unit) bool {
	id := u.key.(state.SetID)
	ports := func(p *state.Ports) bool {
		return p != nil && (u.kind == portSetUnit && p.ID == id || u.kind == namedPortsUnit && slices.Contains(p.Named, id))
	}
	term := func(t state.Term) bool {
		return u.kind == groupUnit && slices.Contains(t.Groups, id) ||
			u.kind == listUnit && slices.ContainsFunc(t.Lists, func(l state.ListRef) bool { return l.ID == id })
	}
	end := func(e *state.End) bool {
		return slices.ContainsFunc(e.In, term) || slices.ContainsFunc(e.NotIn, term) || ports(e.Ports) || ports(e.NotPorts)
	}
	for _, t := range p.Tiers {
		for _, own := range t.Policies {
			for i := range own.Rules {
				if r := &own.Rules[i]; end(&r.Source) || end(&r.Destination) {
					return true
				}
			}
		}
	}
	return false
}

// leaveOut returns want without what is set aside, and updates that to what want says. Parts that
// want lacks are left alone. A unit with a single value is left as it is in have, which is what the
// kernel holds; nil: not known.
func (a *aside) leaveOut(want, have *state.State) *state.State {
	if len(a.why) == 0 {
		return want
	}
	var gone state.Delta
	all := policyOf(want)
	for u := range maps.Clone(a.why) {
		if !partsIn(want).hold(u.part()) {
			continue
		}
		f := u.field()
		f.forget(&a.held, u.key)
		switch {
		case !f.read(want, u.key, &a.held):
			a.remove(u)
		case u.key == nil && have != nil:
			f.read(have, u.key, &gone)
		default:
			f.takeOut(want, u.key, &gone)
		}
	}
	for id, p := range all.Rules {
		u := unit{rulesUnit, id}
		if because, is := a.misses(p); is && !a.has(u) {
			var d state.Delta
			put(&d.Policy.Rules, id, p)
			a.put(u, a.why[because].blame, &d)
			put(&gone.Policy.Rules, id, nil)
		}
		if a.has(u) {
			put(&gone.Policy.Rules, standInFor(id), standIn(p))
		}
	}
	redirectAll(all.Workloads, &gone.Policy.Workloads, a.rulesOf)
	redirectAll(all.Hosts, &gone.Policy.Hosts, a.rulesOf)
	rest := want.Clone()
	rest.Apply(gone)
	return rest
}
