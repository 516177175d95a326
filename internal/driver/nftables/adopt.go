package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// Adopt implements driver.Driver.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := partsIn(want)
	switch {
	case !d.parts().hold(of):
		return nil, errors.New("adopt a state with policy by a driver without")
	case of != d.parts() && (d.state == nil || d.failures.of(of) >= table.RebuildAfter):
		return nil, driver.ErrWhole
	case d.failures.of(of) >= table.RebuildAfter && !keep.Any():
		return &plan{d: d, adopts: true, want: want, rebuilds: fmt.Sprintf("%d adoptions failed", table.RebuildAfter)}, nil
	}
	next := d.aside.clone()
	rest := next.leaveOut(want, d.state)
	for try := 1; ; try++ {
		p, err := d.adopt(ctx, rest, keep)
		switch {
		case errors.Is(err, nft.ErrInterrupted) && try < adoptTries:
		case errors.Is(err, errOtherRuleset):
			return &plan{d: d, adopts: true, want: want, rebuilds: "it holds another ruleset"}, nil
		case err != nil:
			d.failures.add(of, err)
			return nil, err
		default:
			p.aside = next
			p.adopts = true
			p.refused = func(ctx context.Context, _ uint32, refusal error) error {
				if p.succeeds && !keep.Services && !keep.Policy {
					d.log.Warn("the kernel refuses to have another ruleset in the table; building a fresh one", "error", refusal)
					return d.rebuild(ctx, want)
				}
				d.log.Warn("the kernel refuses what is wanted; finding out which part of it", "error", refusal)
				return d.adoptRest(ctx, want, keep)
			}
			if !p.waits {
				p.then = func(ctx context.Context) error { return d.afterAdoption(ctx, of) }
			}
			return p, nil
		}
	}
}

// parts are those that the driver carries out.
func (d *Driver) parts() parts { return partsIf(true, d.ruleset.HasPolicy()) }

// afterAdoption removes what a rebuilding that was not finished left, and tries again what was set
// aside.
func (d *Driver) afterAdoption(ctx context.Context, of parts) error {
	if err := d.Drop(ctx, d.Next()); err != nil {
		return err
	}
	d.failures.set(of, 0)
	return d.retry(ctx)
}

// adoptNow adopts a state that the driver has set nothing aside of.
func (d *Driver) adoptNow(ctx context.Context, want *state.State, keep driver.Keep) error {
	p, err := d.adopt(ctx, want, keep)
	if err != nil {
		return err
	}
	if err := d.Claim(ctx, d.Name); err != nil {
		return fmt.Errorf("change nftables: %w", err)
	}
	return d.carryOut(ctx, p)
}

// adoptTries is how often an adoption reads again what changed while it read. Where
// other programs change nftables that often, the agent comes back later.
const adoptTries = 5

func (d *Driver) adopt(ctx context.Context, want *state.State, keep driver.Keep) (*plan, error) {
	if err := d.Look(ctx, d.state != nil); err != nil {
		return nil, err
	}
	have, err := d.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read table inet %s: %w", d.Name, err)
	}
	of := partsIn(want)
	d.adopted &^= of
	if want.Policy != nil {
		sets := d.ruleset.DeniedSetsFor(ruleset.DeniedPrefixes(want.Policy.Denied))
		d.ruleset.SetDenied(sets[:])
	}
	a := &adoption{d: d, of: of, want: want, keep: keep, kept: newKept()}
	a.Adoption = table.Adoption{Change: a.start(), Have: have, Deep: d.Doubt, Keep: a}
	if err := a.findMentioned(ctx); err != nil {
		return nil, err
	}
	return a.plan(ctx)
}

// start returns a change in which the parts that are not adopted stay as they are.
func (a *adoption) start() *table.Change {
	d, c := a.d, a.d.Anew()
	if a.of != d.parts() {
		for _, s := range d.ruleset.Sets {
			if !a.About(s) {
				c.Sums[s.ID] = d.Sums[s.ID]
			}
		}
		c.Refs = d.Refs.Only(func(chain string) bool { return ruleset.OfServices(chain) != a.of.hold(servicesPart) })
	}
	d.ruleset.EachChain(a.want, c.Refs.Use)
	return c
}

