package nftables

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Packets of stateless farms are rewritten one by one, and connection tracking does not see them.
// These chains are there while a farm needs them:
//
//	prerouting  -301  what clients send gets a backend's address and port, and is routed there
//	postrouting  100  what backends answer gets those that the client asked for
//
// Answers are rewritten only after routing: before it, the kernel takes a packet from outside for
// forged if it comes from an address of the machine.
const (
	beforeTracking = -301 // NF_IP_PRI_RAW, less one
	afterRouting   = 100  // NF_IP_PRI_NAT_SRC
)

var transports = []model.Protocol{model.TCP, model.UDP, model.SCTP}

func (fp *family) answersSet(set func(name, comment string, s nft.Set) *nft.Set, k kind) *nft.Set {
	s := nft.Set{Key: []nft.Field{fp.ip.Saddr, nft.L4Proto, nft.Sport}, Data: []nft.Field{fp.ip.Daddr, nft.Dport}}
	if k == ranged { // ports stay
		s.Data, s.Ranges = s.Data[:1], true
	}
	return set("answers"+k.String(), "where a backend of a stateless farm answers from : where clients asked", s)
}

// statelessChain is where packets to and from stateless farms of a kind enter.
func (rs *ruleset) statelessChain(k kind) nft.Chain {
	c := nft.Chain{Name: "stateless" + k.String(), Comment: "packets to stateless farms, and answers", Hook: nft.FilterHook(unix.NF_INET_PRE_ROUTING, beforeTracking)}
	for _, fp := range rs.families {
		c.Rules = append(c.Rules,
			rule().Family(fp.ip).Load(0, fp.dest()...).Follow(fp.stateless[k], 0),
			fp.answer(k, rule().Family(fp.ip)).Untracked())
	}
	return c
}

// answersChains are where answers get the addresses that clients asked for. Packets enter by the
// last one, and go to one for their protocol: each that is forwarded costs one look-up.
func (rs *ruleset) answersChains(k kind) (chains []nft.Chain) {
	enter := nft.Chain{Name: "answers" + k.String(), Comment: "answers of stateless farms' backends", Hook: nft.FilterHook(unix.NF_INET_POST_ROUTING, afterRouting),
		Rules: []nft.Rule{rule("all others, but for ICMP errors about them").NotCtState(expr.CtStateBitUNTRACKED | expr.CtStateBitINVALID).Accept()}}
	for _, fp := range rs.families {
		if k == ranged {
			enter.Rules = append(enter.Rules,
				fp.refusedSYN(k, rule().Family(fp.ip).Proto(unix.IPPROTO_TCP)),
				fp.answer(k, rule().Family(fp.ip)).WriteAddress(fp.ip.Saddr, fp.ip, atResult),
				fp.unreachable(rule().Family(fp.ip)))
			continue
		}
		of := nft.Chain{Name: fp.ip.Name + "-answers", Comment: "by protocol"}
		for _, proto := range transports {
			fp.withPort(proto, rule().Proto(uint8(proto)), func(r nft.Rule, sum uint8) {
				name := fmt.Sprintf("%s-%d-%d", of.Name, proto, sum)
				write := fp.answer(k, rule()).WritePort(nft.Sport, fp.atPort(), sum).WriteAddress(fp.ip.Saddr, fp.ip, atResult)
				c := nft.Chain{Name: name, Rules: []nft.Rule{write}}
				if proto == model.TCP {
					c.Rules = slices.Insert(c.Rules, 0, fp.refusedSYN(k, rule()))
				}
				chains = append(chains, c)
				of.Rules = append(of.Rules, r.Goto(name))
			})
		}
		of.Rules = append(of.Rules, fp.unreachable(rule()))
		chains = append(chains, of)
		enter.Rules = append(enter.Rules, rule().Family(fp.ip).Goto(of.Name))
	}
	return append(chains, enter)
}

// answer goes on if the packet is a backend's answer, with what the client asked for at atResult.
func (fp *family) answer(k kind, r nft.Rule) nft.Rule {
	return r.Load(atDest, fp.answers[k].Key...).Find(fp.answers[k], atDest, atResult)
}

// atPort is the register of the port that a look-up found.
func (fp *family) atPort() int { return atResult + nft.Registers(fp.ip.Daddr) }

