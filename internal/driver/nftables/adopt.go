package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/program"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// rewriteFrom is the number of elements from which a set that differs is
// written anew rather than read: reading costs the kernel more than writing, and the more
// the larger the set.
const rewriteFrom = 300_000

// Adopt implements driver.Driver.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := partsIn(want)
	switch {
	case !d.parts().hold(of):
		return nil, errors.New("adopt a state with policy by a driver without")
	case of != d.parts() && (d.state == nil || d.failures.of(of) >= rebuildAfter):
		return nil, driver.ErrWhole
	case d.failures.of(of) >= rebuildAfter && !keep.Any():
		return &rebuilding{d: d, want: want, why: fmt.Sprintf("%d adoptions failed", rebuildAfter)}, nil
	}
	next := d.aside.clone()
	rest := next.leaveOut(want, d.state)
	for try := 1; ; try++ {
		p, err := d.adopt(ctx, rest, keep)
		switch {
		case errors.Is(err, nft.ErrInterrupted) && try < adoptTries:
		case errors.Is(err, errOtherProgram):
			return &rebuilding{d: d, want: want, why: "it holds another program"}, nil
		case err != nil:
			d.failed(of, err)
			return nil, err
		default:
			p.aside = next
			p.adopts = true
			p.refused = func(ctx context.Context, _ uint32, refusal error) error {
				if p.succeeds && !keep.Services && !keep.Policy {
					d.log.Warn("the kernel refuses to have another program in the table; building a fresh one", "error", refusal)
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
func (d *Driver) parts() parts { return partsIf(true, d.prog.HasPolicy()) }

// afterAdoption removes what a rebuilding that was not finished left, and tries again what was set
// aside.
func (d *Driver) afterAdoption(ctx context.Context, of parts) error {
	if err := d.drop(ctx, nextTable); err != nil {
		return err
	}
	d.failures.set(of, 0)
	return d.retry(ctx)
}

// failed counts an adoption of parts that failed for a reason that lies in the table or in what it
// is to hold.
func (d *Driver) failed(of parts, err error) {
	for _, other := range []error{unix.EPERM, context.Canceled, driver.ErrBusy, driver.ErrWhole} {
		if errors.Is(err, other) {
			return
		}
	}
	d.failures.set(of, d.failures.of(of)+1)
}

// adoptNow adopts a state that the driver has set nothing aside of.
func (d *Driver) adoptNow(ctx context.Context, want *state.State, keep driver.Keep) error {
	p, err := d.adopt(ctx, want, keep)
	if err != nil {
		return err
	}
	if err := d.claim(ctx, program.TableName, p.found); err != nil {
		return fmt.Errorf("change nftables: %w", err)
	}
	return d.carryOut(ctx, p)
}

// adoptTries is how often an adoption reads again what changed while it read. Where
// other programs change nftables that often, the agent comes back later.
const adoptTries = 5

func (d *Driver) adopt(ctx context.Context, want *state.State, keep driver.Keep) (*plan, error) {
	gen, err := d.sock.Generation(ctx)
	if err != nil {
		return nil, err
	}
	have, err := d.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read table inet %s: %w", program.TableName, err)
	}
	of := partsIn(want)
	d.doubt = d.doubt || d.state != nil && !d.owned && gen != d.gen
	d.gen, d.adopted, d.compared = gen, d.adopted&^of, time.Now()
	if want.Policy != nil {
		sets := d.prog.DeniedSetsFor(program.DeniedPrefixes(want.Policy.Denied))
		d.prog.SetDenied(sets[:])
	}
	a := &adoption{d: d, of: of, want: want, have: have, deep: d.doubt, keep: keep, kept: newKept()}
	a.change = a.start()
	if err := a.findMentioned(ctx); err != nil {
		return nil, err
	}
	return a.plan(ctx)
}

// start returns a change in which the parts that are not adopted stay as they are.
func (a *adoption) start() *change {
	d := a.d
	c := &change{d: d, batch: nft.NewBatch(program.TableName), sums: make([]sum, len(d.prog.Sets)+1), chainRefs: program.NewChainRefs()}
	if a.of != d.parts() {
		for _, s := range d.prog.Sets {
			if !a.of.hold(partOf(d.prog, s)) {
				c.sums[s.ID] = d.sums[s.ID]
			}
		}
		c.chainRefs = d.chainRefs.Only(func(chain string) bool { return program.OfServices(chain) != a.of.hold(servicesPart) })
	}
	d.prog.EachChain(a.want, c.chainRefs.Use)
	return c
}

// adoption works out what leads from what was found to what is wanted.
type adoption struct {
	d      *Driver
	of     parts // that want has
	want   *state.State
	have   *found // nil: no table
	change *change
	same   bool              // the table holds this program
	reused map[*nft.Set]bool // sets of the kernel that go on with their elements
	deep   bool              // trust no note, read everything
	keep   driver.Keep       // what want may lack
	kept   driver.Kept
	was    map[setKey]nft.Element
	// mentioned are the chains that name policies which want lacks, where nothing else is lacking;
	// nil: anything may be.
	mentioned map[string]bool
}

// errOtherProgram is returned where a fresh table is to take the place of the one that is there.
var errOtherProgram = errors.New("the table holds another program")

func (a *adoption) plan(ctx context.Context) (*plan, error) {
	d, b := a.d, a.change.batch
	p := &plan{d: d, of: a.of, batch: b, done: a.done, found: a.table()}
	a.same = a.have != nil && a.sameProgram()
	switch {
	case a.have == nil && a.of != d.parts():
		return nil, driver.ErrWhole
	case a.have == nil:
		b.Fresh = true
		b.AddTable(d.tableFlags(), program.TableComment)
		d.prog.Create(b, nil, a.state())
	case a.same:
		a.reuse()
	case a.of != d.parts():
		return nil, driver.ErrWhole
	case (a.keep.Services || a.keep.Policy) && (d.prog.HasPolicy() || !a.sameSets() || !a.fits()):
		// What stays could not be written into our sets, so all does, until want is whole.
		p.kept.Services = max(1, a.noted(d.prog.Families[0].Frontends).count+a.noted(d.prog.Families[1].Frontends).count)
		if d.prog.HasPolicy() {
			p.kept.Policy = 1
		}
		p.of, p.done, p.waits = 0, func() {}, true
		return p, nil
	case !a.fits():
		return nil, errOtherProgram
	default:
		p.succeeds = true
		a.reuse()
		a.succeed()
	}
	if err := a.fill(ctx); err != nil {
		return nil, err
	}
	a.planChains()
	if a.same {
		a.planLists()
		a.planDeny()
	}
	a.writeNotes()
	p.kept = a.kept
	return p, nil
}

func (a *adoption) table() *nft.Table {
	if a.have == nil {
		return nil
	}
	return a.have.Table
}

// done makes the driver remember what the kernel holds after the plan.
func (a *adoption) done() {
	d := a.d
	first := d.state == nil
	d.state = a.of.in(a.want.Clone(), cmp.Or(d.state, &state.State{}))
	d.prog.ForgetWritten(d.state.Policy)
	a.change.chainRefs.ForgetRules()
	d.sums, d.chainRefs = a.change.sums, a.change.chainRefs
	d.adopted |= a.of & partsIf(a.kept.Services == 0, a.kept.Policy == 0)
	d.owned = d.canOwn() && (a.have == nil || a.have.Flags&nft.FlagPersist != 0)
	// The notes of a table that anyone could change while no agent ran are believed for now, so
	// that the node is served at once; the audit reads it all.
	d.doubt = first && !d.owned && a.have != nil && !a.deep || d.doubt && a.of != d.parts()
	if (first || a.change.batch.Changes > 0) && a.kept.Services == 0 {
		d.forget.Ask(struct{}{})
	}
	d.offload.Set()
}

// claim makes a table that is there ours, where the kernel knows owners. It is a transaction
// of its own: the kernel takes no base chain in one that changes the table's flags. An
// error wraps driver.ErrBusy if another socket owns the table.
func (d *Driver) claim(ctx context.Context, table string, have *nft.Table) error {
	switch {
	case have == nil:
		return nil
	case have.Flags&nft.FlagOwner != 0 && have.Owner != d.sock.Port:
		return fmt.Errorf("%w: a running agent (netlink port %d) owns table inet %s; stop it first", driver.ErrBusy, have.Owner, table)
	case !d.canOwn() || have.Flags != nft.FlagPersist:
		return nil // ours already, or one that cannot be given an owner
	}
	b := nft.NewBatch(table)
	b.AddTable(nft.FlagOwner|nft.FlagPersist, program.TableComment)
	_, err := d.commit(ctx, b, 0)
	return err
}

// tableFlags are those of a table that is created.
func (d *Driver) tableFlags() uint32 {
	if d.canOwn() {
		return nft.FlagOwner | nft.FlagPersist
	}
	return 0
}

// sameProgram reports whether the kernel's chains and sets are those of this program.
func (a *adoption) sameProgram() bool {
	p := a.d.prog
	if !strings.HasPrefix(a.have.notes[program.ProgramNote], p.Note()) || len(a.have.Sets) != len(p.Sets) {
		return false
	}
	for _, s := range p.Sets {
		if _, there := a.have.Sets[s.Name]; !there {
			return false
		}
	}
	for _, c := range p.Chains {
		if !a.have.Chains[c.Name] || a.have.Rules[c.Name] != len(c.Rules) && !p.IsListChain(c.Name) {
			return false
		}
	}
	for _, name := range p.Counters {
		if !a.have.Counters[name] {
			return false
		}
	}
	for name, c := range a.change.chainRefs.Chains {
		if c.Hook == nil && a.have.Chains[name] && a.have.Rules[name] != c.Rules {
			return false
		}
	}
	return true
}

// fits reports whether this program can take the place of another one in the table: packets enter
// that, base chains of the same name have the same hooks, and sets elements of the same type.
// Beside IPVS, all frontends have other verdicts.
func (a *adoption) fits() bool {
	if _, open := a.have.Hooks[openChain]; !open || a.have.Chains[program.BesideIPVS] != a.d.prog.HasChain(program.BesideIPVS) {
		return false
	}
	for _, s := range a.d.prog.Sets {
		if t, there := a.have.Sets[s.Name]; there && t != s.Type() {
			return false
		}
	}
	fits := func(c nft.Chain) bool {
		h, hooked := a.have.Hooks[c.Name]
		return !a.have.Chains[c.Name] || hooked == (c.Hook != nil) && (!hooked || h == *c.Hook)
	}
	for _, c := range a.d.prog.Chains {
		if !fits(c) {
			return false
		}
	}
	for _, c := range a.change.chainRefs.Chains {
		if !fits(c.Chain) {
			return false
		}
	}
	return true
}

// reuse has the sets go on that are there.
func (a *adoption) reuse() {
	a.reused = map[*nft.Set]bool{}
	for _, s := range a.d.prog.Sets {
		_, a.reused[s] = a.have.Sets[s.Name]
	}
}

// succeed has this program take the place of another one, whose base chains stay. New chains and
// sets come first, then all rules change at once, with the elements that differ, and what was the
// other's alone goes when all packets that were on their way have passed.
func (a *adoption) succeed() {
	b, p := a.change.batch, a.d.prog
	b.Stepwise = true
	p.Create(b, a.have.Table, a.state())
	for name, c := range a.change.chainRefs.Chains {
		if c.Hook == nil && a.have.Chains[name] && (program.IsLearnChain(name) || a.have.Rules[name] != c.Rules) { // others are named by their rules
			b.TurnRules(c.Chain)
		}
	}
	ours := map[string]bool{}
	for _, s := range p.Sets {
		ours[s.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(a.have.Sets)) {
		if !ours[name] {
			b.DeleteSet(&b.After, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.have.Flowtables)) {
		if name != p.Flowtable {
			b.DeleteFlowtable(&b.After, name)
		}
	}
}

// planChains creates the chains and counters that are missing beside the program, and deletes
// those that nothing leads to any more.
func (a *adoption) planChains() {
	b, now := a.change.batch, a.change.chainRefs
	if a.have == nil {
		now.Create(b, none, none)
		return
	}
	now.Create(b, func(name string) bool { return a.have.Chains[name] }, func(name string) bool { return a.have.Counters[name] })
	gone := slices.DeleteFunc(program.Missing(a.have.Chains, now.Chains), a.d.prog.HasChain)
	b.Stepwise = b.Stepwise || len(program.Missing(now.Chains, a.have.Chains))+len(gone) > 0
	if a.kept.Policy > 0 {
		kept := slices.DeleteFunc(slices.Clone(gone), a.isObsolete)
		now.Keep(kept, a.have.Rules)
		a.kept.Untracked = a.kept.Untracked || slices.ContainsFunc(kept, program.IsEntry)
		gone = slices.DeleteFunc(gone, func(name string) bool { return !a.isObsolete(name) })
	}
	gone = slices.DeleteFunc(gone, a.staysIdle)
	for name, c := range now.Chains {
		if c.Hook != nil && a.have.Chains[name] && (!a.same || a.have.Rules[name] != c.Rules) {
			b.TurnRules(c.Chain)
			b.Stepwise = true
		}
	}
	for _, name := range gone {
		if _, hooked := a.have.Hooks[name]; hooked || !a.same {
			b.DeleteRules(&b.Turn, name) // so that none is bound to sets that go, and no packet is in it then
		}
	}
	var counters []string
	if a.kept.Policy == 0 {
		counters = slices.DeleteFunc(program.Missing(a.have.Counters, now.Counters), func(name string) bool { return slices.Contains(a.d.prog.Counters, name) })
	}
	program.DeleteChains(b, gone, counters)
}

// staysIdle has a base chain that the state does not lead to stay without rules: one of this
// program, unless it belongs to an interface where no deny list is to hold.
func (a *adoption) staysIdle(name string) bool {
	hook, hooked := a.have.Hooks[name]
	at := func(d state.Device) bool { return program.DenyEntryName(d) == name }
	if !hooked || !a.d.prog.HasEntry(name) || program.IsDenyEntry(name) && !slices.ContainsFunc(policyOf(a.state()).Denied.Devices, at) {
		return false
	}
	a.change.chainRefs.Idle(name, hook)
	return true
}

func none(string) bool { return false }

// fill plans the elements: of kept sets the difference, of others all.
func (a *adoption) fill(ctx context.Context) error {
	d, c := a.d, a.change
	if a.have == nil {
		d.prog.EachElement(a.want, c.add)
		a.rememberOthers(ctx)
		return nil
	}
	d.prog.EachElement(a.want, func(e *nft.Element) { c.sums[e.Set.ID].add(e) })
	content := map[*nft.Set]map[nft.ElementKey]nft.Element{}
	for _, s := range d.prog.Sets {
		if s.Dynamic || s == d.prog.Notes || !a.of.hold(partOf(d.prog, s)) || !a.worthReading(s) {
			continue
		}
		elements, err := d.content(ctx, s)
		if err != nil {
			return fmt.Errorf("read set %s: %w", s.Name, err)
		}
		content[s] = elements
	}
	d.prog.EachElement(a.want, func(e *nft.Element) {
		old, known := content[e.Set]
		switch {
		case known && a.reused[e.Set]:
			a.fillOne(old, e)
		case !a.reused[e.Set]:
			delete(old, e.ElementKey)
			c.batch.Add(e)
		}
	})
	a.planRest(content)
	return nil
}

// worthReading reports whether the set's elements matter to the plan. A large set that
// differs is emptied instead, and then has none.
func (a *adoption) worthReading(s *nft.Set) bool {
	c := a.change
	switch {
	case a.reused[s] && a.agrees(s):
		return false
	case a.mayLack(s):
		return a.have.Sets[s.Name] == s.Type()
	case !a.reused[s]:
		return false
	case max(c.sums[s.ID].count, a.noted(s).count) >= rewriteFrom && a.d.prog.MayRewrite(s):
		c.batch.FlushSet(s)
		a.reused[s] = false
		return false
	}
	return true
}

// state is what is wanted, and of other parts what stays.
func (a *adoption) state() *state.State { return a.of.in(a.want, cmp.Or(a.d.state, &state.State{})) }

// planLists has the rules of a list chain written anew if a list differs that is looked up there,
// or their number does.
func (a *adoption) planLists() {
	b, p := a.change.batch, a.d.prog
	differ := slices.DeleteFunc(slices.Clone(p.Networks), func(s *nft.Set) bool { return !b.Changed(s) && a.reused[s] })
	none, looks := p.ListChains(nil), p.ListChains(program.ExampleLists(differ))
	for i, c := range p.ListChains(p.Lists(a.state())) {
		if len(looks[i].Rules) > len(none[i].Rules) || a.have.Rules[c.Name] != len(c.Rules) {
			b.RewriteRules(c)
			b.Stepwise = true
		}
	}
}

// planDeny has the rules of deny lists written anew if what they look up differs, or their number.
// What is kept may be looked up by the present ones alone.
func (a *adoption) planDeny() {
	b, p := a.change.batch, a.d.prog
	if a.want.Policy == nil || a.kept.Policy > 0 && a.mentioned == nil {
		return
	}
	c := p.DenyChain(a.want.Policy.Denied)
	if a.have.Rules[c.Name] != len(c.Rules) || slices.ContainsFunc(p.DenySets(), func(s *nft.Set) bool { return b.Changed(s) || !a.reused[s] }) {
		b.TurnRules(c)
		b.Stepwise = true
	}
}

func (a *adoption) fillOne(old map[nft.ElementKey]nft.Element, e *nft.Element) {
	there, ok := old[e.ElementKey]
	delete(old, e.ElementKey)
	if ok && there.SameValue(e) {
		return
	}
	if ok && a.mustKeepVerdict(&there, e) {
		a.kept.Policy++
		a.d.prog.NoteKept(&a.kept, &there)
		a.change.sums[e.Set.ID].remove(e)
		a.change.sums[e.Set.ID].add(&there)
		return
	}
	if ok {
		a.change.batch.Replace(&there, e)
		return
	}
	a.change.batch.Add(e)
}

// agrees reports whether the note on the set says that it holds what is wanted.
func (a *adoption) agrees(s *nft.Set) bool {
	_, noted := a.have.note(s) // a note goes before what it says is no longer true: without one, a set may hold anything
	return noted && !a.deep && a.noted(s) == a.change.sums[s.ID]
}

// noted is what the note on a set says; no note is the sum of an empty set.
func (a *adoption) noted(s *nft.Set) (n sum) {
	if a.have == nil {
		return sum{}
	}
	note, _ := a.have.note(s)
	_, err := fmt.Sscanf(note, s.Name+": %d elements, digest %x", &n.count, &n.digest)
	if note != "" && err != nil {
		return sum{count: -1} // another program's: agrees with nothing
	}
	return n
}

// writeNotes writes down what the kernel will hold.
func (a *adoption) writeNotes() {
	d, b := a.d, a.change.batch
	noted := map[uint32]string{}
	if a.have != nil && a.reused[d.prog.Notes] {
		noted = a.have.notes
	}
	if n := d.prog.Note(); !strings.HasPrefix(noted[program.ProgramNote], n) {
		d.prog.WriteNote(b, program.ProgramNote, noted[program.ProgramNote], n)
	}
	for _, s := range d.prog.Sets {
		if !a.of.hold(partOf(d.prog, s)) {
			continue // where it has no note, nothing is known of it
		}
		if n := sumNote(s, a.change.sums[s.ID]); n != noted[s.ID] {
			d.prog.WriteNote(b, s.ID, noted[s.ID], n)
		}
	}
	for id := range noted {
		if int(id) > len(d.prog.Sets) {
			d.prog.WriteNote(b, id, noted[id], "")
		}
	}
}
