package nftables

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
)

// A farm that asks for more than a backend has its connections pass stages first. What a farm does
// in a stage is an element of the map of stages; the chains that these lead to are shared by all
// farms that ask for the same.
//
// Meanwhile the packet's priority is the farm's number: nftables has no other place for what one
// rule finds and another one needs, as a mark is the user's. Queueing disciplines, which look at
// priorities, come long after: it is zero again by then.

// farmStage is a part of the way of a new connection. They are passed in this order.
type farmStage uint32

const (
	markStage    farmStage = iota // the connection gets the farm's mark
	newStage                      // new connections a second
	countStage                    // connections at once
	helperStage                   // a helper of connection tracking
	logStage                      // the log
	persistStage                  // the backend that the client had
	pickStage                     // any backend
	stages
)

// String says what the stage is about.
func (s farmStage) String() string {
	return [...]string{"mark", "new connections", "connections at once", "helper", "log", "the client's backend", "a backend"}[s]
}

func stagedName(fp *family, k kind) string { return fp.ip.Name + "-staged" + k.String() }

// staged leads through the stages.
func staged(fp *family, k kind) nft.Chain {
	c := nft.Chain{Name: stagedName(fp, k), Comment: "farms that ask for more than a backend", Rules: []nft.Rule{
		rule("until the end of this chain, priority is the farm's number").Load(0, fp.dest()...).Find(fp.numbers[k], 0, 0).SetPriority(0),
	}}
	in := func(s farmStage) nft.Rule { return rule(s.String()).Number(0, uint32(s)).Load(1, nft.Priority) }
	for s := range pickStage {
		c.Rules = append(c.Rules, in(s).FollowAnd(fp.stages, 0))
	}
	// The last stage has a verdict for each farm.
	c.Rules = append(c.Rules, in(pickStage).Follow(fp.stages, 0), rule("nothing leaves untranslated").Drop())
	return c
}

// staged reports whether the farm's connections pass the stages.
func (h *half) staged() bool {
	l := h.Limits
	return h.Mark != 0 || l.New.Packets > 0 || l.Established > 0 || h.Helper != "" || h.Log || h.Persist != 0
}

// stages yields what the farm does in the stages, and returns the verdict that leads to them; pick
// is the one for a backend.
func (h *half) stages(pick nft.Verdict) nft.Verdict {
	k := kindOf(h.Farm)
	h.chain(stagedName(h.fp, k), func() nft.Chain { return staged(h.fp, k) })
	for s, c := range h.stageChains() {
		if c.Name != "" {
			h.chain(c.Name, func() nft.Chain { return c })
			h.stage(farmStage(s), nft.Jump(c.Name))
		}
	}
	h.stage(pickStage, h.last(pick))
	return nft.Goto(stagedName(h.fp, k))
}

func (h *half) stage(s farmStage, v nft.Verdict) {
	e := nft.Element{Set: h.fp.stages, Verdict: v}
	e.AppendUint32(uint32(s))
	e.AppendUint32(h.numbers.number(h.Name))
	h.element(&e)
}

// last has the priority be zero again before a verdict.
func (h *half) last(v nft.Verdict) nft.Verdict {
	if v.Code == nft.Drop.Code && v.Chain == "" {
		return v
	}
	c := nft.Chain{Name: "leave", Comment: "the packet's priority is its own again", Rules: []nft.Rule{rule().ClearPriority()}}
	if v.Chain != "" {
		c.Name = "leave-to-" + v.Chain
		c.Rules = append(c.Rules, rule().Goto(v.Chain))
	}
	h.chain(c.Name, func() nft.Chain { return c })
	return nft.Goto(c.Name)
}

// stageChains are the chains of the farm's stages; without a name: there is none.
func (h *half) stageChains() (chains [stages]nft.Chain) {
	if h.Mark != 0 {
		chains[markStage] = nft.Chain{Name: fmt.Sprintf("mark-%x", h.Mark), Rules: []nft.Rule{rule().MarkConnection(h.Mark)}}
	}
	if h.Limits.New.Packets > 0 {
		chains[newStage] = h.limited(h.limit("new", h.fp.rates, h.Limits.New, 0))
	}
	if h.Limits.Established > 0 {
		chains[countStage] = h.limited(h.limit("est", h.fp.counts, model.FarmRate{}, h.Limits.Established))
	}
	if h.Helper != "" {
		chains[helperStage] = helper(h.Helper)
	}
	if h.Log {
		chains[logStage] = nft.Chain{Name: "log-" + digest(h.LogPrefix), Rules: []nft.Rule{rule().Logged(h.LogPrefix)}}
	}
	if h.Persist != 0 {
		chains[persistStage] = h.keep()
	}
	return chains
}

const helperPrefix = "helper-"

// helpersOf are the objects of a chain of the name.
func helpersOf(chain string) []nft.Helper {
	name, is := strings.CutPrefix(chain, helperPrefix)
	if !is {
		return nil
	}
	return helper(name).Helpers
}

// helper is a chain that gives connections a helper of connection tracking.
func helper(name string) nft.Chain {
	c := nft.Chain{Name: helperPrefix + name, Comment: "connections that other ones belong to"}
	for _, p := range model.HelperProtocols(name) {
		h := nft.Helper{Name: fmt.Sprintf("%s-%d", name, p), Helper: name, Protocol: uint8(p)}
		c.Helpers = append(c.Helpers, h)
		c.Rules = append(c.Rules, rule().Proto(h.Protocol).Helper(h.Name))
	}
	return c
}

// usualBurst is how many messages may come at once where nothing else is said, as in nft.
const usualBurst = 5

