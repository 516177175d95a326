// Package foreign says what the packet filters of other programs on a node do with a packet: an
// accept in a table of ours cannot undo a drop in one of theirs. It reads nftables, whoever wrote
// it, and iptables-legacy, and follows a packet through the rules as the kernel does. What a rule
// asks and the question does not tell (a rate, an ipset, who owns a socket) leaves open whether it
// matches.
package foreign

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"

	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/xtables"
)

// Chain is a chain of another program.
type Chain struct {
	Family, Table, Name string // Family is "inet", "ip", "ip6", …
	Legacy              bool   // of iptables-legacy, not nftables

	// Hook is "ingress", "prerouting", "input", "forward", "output", "postrouting" or "egress";
	// empty unless packets enter the ruleset here. Of the chains at one, that of the lowest
	// Priority is the first.
	Hook       string
	Priority   int
	PolicyDrop bool   // the policy is drop, and no rule without condition comes before
	EndsIn     string // drop or reject if a rule without condition does that
	// AcceptsTranslated: a rule before that accepts connections whose destination was translated,
	// as service traffic's is.
	AcceptsTranslated bool

	policy string                             // accept or drop
	rules  func(chain string) ([]rule, error) // of a chain of its table
}

// String names the chain, its program and its hook.
func (c *Chain) String() string {
	kind := "nftables"
	if c.Legacy {
		kind = "iptables-legacy"
	}
	return fmt.Sprintf("%s chain %s %s %s (%s)", kind, c.Family, c.Table, c.Name, c.Hook)
}

// atDevice reports whether packets enter the chain by some interface alone, which is not known.
func (c *Chain) atDevice() bool { return c.Hook == "ingress" || c.Hook == "egress" }

// ends finds out how the chain itself, without those that it jumps to, ends for packets that none
// of its rules knows.
func (c *Chain) ends() error {
	any, err := c.last(&packet{})
	switch {
	case err != nil || any == nil:
		return err
	case any.rule == nil:
		c.PolicyDrop = true
	default:
		c.EndsIn = any.kind
	}
	translated, err := c.last(&packet{translated: yes})
	c.AcceptsTranslated = translated == nil
	return err
}

// dropsServices reports whether it drops or rejects connections to services by default: it does
// what its rules do not accept, and none of those that it sees before accepts what was translated.
func (c *Chain) dropsServices() bool { return (c.PolicyDrop || c.EndsIn != "") && !c.AcceptsTranslated }

// Ends reports whether a base chain of nftables with that policy and those rules drops or rejects
// connections to services.
func Ends(policyDrop bool, rules []*nftables.Rule) (bool, error) {
	policy := accept
	if policyDrop {
		policy = drop
	}
	c := Chain{policy: policy, rules: func(string) ([]rule, error) { return (&table{}).wrap(rules), nil }}
	err := c.ends()
	return c.dropsServices(), err
}

// SavedEnds reports the same of a chain of one table that iptables-save printed.
func SavedEnds(printed []*xtables.Chain, chain string) bool {
	for _, c := range LegacyChains("", printed) {
		if c.Name == chain && c.Hook != "" {
			return c.dropsServices()
		}
	}
	return false
}

// last is where all packets like p end that no rule decides about for sure before; nil: nowhere.
func (c *Chain) last(p *packet) (*end, error) {
	w := walk{base: c, p: p}
	if err := w.run(); err != nil {
		return nil, fmt.Errorf("list rules of chain %s %s %s: %w", c.Family, c.Table, c.Name, err)
	}
	if n := len(w.ends); n > 0 && w.ends[n-1].matches {
		return &w.ends[n-1], nil
	}
	return nil, nil
}

// Rules are the packet filters of other programs in a network namespace.
type Rules struct {
	Chains []Chain // nftables
	Own    bool    // there is a table of an agent of ours
	Legacy Legacy

	ns   *netns.NS
	nics map[int]nic // what has been read of interfaces
}

// Read reads the rules of other programs in a network namespace; those of chains that others jump
// to when a packet comes to them.
func Read(ctx context.Context, ns *netns.NS) (r Rules, err error) {
	r.ns = ns
	err = ns.Do(func() (err error) {
		r.Legacy = ReadLegacy(ctx)
		r.Chains, r.Own, err = Tables()
		return err
	})
	return r, err
}

// all are the chains of nftables and of iptables-legacy, in the order in which a packet meets them
// at a hook.
func (r *Rules) all() []*Chain {
	var all []*Chain
	for _, chains := range [][]Chain{r.Legacy.Chains, r.Chains} {
		for i := range chains {
			all = append(all, &chains[i])
		}
	}
	slices.SortStableFunc(all, func(a, b *Chain) int { return cmp.Compare(a.Priority, b.Priority) })
	return all
}

// Obstacle is a chain or a rule of another program in which a packet that Sluice accepts can end.
type Obstacle struct {
	Hook string `json:"hook"`         // "forward", "input", …
	Seen string `json:"seen"`         // names the chain and, where it is known, whose it is
	Do   string `json:"do,omitempty"` // how to let pods through, or to see the rule
	// Alters: it does not drop a packet that is asked about, but alters its connection for sure.
	Alters bool `json:"alters,omitempty"`
}

// Obstacles returns the chains that drop or reject by default, and do not accept translated
// connections before.
func (r *Rules) Obstacles() (found []Obstacle) {
	for _, d := range slices.Concat(Defaults(r.Chains), Defaults(r.Legacy.Chains)) {
		if !d.AcceptsTranslated {
			found = append(found, d.Obstacle)
		}
	}
	return found
}

