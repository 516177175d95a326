package sets

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
	group    *Group         // of what the selector selects; nil: none
	list     *list          // nil: none
	addrs    []*serviceAddrs
}

// Rules are declared rules, with the sets that they refer to and hold. The zero Rules are none.
type Rules struct {
	list      []rule
	Units     int // the cost of building them, in elements
	Selectors []model.Selector
	Groups    []*Group // of the selectors, once they are held
	lists     []*list
	named     []*namedPorts
	addrs     []*serviceAddrs
	ranges    []*ranges
}

// Build compiles declared rules, but for the groups of what they select. A rule that nothing can
// match is left out. Local is the end, if any, whose ports by name can only be those of this node's
// pods.
func (s *Sets) Build(from []model.PolicyRule, local func(*model.PolicyRule) *model.RuleEnd) (rs Rules) {
	for i := range from {
		r, one := &from[i], Rules{}
		here := local(r)
		source, ok := s.end(&one, r, &r.Source, here == &r.Source)
		destination, too := s.end(&one, r, &r.Destination, here == &r.Destination)
		if !ok || !too {
			s.Release(&one)
			continue
		}
		rs.list = append(rs.list, rule{of: r, source: source, destination: destination})
		rs.lists = append(rs.lists, one.lists...)
		rs.named = append(rs.named, one.named...)
		rs.addrs = append(rs.addrs, one.addrs...)
		rs.ranges = append(rs.ranges, one.ranges...)
		rs.Units += one.Units + admission.RuleSize(r)
	}
	known := map[string]struct{}{}
	for t := range rs.terms {
		if key := groupKey(t.selector); !t.selector.IsZero() {
			if _, again := known[key]; !again {
				known[key] = struct{}{}
				rs.Selectors = append(rs.Selectors, t.selector)
			}
		}
	}
	return rs
}

// HoldGroups gives the rules their groups. New ones, which select about as much as was counted
// (none: it was not), do not follow their selectors yet: see Groups.Fill.
func (s *Sets) HoldGroups(rs *Rules, counted []*Tally) {
	held := map[string]*Group{}
	for i, selector := range rs.Selectors {
		size := 0
		if len(counted) > 0 {
			size = counted[i].Count
		}
		g := s.Groups.hold(selector, size)
		held[g.key] = g
		rs.Groups = append(rs.Groups, g)
	}
	for t := range rs.terms {
		if !t.selector.IsZero() {
			t.group = held[groupKey(t.selector)]
		}
	}
}

// terms yields all that the rules ask of addresses.
func (rs *Rules) terms(yield func(*term) bool) {
	for i := range rs.list {
		for _, e := range []*end{&rs.list[i].source, &rs.list[i].destination} {
			for _, t := range slices.Concat(e.in, e.notIn) {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// Release ends what the rules hold: there are none then.
func (s *Sets) Release(rs *Rules) {
	for _, g := range rs.Groups {
		s.Groups.release(g)
	}
	for _, l := range rs.lists {
		s.lists.release(l)
	}
	for _, n := range rs.named {
		s.named.release(n)
	}
	for _, a := range rs.addrs {
		s.Services.addrs.release(a)
	}
	for _, r := range rs.ranges {
		s.ranges.release(r)
	}
	*rs = Rules{}
}

// end returns what is asked of one end of a rule; not ok: it never holds.
func (s *Sets) end(rs *Rules, of *model.PolicyRule, e *model.RuleEnd, local bool) (all end, ok bool) {
	if len(e.Ports) > 0 {
		if all.ports = s.ports(rs, of, e.Ports, local); all.ports == nil {
			return all, false
		}
	}
	if len(e.NotPorts) > 0 {
		all.notPorts = s.ports(rs, of, e.NotPorts, local)
	}
	for _, peers := range e.Peers {
		if len(peers) == 0 {
			return all, false
		}
		all.in = append(all.in, s.term(rs, peers))
	}
	if len(e.NotPeers) > 0 {
		all.notIn = []*term{s.term(rs, e.NotPeers)}
	}
	return all, true
}

// term is the union of peers. Exceptions are taken out of the networks here, so that the union is
// one of sets alone.
func (s *Sets) term(rs *Rules, peers []model.Peer) *term {
	var selectors []model.Selector
	var nets []netip.Prefix
	t := &term{}
	for _, peer := range peers {
		switch {
		case !peer.Selector.IsZero():
			selectors = append(selectors, peer.Selector)
		case peer.Service != (model.Name{}):
			a, cost := s.Services.hold(peer.Service)
			t.addrs = append(t.addrs, a)
			rs.Units += cost
		default:
			nets = append(nets, without(peer.Nets, peer.Except)...)
		}
	}
	rs.addrs = append(rs.addrs, t.addrs...)
	if len(nets) > 0 || len(selectors)+len(t.addrs) == 0 {
		t.list = s.lists.holdNets(nets)
		rs.lists = append(rs.lists, t.list)
	}
	if len(selectors) > 0 {
		t.selector = model.Or(selectors...)
	}
	return t
}

// Resolve returns the rules with the present ids of their sets.
func (rs *Rules) Resolve() []state.Rule {
	var all []state.Rule
	for i := range rs.list {
		all = append(all, rs.list[i].resolve())
	}
	return all
}

// Lookups is what all look-ups count for: one for each length of prefix in each list that a rule
// asks for.
func (rs *Rules) Lookups() (n int) {
	for t := range rs.terms {
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
