package compile

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/admission"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// policies are all tiers and policies that are declared.
type policies struct {
	refusals  map[*objects.Item]struct{}    // the network sets that are refused
	doubted   map[model.PolicyKey]struct{}  // in whose rules one is that came, or went
	later     map[model.PolicyKey]time.Time // changed again before the last version was in force, and since when
	tiers     map[string]model.Tier
	all       map[model.PolicyKey]*policy
	subjects  objects.Filing[*policy] // the policies by whom they select
	failsafes [2][]*policy
	serial    uint64 // of the latest version
}

// version is one version of a policy, in one version of its tier.
type version struct {
	obj    *model.Policy
	tier   model.Tier
	serial uint64 // tells versions apart
}

// policy is what becomes of one version of a policy.
type policy struct {
	version
	denies   bool        // all that it selects, as it can't be applied as it is meant
	fault    string      // why it is refused here, though it was read
	refused  refusedSets // among the peers of its rules, by key
	variants [8]*variant
	refs     [8]int // so many rule lists have the variant

	// fresh: endpoints that are there may still have the version before, or none, as variants are
	// not filled.
	fresh    bool
	awaited  bool      // by some of them
	since    time.Time // when it came
	prepared []int     // the variants that are held until it is no longer fresh

	// outdated: its tier changed, or a set of its rules is refused and so empty. It does not stand
	// until the next version is filled: beside others that are up to date it might let pass what
	// neither version does.
	outdated bool
}

// failsafeKind is the kind of the policies that stand for the failsafe ports.
const failsafeKind = model.Failsafe

// comparePolicies orders policies as packets meet them.
func comparePolicies(a, b *policy) int { return compareVersions(&a.version, &b.version) }

func compareVersions(a, b *version) int {
	return cmp.Or(cmp.Compare(a.tier.Order, b.tier.Order), cmp.Compare(a.tier.Name, b.tier.Name), Compare(a.obj, b.obj))
}

// Compare orders the policies of a tier as packets meet them. As in Calico, ties go by
// "namespace/name" as it is written; of one name, Calico's comes before Kubernetes' own.
func Compare(a, b *model.Policy) int {
	return cmp.Or(cmp.Compare(a.Order, b.Order), compareWritten(a.Key.Name, b.Key.Name), cmp.Compare(b.Key.Kind, a.Key.Kind))
}

// compareWritten orders names by what their String returns, and writes it only where it has to.
func compareWritten(a, b model.Name) int {
	if a.Namespace == b.Namespace {
		return cmp.Compare(a.Name, b.Name)
	}
	return cmp.Compare(a.String(), b.String())
}

// rules are those of a direction.
func (p *policy) rules(ingress bool) []model.PolicyRule {
	switch {
	case p.denies:
		return []model.PolicyRule{{Name: "refused", Action: model.Deny}}
	case ingress:
		return p.obj.IngressRules
	}
	return p.obj.EgressRules
}

// replacement is a version of a policy in place of another one; either may be nil.
type replacement struct{ old, next *policy }

// declare brings tiers and policies up to date, and returns the versions that came and went. A
// policy whose last version is not in force yet changes once that one is, so that one which changes
// all the time is followed; if whole is set, at once.
func (ps *policies) declare(v *store.View, d store.Dirty, whole bool) (changed []replacement) {
	dirty := maps.Clone(ps.doubted)
	for key := range ps.later {
		dirty[key] = struct{}{}
	}
	clear(ps.doubted)
	for key := range d.Refs(model.PolicyKinds) {
		dirty[key] = struct{}{}
	}
	if tiers := d.Objects[model.TierKind]; len(tiers) > 0 {
		for name := range tiers {
			ps.setTier(name.Name, v.Tier(name.Name))
		}
		for key, p := range ps.all {
			if _, moved := tiers[model.Name{Name: p.obj.Tier}]; moved {
				p.outdated = true
				dirty[key] = struct{}{}
			}
		}
	}
	for key := range dirty {
		old, obj := ps.all[key], declared(v, key)
		if old != nil && old.fresh && !old.outdated && obj != nil && !whole {
			if _, waits := ps.later[key]; !waits {
				ps.later[key] = d.Since
			}
			continue
		}
		delete(ps.later, key)
		if next := ps.set(key, obj, d.Since); old != nil || next != nil {
			changed = append(changed, replacement{old, next})
		}
	}
	return changed
}

// declared returns a policy, nil if there is none, or if it is ignored.
func declared(v *store.View, key model.PolicyKey) *model.Policy {
	if p := v.Policy(key); p != nil && !p.Ignored {
		return p
	}
	return nil
}