// Default is a chain that drops or rejects by default.
type Default struct {
	Obstacle
	AcceptsTranslated bool
}

// Defaults returns those of some chains that drop or reject by default. The other chains of a table
// tell which program made it.
func Defaults(chains []Chain) (found []Default) {
	for i := range chains {
		c := &chains[i]
		if c.Hook == "" || !c.PolicyDrop && c.EndsIn == "" {
			continue
		}
		how := "drops what its rules do not accept"
		if c.EndsIn != "" {
			how = c.EndsIn + "s what its rules before do not accept"
		}
		who := ownerOf(c, chains)
		d := Default{Obstacle{Hook: c.Hook, Seen: who.prefix() + c.String() + " " + how, Do: who.advice(c)}, c.AcceptsTranslated}
		if d.AcceptsTranslated {
			d.Do = ""
		}
		found = append(found, d)
	}
	return found
}

// Meets returns where a new connection ends on its way through the node, of which the first packet
// and the first answer are followed: does is where one of them does for sure, and may are others
// before, where it depends on what is not known.
func (r *Rules) Meets(way Way) (may []Obstacle, does *Obstacle, err error) {
	if r.ns == nil {
		return r.meets(way)
	}
	err = r.ns.Do(func() (err error) { may, does, err = r.meets(way); return err })
	return may, does, err
}

func (r *Rules) meets(way Way) (may []Obstacle, does *Obstacle, err error) {
	in, out := r.nic(way.In), r.nic(way.Out)
	request, reply := way.packets(in, out)
	if may = slices.Clone(in.filters); way.Out != way.In {
		may = append(may, out.filters...)
	}
	all := r.all()
	for _, leg := range []struct {
		which string
		hooks []string
		p     *packet
	}{{"", way.hooks(), request}, {"the answer: ", way.replyHooks(), reply}} {
		for _, hook := range leg.hooks {
			for _, c := range all {
				if c.Hook != hook || c.Family == "ip" && !way.Destination.Is4() || c.Family == "ip6" && way.Destination.Is4() {
					continue
				}
				leg.p.hook, leg.p.priority = c.Hook, c.Priority
				w := walk{base: c, p: leg.p, jumps: true, unsure: c.atDevice()}
				if err := w.run(); err != nil {
					return may, nil, fmt.Errorf("%v: %w", c, err)
				}
				who := ownerOf(c, r.siblings(c))
				for _, e := range w.alter {
					if leg.which == "" && way.cares(e, hook) {
						may = append(may, Obstacle{Hook: hook, Seen: fmt.Sprintf("%s%v of %s %s", who.prefix(), e.rule, e.at(c), e.kind), Do: e.advice(c, who), Alters: true})
					}
				}
				for _, e := range w.ends {
					o := Obstacle{Hook: hook, Seen: leg.which + who.prefix() + e.seen(c), Do: e.advice(c, who)}
					if e.certain {
						return may, &o, nil
					}
					may = append(may, o)
				}
			}
		}
	}
	return may, nil, nil
}

// cares reports whether it matters what a rule alters: the destination, or the source of what stays
// in the cluster; outside, pods are not to show their own.
func (w Way) cares(e end, hook string) bool {
	return e.kind == untracks || hook == "prerouting" || hook == "output" || w.Inside
}

// siblings are the chains among which c is.
func (r *Rules) siblings(c *Chain) []Chain {
	if c.Legacy {
		return r.Legacy.Chains
	}
	return r.Chains
}

// seen names where a packet ends, of those that come in by a base chain.
func (e end) seen(base *Chain) string {
	does := " may " + e.kind + " it"
	if e.certain {
		does = " " + e.kind + "s it"
	}
	if e.rule == nil {
		return base.String() + does + ": none of its rules accepts it"
	}
	return fmt.Sprintf("%v of %s%s", e.rule, e.at(base), does)
}

// at names the chain that has the rule.
func (e end) at(base *Chain) string {
	if e.chain == base.Name {
		return base.String()
	}
	return fmt.Sprintf("chain %s, to which %v jumps,", e.chain, base)
}

// advice says what to do about it.
func (e end) advice(base *Chain, who owner) string {
	iptables := base.iptables()
	switch {
	case e.rule == nil:
		return who.advice(base)
	case base.Legacy:
		return fmt.Sprintf("see that rule: %s-legacy -t %s -S %s %d", iptables, base.Table, e.chain, e.rule.number)
	case base.isIPTables():
		return fmt.Sprintf("see that rule: %s-nft -t %s -S %s %d", iptables, base.Table, e.chain, e.rule.number)
	}
	return fmt.Sprintf("see that rule: nft -a list chain %s %s %s, handle %d", base.Family, base.Table, e.chain, e.rule.handle)
}

// isIPTables reports whether a chain of nftables is one that iptables-nft has.
func (c *Chain) isIPTables() bool {
	return (c.Family == "ip" || c.Family == "ip6") && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, c.Table) && c.Name == strings.ToUpper(c.Hook)
}

// IPTables returns the first chain that iptables-nft has.
func IPTables(chains []Chain) (*Chain, bool) {
	for i := range chains {
		if chains[i].isIPTables() {
			return &chains[i], true
		}
	}
	return nil, false
}
