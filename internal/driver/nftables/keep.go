package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
)

// This file is about adopting a kernel without taking from it what want may lack.

func newKept() driver.Kept {
	return driver.Kept{Senders: map[netip.Addr]bool{}, Receivers: map[netip.Addr]bool{}, Hosts: map[int]bool{}, Members: map[netip.Prefix]bool{}}
}

// findMentioned finds out which chains are to be kept where policies are all that is lacking: if no
// chain names one of them, they were not in force here, and nothing is kept. Nor is it where the
// table holds another ruleset, as all of that would have to stay.
func (a *adoption) findMentioned(ctx context.Context) (err error) {
	if len(a.keep.Policies) == 0 || a.Have == nil || !a.of.hold(policyPart) {
		return nil
	}
	if a.mentioned, err = a.d.mentioning(ctx, a.keep.Policies); err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	if len(a.mentioned) == 0 || !a.sameRuleset() {
		a.mentioned = nil
	}
	return nil
}

// About implements table.Keeping.
func (a *adoption) About(s *nft.Set) bool { return a.of.hold(partOf(a.d.ruleset, s)) }

// MayLack implements table.Keeping.
func (a *adoption) MayLack(s *nft.Set) bool {
	if a.d.ruleset.IsList(s) {
		return false // it says how packets are treated, and belongs to no object that may come yet
	}
	if a.d.ruleset.OfPolicy(s) {
		return a.keep.Policy || a.mentioned != nil
	}
	return a.keep.Services
}

// Rest implements table.Keeping.
func (a *adoption) Rest(content map[*nft.Set]map[nft.ElementKey]nft.Element) {
	for s, rest := range content {
		if !a.MayLack(s) || !a.countsAsKept(s) {
			continue
		}
		for _, e := range rest {
			if a.mustStay(&e) {
				*a.keptOf(s)++
			}
		}
	}
	for s, rest := range content {
		for _, e := range rest {
			switch {
			case *a.keptOf(s) > 0 && a.MayLack(s) && a.mustStay(&e):
				a.keepElement(&e)
			case a.Reused[s] && a.d.ruleset.Late(s):
				a.Batch.DeleteLast(&e)
			case a.Reused[s]:
				a.Batch.Delete(&e)
			}
		}
	}
}

// keptOf counts what is kept of the set's part.
func (a *adoption) keptOf(s *nft.Set) *int {
	if a.d.ruleset.OfPolicy(s) {
		return &a.kept.Policy
	}
	return &a.kept.Services
}

// countsAsKept reports whether what stays in the set is told: what belongs to a frontend is
// counted with the frontend.
func (a *adoption) countsAsKept(s *nft.Set) bool {
	for _, fp := range a.d.ruleset.Families {
		if s == fp.Frontends || s == fp.OtherIPs {
			return true
		}
	}
	return a.d.ruleset.OfPolicy(s) && (a.mentioned == nil || s.Verdict)
}

// mustStay reports whether an element that want has no use for may belong to something that
// want lacks: not if it is a remnant of a frontend that want names or named.
func (a *adoption) mustStay(e *nft.Element) bool {
	if a.d.ruleset.OfPolicy(e.Set) {
		return a.policyMustStay(e)
	}
	k, ok := a.d.ruleset.Frontend(e)
	if !ok {
		return true // an address
	}
	if _, named := a.want.Services.Frontends[k]; named || a.d.state == nil {
		return !named
	}
	_, was := a.d.state.Services.Frontends[k]
	return !was // what was named since this driver began was seen to go
}

// policyMustStay is mustStay for the sets of policy. What the node's own links and settings say is
// always whole.
func (a *adoption) policyMustStay(e *nft.Element) bool {
	if ruleset.IsDeviceSet(e.Set) {
		return false
	}
	if _, was := a.named()[setKey{e.Set.ID, e.ElementKey}]; was {
		return false
	}
	return a.mentioned == nil || a.keptForPolicies(e)
}

