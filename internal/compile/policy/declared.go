package policy

import (
	"cmp"
	"math"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// policy is one version of a policy, in one version of its tier.
type policy struct {
	obj    *model.Policy
	tier   model.Tier
	lost   bool                // its tier does not exist
	denies bool                // all that it selects, as it can't be applied as it is meant
	excess string              // why it is refused here, though it was read: it is too large
	doubts []*model.NetworkSet // refused ones among the peers of its rules, by key
	serial uint64              // tells versions apart
	parts  [8]*part
	refs   [8]int // the plans that have the part

	// fresh: endpoints that are there may still have the version before, or none, as parts are not filled.
	fresh    bool
	awaited  bool      // by some of them
	since    time.Time // when it came
	prepared []int     // the parts that are held until it is no longer fresh

	// outdated: its tier changed, or a set of its rules is refused and so empty. It does not stand until the next version is filled: beside
	// others that are up to date it might let pass what neither version does.
	outdated bool
}

// failsafeKind is the kind of the policies that stand for the failsafe ports.
const failsafeKind = model.Failsafe

// comparePolicies orders policies as packets meet them. As in Calico, ties within a tier go by
// "namespace/name" as it is written.
func comparePolicies(a, b *policy) int {
	return cmp.Or(
		cmp.Compare(a.tier.Order, b.tier.Order), cmp.Compare(a.tier.Name, b.tier.Name),
		cmp.Compare(a.obj.Order, b.obj.Order),
		compareWritten(a.obj.Key.Name, b.obj.Key.Name), cmp.Compare(a.obj.Key.Kind, b.obj.Key.Kind))
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
	case p.lost:
		return []model.PolicyRule{{Name: "unknown tier", Action: model.Deny}}
	case p.denies:
		return []model.PolicyRule{{Name: "refused", Action: model.Deny}}
	case p.obj.Refused != "":
		return nil // it isolates
	case ingress:
		return p.obj.IngressRules
	}
	return p.obj.EgressRules
}

// partOf numbers the parts of a policy: by direction, whether it is for pods, where
// named ports at the pod's own end are those of this node's pods, and whether others of its tier
// allow after it.
func partOf(s stage, allowed bool) int {
	n := 0
	if s.ingress() {
		n = 1
	}
	if s.host() {
		n += 2
	}
	if allowed {
		n += 4
	}
	return n
}

func (c *Compiler) hold(p *policy, s stage, allowed bool) *part {
	i := partOf(s, allowed)
	if p.refs[i]++; p.parts[i] == nil {
		rules := p.rules(s.ingress())
		if len(p.doubts) > 0 {
			rules = c.cautious(rules, allowed)
		}
		p.parts[i] = &part{declared: declared{rules, !s.host() && !s.ingress(), !s.host() && s.ingress()}, of: p, index: i, since: c.since}
		c.parts[p.parts[i]] = struct{}{}
		room := c.room
		if _, known := c.known[p]; known || s.host() {
			room = all // the node itself is not shut while parts are filled
		}
		if c.advance(p.parts[i], room); !p.parts[i].progress.settled() {
			c.queue = append(c.queue, p.parts[i])
		}
	}
	return p.parts[i]
}

// release ends a use of the i-th part.
func (c *Compiler) release(p *policy, i int) {
	if p.refs[i]--; p.refs[i] == 0 {
		c.releaseSets(p.parts[i])
		c.releaseTallies(p.parts[i])
		delete(c.parts, p.parts[i])
		p.parts[i] = nil
		if c.crowded {
			c.weighSoon()
		}
	}
}

// declare brings tiers and policies up to date, and marks whom they select.
func (c *Compiler) declare(v *store.View, d store.Dirty) {
	dirty := d.Policies
	if len(d.Tiers) > 0 {
		dirty = map[model.PolicyKey]struct{}{}
		for key := range d.Policies {
			dirty[key] = struct{}{}
		}
		for name := range d.Tiers {
			c.setTier(name, v.Tier(name))
		}
		for key, p := range c.policies {
			if _, moved := d.Tiers[p.obj.Tier]; moved {
				p.outdated = true
				dirty[key] = struct{}{}
			}
		}
	}
	for key := range dirty {
		c.setPolicy(key, v.Policy(key))
	}
	for key := range c.later {
		c.setPolicy(key, v.Policy(key))
	}
}

