package iptables

import (
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file translates the rules of pods and host endpoints to chains. A chain is named after its
// rules, so that equal ones are one, and a chain of the right name has the right rules.
//
// A rule of iptables acts if all of its matches hold. A declared rule that asks for one of several
// things becomes a rule for each combination, while these are few. Otherwise it becomes chains that
// lead on, from an alternative that holds to the next list of alternatives, and at last to one that
// marks the packet: a chain can return nothing else. So the cost is the sum of the alternatives.
// The same mark has tiers follow one another where they are too many to lead on to each other.

// limits bound what is written without the mark.
type limits struct {
	combined int // rules that a declared one may become
	never    int // what a rule asks a packet not to be
	nested   int // chains of tiers that lead on to each other: of the variant nft, the kernel follows sixteen in all
}

var (
	usualLimits = limits{combined: 16, never: 16, nested: 4}
	apartLimits = limits{combined: 1, never: 0, nested: 1} // nearly everything is written with it
)

// matched is the bit of a packet's mark by which a chain says that it matches, or allows. Neither
// kube-proxy nor the CNI plugin portmap uses it, nor another mode of ours.
const matched = "0x800/0x800"

const (
	matchedChain   = policyPrefix + "MATCHED"
	unmatchedChain = policyPrefix + "UNMATCHED"
)

var (
	setMatched = line{text: "-j MARK --set-xmark " + matched}
	unmark     = line{text: "-j MARK --set-xmark 0x0/0x800"}
	ifMatch    = match{text: "-m mark --mark " + matched + " "}
)

// site is where rules judge.
type site struct {
	kind, table   string // of their chains
	allow, denied string // what befalls a packet
}

var (
	podSite   = site{"P-R", "filter", "-j RETURN", "-g " + deniedChain}
	hostSite  = site{"P-H", "filter", "-j RETURN", "-g " + dropChain(state.DropHost)}
	earlySite = site{"P-M", "mangle", "-j RETURN", "-g " + dropChain(state.DropHost)}
	rawSite   = site{"P-U", "raw", "-g " + noTrackChain, "-g " + dropChain(state.DropHost)}
	sites     = []site{podSite, hostSite, earlySite, rawSite}
)

// written is the chains of an endpoint's rules in one family.
type written struct {
	entry   string
	chains  map[string][]string
	lookups map[lookup]bool
	decide  map[ruleAt]decision
}

// ruleAt is a rule, by its chain and its place there.
type ruleAt struct {
	chain string
	index int
}

// decision is what a rule means for policies.
type decision struct {
	of      []model.PolicyKey
	allowed bool
}

// line is a rule.
type line struct {
	text string
	decision
}

// writer writes the chains of an endpoint's rules.
type writer struct {
	family
	site
	limits
	*written
	// names are rules that no packet comes to: they name the policies, for people and for
	// adoptions, and tell apart the chains of rules that count for different ones.
	names []line
}

// write translates the rules of an endpoint.
func (f family) write(at site, p *state.Rules) *written {
	w := writer{family: f, site: at, limits: usualLimits, written: &written{chains: map[string][]string{}, lookups: map[lookup]bool{}, decide: map[ruleAt]decision{}}}
	if f.apart {
		w.limits = apartLimits
	}
	end := "-j RETURN" // what no rule is about is tracked
	if p.Default == model.Deny {
		end = at.denied
	}
	for _, k := range p.Declared() {
		w.names = append(w.names, line{text: comment(k) + " -j RETURN"})
	}
	w.entry = w.tiers(p.Tiers, end)
	return w.written
}

// comment names a policy.
func comment(k model.PolicyKey) string {
	return `-m comment --comment "` + quotable(k.String(), 255) + `"`
}

// quotable is a text as it may stand between quotes, and not longer than iptables takes.
func quotable(s string, most int) string {
	s = strings.NewReplacer(`"`, "_", `\`, "_").Replace(model.Printable(s))
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// add adds a chain and returns its name.
func (w writer) add(lines []line) string {
	rules := make([]string, len(lines))
	for i, l := range lines {
		rules[i] = l.text
	}
	name := named(w.kind, strings.Join(rules, "\n"))
	w.chains[name] = rules
	for i, l := range lines {
		if at := (ruleAt{name, i}); len(l.of) > 0 {
			w.decide[at] = l.decision
		}
	}
	return name
}

// tiers writes tiers, and then the end, and returns their first chain.
func (w writer) tiers(tiers []state.Tier, end string) string {
	stages := state.Stages(tiers)
	if len(stages) > w.nested {
		return w.add(append(w.sequence(tiers, end), w.names...))
	}
	next := end
	for _, s := range slices.Backward(stages) {
		next = "-g " + w.add(w.stage(s, next))
	}
	return strings.TrimPrefix(next, "-g ")
}

// sequence calls one stage after the other, however many there are.
func (w writer) sequence(tiers []state.Tier, end string) (lines []line) {
	if len(tiers) > 0 && tiers[0].Failsafe() {
		lines, tiers = w.rules(tiers[:1], end), tiers[1:]
	}
	called := w
	called.allow, w.chains[matchedChain] = "-g "+matchedChain, []string{setMatched.text}
	for _, s := range state.Stages(tiers) {
		lines = append(lines, line{text: "-j " + w.add(append([]line{unmark}, called.stage(s, "-j RETURN")...))}, ifMatch.then(w.then(line{text: w.allow})))
	}
	return append(lines, line{text: end})
}

// stage returns the rules of tiers of which the last alone may have some that pass, the end, and
// the names.
func (w writer) stage(tiers []state.Tier, next string) []line {
	end := line{text: next}
	if last := len(tiers) - 1; last >= 0 && tiers[last].Default == model.Deny {
		end.text = w.denied
		for _, own := range tiers[last].Policies {
			end.of = append(end.of, own.Policy)
		}
	}
	return append(append(w.rules(tiers, next), end), w.names...)
}

// rules returns the rules of tiers.
func (w writer) rules(tiers []state.Tier, next string) (lines []line) {
	for _, t := range tiers {
		for _, own := range t.Policies {
			for i := range own.Rules {
				r := &own.Rules[i]
				lines = append(lines, w.rule(r, w.action(own.Policy, r, next))...)
			}
		}
	}
	return lines
}

func (w writer) action(key model.PolicyKey, r *state.Rule, next string) line {
	of := []model.PolicyKey{key}
	switch {
	case r.Action == model.Pass:
		return line{text: next}
	case r.Action == model.Deny:
		return line{w.denied, decision{of, false}}
	case r.Action == model.Log:
		return line{text: `-j LOG --log-prefix "` + quotable("sluice: "+key.String()+" "+r.Name, 28) + ` " --log-level 6`}
	case key.Kind == model.Failsafe: // tracked, as replies to what others have sent are among it
		return line{"-j RETURN", decision{of, true}}
	}
	return line{w.allow, decision{of, true}}
}

// rule returns what a declared rule becomes.
func (w writer) rule(r *state.Rule, action line) (lines []line) {
	q := w.ask(r)
	if q == nil {
		return nil // nothing matches
	}
	if all, few := q.combined(w.limits); few {
		for _, m := range all {
			lines = append(lines, m.then(action))
		}
		return lines
	}
	lines = []line{unmark}
	for _, m := range q.never {
		lines = append(lines, m.then(line{text: "-j RETURN"}))
	}
	lines = []line{{text: "-j " + w.add(append(lines, w.oneOf(q.lists)...))}}
	if r.Action == model.Log {
		return append(lines, ifMatch.then(action), unmark)
	}
	return append(lines, ifMatch.then(w.then(action)))
}

// then is an action that takes the mark off the packet, unless that is for others to do.
func (w writer) then(action line) line {
	w.chains[unmatchedChain] = []string{unmark.text}
	switch action.text {
	case w.denied, "-g " + matchedChain:
	case "-j RETURN":
		action.text = "-g " + unmatchedChain
	default:
		action.text = "-g " + w.add([]line{unmark, {text: action.text}})
	}
	return action
}

// oneOf writes lists of alternatives of which one must hold each, one list after the other.
func (w writer) oneOf(lists [][]match) []line {
	then := line{text: "-g " + matchedChain}
	if w.chains[matchedChain] = []string{setMatched.text}; len(lists) > 1 {
		then.text = "-g " + w.add(w.oneOf(lists[1:]))
	}
	return w.among(lists[0], then)
}

// among writes alternatives. Many ranges of ports are parted by what ports they are between.
func (w writer) among(list []match, then line) (lines []line) {
	parts := list
	if n := (len(list) + leafSize - 1) / leafSize; n > 1 {
		parts = nil
		for part := range slices.Chunk(list, n) {
			span, can := part[0].until(part[len(part)-1])
			if !can {
				parts = append(parts, part...)
				continue
			}
			lines = append(lines, span.then(line{text: "-j " + w.add(w.among(part, then))}))
		}
	}
	for _, m := range parts {
		lines = append(lines, m.then(then))
	}
	return lines
}
