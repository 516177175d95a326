package kube

import (
	"errors"
	"slices"
	"strings"
	"unique"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// object is one object of the API, translated.
type object struct {
	identity
	known *model.Name // its name in the store, if that differs from the API's
	value any         // a model type; nil if nothing of it is usable
	err   error       // what is wrong with it
	sum   uint64      // hash of its text
	copy  bool        // passed over: it only shows an object of another kind, or is of no use here
}

// decode translates an object.
func (f *follower) decode(at kinds.Resource, r raw) object {
	out := broken(r)
	if shows(f.kind, at, out.name) {
		out.copy = true
		return out
	}
	value, err := f.kind.Decode(kinds.Text{Data: r.data, Protobuf: r.binary, IgnoreRefused: f.ignoreRefused})
	if errors.Is(err, kubeobj.ErrHostNames) {
		out.copy = true // as in kube-proxy
		return out
	}
	if out.err = err; value == nil {
		return out
	}
	share(value)
	if known := value.Ref().Name; known == out.name {
		out.name = known // shares its strings
	} else {
		out.known = &known
	}
	out.value = value
	return out
}

// shownPolicies are the prefixes of the names under which Calico's API server shows Kubernetes' own
// policies, which are read from Kubernetes' API already.
var shownPolicies = []string{"knp.", "kanp.", "kbanp.", "kcnp."}

// shows reports whether an object of that name only shows one of another kind.
func shows(k *kinds.Kind, at kinds.Resource, name model.Name) bool {
	return at.Group == kinds.CalicoGroup && slices.Contains(model.PolicyKinds, k.Kind) &&
		slices.ContainsFunc(shownPolicies, func(prefix string) bool { return strings.HasPrefix(name.Name, prefix) })
}

// broken returns an object of which only the identity is known.
func broken(r raw) object {
	id, err := r.identify()
	return object{identity: id, err: err}
}

// shared returns the one copy of a string that many objects hold.
func shared(s string) string {
	if s == "" {
		return s
	}
	return unique.Make(s).Value()
}

// share makes an object share the strings that it has in common with many others.
func share(o model.Object) {
	switch o := o.(type) {
	case *model.Service:
		for i := range o.Ports {
			o.Ports[i].Name = shared(o.Ports[i].Name)
		}
	case *model.EndpointSlice:
		o.Service = shared(o.Service)
		for i := range o.Ports {
			o.Ports[i].Name = shared(o.Ports[i].Name)
		}
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			e.Node, e.Zone = shared(e.Node), shared(e.Zone)
		}
	case *model.Pod:
		sharePod(o)
	}
}

// sharePod shares the labels as well: all pods of a workload have the same ones.
func sharePod(p *model.Pod) {
	p.Node, p.ServiceAccount = shared(p.Node), shared(p.ServiceAccount)
	for i := range p.Ports {
		p.Ports[i].Name = shared(p.Ports[i].Name)
	}
	if len(p.Labels) == 0 {
		return
	}
	labels := make(map[string]string, len(p.Labels))
	for k, v := range p.Labels {
		labels[shared(k)] = shared(v)
	}
	p.Labels = labels
}
