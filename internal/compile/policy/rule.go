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
	rules  []rule
	groups []*group
	lists  []*list
	named  []*namedPorts
	ranges []*ranges
}

// rule is a declared rule, or one of several that a declared one becomes.
type rule struct {
	of                  *model.PolicyRule
	source, destination end
}

// end is what a rule asks of one end.
type end struct {
	addrs           condition
	ports, notPorts *ports
}

// condition holds for an address that is in each of the one, and none of the other terms.
type condition struct{ in, notIn []*term }

// term is a union of sets.
type term struct {
	group *group // nil: none
	list  *list  // nil: none
	text  string
}

// part compiles rules for one direction. Local tells of either end whether, when
// ports are asked for by name there, it is a pod of this node. A rule that nothing can match is left out.
func (c *Compiler) part(rules []model.PolicyRule, localSource, localDestination bool) *part {
	all := &part{}
	for i := range rules {
		r, p := &rules[i], &part{}
		source := c.ends(p, r, &r.Source, localSource)
		destination := c.ends(p, r, &r.Destination, localDestination)
		for _, s := range source {
			for _, d := range destination {
				p.rules = append(p.rules, rule{of: r, source: s, destination: d})
			}
		}
		if len(p.rules) == 0 {
			c.releasePart(p)
			continue
		}
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

// ends returns the ways in which one end of a rule can hold, none if it never can.
func (c *Compiler) ends(p *part, of *model.PolicyRule, e *model.RuleEnd, local bool) (ways []end) {
	var base end
	if len(e.Ports) > 0 {
		if base.ports = c.ports(p, of, e.Ports, local); base.ports == nil {
			return nil
		}
	}
	if len(e.NotPorts) > 0 {
		base.notPorts = c.ports(p, of, e.NotPorts, local)
	}
	conditions := []condition{{}}
	for _, list := range e.Peers {
		conditions = each(conditions, c.oneOf(p, list))
	}
	for _, alternatives := range c.noneOf(p, e.NotPeers) {
		conditions = each(conditions, alternatives)
	}
	for _, cond := range conditions {
		way := base
		way.addrs = cond
		ways = append(ways, way)
	}
	return ways
}

// each joins every condition with every alternative.
func each(conditions, alternatives []condition) []condition {
	var all []condition
	for _, a := range conditions {
		for _, b := range alternatives {
			all = append(all, condition{in: slices.Concat(a.in, b.in), notIn: slices.Concat(a.notIn, b.notIn)})
		}
	}
	return all
}

// oneOf returns the ways in which one of the peers can hold an address: what
// needs no exception is one, each block with exceptions another.
func (c *Compiler) oneOf(p *part, peers []model.Peer) []condition {
	plain, blocks := c.split(p, peers)
	var ways []condition
	if plain != nil {
		ways = append(ways, condition{in: []*term{plain}})
	}
	for _, b := range blocks {
		ways = append(ways, condition{in: []*term{b.block}, notIn: []*term{b.except}})
	}
	return ways
}

// noneOf returns, for each thing that has to hold so that none of the peers
// holds an address, the ways in which it can.
func (c *Compiler) noneOf(p *part, peers []model.Peer) [][]condition {
	plain, blocks := c.split(p, peers)
	var all [][]condition
	if plain != nil {
		all = append(all, []condition{{notIn: []*term{plain}}})
	}
	for _, b := range blocks {
		all = append(all, []condition{{notIn: []*term{b.block}}, {in: []*term{b.except}}})
	}
	return all
}

// block is a peer with exceptions.
type block struct{ block, except *term }

// split makes one term of the peers without exceptions, nil where there are none.
func (c *Compiler) split(p *part, peers []model.Peer) (plain *term, blocks []block) {
	var selectors []model.Selector
	var nets []netip.Prefix
	for _, peer := range peers {
		switch {
		case !peer.Selector.IsZero():
			selectors = append(selectors, peer.Selector)
		case len(peer.Except) == 0:
			nets = append(nets, peer.Nets...)
		default:
			blocks = append(blocks, block{c.netTerm(p, peer.Nets), c.netTerm(p, peer.Except)})
		}
	}
	if len(selectors) == 0 && len(nets) == 0 {
		return nil, blocks
	}
	if len(nets) > 0 {
		plain = c.netTerm(p, nets)
	} else {
		plain = &term{}
	}
	if len(selectors) > 0 {
		s := model.Or(selectors...)
		plain.group = c.holdGroup(s)
		p.groups = append(p.groups, plain.group)
		plain.text = joined(s.String(), plain.text)
	}
	return plain, blocks
}

func joined(a, b string) string {
	if b == "" {
		return a
	}
	return a + ", " + b
}

func (c *Compiler) netTerm(p *part, nets []netip.Prefix) *term {
	l := c.holdNets(nets)
	p.lists = append(p.lists, l)
	return &term{list: l, text: l.content.Name}
}

// resolve returns the rule with the present ids of its sets.
func (r *rule) resolve(policy model.PolicyKey) state.Rule {
	return state.Rule{
		Policy: policy, Name: r.of.Name, Action: r.of.Action, Family: r.of.Family,
		Protocol: r.of.Protocol, NotProtocol: r.of.NotProtocol, ICMP: r.of.ICMP, NotICMP: r.of.NotICMP,
		Source: r.source.resolve(), Destination: r.destination.resolve(),
	}
}

func (e *end) resolve() state.End {
	return state.End{
		In: resolveTerms(e.addrs.in), NotIn: resolveTerms(e.addrs.notIn),
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

func (t *term) resolve() state.Term {
	s := state.Term{Text: t.text}
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
