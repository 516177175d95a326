package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
)

// rewriteFrom is the number of elements from which a set that differs is
// written anew rather than read: reading costs the kernel more than writing, and the more
// the larger the set.
const rewriteFrom = 300_000

// found is what the kernel holds of ours.
type found struct {
	flags, owner uint32            // of the table
	chains       map[string]bool   // by name
	rules        map[string]int    // by chain
	counters     map[string]bool   // by name
	sets         map[string]setDef // by name
	notes        map[uint32]string // by key
}

// setDef is the type of a set as far as it matters for keeping its elements.
type setDef struct{ keyType, keyLen, dataType, dataLen, flags uint32 }

func (s *set) def() setDef {
	d := setDef{keyType: magic(s.key), keyLen: uint32(keyLen(s.key)), flags: s.flags()}
	switch {
	case s.verdict:
		d.dataType, d.dataLen = verdictType, 16
	case s.data != nil:
		d.dataType, d.dataLen = magic(s.data), uint32(keyLen(s.data))
	}
	return d
}

// Adopt implements driver.Driver.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := partsIn(want)
	switch {
	case of.without(d.parts()).any():
		return nil, errors.New("adopt a state with policy by a driver without")
	case of != d.parts() && (d.state == nil || d.failures.of(of) >= rebuildAfter):
		return nil, driver.ErrWhole
	case d.failures.of(of) >= rebuildAfter && !keep.Any():
		return &rebuilding{d: d, want: want}, nil
	}
	next := d.aside.clone()
	rest := next.rest(want, d.state)
	for try := 1; ; try++ {
		p, err := d.adopt(ctx, rest, keep)
		switch {
		case errors.Is(err, errInterrupted) && try < adoptTries:
		case err != nil:
			d.failed(of, err)
			return nil, err
		default:
			p.aside = next
			p.adopts = true
			p.refused = func(ctx context.Context, _ uint32, refusal error) error {
				d.log.Warn("the kernel refuses what is wanted; finding out which part of it", "error", refusal)
				return d.adoptRest(ctx, want, keep)
			}
			p.then = func(ctx context.Context) error { return d.afterAdoption(ctx, of) }
			return p, nil
		}
	}
}

// parts are those that the driver carries out.
func (d *Driver) parts() parts { return parts{services: true, policy: d.prog.policy != nil} }

// afterAdoption removes what a rebuilding that was not finished left, and tries again what was set aside.
func (d *Driver) afterAdoption(ctx context.Context, of parts) error {
	if err := d.drop(ctx, nextTable); err != nil {
		return err
	}
	d.failures.set(of, 0)
	if d.adopted == d.parts() {
		return d.retry(ctx)
	}
	return nil
}

// failed counts an adoption of parts that failed for a reason that lies in the table or in what it is to hold.
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
	if err := d.claim(ctx, p.found); err != nil {
		return fmt.Errorf("change nftables: %w", err)
	}
	return d.carryOut(ctx, p)
}

// adoptTries is how often an adoption reads again what changed while it read. Where
// other programs change nftables that often, the agent comes back later.
const adoptTries = 5

func (d *Driver) adopt(ctx context.Context, want *state.State, keep driver.Keep) (*plan, error) {
	gen, err := d.generation(ctx)
	if err != nil {
		return nil, err
	}
	have, err := d.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read table inet %s: %w", TableName, err)
	}
	of := partsIn(want)
	d.doubt = d.doubt || d.state != nil && !d.owned && gen != d.gen
	d.gen, d.adopted, d.looked = gen, d.adopted.without(of), time.Now()
	if want.Policy != nil {
		sets := d.prog.deniedSetsFor(deniedPrefixes(want.Policy.Denied))
		d.prog.setDenied(sets[:])
	}
	a := &adoption{d: d, of: of, want: want, have: have, deep: d.doubt, keep: keep, kept: newKept()}
	a.change = a.start()
	if err := a.settleKeeping(ctx); err != nil {
		return nil, err
	}
	return a.plan(ctx)
}

