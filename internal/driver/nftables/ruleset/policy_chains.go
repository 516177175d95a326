package ruleset

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file translates the rules of pods and host endpoints to chains. A chain is named by a digest
// of its rules, so a chain of the right name has the right rules, and equal chains are one chain.
//
// The kernel has limits: 128 expressions and 4 KB a rule, and 16 chains from a base chain to the
// last, by jump or by goto. And it has no "or": a rule matches only if all of its expressions do. A
// small "or" becomes several rules. A large one becomes a chain of its own, which leaves its
// outcome in two bits of the packet's mark (outcome.go): so the cost is the sum of the terms, not
// their product.

// scope is where rules judge.
type scope struct {
	name     string // of its chains, with their digest
	families []nft.Family
	denied   string // the chain that what is denied goes to
	noTrack  bool   // what is allowed is not tracked
	pods     bool   // it is pods that are judged
}

func (rs *Ruleset) podScope(f nft.Family) scope {
	return scope{name: f.Name + "-rules", families: []nft.Family{f}, denied: f.Name + "-denied", pods: true}
}

var (
	hostScope      = scope{name: "host-rules", families: []nft.Family{nft.IPv4, nft.IPv6}, denied: dropChain(state.DropHost)}
	untrackedScope = scope{name: "raw-rules", families: []nft.Family{nft.IPv4, nft.IPv6}, denied: dropChain(state.DropHost), noTrack: true}
)

// limits bound what is written into one chain; what is beyond becomes chains of its own.
type limits struct {
	// Of a rule except for its end: the kernel takes 128 expressions, in 4 KB as it holds them,
	// which is three quarters of what they take in a message at the most.
	exprs, bytes int

	inline int // rules that one declared rule may become
	policy int // declared rules of a policy that stand in the first chain itself
	// Stages that go on to each other by goto, and the ways through them: the kernel goes all ways
	// when it checks them.
	nested, ways int
}

func (l limits) hold(r nft.Rule) bool {
	exprs, bytes := r.Size()
	return exprs <= l.exprs && bytes <= l.bytes
}

var (
	usualLimits = limits{exprs: 120, bytes: 5000, inline: 16, policy: 64, nested: 4, ways: 1024}
	// apartLimits make a chain of nearly everything.
	apartLimits = limits{exprs: 16, bytes: 5000, inline: 1, policy: 1, nested: 1, ways: 1}
)

// draft is a chain that is being written.
type draft struct {
	rules    []nft.Rule
	counters map[string]struct{}
	next     map[string]*table.DynamicChain
	marks    bool
}

func newDraft() *draft {
	return &draft{counters: map[string]struct{}{}, next: map[string]*table.DynamicChain{}}
}

func (d *draft) add(r nft.Rule) { d.rules = append(d.rules, r) }

func (d *draft) jump(r nft.Rule, to *table.DynamicChain) { d.lead(to); d.add(r.Jump(to.Name)) }
func (d *draft) goTo(r nft.Rule, to *table.DynamicChain) { d.lead(to); d.add(r.Goto(to.Name)) }

func (d *draft) lead(to *table.DynamicChain) {
	d.next[to.Name] = to
	d.marks = d.marks || to.Marks
}

// count has the rule count what a policy decided.
func (d *draft) count(r nft.Rule, verdict string, key model.PolicyKey) nft.Rule {
	name := CounterName(verdict, key)
	d.counters[name] = struct{}{}
	return r.Count(name)
}

// done names the chain.
func (d *draft) done(name, comment string) *table.DynamicChain {
	r := &table.DynamicChain{Counters: slices.Sorted(maps.Keys(d.counters)), Marks: d.marks}
	for _, name := range slices.Sorted(maps.Keys(d.next)) {
		r.Next = append(r.Next, d.next[name])
	}
	r.Chain = nft.Chain{Name: name + "-" + digestRules(d.rules), Comment: comment, Rules: d.rules}
	return r
}

