package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// part is what the rules of a policy for one direction come to, and the sets
// that they hold.
type part struct {
	rules    []rule
	groups   []*group
	lists    []*list
	named    []*namedPorts
	ranges   []*ranges
	resolved *state.PolicyRules // nil: not yet, or not with the present ids of the sets
	lookups  int                // that its rules come to when they were resolved
}

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
	group *group // nil: none
	list  *list  // nil: none
}

// part compiles rules for one direction. Local tells of either end whether, when
// ports are asked for by name there, it is a pod of this node. A rule that nothing can match is left out.
func (c *Compiler) part(rules []model.PolicyRule, localSource, localDestination bool) *part {
	all := &part{}
	for i := range rules {
		r, p := &rules[i], &part{}
		source, ok := c.end(p, r, &r.Source, localSource)
		destination, too := c.end(p, r, &r.Destination, localDestination)
		if !ok || !too {
			c.releasePart(p)
			continue
		}
		p.rules = []rule{{of: r, source: source, destination: destination}}
		all.take(p)
	}
	return all
}

// take adds what another part has.
func (p *part) take(o *part) {
	p.rules = append(p.rules, o.rules...)
	p.groups = append(p.groups, o.groups...)
	p.lists = append(p.lists, o.lists...)
	p.named = append(p.named, o.named...)
	p.ranges = append(p.ranges, o.ranges...)
}

func (c *Compiler) releasePart(p *part) {
	for _, g := range p.groups {
		c.releaseGroup(g)
	}
	for _, l := range p.lists {
		c.releaseList(l)
	}
	for _, n := range p.named {
		c.releaseNamed(n)
	}
	for _, r := range p.ranges {
		c.releaseRanges(r)
	}
}

// end returns what is asked of one end of a rule; not ok: it never holds.
func (c *Compiler) end(p *part, of *model.PolicyRule, e *model.RuleEnd, local bool) (all end, ok bool) {
	if len(e.Ports) > 0 {
		if all.ports = c.ports(p, of, e.Ports, local); all.ports == nil {
			return all, false
		}
	}
	if len(e.NotPorts) > 0 {
		all.notPorts = c.ports(p, of, e.NotPorts, local)
	}
	for _, peers := range e.Peers {
		if len(peers) == 0 {
			return all, false
		}
		all.in = append(all.in, c.term(p, peers))
	}
	if len(e.NotPeers) > 0 {
		all.notIn = []*term{c.term(p, e.NotPeers)}
	}
	return all, true
}

// term is the union of peers. Exceptions are taken out of the networks here, so that
// the union is one of sets alone.
func (c *Compiler) term(p *part, peers []model.Peer) *term {
	var selectors []model.Selector
	var nets []netip.Prefix
	t := &term{}
	for _, peer := range peers {
		if peer.Selector.IsZero() {
			nets = append(nets, without(peer.Nets, peer.Except)...)
		} else {
			selectors = append(selectors, peer.Selector)
		}
	}
	if len(nets) > 0 || len(selectors) == 0 {
		t.list = c.holdNets(nets)
		p.lists = append(p.lists, t.list)
	}
	if len(selectors) > 0 {
		t.group = c.holdGroup(model.Or(selectors...))
		p.groups = append(p.groups, t.group)
	}
	return t
}

// resolve returns the rules with the present ids of their sets. Those that come to too many look-ups, as their selectors
// select that many network sets, allow nothing: a NetworkPolicy isolates, one of another kind denies.
func (p *part) resolve(policy model.PolicyKey) *state.PolicyRules {
	if p.resolved == nil {
		r := &state.PolicyRules{Policy: policy}
		switch p.lookups = p.countLookups(); {
		case p.lookups <= maxSize:
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
func (p *part) countLookups() (n int) {
	for i := range p.rules {
		for _, e := range []*end{&p.rules[i].source, &p.rules[i].destination} {
			for _, t := range slices.Concat(e.in, e.notIn) {
				if t.group == nil {
					continue
				}
				for _, l := range t.group.lists {
					n += len(l.ref.IPv4) + len(l.ref.IPv6)
				}
			}
		}
	}
	return lookupSize * n
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
	if t.group != nil {
		s.Groups = []state.SetID{t.group.id}
		for _, l := range t.group.lists {
			s.Lists = append(s.Lists, l.reference())
		}
	}
	slices.SortFunc(s.Lists, func(a, b state.ListRef) int { return cmp.Compare(a.ID, b.ID) })
	return s
}
