package nftables

import (
	"fmt"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
)

// Packets enter by these chains, of type nat: they see the first packet of a connection alone. Each
// is there while a farm needs it, so that a connection is asked nothing else; those with "-range"
// in their names are for farms at ranges.
//
//	prerouting  -102, -101  connections from outside
//	output      -102, -101  connections of the machine itself
//	input         96, 97    connections to backends on this machine: what is remembered of clients
//	after         96, 97    the same at postrouting, of connections to other backends
//	postrouting   98, 99    the client's address
//
// From there they go to a chain that serves farms of their kind, see pick. There is one for each
// scheduler and number of slots in use, however many farms use it.
const (
	serving    = -102 // NF_IP_PRI_NAT_DST, less one for each kind
	afterwards = 96   // NF_IP_PRI_NAT_SRC, less one for each kind of the two
	outgoing   = 98
)

// Registers of the rules below: the slot, and the destination behind it; then what is found there.
const (
	atSlot   = 0
	atDest   = 1
	atResult = 0 // the backend's address, and behind it its port
)

const seed = 0x51d1ce // of hashes: fixed, so that a change moves no flow that it is not about

func rule(comment ...string) nft.Rule { return nft.NewRule(comment...) }

// entrance is a chain by which connections to farms of a kind enter.
func (rs *ruleset) entrance(k kind, name, comment string, hook uint32, priority int32, by func(*family) nft.Rule, maps func(*family) [kinds]*nft.Set) nft.Chain {
	c := nft.Chain{Name: name + k.String(), Comment: comment, Hook: nft.NATHook(hook, priority+int32(k))}
	for _, fp := range rs.families {
		c.Rules = append(c.Rules, by(fp).Follow(maps(fp)[k], 0))
	}
	return c
}

// entering matches by where a connection goes, and translated by where it went before.
func (fp *family) entering() nft.Rule { return rule().Family(fp.ip).Load(0, fp.dest()...) }
func (fp *family) translated() nft.Rule {
	return rule().Translated().Family(fp.ip).Load(0, fp.origDest()...)
}

// serveChains are where connections enter that are to be served.
func (rs *ruleset) serveChains(k kind) []nft.Chain {
	farms := func(fp *family) [kinds]*nft.Set { return fp.farms }
	return []nft.Chain{
		rs.entrance(k, "prerouting", "connections from outside", unix.NF_INET_PRE_ROUTING, serving, (*family).entering, farms),
		rs.entrance(k, "output", "connections of the machine itself", unix.NF_INET_LOCAL_OUT, serving, (*family).entering, farms),
	}
}

// afterChains are where connections enter that have their backend.
func (rs *ruleset) afterChains(k kind) []nft.Chain {
	after := func(fp *family) [kinds]*nft.Set { return fp.after }
	return []nft.Chain{
		rs.entrance(k, "input", "connections to backends on this machine", unix.NF_INET_LOCAL_IN, afterwards, (*family).translated, after),
		rs.entrance(k, "after", "connections to other backends", unix.NF_INET_POST_ROUTING, afterwards, (*family).translated, after),
	}
}

// outChain is where connections enter whose client's address is translated, too.
func (rs *ruleset) outChain(k kind) nft.Chain {
	return rs.entrance(k, "postrouting", "the client's address", unix.NF_INET_POST_ROUTING, outgoing, (*family).translated, func(fp *family) [kinds]*nft.Set { return fp.out })
}

// enter has chains be there.
func (h *half) enter(chains ...nft.Chain) {
	for _, c := range chains {
		h.chain(c.Name, func() nft.Chain { return c })
	}
}

// own leads to a chain if the destination is an address of the machine: for farms at every one.
func own(fp *family, to string) nft.Chain {
	return nft.Chain{Name: to + "-own", Comment: "at every address of the machine, and nowhere else", Rules: []nft.Rule{rule().ToNode().Goto(to)}}
}

// pick is a chain that translates to one of a farm's backends.
type pick struct {
	by    model.FarmScheduler // Maglev is a Hash by its table
	key   model.FlowKey       // of Hash
	slots int
	shard int  // of RoundRobin: farms whose connections share a counter
	hosts bool // the port stays
	gaps  bool // slots may be empty
	kind  kind
}

// shards are how many counters there are for the farms of one number of slots. Two farms that share
// one and are asked in turns would each see every other number only.
const shards = 64