// withPort yields the beginnings of the rules that write a port of a protocol, and whose checksum
// they update: a packet of UDP may have none.
func (fp *family) withPort(proto model.Protocol, r nft.Rule, yield func(r nft.Rule, sum uint8)) {
	if proto == model.UDP {
		yield(r.Unsummed(), 0)
	}
	yield(r, uint8(proto))
}

// rewrite is a chain that rewrites packets to go to one of a farm's backends.
type rewrite struct {
	pick
	proto model.Protocol
}

// steady chooses the same backend for each packet of a flow. Schedulers that would choose anew for
// each hash instead, over slots that the compiler has laid out for that.
func (h *half) steady() pick {
	p := h.pick()
	if p.slots > 1 && !p.by.Hashes() {
		p = pick{by: model.Hash, key: h.PacketKey(), slots: p.slots, hosts: p.hosts, kind: p.kind}
	}
	return p
}

func (c rewrite) name(fp *family) string {
	return fmt.Sprintf("%s-%d-stateless", c.pick.name(fp), c.proto)
}

func (c rewrite) chain(fp *family) nft.Chain {
	rules := []nft.Rule{rule().Untracked()}
	fp.withPort(c.proto, rule(), func(r nft.Rule, sum uint8) {
		switch r = c.find(fp, c.slot(fp, r), atResult); {
		case !c.hosts:
			r = r.WritePort(nft.Dport, fp.atPort(), sum)
		case sum == 0:
			return // no port to write: one rule does
		}
		rules = append(rules, r.WriteAddress(fp.ip.Daddr, fp.ip, atResult).Accept())
	})
	rules = append(rules, rule("nothing leaves as it came").Drop())
	return nft.Chain{Name: c.name(fp), Comment: fmt.Sprintf("one of %d slots, packet by packet", c.slots), Rules: rules}
}

// slot puts a slot into its register; none is empty.
func (c pick) slot(fp *family, r nft.Rule) nft.Rule {
	if c.slots == 1 {
		return r.Number(atSlot, 0)
	}
	return c.draw(fp, r)
}

// stateless yields what a stateless farm becomes, except for its answers. Found at every address,
// it becomes nothing: answers would not say which one it was.
func (h *half) stateless() {
	for _, p := range h.addrs {
		if !p.addr.IsValid() {
			continue
		}
		v := h.nobody()
		if len(h.slots) > 0 {
			r := rewrite{h.steady(), p.proto}
			h.chain(r.name(h.fp), func() nft.Chain { return r.chain(h.fp) })
			v = nft.Goto(r.name(h.fp))
		}
		h.put(h.fp.stateless, p, v)
		h.fill(p)
		for _, k := range []kind{p.kind, answersOf(h.Farm)} {
			h.chain("stateless"+k.String(), func() nft.Chain { return h.rs.statelessChain(k) })
			for _, c := range h.rs.answering[k] {
				h.chain(c.Name, func() nft.Chain { return c })
			}
		}
	}
}

// answersOf says how a stateless farm's answers are found: by ranges of ports where ports stay.
func answersOf(f *state.Farm) kind {
	if f.HasPorts() {
		return exact
	}
	return ranged
}

// claims yields where a stateless farm's backends answer from; nil: nothing. Backends that get no
// new packets may still answer to old ones.
func (rs *ruleset) claims(f *state.Farm, yield func(farm string, e *nft.Element)) {
	if f == nil || f.Mode != model.StatelessDNAT || rs.NFProto != unix.NFPROTO_INET {
		return
	}
	k := answersOf(f)
	f.Each(func(addr netip.Addr, is4 bool, proto model.Protocol, ports model.PortSpan) {
		fp := rs.family(is4)
		for _, b := range f.Backends {
			if !addr.IsValid() || !fp.holds(b.Addr) || b.State == model.BackendDown {
				continue
			}
			from := virtualAddr{k, b.Addr, proto, ports}
			if k == exact && b.Port != 0 {
				from.ports = model.PortSpan{First: b.Port, Last: b.Port}
			}
			e := fp.at(fp.answers, from)
			if k == exact {
				e.SetAddrPort(fp.ip, netip.AddrPortFrom(addr, ports.First))
			} else {
				e.SetAddr(fp.ip, addr)
			}
			yield(f.Name, &e)
		}
	})
}