func (ps *policies) setTier(name string, t *model.Tier) {
	if t == nil {
		t = model.BuiltInTier(name)
	}
	if t == nil {
		delete(ps.tiers, name)
	} else {
		ps.tiers[name] = *t
	}
}

// set puts a new version of a policy, which it returns, in place of the old one; nil: there is
// none.
func (ps *policies) set(key model.PolicyKey, obj *model.Policy, since time.Time) (next *policy) {
	if old := ps.all[key]; old != nil {
		ps.subjects.Remove(old.obj.Subject, old)
		delete(ps.all, key)
	}
	if obj != nil {
		next = ps.newPolicy(obj)
		next.since = since
		ps.all[key] = next
		ps.subjects.Add(obj.Subject, next)
	}
	return next
}

// follow follows a network set that may be, or have been, refused: the policies whose rules it
// is in are compiled anew.
func (ps *policies) follow(ch objects.ItemChange) {
	var moved []*objects.Item
	if _, was := ps.refusals[ch.Old]; was {
		delete(ps.refusals, ch.Old)
		moved = append(moved, ch.Old)
	}
	refused := ch.Next != nil && ch.Next.Set != nil && ch.Next.Set.Refused != ""
	if refused {
		ps.refusals[ch.Next] = struct{}{}
		moved = append(moved, ch.Next)
	}
	if len(moved) == 0 {
		return
	}
	for key, p := range ps.all {
		if slices.ContainsFunc(moved, func(it *objects.Item) bool { return refers(p.obj, it) }) {
			p.outdated = p.outdated || refused && refers(p.obj, ch.Next)
			ps.doubted[key] = struct{}{}
		}
	}
}

func (ps *policies) newPolicy(obj *model.Policy) *policy {
	ps.serial++
	tier := ps.tiers[obj.Tier]
	p := &policy{version: version{obj, tier, ps.serial}}
	if p.fault = cmp.Or(tier.Fault(), admission.Excess(obj)); p.fault != "" {
		refused := *obj
		refused.Refused, refused.IngressRules, refused.EgressRules = cmp.Or(obj.Refused, p.fault), nil, nil
		p.obj, obj = &refused, &refused
	}
	if p.denies = obj.Refused != "" && obj.Key.Kind != model.NetworkPolicy; p.denies {
		p.tier = refusedTier
	} else {
		p.refused = refusedAmong(obj, ps.refusals)
	}
	return p
}

// failsafe returns the policy that allows the failsafe ports at the checkpoint, if it has any.
// Untracked replies are evaluated as well, so both ends' ports are allowed there.
func (ps *policies) failsafe(at checkpoint) []*policy {
	switch at {
	case hostInput, hostOutput, hostPreDNAT:
		return ps.failsafes[0]
	case hostUntrackedIn, hostUntrackedOut:
		return ps.failsafes[1]
	}
	return nil
}

// newFailsafes makes the policies for tracked and for untracked packets.
func (ps *policies) newFailsafes(in, out []state.PortRange) (all [2][]*policy) {
	if len(in)+len(out) == 0 {
		return all
	}
	for i, name := range []string{"ports", "untracked ports"} {
		obj := &model.Policy{
			Key: model.PolicyKey{Kind: failsafeKind, Name: model.Name{Name: name}}, Tier: string(failsafeKind),
			Ingress: true, Egress: true,
			IngressRules: failsafeRules(in, out, i == 1), EgressRules: failsafeRules(out, in, i == 1),
		}
		ps.serial++
		tier := model.Tier{Name: string(failsafeKind), Order: math.Inf(-1), DefaultPass: true}
		all[i] = []*policy{{version: version{obj, tier, ps.serial}}}
	}
	return all
}

func failsafeRules(to, replies []state.PortRange, both bool) []model.PolicyRule {
	var rules []model.PolicyRule
	if len(to) > 0 {
		rules = append(rules, model.PolicyRule{Name: "failsafe", Destination: model.RuleEnd{Ports: policyPorts(to)}})
	}
	if both && len(replies) > 0 {
		rules = append(rules, model.PolicyRule{Name: "failsafe replies", Source: model.RuleEnd{Ports: policyPorts(replies)}})
	}
	return rules
}

func policyPorts(list []state.PortRange) []model.PolicyPort {
	var all []model.PolicyPort
	for _, r := range list {
		all = append(all, model.PolicyPort{Protocol: r.Protocol, First: r.First, Last: r.Last})
	}
	return all
}

// applying returns the policies that select what has the labels, in their order.
func (ps *policies) applying(l *objects.Labels) []*policy {
	var list []*policy
	for p := range ps.subjects.Candidates(l) {
		if p.obj.Subject.Matches(l) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, comparePolicies)
	return slices.Compact(list)
}
