package preflight

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/nftables/nft"
)

// The verdicts that matter here.
const (
	accept = "accept"
	drop   = "drop"
	reject = "reject"
)

// rule is what matters of a rule of a base chain.
type rule struct {
	verdict    string // accept, drop, reject; empty: another
	always     bool   // it has no condition
	translated bool   // its condition is that the destination was translated
}

// follow reads the chain's next rule, and reports whether no packet passes it.
func (c *Chain) follow(r rule) bool {
	switch {
	case r.translated && r.verdict == accept:
		c.AcceptsTranslated = true
	case r.always && r.verdict == accept:
		c.PolicyDrop = false // never reached
		return true
	case r.always && r.verdict != "":
		c.EndsIn = r.verdict
		return true
	}
	return false
}

// chains lists the nftables chains of others, and whether there is a table of ours.
func chains() (found []Chain, own bool, err error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, false, fmt.Errorf("open nftables: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }()
	tables, err := conn.ListTables()
	if err != nil {
		return nil, false, fmt.Errorf("list nftables tables: %w", err)
	}
	others := false // our own chains may be thousands, to be listed in vain
	for _, t := range tables {
		is, agents := ours(t)
		own, others = own || agents, others || !is
	}
	if !others {
		return nil, own, nil
	}
	all, err := conn.ListChains()
	if err != nil {
		return nil, false, fmt.Errorf("list nftables chains: %w", err)
	}
	for _, c := range all {
		if is, _ := ours(c.Table); is {
			continue
		}
		seen := Chain{Family: cmp.Or(FamilyNames[c.Table.Family], "unknown"), Table: c.Table.Name, Name: c.Name}
		if c.Hooknum != nil && slices.Contains([]string{"inet", "ip", "ip6"}, seen.Family) {
			seen.Hook = hookNames[*c.Hooknum]
		}
		if seen.Hook != "" {
			seen.PolicyDrop = c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
			rules, err := nft.ForeignRules(c.Table, c.Name)
			if err != nil {
				return nil, false, fmt.Errorf("list rules of chain %s %s %s: %w", seen.Family, seen.Table, seen.Name, err)
			}
			seen.followAll(rules)
		}
		found = append(found, seen)
	}
	return found, own, nil
}

// ours reports whether a table is Sluice's, and if so, whether it is an agent's, and not only a
// proxy's, which goes with its agent.
func ours(t *nftables.Table) (is, agents bool) {
	if t.Family != nftables.TableFamilyINet {
		return false, false
	}
	agents = t.Name == "sluice" || t.Name == "sluice-next"
	return agents || t.Name == "sluice-userspace", agents
}

// read tells what a rule does.
func read(exprs []expr.Any) rule {
	r := rule{always: true}
	status := false // the connection's status is being asked for
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Verdict:
			switch e.Kind {
			case expr.VerdictAccept:
				r.verdict = accept
			case expr.VerdictDrop:
				r.verdict = drop
			}
		case *expr.Reject:
			r.verdict = reject
		case *expr.Target: // of iptables-nft
			if e.Name == "REJECT" {
				r.verdict = reject
			}
		case *expr.Match: // of iptables-nft
			r.always = r.always && e.Name == "comment"
			r.translated = r.translated || asksTranslated(e)
		case *expr.Ct:
			r.always = false
			status = e.Key == expr.CtKeySTATUS
		case *expr.Bitwise:
			r.always = false
			const dstNAT = 1 << 5 // IPS_DST_NAT
			r.translated = r.translated || status && len(e.Mask) == 4 && binary.NativeEndian.Uint32(e.Mask)&dstNAT != 0
		default:
			r.always = false
		}
	}
	return r
}

// FamilyNames are the families of tables as nft writes them.
var FamilyNames = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge", nftables.TableFamilyARP: "arp",
}

// hookNames are the hooks that service traffic passes, in tables of IPv4, IPv6 and both.
var hookNames = map[nftables.ChainHook]string{
	unix.NF_INET_PRE_ROUTING: "prerouting", unix.NF_INET_LOCAL_IN: "input", unix.NF_INET_FORWARD: "forward",
	unix.NF_INET_LOCAL_OUT: "output", unix.NF_INET_POST_ROUTING: "postrouting",
}