func (c pick) name(fp *family) string {
	n := fmt.Sprintf("%s-%s", fp.ip.Name, c.by)
	if c.by == model.Hash {
		n += fmt.Sprintf("-%02x", uint8(c.key))
	}
	n += fmt.Sprintf("-%d", c.slots)
	if c.by == model.RoundRobin {
		n += fmt.Sprintf("-%d", c.shard)
	}
	if c.hosts {
		n += "-host"
	}
	if c.gaps {
		n += "-gaps"
	}
	return n + c.kind.String()
}

func (c pick) chain(fp *family) nft.Chain {
	var rules []nft.Rule
	for _, slot := range c.draws(fp) {
		rules = append(rules, c.to(fp, slot))
	}
	rules = append(rules, rule("nothing leaves untranslated").Drop())
	return nft.Chain{Name: c.name(fp), Comment: fmt.Sprintf("one of %d slots", c.slots), Rules: rules}
}

// draws are beginnings of rules that put a slot into its register. Each is for where the slot of
// the one before it is empty; the last slot never is.
func (c pick) draws(fp *family) (rules []nft.Rule) {
	if c.slots > 1 {
		rules = append(rules, c.draw(fp, rule()))
		for i := 0; c.gaps && i < redraws; i++ {
			rules = append(rules, rule("the slot was empty: another one").Random(atSlot, uint32(c.slots)))
		}
	}
	return append(rules, rule("the slot that is never empty").Number(atSlot, 0))
}

// redraws are how often a slot is drawn again: until less than one connection in fifty would take
// the last resort, with half of the slots empty.
const redraws = 5

// draw puts a slot into its register.
func (c pick) draw(fp *family, r nft.Rule) nft.Rule {
	switch c.by {
	case model.RoundRobin:
		return r.Next(atSlot, uint32(c.slots))
	case model.Weighted:
		return r.Random(atSlot, uint32(c.slots))
	case model.SymHash:
		return r.Symhash(atSlot, uint32(c.slots))
	}
	fields := fp.flow(c.key)
	return r.Load(1, fields...).Jhash(1, 4*nft.Registers(fields...), atSlot, uint32(c.slots), seed)
}

// find goes on if there is a backend in the slot, with its address from a register on; behind that
// is its port, unless the port stays.
func (c pick) find(fp *family, r nft.Rule, at int) nft.Rule {
	maps := fp.slots
	if c.hosts {
		maps = fp.hosts
	}
	return r.Load(atDest, fp.dest()...).Find(maps[c.kind], atSlot, at)
}

// to translates to the backend in the slot.
func (c pick) to(fp *family, r nft.Rule) nft.Rule {
	return c.translate(fp, c.find(fp, r, atResult), atResult)
}

// translate goes to the backend whose address is at a register.
func (c pick) translate(fp *family, r nft.Rule, at int) nft.Rule {
	if c.hosts {
		return r.Destination(fp.ip, at, -1)
	}
	return r.Destination(fp.ip, at, at+nft.Registers(fp.ip.Daddr))
}

// refuse answers that nobody serves the farm.
func refuse(fp *family) nft.Chain {
	return nft.Chain{Name: fp.ip.Name + "-refuse", Comment: "no backend serves: the client is told at once", Rules: []nft.Rule{
		rule().Proto(uint8(model.TCP)).RejectTCP(), rule().Reject(),
	}}
}

// masquerade has the client's address be one of the machine's.
func masquerade(fp *family) nft.Chain {
	return nft.Chain{Name: fp.ip.Name + "-masquerade", Comment: "answers come back through this machine", Rules: []nft.Rule{rule().Masquerade()}}
}

// source has the client's address be one that was given.
func source(fp *family, k kind) nft.Chain {
	c := nft.Chain{Name: sourceName(fp, k), Comment: "clients' addresses become given ones"}
	if k == exact {
		c.Rules = append(c.Rules, rule("of the backend").Load(0, append(fp.origDest(), fp.ip.Daddr)...).Find(fp.backendSources, 0, 0).Source(fp.ip, 0))
	}
	c.Rules = append(c.Rules, rule("of the farm").Load(0, fp.origDest()...).Find(fp.sources[k], 0, 0).Source(fp.ip, 0), rule().Masquerade())
	return c
}

func sourceName(fp *family, k kind) string { return fp.ip.Name + "-source" + k.String() }