// translate returns the first chain of an endpoint's rules.
func (rs *Ruleset) translate(at scope, rules *state.Rules) *table.DynamicChain {
	w := rulesWriter{Ruleset: rs, scope: at, rules: rules}
	return w.guard(w.first())
}

// rulesWriter writes the chains of an endpoint's rules.
type rulesWriter struct {
	*Ruleset
	scope scope
	rules *state.Rules
}

// first writes the first chain.
func (w *rulesWriter) first() *table.DynamicChain {
	if w.scope.noTrack && len(w.rules.Tiers) > 0 && w.rules.Tiers[0].Failsafe() {
		return w.tracked(w.rules.Tiers[0])
	}
	stages := state.Stages(w.rules.Tiers)
	nested, ways := len(stages) <= w.limits.nested, 1
	for _, s := range stages[:len(stages)-1] {
		ways *= 1 + s[len(s)-1].Passes()*w.limits.inline
		nested = nested && ways <= w.limits.ways
	}
	if nested {
		return w.nest(stages)
	}
	return w.sequence(stages)
}

// tracked writes rules whose first tier are the failsafe ports: their packets stay tracked, as
// replies to what others than the node have sent are among them.
func (w *rulesWriter) tracked(failsafe state.Tier) *table.DynamicChain {
	rest, rules := *w, *w.rules
	rules.Tiers, rest.rules = rules.Tiers[1:], &rules
	d := newDraft()
	w.stage(d, []state.Tier{failsafe}, outcomes{
		allow: func(d *draft, r nft.Rule) { d.add(r.Return()) },
		pass:  func(d *draft, r nft.Rule) { d.goTo(r, rest.first()) },
	})
	return d.done(w.scope.name, w.title())
}

// outcomes are how a chain writes that a packet is allowed, and that it passes to the next tier.
type outcomes struct{ allow, pass func(*draft, nft.Rule) }

// nest writes each stage into a chain of its own, from which the one before goes on to it by goto.
func (w *rulesWriter) nest(stages [][]state.Tier) *table.DynamicChain {
	d := newDraft()
	o := outcomes{w.allow, w.end}
	if len(stages) > 1 {
		next := w.nest(stages[1:])
		o.pass = func(d *draft, r nft.Rule) { d.goTo(r, next) }
	}
	w.stage(d, stages[0], o)
	return d.done(w.scope.name, w.title())
}

// sequence writes one chain that jumps to one stage after the other, however many there are.
func (w *rulesWriter) sequence(stages [][]state.Tier) *table.DynamicChain {
	d := newDraft()
	for _, s := range stages {
		stage := newDraft()
		w.stage(stage, s, outcomes{leave(yes), func(d *draft, r nft.Rule) { d.add(r.Return()) }})
		w.call(d, stage.done(w.scope.name+"-tier", truncate(s[0].Name)), outcomes{allow: w.allow})
	}
	w.end(d, rule())
	return d.done(w.scope.name, w.title())
}

// allow lets the packet pass.
func (w *rulesWriter) allow(d *draft, r nft.Rule) {
	if w.scope.noTrack {
		r = r.Add(&expr.Notrack{})
	}
	d.add(r.Return())
}

// end is for packets that passed all tiers.
func (w *rulesWriter) end(d *draft, r nft.Rule) {
	if w.rules.Default == model.Deny {
		d.add(r.Goto(w.scope.denied))
		return
	}
	d.add(r.Return())
}

// stage writes tiers of which the last alone may have rules that pass.
func (w *rulesWriter) stage(d *draft, tiers []state.Tier, o outcomes) {
	for _, t := range tiers {
		for _, own := range t.Policies {
			w.rulesOf(d, own, o)
		}
		if t.Default == model.Deny {
			w.isolate(d, t)
			return
		}
	}
	o.pass(d, rule())
}

