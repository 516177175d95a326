package nftables

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
)

// This file is about adopting a kernel without taking from it what want may lack.

// AdoptKeeping implements driver.Keeper. After a plan that kept something, Update fails.
func (d *Driver) AdoptKeeping(ctx context.Context, want *state.State) (driver.Plan, int, error) {
	return d.adoptTrying(ctx, want, true)
}

// sameSets reports whether the kernel has all of this program's sets, whatever else.
func (a *adoption) sameSets() bool {
	return !slices.ContainsFunc(a.d.prog.sets, func(s *set) bool { return a.have.sets[s.name] != s.def() })
}

// settleRest plans what becomes of the elements that want has no use for.
func (a *adoption) settleRest(content map[*set]map[elementKey]element) {
	if a.keeping {
		for s, rest := range content {
			for _, e := range rest {
				if a.countsAsKept(s) && a.stays(&e) {
					a.kept++
				}
			}
		}
	}
	for s, rest := range content {
		for _, e := range rest {
			switch {
			case a.kept > 0 && a.stays(&e):
				a.keepElement(&e)
			case a.reused[s]:
				a.change.batch.delete(&e)
			}
		}
	}
}

// countsAsKept reports whether what stays in the set is told: what belongs to a frontend is
// counted with the frontend.
func (a *adoption) countsAsKept(s *set) bool {
	for _, fp := range a.d.prog.fam {
		if s == fp.frontends || s == fp.otherIPs {
			return true
		}
	}
	return s.policy
}

// stays reports whether an element that want has no use for may belong to something that
// want lacks: not if it is a setting's, or a remnant of a frontend that want names or named.
func (a *adoption) stays(e *element) bool {
	if e.set.policy {
		return a.policyStays(e)
	}
	if e.set.interval && len(e.set.key) == 1 {
		return false
	}
	k, ok := e.frontend()
	if !ok {
		return true // an address
	}
	if _, named := a.want.Frontends[k]; named || a.d.state == nil {
		return !named
	}
	_, was := a.d.state.Frontends[k]
	return !was // what was named since this driver began was seen to go
}

// policyStays is stays for the sets of policy. What the node's own links and settings say is always whole.
func (a *adoption) policyStays(e *element) bool {
	if len(e.set.key) == 1 && (e.set.interval || !e.set.verdict && e.set.key[0].magic == fieldDevice.magic) {
		return false
	}
	_, was := a.named()[setKey{e.set.id, e.elementKey}]
	return !was
}

// keepsVerdict reports whether a pod or a host endpoint stays with the program that the kernel has for it, as that
// may know of policies that want lacks: until want has another one for it than at first.
//
// Nothing of the sort is known where no policy applied, or where the address was another pod's.
func (a *adoption) keepsVerdict(had, e *element) bool {
	if !a.keeping || !e.set.policy || !e.set.verdict || had.verdict == returnIt || had.comment != e.comment {
		return false
	}
	was, known := a.named()[setKey{e.set.id, e.elementKey}]
	return a.d.state == nil || !known || was.sameValue(e)
}

// named are the elements of policy that the last want of this driver named; none before the first.
func (a *adoption) named() map[setKey]element {
	if a.was == nil {
		a.was = map[setKey]element{}
		if a.d.state != nil && a.d.prog.policy != nil {
			a.d.prog.eachPolicyElement(a.d.state.Policy, func(e *element) { a.was[setKey{e.set.id, e.elementKey}] = *e })
		}
	}
	return a.was
}

// keepElement keeps an element, with the chain that it leads to, and writes it again where
// its set is created anew.
func (a *adoption) keepElement(e *element) {
	if name := e.verdict.chain; isLearn(name) {
		fp := a.d.prog.family(!strings.HasPrefix(name, ipv6.name+"-"))
		if seconds, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:]); err == nil {
			a.change.uses.use(ruling{chain: fp.learnChain(time.Duration(seconds) * time.Second)})
		}
	}
	a.change.sums[e.set.id].add(e)
	if !a.reused[e.set] {
		a.change.batch.add(e)
	}
}

// isLearn reports whether the chain is one of those for the time-outs of affinity in use.
func isLearn(name string) bool { return strings.Contains(name, "-learn-") }

// keepChains keeps chains of policy, with the number of their rules, which is all that is known of them.
func (a *adoption) keepChains(names []string) {
	for _, name := range names {
		a.change.uses.chains[name] = enrolled{uses: 1, ruling: ruling{chain: chain{name: name, rules: make([]rule, a.have.rules[name])}}}
	}
}
