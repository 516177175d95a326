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

// revision is what a request makes of a document: another one, or an error.
type revision struct {
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

func newRevision(before *document, o Options) *revision {
	d := *before
	return &revision{
		document: &d, before: before, options: o,
		farmEdits: draftOf(&d, &d.farms, newFarm), addrEdits: draftOf(&d, &d.addresses, newAddress), listEdits: draftOf(&d, &d.policies, newPolicy),
	}
}

func (r *revision) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// freeAddressName returns the name of a farm's own address.
func (r *revision) freeAddressName(name string) string {
	free := name
	for i := 2; r.addresses.Get(free) != nil; i++ {
		free = name + itoa(i)
	}
	return free
}

func (r *revision) removeFarm(name string) { r.farmEdits.put(name, nil) }

func (r *revision) renameFarm(name, to string) error {
	if r.farms.Get(to) != nil {
		return &failure{409, "error parsing buffer. farms[" + name + "].newname: there is a farm '" + to + "' already"}
	}
	f := r.farmEdits.edit(name)
	r.farmEdits.put(name, nil)
	f.name = to
	r.farmEdits.put(to, f)
	own, now := name+"-addr", to+"-addr"
	if i := slices.Index(f.addresses, own); i >= 0 && r.addresses.Get(now) == nil && r.farmsAt.Get(own).Len() <= 1 {
		a := r.addrEdits.edit(own)
		r.addrEdits.put(own, nil)
		a.name = now
		r.addrEdits.put(now, a)
		f.addresses[i] = now
	}
	return nil
}

// removeAddress takes an address from its farms, and away. Nothing else may be changed before.
func (r *revision) removeAddress(name string) {
	for user := range r.farmsAt.Get(name).All() {
		f := r.farmEdits.edit(user)
		f.addresses = without(f.addresses, name)
	}
	r.addrEdits.put(name, nil)
}

// removePolicy takes a policy from its users, and away. Nothing else may be changed before.
func (r *revision) removePolicy(name string) {
	for user := range r.farmsOf.Get(name).All() {
		f := r.farmEdits.edit(user)
		f.policies = without(f.policies, name)
	}
	for user := range r.addrsOf.Get(name).All() {
		a := r.addrEdits.edit(user)
		a.policies = without(a.policies, name)
	}
	r.listEdits.put(name, nil)
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return n == name })
}

// forgetSessions drops the static sessions of a backend; empty: all.
func (f *farm) forgetSessions(backend string) {
	f.sessions = slices.DeleteFunc(f.sessions, func(s session) bool { return backend == "" || s.backend == backend })
}
