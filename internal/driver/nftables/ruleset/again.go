package ruleset

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nft"
)

// After a change of policy, connections that it forbids are found and labelled, which takes some
// tens of milliseconds. Meanwhile the chains judge packets of established connections again that
// the change may be about, as if they were the first: those that go the way of the first one, as
// rules are about that way alone. The sets say what the change is about; their elements come with
// it, in one transaction, and go by themselves. Of UDP it may be that answers alone come: such a
// connection is noted, and whoever labels connections looks at it before the others.

// answeringChain notes them.
const answeringChain = "answering"

func (rs *Ruleset) addAgain() {
	again := func(name, comment string, key nft.Field) *nft.Set {
		return rs.AddSet(&nft.Set{Name: name, Dynamic: true, Size: 4 * driver.MostAgain, Key: []nft.Field{key}, Comment: comment})
	}
	rs.Policy.again = again("again", "families of which packets of established connections are judged again, for a while", nft.NFProto)
	rs.Policy.againAll = again("again-all", "those of which all are", nft.NFProto)
	for _, fp := range rs.Families {
		fp.Policy.again = again(fp.IP.Name+"-again", "addresses of which packets of established connections are judged again, for a while", fp.IP.Saddr)
		fp.Policy.Answering = rs.AddSet(&nft.Set{Name: fp.IP.Name + "-answering", Dynamic: true, Size: driver.MostAnswering,
			Key: []nft.Field{fp.IP.Saddr, fp.IP.Daddr, nft.Sport, nft.Dport}, Comment: "connections of UDP by those addresses that were answered meanwhile"})
	}
}

// answering is the chain that packets pass which are let pass though they may be about to be
// forbidden.
func (rs *Ruleset) answering() nft.Chain {
	c := nft.Chain{Name: answeringChain, Comment: "answers are not judged again: whose they are is noted"}
	for _, fp := range rs.Families {
		f := fp.IP
		note := func(r nft.Rule) {
			c.Rules = append(c.Rules, r.Update(fp.Policy.Answering, driver.JudgeAgain, []nft.Field{f.OrigSaddr, f.OrigDaddr, nft.CtOrigSport, nft.CtOrigDport}, nil).Return())
		}
		note(rule().Family(f).In(rs.Policy.againAll, nft.NFProto))
		for _, end := range []nft.Field{f.Saddr, f.Daddr} {
			note(rule().Family(f).In(fp.Policy.again, end))
		}
	}
	return c
}

// Answered is the connection that an element of Answering is of.
func (fp *Family) Answered(e *nft.Element) (from, to netip.AddrPort) {
	n := fp.IP.Bits / 8
	src, _ := netip.AddrFromSlice(e.Key[:n])
	dst, _ := netip.AddrFromSlice(e.Key[n : 2*n])
	ports := e.Key[2*n:] // each in a register
	return netip.AddrPortFrom(src, binary.BigEndian.Uint16(ports)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ports[4:]))
}

// AgainSets are the sets that say so.
func (rs *Ruleset) AgainSets() []*nft.Set {
	all := []*nft.Set{rs.Policy.again, rs.Policy.againAll}
	for _, fp := range rs.Families {
		all = append(all, fp.Policy.again, fp.Policy.Answering)
	}
	return all
}

// AgainElements are those that have packets of the addresses judged again, or all.
func (rs *Ruleset) AgainElements(all bool, addresses []netip.Addr, yield func(*nft.Element)) {
	all = all || len(addresses) > driver.MostAgain
	element := func(s *nft.Set, key []byte) {
		e := nft.Element{Set: s, Life: &nft.Life{Timeout: driver.JudgeAgain, Expires: driver.JudgeAgain}}
		e.Append(key...)
		yield(&e)
	}
	for _, fp := range rs.Families {
		found := false
		for _, a := range addresses {
			if fp.IP.Bits == a.BitLen() && !all {
				element(fp.Policy.again, fp.IP.Addr(a))
				found = true
			}
		}
		if all {
			element(rs.Policy.againAll, fp.IP.Number())
		}
		if all || found {
			element(rs.Policy.again, fp.IP.Number())
		}
	}
}

// judged parts a base chain in two: what lets packets of established connections that are permitted
// go on, and a chain that judges all others, and those that are judged again. Unless some are, a
// permitted packet meets the first rule alone.
func (rs *Ruleset) judged(c nft.Chain, permitted nft.Rule, goOn func(nft.Rule) nft.Rule, cut nft.Rule, judge []nft.Rule) []nft.Chain {
	again, judges := c.Name+"-again", c.Name+"-judge"
	rules := []nft.Rule{rule().In(rs.Policy.againAll, nft.NFProto).Goto(judges)}
	for _, fp := range rs.Families {
		for _, end := range []nft.Field{fp.IP.Saddr, fp.IP.Daddr} {
			rules = append(rules, rule().Family(fp.IP).In(fp.Policy.again, end).Goto(judges))
		}
	}
	c.Rules = []nft.Rule{
		goOn(permitted.NotIn(rs.Policy.again, nft.NFProto)),
		rule().CtState(expr.CtStateBitESTABLISHED).Original().Jump(again),
		permitted.Reply().Proto(unix.IPPROTO_UDP).Jump(answeringChain),
		permitted.Accept(), // and does not go on: in a flowtable, nothing of it would be judged again
		cut,
		rule().Goto(judges),
	}
	return []nft.Chain{c,
		{Name: again, Comment: "what a change of policy is about is judged again", Rules: rules},
		{Name: judges, Comment: "what may pass", Rules: judge},
	}
}