func (c *Compiler) setTier(name string, t *model.Tier) {
	delete(c.tiers, name)
	for _, always := range []model.Tier{model.AdminTier, model.DefaultTier, model.BaselineTier} {
		if always.Name == name {
			c.tiers[name] = always
		}
	}
	if t != nil {
		c.tiers[name] = *t
	}
}

func (c *Compiler) setPolicy(key model.PolicyKey, obj *model.Policy) {
	if !c.hurry(key, obj == nil) {
		return
	}
	old := c.policies[key]
	filled := old != nil && !old.fresh
	if old != nil {
		c.unprepare(old)
		c.subjects.remove(old.obj.Subject, old)
		c.selectedBy(old.obj.Subject)
		delete(c.policies, key)
	}
	if obj == nil {
		return
	}
	p := c.newPolicy(obj)
	if p.since = c.since; old == nil || !old.outdated {
		p.fresh = true
		c.fresh[p] = struct{}{}
	} else if filled && old.obj == obj {
		c.known[p] = struct{}{}
	}
	c.policies[key] = p
	c.subjects.add(obj.Subject, p)
	c.selectedBy(obj.Subject)
}

func (c *Compiler) newPolicy(obj *model.Policy) *policy {
	c.serial++
	tier, known := c.tiers[obj.Tier]
	p := &policy{obj: obj, serial: c.serial, tier: tier, lost: !known}
	if p.excess = excess(obj); p.excess != "" {
		refused := *obj
		refused.Refused, refused.IngressRules, refused.EgressRules = p.excess, nil, nil
		p.obj, obj = &refused, &refused
	}
	if p.denies = p.lost || obj.Refused != "" && obj.Key.Kind != model.NetworkPolicy; p.denies {
		p.tier = refusedTier
	} else {
		p.doubts = c.doubtsOf(obj)
	}
	return p
}

// selectedBy marks the endpoints that a subject selects.
func (c *Compiler) selectedBy(s model.Selector) {
	for _, e := range c.podEndpoints {
		if s.Matches(e.item.labels) {
			c.changed[e] = struct{}{}
		}
	}
	for _, e := range c.hostEndpoints {
		if s.Matches(e.item.labels) {
			c.changed[e] = struct{}{}
		}
	}
}

// failsafe returns the policy that allows the failsafe ports at the stage, if it has any. Untracked
// replies are judged as well, so both ends' ports are allowed there.
func (c *Compiler) failsafe(s stage) []*policy {
	switch s {
	case hostInput, hostOutput, hostPreDNAT:
		return c.failsafes[0]
	case hostUntrackedIn, hostUntrackedOut:
		return c.failsafes[1]
	}
	return nil
}

// newFailsafes makes the policies for tracked and for untracked packets.
func (c *Compiler) newFailsafes(in, out []state.PortRange) (all [2][]*policy) {
	if len(in)+len(out) == 0 {
		return all
	}
	for i, name := range []string{"ports", "untracked ports"} {
		obj := &model.Policy{
			Key: model.PolicyKey{Kind: failsafeKind, Name: model.Name{Name: name}}, Tier: string(failsafeKind),
			Ingress: true, Egress: true,
			IngressRules: failsafeRules(in, out, i == 1), EgressRules: failsafeRules(out, in, i == 1),
		}
		c.serial++
		tier := model.Tier{Name: string(failsafeKind), Order: math.Inf(-1), DefaultPass: true}
		all[i] = []*policy{{obj: obj, tier: tier, serial: c.serial}}
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
func (c *Compiler) applying(l *labels) []*policy {
	var list []*policy
	for p := range c.subjects.candidates(l) {
		if p.obj.Subject.Matches(l) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, comparePolicies)
	return slices.Compact(list)
}
