package config

import (
	"fmt"
	"maps"
	"slices"

	"sluice.dev/sluice/internal/lib/cow"
	"sluice.dev/sluice/internal/model"
)

// draft is the objects of a kind while a change works on them.
type draft[O named[O]] struct {
	*cow.Map[string, O]                    // as the change leaves them
	edits               map[string]edit[O] // those that differ, and those that depend on such
	fresh               func(name string) O
	made                *uint64
}

// edit is an object before and after a change; nil: there is none.
type edit[O any] struct{ was, now O }

func draftOf[O named[O]](d *document, objects *cow.Map[string, O], fresh func(string) O) draft[O] {
	return draft[O]{Map: objects, edits: map[string]edit[O]{}, fresh: fresh, made: &d.made}
}

// put has an object take the place of the one of the name; nil: there is none any more.
func (d *draft[O]) put(name string, now O) {
	var none O
	e, edited := d.edits[name]
	if !edited {
		e.was = d.Get(name)
	}
	e.now = now
	if d.edits[name] = e; now == none {
		d.Delete(name)
	} else {
		d.Set(name, now)
	}
}

// edit returns an object that the change may write to: its own one, or a copy of that of before, or
// else a fresh one.
func (d *draft[O]) edit(name string) O {
	var none O
	e, edited := d.edits[name]
	if edited && e.now != none {
		return e.now
	}
	now := d.Get(name)
	if now != none {
		now = now.clone()
	} else {
		now = d.fresh(name)
		*d.made++
		now.id().order = *d.made
	}
	d.put(name, now)
	return now
}

// sorted are the edits of objects that are there, by name, so that errors do not depend on chance.
func (d *draft[O]) sorted() (all []edit[O]) {
	var none O
	for _, name := range slices.Sorted(maps.Keys(d.edits)) {
		if e := d.edits[name]; e.now != none {
			all = append(all, e)
		}
	}
	return all
}

// change is what a request makes of a document: another one, or an error.
type change struct {
	*document           // the other one
	before    *document // what it is made of
	options   Options
	ofState   bool // it is the state file: a farm that would take one of options.Own is kept, but not served
	farmEdits draft[*farm]
	addrEdits draft[*address]
	listEdits draft[*policy]
	warnings  []string
	forget    []forgetting
}

// forgetting is clients of a farm that the kernel is to forget once the change is there.
type forgetting struct {
	farm    string
	backend string            // those of this one; empty: see client
	client  *model.FlowValues // nil: all
}

func newChange(before *document, o Options) *change {
	d := *before
	return &change{
		document: &d, before: before, options: o,
		farmEdits: draftOf(&d, &d.farms, newFarm), addrEdits: draftOf(&d, &d.addresses, newAddress), listEdits: draftOf(&d, &d.policies, newPolicy),
	}
}

func (c *change) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

// freeAddressName returns the name of a farm's own address.
func (c *change) freeAddressName(name string) string {
	free := name
	for i := 2; c.addresses.Get(free) != nil; i++ {
		free = name + itoa(i)
	}
	return free
}

func (c *change) removeFarm(name string) { c.farmEdits.put(name, nil) }

func (c *change) renameFarm(name, to string) error {
	if c.farms.Get(to) != nil {
		return &failure{409, "error parsing buffer. farms[" + name + "].newname: there is a farm '" + to + "' already"}
	}
	f := c.farmEdits.edit(name)
	c.farmEdits.put(name, nil)
	f.name = to
	c.farmEdits.put(to, f)
	own, now := name+"-addr", to+"-addr"
	if i := slices.Index(f.addresses, own); i >= 0 && c.addresses.Get(now) == nil && c.farmsAt.Get(own).Len() <= 1 {
		a := c.addrEdits.edit(own)
		c.addrEdits.put(own, nil)
		a.name = now
		c.addrEdits.put(now, a)
		f.addresses[i] = now
	}
	return nil
}

// removeAddress takes an address from its farms, and away. Nothing else may be changed before.
func (c *change) removeAddress(name string) {
	for user := range c.farmsAt.Get(name).All() {
		f := c.farmEdits.edit(user)
		f.addresses = without(f.addresses, name)
	}
	c.addrEdits.put(name, nil)
}

// removePolicy takes a policy from its users, and away. Nothing else may be changed before.
func (c *change) removePolicy(name string) {
	for user := range c.farmsOf.Get(name).All() {
		f := c.farmEdits.edit(user)
		f.policies = without(f.policies, name)
	}
	for user := range c.addrsOf.Get(name).All() {
		a := c.addrEdits.edit(user)
		a.policies = without(a.policies, name)
	}
	c.listEdits.put(name, nil)
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return n == name })
}

// forgetSessions drops the static sessions of a backend; empty: all.
func (f *farm) forgetSessions(backend string) {
	f.sessions = slices.DeleteFunc(f.sessions, func(s session) bool { return backend == "" || s.backend == backend })
}