// adoption works out what leads from what was found to what is wanted.
type adoption struct {
	table.Adoption
	d    *Driver
	of   parts // that want has
	want *state.State
	same bool        // the table holds this ruleset
	keep driver.Keep // what want may lack
	kept driver.Kept
	was  map[setKey]nft.Element
	// mentioned are the chains that name policies which want lacks, where nothing else is lacking;
	// nil: anything may be.
	mentioned map[string]bool
}

// setKey is where an element is.
type setKey struct {
	set uint32
	nft.ElementKey
}

// errOtherRuleset is returned where a fresh table is to take the place of the one that is there.
var errOtherRuleset = errors.New("the table holds another ruleset")

func (a *adoption) plan(ctx context.Context) (*plan, error) {
	d, b := a.d, a.Batch
	p := &plan{d: d, of: a.of, batch: b, done: a.done}
	a.same = a.Have != nil && a.sameRuleset()
	switch {
	case a.Have == nil && a.of != d.parts():
		return nil, driver.ErrWhole
	case a.Have == nil:
		b.Fresh = true
		b.AddTable(d.Flags(), d.Comment)
		d.ruleset.Create(b, nil, a.state())
	case a.same:
		a.Reuse()
	case a.of != d.parts():
		return nil, driver.ErrWhole
	case (a.keep.Services || a.keep.Policy) && (d.ruleset.HasPolicy() || !a.SameSets() || !a.fits()):
		// What stays could not be written into our sets, so all does, until want is whole.
		p.kept.Services = max(1, a.Have.Noted(d.ruleset.Families[0].Frontends).Count+a.Have.Noted(d.ruleset.Families[1].Frontends).Count)
		if d.ruleset.HasPolicy() {
			p.kept.Policy = 1
		}
		p.of, p.done, p.waits = 0, func() {}, true
		return p, nil
	case !a.fits():
		return nil, errOtherRuleset
	default:
		p.succeeds = true
		a.Reuse()
		a.succeed()
	}
	if err := a.Fill(ctx, func(yield func(*nft.Element)) { d.ruleset.EachElement(a.want, yield) }); err != nil {
		return nil, err
	}
	if a.Have == nil {
		a.rememberOthers(ctx)
	}
	a.planChains()
	if a.same {
		a.planLists()
		a.planDeny()
	}
	a.WriteNotes(d.ruleset.Note())
	p.kept = a.kept
	return p, nil
}

// done makes the driver remember what the kernel holds after the plan.
func (a *adoption) done() {
	d := a.d
	first, doubt := d.state == nil, d.Doubt && a.of != d.parts()
	d.state = a.of.in(a.want.Clone(), cmp.Or(d.state, &state.State{}))
	d.ruleset.ForgetWritten(d.state.Policy)
	a.Adopted(first)
	d.Doubt = d.Doubt || doubt
	d.adopted |= a.of & partsIf(a.kept.Services == 0, a.kept.Policy == 0)
	if (first || a.Batch.Changes > 0) && a.kept.Services == 0 {
		d.forget.Ask(struct{}{})
	}
	d.offload.Set()
}

// sameRuleset reports whether the kernel's chains and sets are those of this ruleset.
func (a *adoption) sameRuleset() bool {
	p := a.d.ruleset
	if !a.SameRuleset(p.Note()) {
		return false
	}
	for _, c := range p.Chains {
		if !a.Have.Chains[c.Name] || a.Have.Rules[c.Name] != len(c.Rules) && !p.IsListChain(c.Name) {
			return false
		}
	}
	for _, name := range p.Counters {
		if !a.Have.Counters[name] {
			return false
		}
	}
	return true
}

// fits reports whether this ruleset can take the place of another one in the table: packets enter
// that, base chains of the same name have the same hooks, and sets elements of the same type.
// Beside IPVS, all frontends have other verdicts.
func (a *adoption) fits() bool {
	if _, open := a.Have.Hooks[openChain]; !open || a.Have.Chains[ruleset.BesideIPVS] != a.d.ruleset.HasChain(ruleset.BesideIPVS) {
		return false
	}
	for _, s := range a.d.ruleset.Sets {
		if t, there := a.Have.Sets[s.Name]; there && t != s.Type() {
			return false
		}
	}
	fits := func(c nft.Chain) bool {
		h, hooked := a.Have.Hooks[c.Name]
		return !a.Have.Chains[c.Name] || hooked == (c.Hook != nil) && (!hooked || h == *c.Hook)
	}
	for _, c := range a.d.ruleset.Chains {
		if !fits(c) {
			return false
		}
	}
	for _, c := range a.Refs.Chains {
		if !fits(c.Chain) {
			return false
		}
	}
	return true
}

