package compile

import (
	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
)

// session is what the rules of a BGPPeer depend on.
type session struct{ internal, is4 bool }

// rules are those for routes from a peer and to it.
type rules struct{ imports, exports []speaker.Rule }

// rulesOf are what the filters of a BGPPeer say of a session's routes, the same slices for all
// nodes that are peers by it. A BGPPeer of the store has waited for all of them.
func (c *Compiler) rulesOf(p *model.BGPPeer, s session) (r rules) {
	if known, ok := c.rules[p][s]; ok || len(p.Filters) == 0 {
		return known
	}
	for _, name := range p.Filters {
		f := c.filters[name]
		r.imports = append(r.imports, translate(f.Import, s.internal, s.is4)...)
		r.exports = append(r.exports, translate(f.Export, s.internal, s.is4)...)
	}
	if c.rules[p] == nil {
		c.rules[p] = map[session]rules{}
	}
	c.rules[p][s] = r
	return r
}

func translate(rules []model.BGPFilterRule, internal, is4 bool) (list []speaker.Rule) {
	for _, r := range rules {
		if r.IPv6 == is4 || r.PeerType == "iBGP" && !internal || r.PeerType == "eBGP" && internal {
			continue
		}
		rule := speaker.Rule{Accept: r.Accept, Prefix: r.CIDR, Match: r.Match, Min: r.Min, Max: r.Max, Learned: r.Learned, Family: 4}
		if r.IPv6 {
			rule.Family = 6
		}
		list = append(list, rule)
	}
	return list
}
