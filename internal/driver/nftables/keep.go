package nftables

import "sluice.dev/sluice/internal/driver/nftables/nft"

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
func (a *adoption) mayLack(s *nft.Set) bool {
	if a.d.prog.ofPolicy(s) {
		return a.keep.Policy || a.mentioned != nil
	}
	return a.keep.Services
}

// sameSets reports whether the kernel has all of this program's sets, whatever else.
func (a *adoption) sameSets() bool {
	return !slices.ContainsFunc(a.d.prog.sets, func(s *nft.Set) bool { return a.have.Sets[s.Name] != s.Type() })
}

// settleRest plans what becomes of the elements that want has no use for.
func (a *adoption) settleRest(content map[*nft.Set]map[nft.ElementKey]nft.Element) {
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
				a.change.batch.Delete(&e)
			}
		}
	}
}

// keptOf counts what is kept of the set's part.
func (a *adoption) keptOf(s *nft.Set) *int {
	if a.d.prog.ofPolicy(s) {
		return &a.kept.Policy
	}
	return &a.kept.Services
}

// countsAsKept reports whether what stays in the set is told: what belongs to a frontend is
// counted with the frontend.
func (a *adoption) countsAsKept(s *nft.Set) bool {
	for _, fp := range a.d.prog.fam {
		if s == fp.frontends || s == fp.otherIPs {
			return true
		}
	}
	return a.d.prog.ofPolicy(s) && (a.mentioned == nil || s.Verdict)
}

// stays reports whether an element that want has no use for may belong to something that
// want lacks: not if it is a remnant of a frontend that want names or named.
func (a *adoption) stays(e *nft.Element) bool {
	if a.d.prog.ofPolicy(e.Set) {
		return a.policyStays(e)
	}
	k, ok := a.d.prog.frontend(e)
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
func (a *adoption) policyStays(e *nft.Element) bool {
	if len(e.Set.Key) == 1 && !e.Set.Verdict && e.Set.Key[0].Datatype == nft.IIF.Datatype {
		return false
	}
	if _, was := a.named()[setKey{e.Set.ID, e.ElementKey}]; was {
		return false
	}
	return a.mentioned == nil || a.keptForPolicies(e)
}

// keptForPolicies is policyStays where policies are all that is lacking: it keeps host endpoints' programs that name one, and sets that only
// such programs can know. Of pods and of all other sets, what want says is the whole.
func (a *adoption) keptForPolicies(e *nft.Element) bool {
	p, number := a.want.Policy, nft.NativeUint32(e.Key[:4])
	switch {
	case e.Set.Verdict:
		return isHosts(e.Set) && p.Hosts[int(number)] != nil && a.mentioned[e.Verdict.Chain]
	case e.Set.Key[0].Datatype != nft.Number.Datatype || number <= 0xff: // numbers up to that are not of policies
		return false
	}
	id := state.SetID(number &^ 0xff)
	return p.Groups[id] == nil && p.Lists[id] == nil && p.NamedPorts[id] == nil && p.PortSets[id] == nil
}

// isHosts reports whether the set leads to programs of host endpoints.
func isHosts(s *nft.Set) bool {
	return s.Verdict && len(s.Key) == 1 && s.Key[0].Datatype == nft.IIF.Datatype
}

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
func (a *adoption) keepsVerdict(had, e *nft.Element) bool {
	if !a.mayLack(e.Set) || !a.d.prog.ofPolicy(e.Set) || !e.Set.Verdict || had.Verdict == nft.Return || had.Comment != e.Comment {
		return false
	}
	if a.mentioned != nil && !a.mentioned[had.Verdict.Chain] {
		return false
	}
	was, known := a.named()[setKey{e.Set.ID, e.ElementKey}]
	return a.d.state == nil || !known || was.SameValue(e)
}

// named are the elements of policy that the last want of this driver named; none before the first.
func (a *adoption) named() map[setKey]nft.Element {
	if a.was == nil {
		a.was = map[setKey]nft.Element{}
		if a.d.state != nil && a.d.prog.policy != nil {
			a.d.prog.eachPolicyElement(a.d.state.Policy, func(e *nft.Element) { a.was[setKey{e.Set.ID, e.ElementKey}] = *e })
		}
	}
	return a.was
}

// keepElement keeps an element, with the chain that it leads to, and writes it again where
// its set is created anew.
func (a *adoption) keepElement(e *nft.Element) {
	if name := e.Verdict.Chain; isLearn(name) {
		fp := a.d.prog.family(!strings.HasPrefix(name, nft.IPv6.Name+"-"))
		if seconds, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:]); err == nil && seconds > 0 {
			a.change.uses.use(name, func() *ruling { return &ruling{Chain: fp.learnChain(time.Duration(seconds) * time.Second)} })
		}
	}
	if a.d.prog.ofPolicy(e.Set) && (e.Set.Verdict || a.mentioned == nil) {
		a.d.prog.noteKept(&a.kept, e)
	}
	a.change.sums[e.Set.ID].add(e)
	if !a.reused[e.Set] {
		a.change.batch.Add(e)
	}
}

// isLearn reports whether the chain is one of those for the time-outs of affinity in use.
func isLearn(name string) bool { return strings.Contains(name, "-learn-") }

// keepChains keeps chains of policy, with the number of their rules, which is all that is known of them.
func (a *adoption) keepChains(names []string) {
	for _, name := range names {
		a.change.uses.chains[name] = enrolled{uses: 1, rules: a.have.Rules[name], ruling: &ruling{Chain: nft.Chain{Name: name}}}
	}
}
