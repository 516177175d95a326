package bgp

import (
	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
)

// matches are those of the model as the speaker has them.
var matches = map[model.BGPMatch]speaker.Match{
	model.BGPIn: speaker.In, model.BGPNotIn: speaker.NotIn, model.BGPEqual: speaker.Equal, model.BGPNotEqual: speaker.NotEqual,
}

// rules are what the filters of a BGPPeer say of routes of the session's family. If there is not
// each of the filters, no route passes: what it was to keep away would.
func (c *Compiler) rules(p *model.BGPPeer, internal, is4 bool) (imports, exports []speaker.Rule) {
	for _, name := range p.Filters {
		f := c.filters[name]
		if f == nil {
			return []speaker.Rule{{}}, []speaker.Rule{{}}
		}
		imports = append(imports, translate(f.Import, internal, is4)...)
		exports = append(exports, translate(f.Export, internal, is4)...)
	}
	return imports, exports
}

func translate(rules []model.BGPFilterRule, internal, is4 bool) (list []speaker.Rule) {
	for _, r := range rules {
		if r.IPv6 == is4 || r.PeerType == "iBGP" && !internal || r.PeerType == "eBGP" && internal {
			continue
		}
		rule := speaker.Rule{Accept: r.Accept, Prefix: r.CIDR, Match: matches[r.Match], Min: r.Min, Max: r.Max, Learned: r.Learned, Family: 4}
		if r.IPv6 {
			rule.Family = 6
		}
		list = append(list, rule)
	}
	return list
}