// start returns a change in which the parts that are not adopted stay as they are.
func (a *adoption) start() *change {
	d := a.d
	c := &change{d: d, batch: newBatch(TableName), sums: make([]sum, len(d.prog.sets)+1), uses: newRoster()}
	if a.of != d.parts() {
		for _, s := range d.prog.sets {
			if !a.of.has(s) {
				c.sums[s.id] = d.sums[s.id]
			}
		}
		c.uses = d.roster.only(func(chain string) bool { return isLearn(chain) != a.of.services })
	}
	d.prog.eachRuling(a.want, c.uses.use)
	return c
}

// adoption works out what leads from what was found to what is wanted.
type adoption struct {
	d      *Driver
	of     parts // that want has
	want   *state.State
	have   *found // nil: no table
	change *change
	reused map[*set]bool // sets of the kernel that go on with their elements
	deep   bool          // trust no note, read everything
	keep   driver.Keep   // what want may lack
	kept   driver.Kept
	was    map[setKey]element
	// mentioned are the chains that name policies which want lacks, where nothing else is lacking; nil: anything may be.
	mentioned map[string]bool
}

func (a *adoption) plan(ctx context.Context) (*plan, error) {
	d, b := a.d, a.change.batch
	switch {
	case a.have == nil && a.of != d.parts():
		return nil, driver.ErrWhole
	case a.have == nil:
		b.fresh = true
		b.addTable(d.tableFlags())
		b.addProgram(d.prog, nil, nil)
	case a.sameProgram():
		a.reused = map[*set]bool{}
		for _, s := range d.prog.sets {
			a.reused[s] = true
		}
	case a.of != d.parts():
		return nil, driver.ErrWhole
	case (a.keep.Services || a.keep.Policy) && (!a.sameSets() || d.prog.policy != nil):
		// What stays could not be written into our sets, so all does, until want is whole.
		a.kept.Services = max(1, a.noted(d.prog.fam[0].frontends).count+a.noted(d.prog.fam[1].frontends).count)
		return &plan{d: d, batch: b, done: func() {}, found: a.have, kept: a.kept}, nil
	default:
		a.replaceProgram()
	}
	if err := a.fill(ctx); err != nil {
		return nil, err
	}
	a.settleRoster()
	a.writeNotes()
	return &plan{d: d, of: a.of, batch: b, done: a.done, found: a.have, kept: a.kept}, nil
}

// done makes the driver remember what the kernel holds after the plan.
func (a *adoption) done() {
	d := a.d
	first := d.state == nil
	now := a.want.Clone()
	if !a.of.services {
		now.Services = d.state.Services
	}
	if !a.of.policy && !first {
		now.Policy = d.state.Policy
	}
	d.state = now
	d.prog.forgetWritten(now.Policy)
	a.change.uses.forgetRules()
	d.sums, d.roster = a.change.sums, a.change.uses
	d.adopted = d.adopted.with(parts{a.of.services && a.kept.Services == 0, a.of.policy && a.kept.Policy == 0})
	d.owned = d.canOwn && (a.have == nil || a.have.flags&tableFlagPersist != 0)
	// The notes of a table that anyone could change while no agent ran are believed for now, so that
	// the node is served at once; the audit reads it all.
	d.doubt = first && !d.owned && a.have != nil && !a.deep || d.doubt && a.of != d.parts()
	if (first || a.change.batch.changes > 0) && a.kept.Services == 0 {
		d.forget.wake.Set()
	}
}

// claim makes a table that is there ours, where the kernel knows owners. It is a transaction
// of its own: the kernel takes no base chain in one that changes the table's flags. An
// error wraps driver.ErrBusy if another socket owns the table.
func (d *Driver) claim(ctx context.Context, have *found) error {
	return d.claimTable(ctx, TableName, have)
}

func (d *Driver) claimTable(ctx context.Context, table string, have *found) error {
	switch {
	case have == nil:
		return nil
	case have.flags&tableFlagOwner != 0 && have.owner != d.sock.port:
		return fmt.Errorf("%w: a running agent (netlink port %d) owns table inet %s; stop it first", driver.ErrBusy, have.owner, table)
	case !d.canOwn || have.flags != tableFlagPersist:
		return nil // ours already, or one that cannot be given an owner
	}
	b := newBatch(table)
	b.addTable(tableFlagOwner | tableFlagPersist)
	_, err := d.commit(ctx, b, parts{})
	return err
}

