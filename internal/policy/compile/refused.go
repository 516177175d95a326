package compile

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
)

// RefusedTier is the name of the tier of policies that deny all that they select, as they cannot be
// applied.
const RefusedTier = "refused"

// refusedTier is in front of all others. What a policy denies that can't be applied as it is meant
// must not depend on what else there is. Kubernetes' NetworkPolicy is not among them: it could only
// have allowed more, so it is enough that it isolates.
var refusedTier = model.Tier{Name: RefusedTier, Order: math.Inf(-1), DefaultPass: true}

// refusedSets are network sets that were read and can't be used: nobody knows what is in them.
type refusedSets []*objects.Item

// refusedAmong returns those of the refused sets that rules of the policy refer to, by key.
func refusedAmong(obj *model.Policy, refused map[*objects.Item]struct{}) (sets refusedSets) {
	for it := range refused {
		if refers(obj, it) {
			sets = append(sets, it)
		}
	}
	slices.SortFunc(sets, func(a, b *objects.Item) int { return cmp.Compare(a.Set.Key.String(), b.Set.Key.String()) })
	return sets
}

// refers reports whether a selector of one of the policy's peers selects the item.
func refers(obj *model.Policy, it *objects.Item) bool {
	selects := func(peers []model.Peer) bool { return holds(peers, it) }
	by := func(r model.PolicyRule) bool {
		return slices.ContainsFunc(r.Source.Peers, selects) || selects(r.Source.NotPeers) ||
			slices.ContainsFunc(r.Destination.Peers, selects) || selects(r.Destination.NotPeers)
	}
	return obj.Ingress && slices.ContainsFunc(obj.IngressRules, by) || obj.Egress && slices.ContainsFunc(obj.EgressRules, by)
}

func holds(peers []model.Peer, it *objects.Item) bool {
	return slices.ContainsFunc(peers, func(p model.Peer) bool { return !p.Selector.IsZero() && p.Selector.Matches(it.Labels) })
}

// cautious returns rules that let nothing pass which the given ones would not, whatever is in the
// refused sets: a Deny matches all that it might match, the others what they are certain to match.
// What a Pass might match is denied where the tier allows anything after it, as the next tier might
// have denied it. Allowed says that other policies of the tier do so.
func (all refusedSets) cautious(rules []model.PolicyRule, allowed bool) []model.PolicyRule {
	if len(all) == 0 {
		return rules
	}
	var reversed []model.PolicyRule
	for _, r := range slices.Backward(rules) {
		widest, doubtful := all.widest(r)
		switch {
		case !doubtful:
			reversed = append(reversed, r)
		case r.Action == model.Deny:
			reversed = append(reversed, widest)
		default:
			if r.Action == model.Pass && allowed {
				widest.Action = model.Deny
				reversed = append(reversed, widest)
			}
			if !all.doubtful(r.Source.NotPeers) && !all.doubtful(r.Destination.NotPeers) {
				reversed = append(reversed, r)
			}
		}
		allowed = allowed || r.Action == model.Allow
	}
	slices.Reverse(reversed)
	return reversed
}

// widest returns the rule for all that it might match, and whether that is more than what it is
// certain to.
func (all refusedSets) widest(r model.PolicyRule) (wide model.PolicyRule, doubtful bool) {
	for _, e := range []*model.RuleEnd{&r.Source, &r.Destination} {
		certain := slices.DeleteFunc(slices.Clone(e.Peers), all.doubtful)
		doubtful = doubtful || len(certain) < len(e.Peers) || all.doubtful(e.NotPeers)
		e.Peers = certain
	}
	return r, doubtful
}

// doubtful reports whether a refused set is among the peers: nobody knows whether they hold an
// address that is in none of the others.
func (all refusedSets) doubtful(peers []model.Peer) bool {
	return slices.ContainsFunc(all, func(it *objects.Item) bool { return holds(peers, it) })
}

// allowsAfter reports whether a policy that comes after the i-th in its tier has a rule that
// allows.
func allowsAfter(list []*policy, i int, s checkpoint) bool {
	if len(list[i].refused) == 0 {
		return false // nobody asks
	}
	for _, p := range list[i+1:] {
		if p.tier != list[i].tier {
			break
		}
		if slices.ContainsFunc(p.rules(s.ingress()), func(r model.PolicyRule) bool { return r.Action == model.Allow }) {
			return true
		}
	}
	return false
}

// refusedReason says what becomes of a policy whose rules refer to a set that is refused.
func refusedReason(set *model.NetworkSet) string {
	if len(set.Nets) == 0 {
		return fmt.Sprintf("denies what its rules on %s could deny, and allows nothing by it, as nobody knows what is in it: %s", set.Key, set.Refused)
	}
	return fmt.Sprintf("denies what its rules on %s could deny, and allows by it only what could be read, as nobody knows what else is in it: %s", set.Key, set.Refused)
}
