package driver

import (
	"cmp"

	"sluice.dev/sluice/internal/model"
)

// Refuser is implemented by drivers that set aside, part by part and object by object, what the kernel
// refuses: it is not in the kernel, and all else is. A plan that sets something aside is applied without an error. What
// was set aside is tried again when a delta names it, and by later adoptions.
//
// A service is set aside with the address and port that the kernel refuses. Of a pod or host endpoint whose policies it refuses,
// nothing passes but the failsafe ports.
type Refuser interface {
	// SetAside returns what is set aside now, sorted and each once; safe for concurrent use with the methods of Driver.
	SetAside() []SetAside
}

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
