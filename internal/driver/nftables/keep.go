package nftables

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/state"
)

// This file is about adopting a kernel without taking from it what want may lack.

// settleKeeping finds out which programs are to be kept where policies are all that is lacking: if no chain names one of them, they were
// not in force here, and nothing is kept. Nor is it where the program is another's, as all would have to stay for it.
func (a *adoption) settleKeeping(ctx context.Context) (err error) {
	if len(a.keep.Policies) == 0 || a.have == nil || !a.of.policy {
		return nil
	}
	if a.mentioned, err = a.d.mentioning(ctx, a.keep.Policies); err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	if len(a.mentioned) == 0 || !a.sameProgram() {
		a.mentioned = nil
	}
	return nil
}

// mayLack reports whether elements of the set may have to stay though want does not name them.
func (a *adoption) mayLack(s *set) bool {
	if s.policy {
		return a.keep.Policy || a.mentioned != nil
	}
	return a.keep.Services
}

// sameSets reports whether the kernel has all of this program's sets, whatever else.
func (a *adoption) sameSets() bool {
	return !slices.ContainsFunc(a.d.prog.sets, func(s *set) bool { return a.have.sets[s.name] != s.def() })
}

// settleRest plans what becomes of the elements that want has no use for.
func (a *adoption) settleRest(content map[*set]map[elementKey]element) {
	for name := range a.mentioned { // those that no element leads to
		if _, wanted := a.change.uses.chains[name]; !wanted && isEntry(name) {
			a.kept.Policy++
		}
	}
	for s, rest := range content {
		if !a.mayLack(s) || !a.countsAsKept(s) {
			continue
		}
		for _, e := range rest {
			if a.stays(&e) {
				*a.keptOf(s)++
			}
		}
	}
	for s, rest := range content {
		for _, e := range rest {
			switch {
			case *a.keptOf(s) > 0 && a.mayLack(s) && a.stays(&e):
				a.keepElement(&e)
			case a.reused[s]:
				a.change.batch.delete(&e)
			}
		}
	}
}

// keptOf counts what is kept of the set's part.
func (a *adoption) keptOf(s *set) *int {
	if s.policy {
		return &a.kept.Policy
	}
	return &a.kept.Services
}

// countsAsKept reports whether what stays in the set is told: what belongs to a frontend is
// counted with the frontend.
func (a *adoption) countsAsKept(s *set) bool {
	for _, fp := range a.d.prog.fam {
		if s == fp.frontends || s == fp.otherIPs {
			return true
		}
	}
	return s.policy && (a.mentioned == nil || s.verdict)
}

// stays reports whether an element that want has no use for may belong to something that
// want lacks: not if it is a remnant of a frontend that want names or named.
func (a *adoption) stays(e *element) bool {
	if e.set.policy {
		return a.policyStays(e)
	}
	k, ok := e.frontend()
	if !ok {
		return true // an address
	}
	if _, named := a.want.Services.Frontends[k]; named || a.d.state == nil {
		return !named
	}
	_, was := a.d.state.Services.Frontends[k]
	return !was // what was named since this driver began was seen to go
}

// policyStays is stays for the sets of policy. What the node's own links and settings say is always whole.
func (a *adoption) policyStays(e *element) bool {
	if len(e.set.key) == 1 && !e.set.verdict && e.set.key[0].magic == fieldDevice.magic {
		return false
	}
	if _, was := a.named()[setKey{e.set.id, e.elementKey}]; was {
		return false
	}
	return a.mentioned == nil || a.keptForPolicies(e)
}

// keptForPolicies is policyStays where policies are all that is lacking: it keeps host endpoints' programs that name one, and sets that only
// such programs can know. Of pods and of all other sets, what want says is the whole.
func (a *adoption) keptForPolicies(e *element) bool {
	p, number := a.want.Policy, nativeUint32(e.key[:4])
	switch {
	case e.set.verdict:
		return isHosts(e.set) && p.Hosts[int(number)] != nil && a.mentioned[e.verdict.chain]
	case e.set.key[0].magic != fieldSlot.magic || number <= 0xff: // numbers up to that are not of policies
		return false
	}
	id := state.SetID(number &^ 0xff)
	return p.Groups[id] == nil && p.Lists[id] == nil && p.NamedPorts[id] == nil && p.PortSets[id] == nil
}

// isHosts reports whether the set leads to programs of host endpoints.
func isHosts(s *set) bool { return s.verdict && len(s.key) == 1 && s.key[0].magic == fieldDevice.magic }

// isOver reports whether a chain that want does not lead to goes, though something is kept: if packets enter it by themselves and
// policies are all that is lacking.
func (a *adoption) isOver(name string) bool {
	return a.mentioned != nil && isEntry(name) && !a.mentioned[name]
}

// isEntry reports whether the chain is one of those beside the program's own that packets enter by themselves.
func isEntry(name string) bool {
	return strings.HasPrefix(name, "raw-in-") || strings.HasPrefix(name, "raw-out-") || strings.HasPrefix(name, "deny-")
}

// keepsVerdict reports whether a pod or a host endpoint stays with the program that the kernel has for it, as that
// may know of policies that want lacks: until want has another one for it than at first.
//
// Nothing of the sort is known where no policy applied, or where the address was another pod's.
func (a *adoption) keepsVerdict(had, e *element) bool {
	if !a.mayLack(e.set) || !e.set.policy || !e.set.verdict || had.verdict == returnIt || had.comment != e.comment {
		return false
	}
	if a.mentioned != nil && !a.mentioned[had.verdict.chain] {
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
		if seconds, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:]); err == nil && seconds > 0 {
			a.change.uses.use(name, func() *ruling { return &ruling{chain: fp.learnChain(time.Duration(seconds) * time.Second)} })
		}
	}
	if e.set.policy && (e.set.verdict || a.mentioned == nil) {
		a.d.prog.noteKept(&a.kept, e)
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
		a.change.uses.chains[name] = enrolled{uses: 1, rules: a.have.rules[name], ruling: &ruling{chain: chain{name: name}}}
	}
}