// tableFlags are those of a table that is created.
func (d *Driver) tableFlags() uint32 {
	if d.canOwn {
		return tableFlagOwner | tableFlagPersist
	}
	return 0
}

// sameProgram reports whether the kernel's chains and sets are those of this program.
func (a *adoption) sameProgram() bool {
	p := a.d.prog
	if !strings.HasPrefix(a.have.notes[programNote], p.note()) || len(a.have.sets) != len(p.sets) {
		return false
	}
	for _, s := range p.sets {
		if _, there := a.have.sets[s.name]; !there {
			return false
		}
	}
	for _, c := range p.chains {
		if !a.have.chains[c.name] || a.have.rules[c.name] != len(c.rules) {
			return false
		}
	}
	for _, name := range p.counters {
		if !a.have.counters[name] {
			return false
		}
	}
	for name, c := range a.change.uses.chains {
		if a.have.chains[name] && a.have.rules[name] != c.rules {
			return false
		}
	}
	return true
}

// note identifies the program: a digest of all its messages.
func (p *program) note() string {
	var a attrs
	for _, s := range p.sets {
		if !p.resized(s) { // those have other names with other lists
			s.write(&a, TableName)
		}
	}
	for _, c := range p.chains {
		c.write(&a, TableName)
		for _, r := range c.rules {
			r.write(&a, TableName, c.name)
		}
	}
	for _, fp := range p.fam {
		for _, r := range fp.learnChain(time.Second).rules {
			r.write(&a, TableName, "")
		}
	}
	return fmt.Sprintf("program %016x", xxhash.Sum64(a.b))
}

// replaceProgram takes another program's chains out and ours in. Sets whose
// type is the same keep their elements, and so what they have learnt. Maps to verdicts
// hold on to the chains of the old program, so they go.
func (a *adoption) replaceProgram() {
	b, p := a.change.batch, a.d.prog
	b.deleteRules(&b.before, "")
	kept := map[*set]bool{}
	byName := map[string]*set{}
	for _, s := range p.sets {
		byName[s.name] = s
	}
	for _, name := range slices.Sorted(maps.Keys(a.have.sets)) {
		s := byName[name]
		if s != nil && !s.verdict && a.have.sets[name] == s.def() {
			kept[s] = true
			continue
		}
		b.deleteSet(&b.before, name)
	}
	for _, name := range slices.Sorted(maps.Keys(a.have.chains)) {
		b.deleteChain(&b.before, name)
	}
	a.have.chains = map[string]bool{}
	a.reused = kept
	b.addProgram(p, kept, a.have.counters)
}

// settleRoster creates the chains and counters that are missing beside the program, and deletes
// those that nothing leads to any more.
func (a *adoption) settleRoster() {
	b, now := a.change.batch, a.change.uses
	if a.have == nil {
		b.addRoster(now, none, none)
		return
	}
	b.addRoster(now, func(name string) bool { return a.have.chains[name] }, func(name string) bool { return a.have.counters[name] })
	gone := slices.DeleteFunc(missing(a.have.chains, now.chains), a.d.prog.hasChain)
	b.stepwise = a.sameProgram() && len(missing(now.chains, a.have.chains))+len(gone) > 0
	if a.kept.Policy > 0 {
		kept := slices.DeleteFunc(slices.Clone(gone), a.isOver)
		a.keepChains(kept)
		a.kept.Untracked = slices.ContainsFunc(kept, isEntry)
		b.deleteRoster(slices.DeleteFunc(gone, func(name string) bool { return !a.isOver(name) }), nil)
		return
	}
	counters := slices.DeleteFunc(missing(a.have.counters, now.counters), func(name string) bool { return slices.Contains(a.d.prog.counters, name) })
	b.deleteRoster(gone, counters)
}

func none(string) bool { return false }