// succeed has this ruleset take the place of another one, whose base chains stay. New chains and
// sets come first, then all rules change at once, with the elements that differ, and what was the
// other's alone goes when all packets that were on their way have passed.
func (a *adoption) succeed() {
	b, p := a.Batch, a.d.ruleset
	b.Stepwise = true
	p.Create(b, a.Have.Table, a.state())
	for name, c := range a.Refs.Chains {
		if c.Hook == nil && a.Have.Chains[name] && (ruleset.IsLearnChain(name) || a.Have.Rules[name] != c.Rules) { // others are named by their rules
			b.TurnRules(c.Chain)
		}
	}
	ours := map[string]bool{}
	for _, s := range p.Sets {
		ours[s.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(a.Have.Sets)) {
		if !ours[name] {
			b.DeleteSet(&b.After, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.Have.Flowtables)) {
		if name != p.Flowtable {
			b.DeleteFlowtable(&b.After, name)
		}
	}
}

// planChains plans the chains and counters beside the ruleset's own. What is kept stays.
func (a *adoption) planChains() {
	before, p := a.Have.Refs(), a.d.ruleset
	maps.DeleteFunc(before.Counters, func(name string, _ int) bool {
		_, used := a.Refs.Counters[name]
		return slices.Contains(p.Counters, name) || a.kept.Policy > 0 && !used
	})
	for _, c := range p.Chains {
		before.Forget(c.Name)
	}
	if a.kept.Policy > 0 {
		kept := slices.DeleteFunc(table.Missing(before.Chains, a.Refs.Chains), a.isObsolete)
		a.Refs.Keep(kept, a.Have.Rules)
		a.kept.Untracked = a.kept.Untracked || slices.ContainsFunc(kept, ruleset.IsEntry)
	}
	a.PlanChains(before, !a.same, a.staysIdle)
}

// staysIdle reports whether a base chain that the state does not lead to stays without rules: one
// of this ruleset does, unless it belongs to an interface where no deny list is to hold.
func (a *adoption) staysIdle(name string) bool {
	at := func(d state.Device) bool { return ruleset.DenyEntryName(d) == name }
	return a.d.ruleset.HasEntry(name) && (!ruleset.IsDenyEntry(name) || slices.ContainsFunc(policyOf(a.state()).Denied.Devices, at))
}

// state is what is wanted, and of other parts what stays.
func (a *adoption) state() *state.State { return a.of.in(a.want, cmp.Or(a.d.state, &state.State{})) }

// planLists has the rules of a list chain written anew if a list differs that is looked up there,
// or their number does.
func (a *adoption) planLists() {
	b, p := a.Batch, a.d.ruleset
	differ := slices.DeleteFunc(slices.Clone(p.Networks), func(s *nft.Set) bool { return !b.Changed(s) && a.Reused[s] })
	none, looks := p.ListChains(nil), p.ListChains(ruleset.ExampleLists(differ))
	for i, c := range p.ListChains(p.Lists(a.state())) {
		if len(looks[i].Rules) > len(none[i].Rules) || a.Have.Rules[c.Name] != len(c.Rules) {
			b.RewriteRules(c)
			b.Stepwise = true
		}
	}
}

// planDeny has the rules of deny lists written anew if what they look up differs, or their number.
// What is kept may be looked up by the present ones alone.
func (a *adoption) planDeny() {
	b, p := a.Batch, a.d.ruleset
	if a.want.Policy == nil || a.kept.Policy > 0 && a.mentioned == nil {
		return
	}
	c := p.DenyChain(a.want.Policy.Denied)
	if a.Have.Rules[c.Name] != len(c.Rules) || slices.ContainsFunc(p.DenySets(), func(s *nft.Set) bool { return b.Changed(s) || !a.Reused[s] }) {
		b.TurnRules(c)
		b.Stepwise = true
	}
}