// keptForPolicies is policyMustStay where policies are all that is lacking: it keeps host
// endpoints' rules that name one, and sets that only such rules can know. Of pods and of all other
// sets, what want says is the whole.
func (a *adoption) keptForPolicies(e *nft.Element) bool {
	p := a.want.Policy
	if e.Set.Verdict {
		return ruleset.IsHostMap(e.Set) && p.Hosts[ruleset.DeviceOf(e)] != nil && a.mentioned[e.Verdict.Chain]
	}
	id, ok := ruleset.SetOf(e)
	return ok && p.Groups[id] == nil && p.Lists[id] == nil && p.NamedPorts[id] == nil && p.PortSets[id] == nil
}

// isObsolete reports whether a chain that want does not lead to is not kept, though something is:
// if packets enter it by themselves and policies are all that is lacking, or it is none of
// policy's.
func (a *adoption) isObsolete(name string) bool {
	return ruleset.IsOuter(name) || a.mentioned != nil && ruleset.IsEntry(name)
}

// MustStay implements table.Keeping: a pod or a host endpoint stays with the rules that the
// kernel has for it, as those may be of policies that want lacks, until want has others for it than
// at first.
//
// Nothing of the sort is known where no policy applied, or where the address was another pod's.
func (a *adoption) MustStay(there, e *nft.Element) bool {
	if !a.MayLack(e.Set) || !a.d.ruleset.OfPolicy(e.Set) || !e.Set.Verdict || there.Verdict == nft.Return || there.Comment != e.Comment {
		return false
	}
	if a.mentioned != nil && !a.mentioned[there.Verdict.Chain] {
		return false
	}
	was, known := a.named()[setKey{e.Set.ID, e.ElementKey}]
	if a.d.state != nil && known && !was.SameValue(e) {
		return false
	}
	a.kept.Policy++
	a.d.ruleset.NoteKept(&a.kept, there)
	return true
}

// named are the elements of policy that the last want of this driver named; none before the first.
func (a *adoption) named() map[setKey]nft.Element {
	if a.was == nil {
		a.was = map[setKey]nft.Element{}
		if a.d.state != nil && a.d.ruleset.HasPolicy() {
			a.d.ruleset.EachPolicyElement(a.d.state.Policy, func(e *nft.Element) { a.was[setKey{e.Set.ID, e.ElementKey}] = *e })
		}
	}
	return a.was
}

// keepElement keeps an element, with the chain that it leads to, and writes it again where
// its set is created anew.
func (a *adoption) keepElement(e *nft.Element) {
	if name := e.Verdict.Chain; ruleset.IsLearnChain(name) {
		if write := a.d.ruleset.LearnChainNamed(name); write != nil {
			a.Refs.Use(name, write)
		}
	}
	if c, ok := a.d.ruleset.RawChain(e.Set); ok {
		a.Refs.Use(c.Name, func() *table.DynamicChain { return &table.DynamicChain{Chain: c} })
	}
	if a.d.ruleset.OfPolicy(e.Set) && (e.Set.Verdict || a.mentioned == nil) {
		a.d.ruleset.NoteKept(&a.kept, e)
	}
	a.Sums[e.Set.ID].Add(e)
	if !a.Reused[e.Set] {
		a.Batch.Add(e)
	}
}

// mentioning are the chains that name one of the policies, in a counter or a comment, and those
// that lead to one of them.
func (d *Driver) mentioning(ctx context.Context, policies []model.PolicyKey) (map[string]bool, error) {
	names := map[string]bool{}
	for _, k := range policies {
		names[ruleset.CounterName(ruleset.Allowed, k)], names[ruleset.CounterName(ruleset.Denied, k)], names[k.String()] = true, true, true
	}
	mentioned, leads := map[string]bool{}, map[string][]string{}
	var found []string
	err := d.Sock.ReadRules(ctx, ruleset.TableName, func(r nft.RuleInfo) {
		words := strings.SplitN(r.Comment, " ", 3)
		if len(words) > 1 && names[words[0]+" "+words[1]] || slices.ContainsFunc(r.Counters, func(c string) bool { return names[c] }) {
			found = append(found, r.Chain)
		}
		for _, to := range r.To {
			leads[to] = append(leads[to], r.Chain)
		}
	})
	for len(found) > 0 {
		chain := found[0]
		found = found[1:]
		if !mentioned[chain] {
			mentioned[chain] = true
			found = append(found, leads[chain]...)
		}
	}
	return mentioned, err
}
