package calico

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// Object is what a resource becomes: exactly one field is set.
type Object struct {
	Policy       *model.Policy
	Tier         *model.Tier
	NetworkSet   *model.NetworkSet
	HostEndpoint *model.HostEndpoint
}

// The API groups and versions of Calico's resources: what users write, and what
// Calico makes of it where it stores them in the Kubernetes API.
const (
	userAPI   = "projectcalico.org/v3"
	storedAPI = "crd.projectcalico.org/v1"
)

// Known tells whether Decode takes a kind.
func Known(apiVersion, kind string) bool {
	if apiVersion != userAPI && apiVersion != storedAPI {
		return false
	}
	switch kind {
	case "Tier", "GlobalNetworkPolicy", "NetworkPolicy", "GlobalNetworkSet", "NetworkSet", "HostEndpoint":
		return true
	}
	return false
}

// Decode translates a resource. A namespaced one without a namespace is of
// "default".
//
// It returns an Object without error, or an error and an empty Object: the
// caller keeps the last good version. Of a policy or a network set that is at fault it
// can return both, for callers who know no good version: a policy that denies
// what its selectors select, or a set of which only the labels are known, see Refuse.
//
// It is missing where the fault leaves open whom the policy applies to, or in which direction
// (at fault is one of the selectors, the types or another field of the spec that is
// known, other than the rules, the order and the tier; or a field is unknown and there is no
// selector), and where the name or the labels of the set can't be read.
func Decode(apiVersion, kind string, json []byte) (Object, error) {
	if !Known(apiVersion, kind) {
		return Object{}, fmt.Errorf("decode %s %s: not a kind of Calico's that is supported", apiVersion, kind)
	}
	var o Object
	var f fault.List
	switch kind {
	case "Tier":
		o.Tier = tier(json, &f)
	case "GlobalNetworkPolicy":
		o.Policy = globalPolicy(json, &f)
	case "NetworkPolicy":
		o.Policy = namespacedPolicy(json, &f)
	case "GlobalNetworkSet":
		o.NetworkSet = globalSet(json, &f)
	case "NetworkSet":
		o.NetworkSet = namespacedSet(json, &f)
	case "HostEndpoint":
		o.HostEndpoint = hostEndpoint(json, &f)
	}
	if err := f.Err(); err != nil {
		return o.Refuse(err), err
	}
	return o, nil
}

// KnownAs are what an object may be known by that is stored as ref: Calico stores the policies of its
// default tier under longer names than users give them.
func KnownAs(ref model.Ref) []model.Ref {
	refs := []model.Ref{ref}
	short, long := strings.CutPrefix(ref.Name.Name, model.DefaultTier.Name+".")
	if long && (ref.Kind == model.CalicoPolicy || ref.Kind == model.GlobalNetworkPolicy) {
		ref.Name.Name = short
		refs = append(refs, ref)
	}
	return refs
}

// Refuse makes an object what stands in for it where it is at fault: a policy or
// a network set that holds no more than why it was refused. There is nothing of
// other kinds.
func (o Object) Refuse(why error) Object {
	if p := o.Policy; p != nil {
		p.Refused, p.IngressRules, p.EgressRules = why.Error(), nil, nil
	}
	if s := o.NetworkSet; s != nil {
		s.Refused, s.Nets = why.Error(), nil
	}
	return Object{Policy: o.Policy, NetworkSet: o.NetworkSet}
}
