package preflight

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// Ends reports whether a base chain with that policy and those rules
// drops or rejects connections to services: it does what its rules do not accept, and none of those
// that it sees before accepts what was translated.
func Ends(policyDrop bool, rules []*nftables.Rule) bool {
	c := Chain{PolicyDrop: policyDrop}
	c.followAll(rules)
	return c.ends()
}

// SavedEnds reports the same of a chain of one table, from what iptables-save prints of it.
func SavedEnds(text, chain string) bool {
	for _, c := range parseSave("", text) {
		if c.Name == chain && c.Hook != "" {
			return c.ends()
		}
	}
	return false
}

func (c *Chain) ends() bool { return (c.PolicyDrop || c.EndsIn != "") && !c.AcceptsTranslated }

// followAll reads the chain's rules up to one that no packet passes.
func (c *Chain) followAll(rules []*nftables.Rule) {
	for _, r := range rules {
		if c.follow(read(r.Exprs)) {
			return
		}
	}
}

// asksTranslated reports whether an extension of iptables asks that the destination was translated:
// -m conntrack --ctstate DNAT.
func asksTranslated(m *expr.Match) bool {
	const stateDNAT = 1 << 7 // XT_CONNTRACK_STATE_DNAT of linux/netfilter/xt_conntrack.h
	var info xt.ConntrackMtinfo2
	switch i := m.Info.(type) {
	case *xt.ConntrackMtinfo2:
		info = *i
	case *xt.ConntrackMtinfo3:
		info = i.ConntrackMtinfo2
	}
	return info.StateMask&stateDNAT != 0 && xt.ConntrackFlags(info.InvertFlags)&xt.ConntrackState == 0
}
