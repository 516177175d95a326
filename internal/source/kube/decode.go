package kube

import (
	"errors"
	"strings"
	"unique"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/calico"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// object is what one object of the API comes to.
type object struct {
	identity
	known *model.Name // as the store knows it, where that is not the API's name
	value any         // a model type; nil where nothing of it is of use
	err   error       // what is wrong with it
	sum   uint64      // of its text
	copy  bool        // it only shows an object of another kind, or is of no use here, and is passed over
}

// errPassedOver is what a translation says of an object that is in order, but of no use here.
var errPassedOver = errors.New("passed over")

// endpointSlice translates a slice. One of host names is passed over, as in kube-proxy.
func endpointSlice(o *discoveryv1.EndpointSlice) (*model.EndpointSlice, error) {
	if o.AddressType == discoveryv1.AddressTypeFQDN {
		return nil, errPassedOver
	}
	return kubeobj.EndpointSlice(o)
}

// typed makes a decoder of a translation of one of Kubernetes' types. Keep
// makes a result share what it has in common with others.
func typed[K, M any, P interface {
	*K
	metav1.Object
	Unmarshal([]byte) error
}](translate func(*K) (*M, error), keep func(*M)) func(resource, raw) object {
	return func(_ resource, r raw) object {
		o := P(new(K))
		if err := r.decode(o); err != nil {
			return broken(r, err)
		}
		out := object{identity: identity{model.Name{Namespace: shared(o.GetNamespace()), Name: o.GetName()}, o.GetResourceVersion()}}
		o.SetNamespace(out.name.Namespace)
		m, err := translate((*K)(o))
		if errors.Is(err, errPassedOver) {
			out.copy = true
			return out
		}
		out.err = err
		if m != nil {
			if keep != nil {
				keep(m)
			}
			out.value = m
		}
		return out
	}
}

// strictly makes a decoder of one that reads policies in JSON.
func strictly(decode func([]byte, error) (model.Name, *model.Policy, error)) func(resource, raw) object {
	return func(_ resource, r raw) object {
		out := broken(r, nil)
		_, p, err := decode(r.data, nil)
		out.err = err
		if p != nil {
			out.value = p
		}
		return out
	}
}

// shownPolicies are how Calico's API server begins the names under which it shows
// policies that are Kubernetes' own, and come from there already.
var shownPolicies = []string{"knp.", "kanp.", "kbanp.", "kcnp."}

// calicoObject makes a decoder of Calico's objects of a kind.
func calicoObject(kindName string) func(resource, raw) object {
	return func(at resource, r raw) object {
		out := broken(r, nil)
		if at.group == calicoUserGroup && strings.HasSuffix(kindName, "NetworkPolicy") {
			for _, prefix := range shownPolicies {
				out.copy = out.copy || strings.HasPrefix(out.name.Name, prefix)
			}
		}
		if out.copy {
			return out
		}
		o, err := calico.Decode(at.apiVersion(), kindName, r.data)
		out.err = err
		known := out.name
		switch {
		case o.Policy != nil:
			known, out.value = o.Policy.Key.Name, o.Policy
		case o.Tier != nil:
			known, out.value = model.Name{Name: o.Tier.Name}, o.Tier
		case o.NetworkSet != nil:
			known, out.value = o.NetworkSet.Key.Name, o.NetworkSet
		case o.HostEndpoint != nil:
			known, out.value = model.Name{Name: o.HostEndpoint.Name}, o.HostEndpoint
		}
		if known != out.name {
			out.known = &known
		}
		return out
	}
}

// broken is an object of which nothing is known yet but who it is.
func broken(r raw, err error) object {
	id, idErr := r.identify()
	if err == nil {
		err = idErr
	}
	return object{identity: id, err: err}
}

// shared returns the one copy of a string that many objects hold.
func shared(s string) string {
	if s == "" {
		return s
	}
	return unique.Make(s).Value()
}

func keepService(s *model.Service) {
	for i := range s.Ports {
		s.Ports[i].Name = shared(s.Ports[i].Name)
	}
}

func keepSlice(s *model.EndpointSlice) {
	s.Service = shared(s.Service)
	for i := range s.Ports {
		s.Ports[i].Name = shared(s.Ports[i].Name)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.Node, e.Zone = shared(e.Node), shared(e.Zone)
	}
}

// keepPod shares the labels, too: the pods of a workload all have the same ones.
func keepPod(p *model.Pod) {
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
