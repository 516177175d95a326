package calico

import (
	"cmp"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// The functions below translate a resource in JSON; a namespaced one without a namespace is of
// "default". That the JSON was made of something that is at fault itself is what also says, or nil.
//
// They return an object without an error, or an error and nil: the caller keeps the last good
// version. A value that takes no more away than itself is left out, and an error beside the object
// names it. Of a policy, a tier or a network set that is at fault they can return both, for callers
// who know no good version: a model.StandIn, that is a policy that denies what its selectors
// select, a tier whose policies do, or a set that may hold more than its networks. None stands in
// for a tier that is always there.
//
// It is missing where the fault leaves open whom the policy applies to, or in which direction
// (at fault is one of the selectors, the types or another field of the spec that is
// known, other than the rules, the order and the tier; or a field is unknown and there is no
// selector), and where the name or the labels of the set can't be read.

// The translations of kinds.
var (
	GlobalNetworkPolicy = translation(globalPolicy)
	NetworkPolicy       = translation(namespacedPolicy)
	GlobalNetworkSet    = networkSets(model.GlobalNetworkSet)
	NetworkSet          = networkSets(model.NamespacedNetworkSet)
	HostEndpoint        = translation(hostEndpoint)
	IPPool              = translation(ipPool)
	BlockAffinity       = translation(blockAffinity)
	BGPConfiguration    = translation(bgpConfiguration)
	BGPPeer             = translation(bgpPeer)
	BGPFilter           = translation(bgpFilter)
)

func translation[T any](translate func([]byte, *fault.List) *T) func(text []byte, also error) (*T, error) {
	return func(text []byte, also error) (*T, error) { return decode(text, also, translate) }
}

// Tier translates a Tier.
func Tier(text []byte, also error) (*model.Tier, error) {
	t, err := decode(text, also, tier)
	if t != nil && t.Refused != "" && model.BuiltInTier(t.Name) != nil {
		return nil, err
	}
	return t, err
}

func networkSets(kind model.Kind) func(text []byte, also error) (*model.NetworkSet, error) {
	return func(text []byte, also error) (*model.NetworkSet, error) {
		return decode(text, also, func(data []byte, f *fault.List) *model.NetworkSet { return networkSet(kind, data, also != nil, f) })
	}
}

func decode[T any](text []byte, also error, translate func([]byte, *fault.List) *T) (*T, error) {
	var f fault.List
	o := translate(text, &f)
	err := cmp.Or(f.Err(), also)
	if err == nil || o == nil || also == nil && !f.Broken() {
		return o, err
	}
	stand, ok := any(o).(model.StandIn)
	if !ok {
		return nil, err
	}
	stand.Refuse(err)
	return o, err
}

// KnownAs are what an object may be known by that is stored as ref: Calico stores the policies of
// its default tier under longer names than users give them.
func KnownAs(ref model.Ref) []model.Ref {
	refs := []model.Ref{ref}
	short, long := strings.CutPrefix(ref.Name.Name, model.DefaultTier.Name+".")
	if long && (ref.Kind == model.CalicoPolicy || ref.Kind == model.GlobalNetworkPolicy) {
		ref.Name.Name = short
		refs = append(refs, ref)
	}
	return refs
}
