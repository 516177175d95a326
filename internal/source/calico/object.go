package calico

import (
	"fmt"

	"sluice.dev/sluice/internal/model"
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
// caller keeps the last good version. Of a policy that is at fault it can return
// both: Object.Policy then has no rules and says why in Refused; it is for
// callers who know no good version, so that the policy denies what its
// selectors select. It is missing where the fault leaves open whom the policy applies to,
// or in which direction: at fault is one of the selectors or another field of the
// spec that is known, or a field is unknown and there is no selector.
func Decode(apiVersion, kind string, json []byte) (Object, error) {
	if !Known(apiVersion, kind) {
		return Object{}, fmt.Errorf("decode %s %s: not a kind of Calico's that is supported", apiVersion, kind)
	}
	var o Object
	var f faults
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
	if err := f.err(); err != nil {
		return Object{Policy: refused(o.Policy, err)}, err
	}
	return o, nil
}

// refused is what denies in place of a policy that is at fault.
func refused(p *model.Policy, why error) *model.Policy {
	if p == nil {
		return nil
	}
	p.Refused, p.IngressRules, p.EgressRules = why.Error(), nil, nil
	return p
}
