// Package metallb translates MetalLB's resources (metallb.io) into model values, as they stand in a
// cluster that ran it.
//
// Decoding is strict: an object with a field that is not known here is refused by the field's name.
// A field that is known and has no effect here is named, and the rest of the object counts. What
// the fields mean is taken from MetalLB's API reference (https://metallb.io/apis/). All functions
// are pure and safe for concurrent use.
package metallb

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// The functions below translate an object in JSON; one without a namespace is of "default". That
// the JSON was made of something that is at fault itself is what also says, or nil. They return nil
// where nothing of the object can be used, and what is wrong with it.

// resource is an object of any kind. Nobody looks at the status.
type resource[Spec any] struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec            `json:"spec"`
	Status            json.RawMessage `json:"status"`
}

// decode reads a resource, and has translate make a value of it.
func decode[Spec, T any](text []byte, also error, translate func(*resource[Spec], model.Name, *fault.List) *T) (*T, error) {
	var o resource[Spec]
	if err := cmp.Or(also, kubeobj.DecodeStrictly(text, &o)); err != nil {
		return nil, err
	}
	var f fault.List
	o.Namespace = cmp.Or(o.Namespace, "default")
	return fault.Result(translate(&o, kubeobj.NameOf(&o.ObjectMeta, &f), &f), &f)
}

type poolSpec struct {
	Addresses     []string `json:"addresses"`
	AutoAssign    *bool    `json:"autoAssign"`
	AvoidBuggyIPs bool     `json:"avoidBuggyIPs"`
	AllocateTo    *struct {
		Priority           int                    `json:"priority"`
		Namespaces         []string               `json:"namespaces"`
		NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors"`
		ServiceSelectors   []metav1.LabelSelector `json:"serviceSelectors"`
	} `json:"serviceAllocation"`
}

// IPAddressPool translates an IPAddressPool.
func IPAddressPool(text []byte, also error) (*model.IPAddressPool, error) {
	return decode(text, also, func(o *resource[poolSpec], name model.Name, f *fault.List) *model.IPAddressPool {
		p := &model.IPAddressPool{
			Name: name, Created: o.CreationTimestamp.UTC(), Labels: o.Labels,
			ManualOnly: !ptr.Deref(o.Spec.AutoAssign, true), AvoidBuggy: o.Spec.AvoidBuggyIPs, Services: model.Everything(),
		}
		if len(o.Spec.Addresses) == 0 {
			f.Reject("spec.addresses", "a pool needs addresses, as in 192.0.2.0/28 or 192.0.2.10-192.0.2.20")
		}
		p.Ranges = fault.ReadSome(f, "spec.addresses[%d]", o.Spec.Addresses, parseRange)
		if len(p.Ranges) == 0 && len(o.Spec.Addresses) > 0 {
			f.Reject("spec.addresses", "none can be read")
		}
		if to := o.Spec.AllocateTo; to != nil {
			p.Confined, p.Priority, p.Namespaces = true, to.Priority, to.Namespaces
			if to.Priority < 0 {
				f.Reject("spec.serviceAllocation.priority", "%d is below 0", to.Priority)
			}
			p.NamespaceSelector = kubeobj.LabelSelectors(to.NamespaceSelectors, "spec.serviceAllocation.namespaceSelectors", f)
			p.Services = selected(to.ServiceSelectors, "spec.serviceAllocation.serviceSelectors", f)
		}
		return p
	})
}

// parseRange reads a CIDR, or the first and the last address with '-' between them.
func parseRange(text string) (r model.AddressRange, err error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		p, err := model.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return r, fmt.Errorf("%q is neither a CIDR such as 192.0.2.0/28 nor a range such as 192.0.2.10-192.0.2.20", text)
		}
		return model.AddressRange{First: p.Addr(), Last: model.Last(p)}, usable(p.Addr())
	}
	if r.First, err = model.ParseAddr(strings.TrimSpace(first)); err != nil {
		return r, err
	}
	if r.Last, err = model.ParseAddr(strings.TrimSpace(last)); err != nil {
		return r, err
	}
	if r.First.Is4() != r.Last.Is4() || r.Last.Less(r.First) {
		return r, fmt.Errorf("%s does not come after %s", r.Last, r.First)
	}
	return r, cmp.Or(usable(r.First), usable(r.Last))
}

func usable(a netip.Addr) error {
	if why := model.Unusable(a); why != "" && !a.IsUnspecified() {
		return fmt.Errorf("%s is %s", a, why)
	}
	return nil
}

// selected is what a list of selectors selects; everything, if it is empty.
func selected(list []metav1.LabelSelector, field string, f *fault.List) model.Selector {
	if len(list) == 0 {
		return model.Everything()
	}
	return kubeobj.LabelSelectors(list, field, f)
}

// advertised is what both kinds of advertisements have.
type advertised struct {
	IPAddressPools         []string               `json:"ipAddressPools"`
	IPAddressPoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors"`
	NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors"`
	ServiceSelectors       []metav1.LabelSelector `json:"serviceSelectors"`
}

func (a *advertised) translate(f *fault.List) model.Advertised {
	return model.Advertised{
		Pools:        a.IPAddressPools,
		PoolSelector: kubeobj.LabelSelectors(a.IPAddressPoolSelectors, "spec.ipAddressPoolSelectors", f),
		Nodes:        selected(a.NodeSelectors, "spec.nodeSelectors", f),
		Services:     selected(a.ServiceSelectors, "spec.serviceSelectors", f),
	}
}

type l2Spec struct {
	advertised
	Interfaces             []string `json:"interfaces"`
	PreferredNodeSelectors []struct {
		Weight     int                  `json:"weight"`
		Preference metav1.LabelSelector `json:"preference"`
	} `json:"preferredNodeSelectors"`
}

// L2Advertisement translates an L2Advertisement.
func L2Advertisement(text []byte, also error) (*model.L2Advertisement, error) {
	return decode(text, also, func(o *resource[l2Spec], name model.Name, f *fault.List) *model.L2Advertisement {
		a := &model.L2Advertisement{Name: name, Created: o.CreationTimestamp.UTC(), Advertised: o.Spec.translate(f), Interfaces: o.Spec.Interfaces}
		for i, in := range o.Spec.PreferredNodeSelectors {
			field := fmt.Sprintf("spec.preferredNodeSelectors[%d]", i)
			if in.Weight < 1 || in.Weight > 100 {
				f.Leave(field+".weight", "%d is not from 1 to 100; this preference is left out", in.Weight)
				continue
			}
			nodes := kubeobj.LabelSelectors([]metav1.LabelSelector{in.Preference}, field+".preference", f)
			a.Preferred = append(a.Preferred, model.PreferredNodes{Weight: in.Weight, Nodes: nodes})
		}
		return a
	})
}

// BFDProfile refuses a BFDProfile.
func BFDProfile(text []byte, also error) (*model.BFDProfile, error) {
	return decode(text, also, func(_ *resource[json.RawMessage], name model.Name, f *fault.List) *model.BFDProfile {
		f.Aside("", "BFD is not supported; a peer that is gone is noticed by BGP's hold time")
		return &model.BFDProfile{Name: name}
	})
}
