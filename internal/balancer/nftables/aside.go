package nftables

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/lib/sift"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// What the kernel refuses of a farm, or of a list that it names, is found out in a table that no
// packet meets, so that other farms have no part in it.

// asides are the farms that the kernel refused, by name.
type asides map[string]refusal

type refusal struct {
	farm *state.Farm
	why  string // for people
}

// without is what is left of wanted farms, with the lists that these name.
func (a asides) without(want *state.Farms) *state.Farms {
	rest := want.Clone()
	if len(a) == 0 {
		return rest
	}
	maps.DeleteFunc(rest.Farms, func(name string, _ *state.Farm) bool { _, aside := a[name]; return aside })
	rest.Lists = listsOf(rest.Farms, want.Lists)
	clear(rest.Tunnels)
	for _, f := range rest.Farms {
		f.EachTunnel(func(to netip.Addr) { rest.Tunnels[to] = struct{}{} })
	}
	return rest
}

// listsOf are those of some lists that farms name.
func listsOf(farms map[string]*state.Farm, all map[string]*model.FarmList) map[string]*model.FarmList {
	named := map[string]*model.FarmList{}
	for _, f := range farms {
		for _, name := range f.Lists {
			if l := all[name]; l != nil {
				named[name] = l
			}
		}
	}
	return named
}

// concerns reports whether a change is about a farm, or about a list that it names.
func concerns(d state.FarmsDelta, f *state.Farm) bool {
	_, named := d.Farms[f.Name]
	return named || slices.ContainsFunc(f.Lists, func(l string) bool { _, named := d.Lists[l]; return named })
}

// retryNamed returns what a change of what is wanted comes to where something is set aside: what it
// concerns is tried again, and what stays aside is left out.
func (d *Driver) retryNamed(want *state.Farms, delta state.FarmsDelta) (state.FarmsDelta, asides) {
	aside := maps.Clone(d.aside)
	maps.DeleteFunc(aside, func(name string, _ refusal) bool {
		f := want.Farms[name]
		return f == nil || concerns(delta, f)
	})
	rest := aside.without(want)
	delta.Farms, delta.Lists = changes(d.state.Farms, rest.Farms), changes(d.state.Lists, rest.Lists)
	delta.Tunnels = map[netip.Addr]bool{}
	for to := range d.state.Tunnels {
		delta.Tunnels[to] = false
	}
	for to := range rest.Tunnels {
		delta.Tunnels[to] = true
	}
	return delta, aside
}

// changes lead from one map to another.
func changes[V any](have, want map[string]*V) map[string]*V {
	d := map[string]*V{}
	for k, v := range want {
		if have[k] != v {
			d[k] = v
		}
	}
	for k := range have {
		if want[k] == nil {
			d[k] = nil
		}
	}
	return d
}

// mostRetried is how many of the farms that are set aside an adoption tries again.
const mostRetried = 16

// retry returns what stays aside of what is wanted: what has not changed, and the kernel refuses
// again.
func (d *Driver) retry(want *state.Farms) asides {
	next, tried := asides{}, 0
	for name, r := range d.aside {
		if want.Farms[name] != r.farm {
			continue
		}
		if tried++; tried > mostRetried || d.try(want, []string{name}) != nil {
			next[name] = r
		}
	}
	return next
}

// refused finds out which of the farms that a change concerns the kernel does not take.
func (d *Driver) refused(want *state.Farms, delta state.FarmsDelta) (asides, error) {
	var suspects []string
	for name, f := range want.Farms {
		if concerns(delta, f) {
			suspects = append(suspects, name)
		}
	}
	found := asides{}
	sieve := sift.Sieve[string]{
		Apply:   func(names []string) error { return d.try(want, names) },
		Refused: refused,
		SetAside: func(name string, err error) error {
			found[name] = refusal{want.Farms[name], "the kernel refuses what is made of it: " + table.Reason(err) + "; everything else works"}
			return nil
		},
	}
	return found, sieve.Sift(suspects)
}

// refused reports whether the kernel did not take what a farm needs: its ruleset, or a tunnel in
// whose place there is another interface.
func refused(err error) bool { return table.Refused(err, true) || errors.Is(err, unix.EEXIST) }

// try has the kernel check farms alone, with their lists, and makes their tunnels.
func (d *Driver) try(want *state.Farms, names []string) error {
	some := &state.Farms{Farms: map[string]*state.Farm{}}
	for _, name := range names {
		some.Farms[name] = want.Farms[name]
	}
	some.Lists = listsOf(some.Farms, want.Lists)
	for _, t := range d.tables() {
		if err := t.try(some); err != nil {
			return err
		}
	}
	return d.tryTunnels(some.Farms)
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
	for name, r := range now {
		all = append(all, driver.SetAside{Kind: string(model.FarmKind), Name: model.Name{Name: name}, Reason: r.why, InForce: model.InForceNothing})
	}
	slices.SortFunc(all, driver.SetAside.Compare)
	d.published.Store(&all)
}