// limit is a chain that drops what is over a limit.
type limit struct {
	model.FarmLimits // of the farm
	fp               *family
	what             string // "new", "est", "rst" or "backend"
	set              *nft.Set
	rate             model.FarmRate // of new and rst
	most             uint32         // of est and backend
}

func (h *half) limit(what string, set *nft.Set, rate model.FarmRate, most uint32) limit {
	l := limit{h.Limits, h.fp, what, set, rate, most}
	if most > 0 { // it counts connections: for as long as they are there
		l.Forget = 0
	}
	return l
}

// limited yields what a limit leads to, and returns its chain.
func (h *half) limited(l limit) nft.Chain {
	h.chain(l.end().Name, l.end)
	return l.chain()
}

func (l limit) name() string {
	return fmt.Sprintf("%s-%s-%s", l.fp.ip.Name, l.what, digest(fmt.Sprint(l.rate, l.most, l.Forget, l.DropWhenFull, l.Report, l.Prefixes[l.what], l.ReportRate, l.Pass)))
}

// key builds what the limit is of.
func (l limit) key(r nft.Rule) nft.Rule {
	switch l.what {
	case "rst": // it sees packets that have no number
		return r.Load(0, l.fp.ip.Daddr, nft.Dport, l.fp.ip.Saddr)
	case "backend":
		return r.Load(0, l.fp.backend()...)
	}
	return r.Load(0, nft.Priority, l.fp.ip.Saddr)
}

func (l limit) chain() nft.Chain {
	c := nft.Chain{Name: l.name(), Comment: l.String(), Rules: []nft.Rule{l.over(rule()).Goto(l.end().Name)}}
	c.Rules = append(c.Rules, alarm(l.key(rule("the set is full: nobody can tell")).HasNot(l.set, 0), l.set))
	if l.DropWhenFull {
		c.Rules = append(c.Rules, l.key(rule("as the farm has it then")).HasNot(l.set, 0).Drop())
	}
	return c
}

// alarm tells the kernel's log, once a minute at the most, that a set is full.
func alarm(r nft.Rule, full *nft.Set) nft.Rule {
	return r.Within(1, time.Minute, 1).Logged("sluice: " + full.Name + " is full, see --max-clients: ")
}

// over goes on with what is over the limit.
func (l limit) over(r nft.Rule) nft.Rule {
	if l.most > 0 {
		return l.key(r).Counted(l.set, 0, l.most)
	}
	return l.key(r).Over(l.set, 0, l.rate.Packets, l.rate.Per, l.rate.Burst, l.Forget)
}

// end is what happens to packets that are over the limit.
func (l limit) end() nft.Chain {
	c := nft.Chain{Name: "over-" + digest(fmt.Sprint(l.Report, l.Prefixes[l.what], l.ReportRate, l.Pass)), Comment: "packets over a limit"}
	switch {
	case l.Report && l.ReportRate.Packets > 0:
		c.Rules = append(c.Rules, rule().Within(l.ReportRate.Packets, l.ReportRate.Per, cmp.Or(l.ReportRate.Burst, usualBurst)).Logged(l.Prefixes[l.what]))
	case l.Report:
		c.Rules = append(c.Rules, rule().Logged(l.Prefixes[l.what]))
	}
	if !l.Pass {
		c.Rules = append(c.Rules, rule().Drop())
	}
	return c
}

// String says what the limit is.
func (l limit) String() string {
	switch l.what {
	case "est":
		return fmt.Sprintf("%d connections of a source address at once", l.most)
	case "backend":
		return fmt.Sprintf("%d connections of a backend at once", l.most)
	}
	return fmt.Sprintf("%d packets in %s of a source address, %d at once", l.rate.Packets, l.rate.Per, l.rate.Burst)
}

// guardName is the chain, there while a farm asks for it, that judges every packet to a farm.
const guardName = "guard"

func (rs *ruleset) guard() nft.Chain {
	c := nft.Chain{Name: guardName, Comment: "what farms ask of every packet", Hook: nft.FilterHook(unix.NF_INET_PRE_ROUTING, -150)}
	for _, fp := range rs.families {
		for k := range kinds {
			c.Rules = append(c.Rules, rule().Family(fp.ip).Load(0, fp.dest()...).Follow(fp.guards[k], 0))
		}
	}
	return c
}

// guard yields what the farm asks of every packet.
func (h *half) guard() {
	strict := h.Limits.Strict && !h.Limits.SYNProxy // which judges what is of no connection itself
	if !strict && h.Limits.RST.Packets == 0 {
		return
	}
	var rules []nft.Rule
	if strict {
		end := h.limit("strict", nil, model.FarmRate{}, 0).end()
		h.chain(end.Name, func() nft.Chain { return end })
		rules = append(rules, rule("of no connection, and begins none").CtState(expr.CtStateBitINVALID).Goto(end.Name))
	}
	l := h.limit("rst", h.fp.resets, h.Limits.RST, 0)
	if l.rate.Packets > 0 {
		h.chain(l.end().Name, l.end)
		rules = append(rules, l.over(rule("resets").TCPFlags(tcpRST, tcpRST)).Goto(l.end().Name))
	}
	name := fmt.Sprintf("%s-guard-%s", h.fp.ip.Name, digest(fmt.Sprint(strict, h.Limits.Prefixes["strict"], l.name())))
	h.chain(guardName, h.rs.guard)
	h.chain(name, func() nft.Chain {
		return nft.Chain{Name: name, Comment: "what is judged packet by packet", Rules: rules}
	})
	for _, p := range h.addrs {
		h.put(h.fp.guards, p, h.at(p, nft.Goto(name)))
	}
}
