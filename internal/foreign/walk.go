package foreign

import (
	"errors"
	"fmt"
	"strings"
)

// answer is whether something is so, as far as it is known; the zero answer: it is not known.
type answer int8

const (
	maybe answer = iota
	no
	yes
)

func is(b bool) answer {
	if b {
		return yes
	}
	return no
}

// not is the opposite.
func (a answer) not() answer {
	switch a {
	case yes:
		return no
	case no:
		return yes
	}
	return maybe
}

// and is whether both are so.
func (a answer) and(b answer) answer {
	switch {
	case a == no || b == no:
		return no
	case a == yes && b == yes:
		return yes
	}
	return maybe
}

// What rules do with a packet that matches; empty: they leave it to the next rule.
const (
	accept = "accept"
	drop   = "drop"
	reject = "reject"
	jump   = "jump"
	goTo   = "goto"
	back   = "return"
)

// rule is a rule of another program.
type rule interface {
	// apply returns what the rule does with a packet, if it matches: more than one action only if
	// it is not known which, no's left out.
	apply(p *packet) ([]action, error)
	// at is where the rule is, with what its author wrote beside it.
	at(number int) position
}

// action is what a rule does, and whether it matches.
type action struct {
	matches answer
	does    string
	chain   string // that it jumps to
	alters  string // what the rule alters of the connection beside, for people
}

// What rules of others may alter of a connection, so that services are not what they seem.
const (
	translates = "gives it another address"
	untracks   = "takes it from connection tracking, so that no service translates it"
)

// where is the action of a rule whose condition is that.
func (a action) where(matches answer) action {
	a.matches = a.matches.and(matches)
	return a
}

// position is where a rule is.
type position struct {
	number  int // in its chain, from 1
	comment string
	handle  uint64 // nftables' number of it; 0: it has none
}

// String is `rule 3 ("no telnet")`.
func (p *position) String() string {
	if p.comment == "" {
		return fmt.Sprintf("rule %d", p.number)
	}
	return fmt.Sprintf("rule %d (%q)", p.number, p.comment)
}

// end is where a packet ends, or may end.
type end struct {
	kind    string    // drop or reject
	chain   string    // that has the rule
	rule    *position // nil: the base chain's policy
	matches bool      // the rule does, for sure
	certain bool      // and the packet comes to it for sure
}

// fate is what may have become of a packet in a chain: some of these.
type fate uint8

const (
	accepted fate = 1 << iota
	dropped
	returned // it goes on behind the chain
)

// walk follows a packet through a base chain and what it jumps to.
type walk struct {
	base   *Chain
	p      *packet
	jumps  bool // follow them; else what they lead to is taken to leave the packet alone
	unsure bool // whether it comes to the base chain

	ends  []end // in the order in which the packet comes to them
	alter []end // the rules that alter it for sure, their kind what they do
	rules int   // that were tried
}

// run does it.
func (w *walk) run() error {
	fate, err := w.chain(w.base.Name, !w.unsure, 0)
	if err == nil && fate&returned != 0 && w.base.policy == drop {
		w.ends = append(w.ends, end{kind: drop, chain: w.base.Name, matches: true, certain: fate&accepted == 0 && !w.unsure})
	}
	return err
}

// These bound a walk: the kernel's own limit of jumps (NFT_JUMP_STACK_SIZE), and rules that take
// some tenths of a second.
const maxJumps, maxRules = 16, 1 << 20

var errTooMany = errors.New("a packet may meet too many rules to follow it")

// chain follows the packet through a chain, to which it comes for sure or not.
func (w *walk) chain(name string, sure bool, depth int) (f fate, err error) {
	rules, err := w.base.rules(name)
	if err != nil {
		return 0, err
	}
	for i, r := range rules {
		if w.rules++; w.rules > maxRules || depth > maxJumps {
			return 0, errTooMany
		}
		actions, err := r.apply(w.p)
		if err != nil {
			return 0, err
		}
		for _, a := range actions {
			comes := sure && f&^dropped == 0
			became, err := w.act(a, r.at(i+1), name, comes, depth)
			if err != nil {
				return 0, err
			}
			if f |= became &^ goesOn; a.matches == yes && became&goesOn == 0 {
				return f, nil
			}
		}
	}
	return f | returned, nil
}

// goesOn, beside what may have become of a packet: it comes to the chain's next rule.
const goesOn fate = 1 << 7

// act does what a rule says, of a chain whose rule the packet comes to for sure or not.
func (w *walk) act(a action, at position, chain string, comes bool, depth int) (fate, error) {
	comes = comes && a.matches == yes
	if a.alters != "" && comes {
		w.alter = append(w.alter, end{kind: a.alters, chain: chain, rule: &at, matches: true, certain: true})
	}
	switch a.does {
	case accept:
		return accepted, nil
	case drop, reject:
		w.ends = append(w.ends, end{kind: a.does, chain: chain, rule: &at, matches: a.matches == yes, certain: comes})
		return dropped, nil
	case back:
		return returned, nil
	case jump, goTo:
		if !w.jumps || strings.HasPrefix(a.chain, "SLUICE-") { // our own have been asked
			return goesOn, nil
		}
		f, err := w.chain(a.chain, comes, depth+1)
		if f&returned != 0 && a.does == jump {
			f = f&^returned | goesOn
		}
		return f, err
	}
	return goesOn, nil
}
