package compile

import (
	"cmp"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/admission"
	"sluice.dev/sluice/internal/state"
)

// rule is a declared rule.
type rule struct {
	of                  *model.PolicyRule
	source, destination end
}

// end is what a rule asks of one end.
type end struct {
	in, notIn       []*term
	ports, notPorts *ports
}

// term is a union of sets.
type term struct {
	selector model.Selector // zero: none
	group    *group         // of what the selector selects; nil: none
	list     *list          // nil: none
	addrs    []*serviceAddrs
}

// build compiles the declared rules of a variant. A rule that nothing can match is left out.
func (s *sets) build(p *variant) {
	for i := range p.from {
		r, one := &p.from[i], &variant{}
		source, ok := s.end(one, r, &r.Source, !p.host() && !p.ingress())
		destination, too := s.end(one, r, &r.Destination, !p.host() && p.ingress())
		if !ok || !too {
			s.release(one)
			continue
		}
		one.rules = []rule{{of: r, source: source, destination: destination}}
		p.take(one)
		p.units += admission.RuleSize(r)
	}
	known := map[string]struct{}{}
	for t := range p.terms {
		if key := groupKey(t.selector); !t.selector.IsZero() {
			if _, again := known[key]; !again {
				known[key] = struct{}{}
				p.selectors = append(p.selectors, t.selector)
			}
		}
	}
}

// holdGroups gives the terms of a variant their groups, each of which the variant holds once. New
// ones do not follow their selectors yet.
func (s *sets) holdGroups(p *variant) {
	p.progress = filling
	held := map[string]*group{}
	for i, selector := range p.selectors {
		size := 0
		if len(p.tallies) > 0 {
			size = p.tallies[i].count
		}
		g := s.groups.hold(selector, size)
		held[g.key] = g
		p.groups = append(p.groups, g)
	}
	for t := range p.terms {
		if !t.selector.IsZero() {
			t.group = held[groupKey(t.selector)]
		}
	}
}

// terms yields all that its rules ask of addresses.
func (p *variant) terms(yield func(*term) bool) {
	for i := range p.rules {
		for _, e := range []*end{&p.rules[i].source, &p.rules[i].destination} {
			for _, t := range slices.Concat(e.in, e.notIn) {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// take adds what another variant has.
func (p *variant) take(o *variant) {
	p.rules = append(p.rules, o.rules...)
	p.lists = append(p.lists, o.lists...)
	p.named = append(p.named, o.named...)
	p.addrs = append(p.addrs, o.addrs...)
	p.ranges = append(p.ranges, o.ranges...)
	p.units += o.units
}

// release ends what the variant holds of sets.
func (s *sets) release(p *variant) {
	for _, g := range p.groups {
		s.groups.release(g)
	}
	for _, l := range p.lists {
		s.lists.release(l)
	}
	for _, n := range p.named {
		s.named.release(n)
	}
	for _, a := range p.addrs {
		s.services.addrs.release(a)
	}
	for _, r := range p.ranges {
		s.ranges.release(r)
	}
	p.rules, p.units, p.selectors, p.groups, p.ready, p.lists, p.named, p.addrs, p.ranges = nil, 0, nil, nil, 0, nil, nil, nil, nil
}

// end returns what is asked of one end of a rule; not ok: it never holds.
func (s *sets) end(p *variant, of *model.PolicyRule, e *model.RuleEnd, local bool) (all end, ok bool) {
	if len(e.Ports) > 0 {
		if all.ports = s.ports(p, of, e.Ports, local); all.ports == nil {
			return all, false
		}
	}
	if len(e.NotPorts) > 0 {
		all.notPorts = s.ports(p, of, e.NotPorts, local)
	}
	for _, peers := range e.Peers {
		if len(peers) == 0 {
			return all, false
		}
		all.in = append(all.in, s.term(p, peers))
	}
	if len(e.NotPeers) > 0 {
		all.notIn = []*term{s.term(p, e.NotPeers)}
	}
	return all, true
}

// term is the union of peers. Exceptions are taken out of the networks here, so that the union is
// one of sets alone.
func (s *sets) term(p *variant, peers []model.Peer) *term {
	var selectors []model.Selector
	var nets []netip.Prefix
	t := &term{}
	for _, peer := range peers {
		switch {
		case !peer.Selector.IsZero():
			selectors = append(selectors, peer.Selector)
		case peer.Service != (model.Name{}):
			a, cost := s.services.hold(peer.Service)
			t.addrs = append(t.addrs, a)
			p.units += cost
		default:
			nets = append(nets, without(peer.Nets, peer.Except)...)
		}
	}
	p.addrs = append(p.addrs, t.addrs...)
	if len(nets) > 0 || len(selectors)+len(t.addrs) == 0 {
		t.list = s.lists.holdNets(nets)
		p.lists = append(p.lists, t.list)
	}
	if len(selectors) > 0 {
		t.selector = model.Or(selectors...)
	}
	return t
}

// resolve returns the rules with the present ids of their sets. Those whose selectors select too
// many addresses, or so many network sets that they come to too many look-ups, or that name a
// Service with too many endpoints, allow nothing; nor do those of a variant that is not filled yet:
// a NetworkPolicy isolates, one of another kind denies.
func (p *variant) resolve(policy model.PolicyKey) *state.PolicyRules {
	if p.resolved == nil {
		r := &state.PolicyRules{Policy: policy}
		switch p.lookups = p.countLookups(); {
		case p.lookups <= admission.MaxSize && p.progress == filled && p.refusedService() == nil:
			for i := range p.rules {
				r.Rules = append(r.Rules, p.rules[i].resolve())
			}
		case policy.Kind != model.NetworkPolicy:
			r.Rules = []state.Rule{{Name: "refused", Action: model.Deny}}
		}
		r.ID = digestOf(r)
		p.resolved = r
	}
	return p.resolved
}

// countLookups counts a look-up for each length of prefix in each list that a rule asks for.
func (p *variant) countLookups() (n int) {
	for t := range p.terms {
		if t.group == nil {
			continue
		}
		for _, l := range t.group.lists {
			n += len(l.ref.IPv4) + len(l.ref.IPv6)
		}
	}
	return admission.LookupSize * n
}

// resolve returns the rule with the present ids of its sets.
func (r *rule) resolve() state.Rule {
	return state.Rule{
		Name: r.of.Name, Action: r.of.Action, Family: r.of.Family,
		Protocol: r.of.Protocol, NotProtocol: r.of.NotProtocol, ICMP: r.of.ICMP, NotICMP: r.of.NotICMP,
		Source: r.source.resolve(), Destination: r.destination.resolve(),
	}
}

func (e *end) resolve() state.End {
	return state.End{
		In: resolveTerms(e.in), NotIn: resolveTerms(e.notIn),
		Ports: e.ports.resolve(), NotPorts: e.notPorts.resolve(),
	}
}

func resolveTerms(terms []*term) []state.Term {
	var list []state.Term
	for _, t := range terms {
		list = append(list, t.resolve())
	}
	return list
}

func (t *term) resolve() (s state.Term) {
	if t.list != nil {
		s.Lists = append(s.Lists, t.list.reference())
	}
	for _, a := range t.addrs {
		s.Groups = append(s.Groups, a.id)
	}
	if t.group != nil {
		s.Groups = append(s.Groups, t.group.id)
		for _, l := range t.group.lists {
			s.Lists = append(s.Lists, l.reference())
		}
	}
	slices.Sort(s.Groups)
	slices.SortFunc(s.Lists, func(a, b state.ListRef) int { return cmp.Compare(a.ID, b.ID) })
	return s
}
