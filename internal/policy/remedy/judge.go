package remedy

import (
	"math"
	"net/netip"

	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// judge says what of a declared rule holds for a flow: it has each thing that the rule asks for
// compiled by itself, from the objects at the flow's addresses alone, and asks verdict.
type judge struct {
	v      *store.View
	flow   verdict.Flow
	policy *state.Policy
	sets   *sets.Sets
}

func newJudge(v *store.View, f verdict.Flow) *judge {
	all, p := objects.New("", math.MaxInt), state.NewPolicy()
	j := &judge{v, f, p, sets.New(p, sets.IDSpace, all)}
	d := store.Dirty{Objects: map[model.Kind]map[model.Name]struct{}{}}
	for _, a := range []netip.Addr{f.Source, f.Destination} {
		for _, o := range objectsAt(v, a) {
			name := o.Ref().Name
			multimap.Add(d.Objects, o.Ref().Kind, name)
			multimap.Add(d.Objects, model.NamespaceKind, model.Name{Name: name.Namespace})
			if pod, is := o.(*model.Pod); is {
				multimap.Add(d.Objects, model.ServiceAccountKind, model.Name{Namespace: name.Namespace, Name: pod.ServiceAccount})
			}
		}
	}
	j.sets.Begin(v, d)
	for ch := range all.Changes(v, d, true) {
		j.sets.Follow(ch)
	}
	return j
}

// matches reports whether the flow is what a rule asks for.
func (j *judge) matches(r model.PolicyRule) bool {
	rs := j.sets.Build([]model.PolicyRule{r}, func(*model.PolicyRule) *model.RuleEnd { return nil })
	j.sets.HoldGroups(&rs, nil)
	for _, g := range rs.Groups {
		for filled := false; !filled; {
			_, filled = j.sets.Groups.Fill(g, math.MaxInt)
		}
	}
	j.sets.Publish()
	list := rs.Resolve()
	return len(list) > 0 && verdict.Matches(j.policy, &list[0], j.flow)
}

// side is an end of the flow.
type side struct {
	addr netip.Addr
	what string // before ports
	rule func(model.RuleEnd) model.PolicyRule
}

func (j *judge) source() side {
	return side{j.flow.Source, "source port ", func(e model.RuleEnd) model.PolicyRule { return model.PolicyRule{Source: e} }}
}

func (j *judge) destination() side {
	return side{j.flow.Destination, "", func(e model.RuleEnd) model.PolicyRule { return model.PolicyRule{Destination: e} }}
}

// is reports whether an end of the flow is a peer.
func (j *judge) is(s side, p model.Peer) bool {
	return j.matches(s.rule(model.RuleEnd{Peers: [][]model.Peer{{p}}}))
}