// fill plans the elements: of kept sets the difference, of others all.
func (a *adoption) fill(ctx context.Context) error {
	d, c := a.d, a.change
	if a.have == nil {
		d.prog.eachElement(a.want, c.add)
		a.rememberOthers(ctx)
		return nil
	}
	d.prog.eachElement(a.want, func(e *element) { c.sums[e.set.id].add(e) })
	content := map[*set]map[elementKey]element{}
	for _, s := range d.prog.sets {
		if s.dynamic || s == d.prog.notes || !a.of.has(s) || !a.worthReading(s) {
			continue
		}
		elements, err := d.content(ctx, s)
		if err != nil {
			return fmt.Errorf("read set %s: %w", s.name, err)
		}
		if s.ranges() {
			a.settleRanges(s, elements)
			continue
		}
		content[s] = elements
	}
	d.prog.eachElement(a.want, func(e *element) {
		old, known := content[e.set]
		switch {
		case known && a.reused[e.set]:
			a.fillOne(old, e)
		case !a.reused[e.set]:
			delete(old, e.elementKey)
			c.batch.add(e)
		}
	})
	a.settleRest(content)
	return nil
}

// worthReading reports whether the set's elements matter to the plan. A large set that
// differs is emptied instead, and then has none.
func (a *adoption) worthReading(s *set) bool {
	c := a.change
	switch {
	case a.reused[s] && a.agrees(s):
		return false
	case a.mayLack(s):
		return a.have.sets[s.name] == s.def()
	case !a.reused[s]:
		return false
	case max(c.sums[s.id].count, a.noted(s).count) >= rewriteFrom:
		c.batch.flushSet(s)
		a.reused[s] = false
		return false
	}
	return true
}

// settleRanges has a set of intervals written anew if anything in it differs.
func (a *adoption) settleRanges(s *set, have map[elementKey]element) {
	var holds sum
	for _, e := range have {
		holds.add(&e)
	}
	if a.reused[s] && holds != a.change.sums[s.id] {
		a.change.batch.flushSet(s)
		a.reused[s] = false
	}
}

func (a *adoption) fillOne(old map[elementKey]element, e *element) {
	had, ok := old[e.elementKey]
	delete(old, e.elementKey)
	if ok && had.sameValue(e) {
		return
	}
	if ok && a.keepsVerdict(&had, e) {
		a.kept.Policy++
		a.d.prog.noteKept(&a.kept, &had)
		a.change.sums[e.set.id].remove(e)
		a.change.sums[e.set.id].add(&had)
		return
	}
	if ok {
		a.change.batch.delete(&had)
	}
	a.change.batch.add(e)
}

// agrees reports whether the note on the set says that it holds what is wanted.
func (a *adoption) agrees(s *set) bool {
	_, noted := a.have.notes[s.id] // a note goes before what it says is no longer true: without one, a set may hold anything
	return noted && !a.deep && a.noted(s) == a.change.sums[s.id]
}

// noted is what the note on a set says; no note is the sum of an empty set.
func (a *adoption) noted(s *set) (n sum) {
	if a.have == nil {
		return sum{}
	}
	note := a.have.notes[s.id]
	_, err := fmt.Sscanf(note, s.name+": %d elements, digest %x", &n.count, &n.digest)
	if note != "" && err != nil {
		return sum{count: -1} // another program's: agrees with nothing
	}
	return n
}

// writeNotes writes down what the kernel will hold.
func (a *adoption) writeNotes() {
	d, b := a.d, a.change.batch
	had := map[uint32]string{}
	if a.have != nil && a.reused[d.prog.notes] {
		had = a.have.notes
	}
	if n := d.prog.note(); !strings.HasPrefix(had[programNote], n) {
		b.note(d.prog, programNote, had[programNote], n)
	}
	for _, s := range d.prog.sets {
		if n := sumNote(s, a.change.sums[s.id]); n != had[s.id] {
			b.note(d.prog, s.id, had[s.id], n)
		}
	}
	for id := range had {
		if int(id) > len(d.prog.sets) {
			b.note(d.prog, id, had[id], "")
		}
	}
}
