package config

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// overlay is what a change makes of the objects of a kind.
type overlay[T any] struct {
	base  map[string]*T
	edits map[string]*edit[T]
}

// edit is an object before and after a change; nil: there is none.
type edit[T any] struct{ was, now *T }

func overlaid[T any](base map[string]*T) overlay[T] {
	return overlay[T]{base: base, edits: map[string]*edit[T]{}}
}

// see returns an object as the change has left it; nil: there is none.
func (o *overlay[T]) see(name string) *T {
	if e := o.edits[name]; e != nil {
		return e.now
	}
	return o.base[name]
}

func (o *overlay[T]) set(name string, now *T) {
	e := o.edits[name]
	if e == nil {
		e = &edit[T]{was: o.base[name]}
		o.edits[name] = e
	}
	e.now = now
}

// edited reports whether the change has a version of its own.
func (o *overlay[T]) edited(name string) bool {
	e := o.edits[name]
	return e != nil && e.now != nil && e.now != e.was
}

// change is what a request makes of the document. It is given up, or committed as a whole.
type change struct {
	*document
	lenient   bool
	verify    func(*model.Farm) error // nil: nothing else is checked
	hasDevice func(string) bool       // nil: interfaces are not looked for
	dsrTracks bool                    // see Options
	own       []netip.AddrPort        // see Options
	ofState   bool                    // it is the state file: a farm that would take one of own is kept, but not served
	farmEdits overlay[farm]
	addrEdits overlay[address]
	listEdits overlay[policy]
	warnings  []string
	forget    []forgetting
	used      map[string]bool // addresses of farms that are changed
}

// forgetting is clients of a farm that the kernel is to forget once the change is there.
type forgetting struct {
	farm    string
	backend string            // those of this one; empty: see client
	client  *model.FlowValues // nil: all
}

func newChange(d *document, lenient bool, verify func(*model.Farm) error) *change {
	return &change{
		document: d, lenient: lenient, verify: verify,
		farmEdits: overlaid(d.farms), addrEdits: overlaid(d.addresses), listEdits: overlaid(d.policies),
	}
}

func (c *change) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

// editFarm returns a farm that may be changed, and makes it if there is none.
func (c *change) editFarm(name string) *farm {
	f := c.farmEdits.see(name)
	switch {
	case f == nil:
		f = newFarm(name)
		f.order = c.next()
	case !c.farmEdits.edited(name):
		f = f.clone()
	default:
		return f
	}
	c.farmEdits.set(name, f)
	return f
}

func (c *change) editAddress(name string) *address {
	a := c.addrEdits.see(name)
	switch {
	case a == nil:
		a = newAddress(name)
		a.order = c.next()
	case !c.addrEdits.edited(name):
		a = a.clone()
	default:
		return a
	}
	c.addrEdits.set(name, a)
	return a
}

func (c *change) editPolicy(name string) *policy {
	p := c.listEdits.see(name)
	switch {
	case p == nil:
		p = newPolicy(name)
		p.order = c.next()
	case !c.listEdits.edited(name):
		p = p.clone()
	default:
		return p
	}
	c.listEdits.set(name, p)
	return p
}

// next is the order of an object that is made. Numbers of a change that is given up are lost.
func (c *change) next() uint64 {
	c.made++
	return c.made
}

// freeAddressName returns the name of a farm's own address.
func (c *change) freeAddressName(name string) string {
	free := name
	for i := 2; c.addrEdits.see(free) != nil; i++ {
		free = name + itoa(i)
	}
	return free
}

func (c *change) removeFarm(name string) { c.farmEdits.set(name, nil) }

func (c *change) renameFarm(name, to string) error {
	if c.farmEdits.see(to) != nil {
		return &failure{409, "error parsing buffer. farms[" + name + "].newname: there is a farm '" + to + "' already"}
	}
	f := c.editFarm(name)
	c.farmEdits.set(name, nil)
	f.name = to
	if e := c.farmEdits.edits[to]; e != nil {
		e.now = f
	} else {
		c.farmEdits.set(to, f)
	}
	own, now := name+"-addr", to+"-addr"
	if i := slices.Index(f.addresses, own); i >= 0 && c.addrEdits.see(now) == nil && len(c.farmsAt[own]) <= 1 {
		a := c.editAddress(own)
		c.addrEdits.set(own, nil)
		a.name = now
		c.addrEdits.set(now, a)
		f.addresses[i] = now
	}
	return nil
}

// removeAddress takes an address from its farms, and away. Nothing else may be changed before.
func (c *change) removeAddress(name string) {
	for user := range c.farmsAt[name] {
		f := c.editFarm(user)
		f.addresses = without(f.addresses, name)
	}
	c.addrEdits.set(name, nil)
}

// removePolicy takes a policy from its users, and away. Nothing else may be changed before.
func (c *change) removePolicy(name string) {
	for user := range c.farmsOf[name] {
		f := c.editFarm(user)
		f.policies = without(f.policies, name)
	}
	for user := range c.addrsOf[name] {
		a := c.editAddress(user)
		a.policies = without(a.policies, name)
	}
	c.listEdits.set(name, nil)
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return n == name })
}

// forgetSessions drops the static sessions of a backend; empty: all.
func (f *farm) forgetSessions(backend string) {
	f.sessions = slices.DeleteFunc(f.sessions, func(s session) bool { return backend == "" || s.backend == backend })
}

// sortedEdits yields the names that a change touches, so that errors do not depend on chance.
func sortedEdits[T any](o *overlay[T]) []string { return slices.Sorted(maps.Keys(o.edits)) }
