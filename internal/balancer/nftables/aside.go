package nftables

import (
	"fmt"
	"maps"
	"slices"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/lib/sift"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// What the kernel refuses of a farm or a list is found out in a table that no packet meets, so that
// no other farm is in its way. It is set aside with the farms that name the list: without it they
// would let through what they are to keep out.

// unit is what is set aside as a whole.
type unit struct {
	list bool // or else a farm
	name string
}

// of is what a state wants of a unit.
func (u unit) of(s *state.Farms) (value any, wanted bool) {
	if u.list {
		l, wanted := s.Lists[u.name]
		return l, wanted
	}
	f, wanted := s.Farms[u.name]
	return f, wanted
}

// units are those of a change that are wanted.
func units(d state.FarmsDelta) (all []unit) {
	for name, f := range d.Farms {
		if f != nil {
			all = append(all, unit{false, name})
		}
	}
	for name, l := range d.Lists {
		if l != nil {
			all = append(all, unit{true, name})
		}
	}
	return all
}

// asides are the units that the kernel refused.
type asides map[unit]refusal

type refusal struct {
	of  any    // what was wanted of it
	why string // for people
}

// without is what is left of wanted farms. Those that name a list which is set aside are, too.
func (a asides) without(want *state.Farms) *state.Farms {
	if len(a) == 0 {
		return want
	}
	rest := want.Clone()
	a.namers(rest.Farms)
	for u := range a {
		if u.list {
			delete(rest.Lists, u.name)
		} else {
			delete(rest.Farms, u.name)
		}
	}
	return rest
}

// namers sets aside those of some farms that name a list which is set aside.
func (a asides) namers(farms map[string]*state.Farm) {
	for name, f := range farms {
		if f == nil {
			continue
		}
		for _, l := range f.Lists {
			if r, is := a[unit{true, l}]; is {
				a[unit{false, name}] = refusal{f, "of its list " + l + ", " + r.why}
			}
		}
	}
}

// retryNamed has a change try again what it names of what is set aside, and leave out what stays
// aside.
func (a asides) retryNamed(d state.FarmsDelta) (state.FarmsDelta, asides) {
	if len(a) == 0 {
		return d, a
	}
	next := maps.Clone(a)
	farms := map[string]*state.Farm{}
	for u, r := range a {
		f, is := r.of.(*state.Farm)
		if is && slices.ContainsFunc(f.Lists, func(l string) bool { _, named := d.Lists[l]; return named }) {
			farms[u.name] = f
		}
	}
	maps.Copy(farms, d.Farms)
	for name := range d.Lists {
		delete(next, unit{true, name})
	}
	for name := range farms {
		delete(next, unit{false, name})
	}
	next.namers(farms)
	for u := range next {
		if _, named := farms[u.name]; named && !u.list {
			farms[u.name] = nil
		}
	}
	d.Farms = farms
	return d, next
}

// mostRetried is how much of what is set aside an adoption tries again.
const mostRetried = 16

// retry returns what stays aside of what is wanted: what has not changed, and the kernel refuses
// again.
func (d *Driver) retry(want *state.Farms) asides {
	next := asides{}
	tried := 0
	for u, r := range d.aside {
		if of, wanted := u.of(want); !wanted || of != r.of {
			continue
		}
		if tried++; tried > mostRetried || d.try(want, []unit{u}) != nil {
			next[u] = r
		}
	}
	return next
}

// refused finds out which units the kernel does not take.
func (d *Driver) refused(want *state.Farms, suspects []unit) (asides, error) {
	found := asides{}
	sieve := sift.Sieve[unit]{
		Apply:   func(all []unit) error { return d.try(want, all) },
		Refused: func(err error) bool { return table.Refused(err, true) },
		SetAside: func(u unit, err error) error {
			of, _ := u.of(want)
			found[u] = refusal{of, "the kernel refuses what is made of it: " + table.Reason(err)}
			return nil
		},
	}
	return found, sieve.Sift(suspects)
}

// try has the kernel check units alone.
func (d *Driver) try(want *state.Farms, all []unit) error {
	farms, lists := map[string]*state.Farm{}, map[string]*model.FarmList{}
	for _, u := range all {
		if u.list {
			lists[u.name] = want.Lists[u.name]
		} else {
			farms[u.name] = want.Farms[u.name]
		}
	}
	for _, t := range d.tables() {
		c := t.trial()
		if c.p.hasLists() {
			for _, f := range farms {
				for _, name := range f.Lists {
					c.list(name, want.Lists[name], func(*nft.Element, bool) {})
				}
			}
		}
		if err := c.try(farms, lists); err != nil {
			return err
		}
	}
	return nil
}

// SetAside implements driver.Driver.
func (d *Driver) SetAside() []driver.SetAside {
	if all := d.published.Load(); all != nil {
		return *all
	}
	return nil
}

// setAside notes what is set aside now.
func (d *Driver) setAside(now asides) {
	d.aside = now
	var all []driver.SetAside
	for u, r := range now {
		s := driver.SetAside{Kind: string(model.FarmKind), Name: model.Name{Name: u.name}, Reason: fmt.Sprint(r.why, "; everything else works"), InForce: model.InForceNothing}
		if u.list {
			s.Kind = string(model.FarmListKind)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, driver.SetAside.Compare)
	d.published.Store(&all)
}
