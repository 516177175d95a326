package preflight

import "github.com/google/nftables"

// Ends reports whether a chain that packets enter by themselves, with that policy and those rules, drops or rejects connections to
// services: it does what its rules do not accept, and none of those that it sees before accepts what was translated.
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

// followAll lets the chain's packets meet rules until one ends them all.
func (c *Chain) followAll(rules []*nftables.Rule) {
	for _, r := range rules {
		if c.follow(read(r.Exprs)) {
			return
		}
	}
}