// isolate denies what no rule of the tier matched.
func (w *rulesWriter) isolate(d *draft, t state.Tier) {
	r := rule(truncate("no rule of tier " + t.Name + " allows it"))
	for _, own := range t.Policies {
		if next := d.count(r, Denied, own.Policy); w.limits.hold(next) {
			r = next
		} else {
			d.add(r)
			r = d.count(rule(), Denied, own.Policy)
		}
	}
	d.add(r.Goto(w.scope.denied))
}

// rulesOf writes the rules of a policy, those of a large one into a chain of its own, which all
// endpoints share.
func (w *rulesWriter) rulesOf(d *draft, own *state.PolicyRules, o outcomes) {
	if len(own.Rules) <= w.limits.policy {
		w.policyRules(d, own, o)
		return
	}
	key := policyAt{w.scope.name, own.ID}
	r := w.large[key]
	if r == nil {
		apart := newDraft()
		w.policyRules(apart, own, outcomes{leave(yes), leave(passed)})
		r = apart.done(w.scope.name+"-policy", truncate(own.Policy.String()))
		w.large[key] = r
	}
	w.call(d, r, o)
}

// policyAt names the rules of a policy in a scope.
type policyAt struct{ scope, id string }

// call jumps to a chain and does what its outcome says.
func (w *rulesWriter) call(d *draft, to *table.DynamicChain, o outcomes) {
	d.jump(rule(), to)
	d.marks = true
	o.allow(d, rule().Mark(expr.CmpOpEq, outcomeBits, yes).SetMark(outcomeBits, nothing))
	if o.pass != nil {
		o.pass(d, rule().Mark(expr.CmpOpEq, outcomeBits, passed).SetMark(outcomeBits, nothing))
	}
}

func (w *rulesWriter) policyRules(d *draft, own *state.PolicyRules, o outcomes) {
	for i := range own.Rules {
		s := &own.Rules[i]
		for _, f := range w.scope.families {
			if s.Family != 0 && int(s.Family) != f.Version() {
				continue
			}
			for _, r := range w.matches(d, f, s, comment(own, s)) {
				switch s.Action {
				case model.Allow:
					o.allow(d, d.count(r, Allowed, own.Policy))
				case model.Deny:
					d.add(d.count(r, Denied, own.Policy).Goto(w.scope.denied))
				case model.Pass:
					o.pass(d, r)
				case model.Log:
					d.add(log(r, own.Policy, s))
				}
			}
		}
	}
}

// comment names the declared rule that a rule was made of.
func comment(own *state.PolicyRules, s *state.Rule) string {
	return truncate(own.Policy.String() + " " + s.Name)
}

// title names the policies of the rules, as many as a comment holds.
func (w *rulesWriter) title() string {
	var b strings.Builder
	for _, t := range w.rules.Tiers {
		for _, own := range t.Policies {
			if b.Len() > 0 {
				b.WriteString(", ")
			}
			if b.WriteString(own.Policy.String()); b.Len() > nft.MaxComment {
				return truncate(b.String())
			}
		}
	}
	return truncate(b.String())
}

// log writes to the kernel's log, as Calico's action Log does.
func log(r nft.Rule, key model.PolicyKey, s *state.Rule) nft.Rule {
	return r.Add(&expr.Log{Key: 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_LEVEL, Level: expr.LogLevelInfo,
		Data: []byte(truncate("sluice: " + key.String() + " " + s.Name + ": "))})
}

// truncate makes a text fit a comment, or a prefix in the kernel's log.
func truncate(s string) string {
	s = model.Printable(s)
	return strings.ToValidUTF8(s[:min(len(s), nft.MaxComment)], "")
}

// digestRules identifies rules by all that the kernel is told of them.
func digestRules(rules []nft.Rule) string {
	h := sha256.New() // what is hashed is for tenants to choose
	var a attr.Attrs
	for _, r := range rules {
		a.B = a.B[:0]
		r.Write(&a, TableName, "")
		h.Write(a.B)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func digestName(s string) string { return fmt.Sprintf("%016x", xxhash.Sum64String(s)) }
