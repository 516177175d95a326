package driver

import (
	"cmp"
	"slices"
	"sync/atomic"

	"sluice.dev/sluice/internal/model"
)

// SetAside is an object of which something is set aside.
type SetAside struct {
	Kind    string     // of the object, as users spell it: "Service", "NetworkPolicy"; or, for what is no object, what it is
	Name    model.Name // zero for what has none
	Reason  string     // for people: what of it, what the kernel says, and what that means
	InForce string     // see model.Issue
}

// Object returns "Service shop/web".
func (s SetAside) Object() string {
	if s.Name == (model.Name{}) {
		return s.Kind
	}
	return s.Kind + " " + s.Name.String()
}

// Compare orders by kind, name and reason.
func (s SetAside) Compare(o SetAside) int {
	return cmp.Or(cmp.Compare(s.Kind, o.Kind), s.Name.Compare(o.Name), cmp.Compare(s.Reason, o.Reason))
}

// Published is the SetAside of a driver, for its readers: they never wait for the driver. The zero
// value has nothing.
type Published struct{ list atomic.Pointer[[]SetAside] }

// SetAside implements Driver.
func (p *Published) SetAside() []SetAside {
	if list := p.list.Load(); list != nil {
		return *list
	}
	return nil
}

// Publish makes SetAside return what is set aside now, in any order and as often as it comes.
func (p *Published) Publish(all []SetAside) {
	slices.SortFunc(all, SetAside.Compare)
	all = slices.Compact(all)
	p.list.Store(&all)
}
