package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/program"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/state"
)

// This file is about tables that are built while no packet enters them: to find out what the kernel
// refuses, and to replace a table that can no longer be changed, or holds another program that this
// one does not fit.
//
// Sets of other types cannot take the place of those that are there: a packet sees one generation
// of the ruleset, but the current elements of its sets. One that is on its way in an old chain
// finds nothing in a set that goes with the chain, and is refused or dropped.

// nextTable is the table that is built beside ours.
const nextTable = program.TableName + "-next"

// rebuildAfter is the number of adoptions that fail one after the other before a fresh table takes
// the place of ours.
const rebuildAfter = 3

// adoptRest adopts what the kernel takes of want, after it refused the whole. It finds out what
// that is in a second table, or in ours where there is none yet.
func (d *Driver) adoptRest(ctx context.Context, want *state.State, keep driver.Keep) error {
	there, err := d.hasTable(ctx, program.TableName)
	if err != nil {
		return err
	}
	of := partsIn(want)
	switch {
	case !there && of != d.parts():
		return driver.ErrWhole
	case !there:
		n, err := d.replace(ctx, program.TableName, nextTable, want)
		if err != nil {
			return err
		}
		return d.takeOver(ctx, n)
	}
	n, err := d.build(ctx, nextTable, of.in(want, cmp.Or(d.state, &state.State{})), nil)
	if err != nil {
		return err
	}
	if err := d.drop(ctx, nextTable); err != nil {
		return err
	}
	n.aside.addFrom(d.aside, d.parts()&^of)
	d.aside = n.aside
	return d.adoptNow(ctx, d.aside.leaveOut(want, d.state), keep)
}

// takeOver makes d the driver of the table that n built in place of d's own.
func (d *Driver) takeOver(ctx context.Context, n *Driver) (err error) {
	d.state, d.sums, d.chainRefs, d.aside = n.state, n.sums, n.chainRefs, n.aside
	d.adopted, d.owned, d.doubt, d.compared = d.parts(), d.canOwn(), !d.canOwn(), time.Now()
	d.forget.Ask(struct{}{})
	d.offload.Set()
	d.gen, err = d.sock.Generation(ctx)
	return err
}

// rebuild replaces our table by a fresh one. Another one serves meanwhile, as a table cannot be
// renamed. If it is interrupted, the next adoption goes on from there.
func (d *Driver) rebuild(ctx context.Context, want *state.State) error {
	serves, err := d.isOpen(ctx, nextTable)
	if err == nil && !serves {
		_, err = d.replace(ctx, nextTable, program.TableName, want)
	}
	if err != nil {
		return err
	}
	n, err := d.replace(ctx, program.TableName, nextTable, want)
	if err != nil {
		return err
	}
	return d.takeOver(ctx, n)
}

// replace builds a table that takes the place of another one, if that is there, and inherits what
// it remembers of clients and what it has counted. Packets enter both for a moment, so that none
// passes by both.
func (d *Driver) replace(ctx context.Context, table, old string, want *state.State) (*Driver, error) {
	counted := map[string]uint64{}
	if err := d.sock.ReadCounters(ctx, old, func(name string, packets uint64) { counted[name] = packets }); err != nil {
		return nil, fmt.Errorf("read counters of table inet %s: %w", old, err)
	}
	n, err := d.build(ctx, table, want, counted)
	if err != nil {
		return nil, err
	}
	if err := n.copyAffinity(ctx, old); err != nil {
		return nil, fmt.Errorf("fill table inet %s: %w", table, err)
	}
	if err := n.open(ctx); err != nil {
		return nil, fmt.Errorf("open table inet %s: %w", table, err)
	}
	return n, d.drop(ctx, old)
}

// build makes a table of all of want that the kernel takes, and returns the driver of it. Until the
// table is opened, its base chains accept everything first, but have all of their rules: the kernel
// follows those to check the depth of jumps. Base chains of type nat come only when it is opened,
// as a connection that one of them accepts is never translated. Counters begin with what another
// table has counted.
func (d *Driver) build(ctx context.Context, table string, want *state.State, counted map[string]uint64) (*Driver, error) {
	if err := d.drop(ctx, table); err != nil {
		return nil, err
	}
	n := &Driver{
		prog: d.prog, sock: d.sock, shared: d.shared, owned: d.canOwn(), log: d.log, remembered: d.remembered,
		offload: wake.New(),
		table:   table, building: true, counted: counted, aside: newAside(), state: state.New(), chainRefs: program.NewChainRefs(), sums: make([]sum, len(d.prog.Sets)+1),
	}
	if want.Policy != nil {
		n.state.Policy = state.NewPolicy()
		n.state.Policy.PodTunnels = want.Policy.PodTunnels
		sets := d.prog.DeniedSetsFor(nil)
		d.prog.SetDenied(sets[:])
	}
	c := n.newChange()
	c.batch.AddTable(d.tableFlags(), program.TableComment)
	d.prog.Create(c.batch, nil, n.state)
	d.prog.WriteNote(c.batch, program.ProgramNote, "", d.prog.Note())
	d.prog.EachElement(n.state, c.add)
	p := c.plan(d.parts(), func() {})
	if _, err := n.commit(ctx, p.batch, p.of); err != nil {
		return nil, fmt.Errorf("create table inet %s: %w", table, err)
	}
	p.done()
	if err := n.admit(ctx, whole(want)); err != nil {
		return nil, fmt.Errorf("fill table inet %s: %w", table, err)
	}
	return n, nil
}

// copyAffinity copies the clients with session affinity from another table to a new one, or else
// from another program.
func (d *Driver) copyAffinity(ctx context.Context, table string) error {
	a := &adoption{d: d, want: d.state, change: d.newChange()}
	there, err := d.sock.ReadTable(ctx, table)
	if err != nil {
		return fmt.Errorf("read table inet %s: %w", table, err)
	}
	if there == nil {
		a.rememberOthers(ctx)
		_, err = d.commit(ctx, a.change.batch, 0)
		return err
	}
	for _, fp := range d.prog.Families {
		if there.Sets[fp.Affinity.Name] != fp.Affinity.Type() {
			continue
		}
		err := d.sock.ReadSet(ctx, table, fp.Affinity, func(e nft.Element) {
			if e.Life != nil && e.Life.Expires > 0 && remembersRight(d.state, fp, &e) {
				a.change.batch.Add(&e)
			}
		})
		if err != nil && !errors.Is(err, nft.ErrInterrupted) && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	_, err = d.commit(ctx, a.change.batch, 0)
	return err
}

// open has packets enter the table.
func (d *Driver) open(ctx context.Context) error {
	b := nft.NewBatch(d.table)
	for _, c := range slices.Concat(d.prog.Chains, d.chainRefs.Entries()) {
		switch {
		case c.Hook == nil:
		case c.Hook.Type == nft.TypeNAT:
			b.AddChain(c)
			b.AddRules(c)
		default:
			b.RewriteRules(c)
		}
	}
	_, err := d.commit(ctx, b, 0)
	return err
}

// openChain is a base chain of type nat: tables that packets enter have it.
const openChain = "prerouting"

// isOpen reports whether there is the table, and packets enter it.
func (d *Driver) isOpen(ctx context.Context, table string) (bool, error) {
	entries, err := d.sock.Entries(ctx, table)
	return slices.Contains(entries, openChain), err
}

func (d *Driver) hasTable(ctx context.Context, table string) (bool, error) {
	have, err := d.sock.ReadFlags(ctx, table)
	if err != nil {
		return false, fmt.Errorf("read table inet %s: %w", table, err)
	}
	return have != nil, nil
}

// drop deletes a table, if there is one, without any effect on packets that something else serves.
func (d *Driver) drop(ctx context.Context, table string) error {
	if err := d.sock.Drop(ctx, table); err != nil {
		return fmt.Errorf("delete table inet %s: %w", table, err)
	}
	return nil
}

// rebuilding is the plan to replace our table by a fresh one.
type rebuilding struct {
	d     *Driver
	want  *state.State
	why   string
	spent bool
}

// Len implements driver.Plan.
func (p *rebuilding) Len() int { return 1 }

// Kept implements driver.Plan.
func (p *rebuilding) Kept() driver.Kept { return driver.Kept{} }

// String implements driver.Plan.
func (p *rebuilding) String() string {
	return fmt.Sprintf("replace table inet %s by a fresh one, as %s\n", program.TableName, p.why)
}

// Apply implements driver.Plan.
func (p *rebuilding) Apply(ctx context.Context) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.spent {
		return errSpent
	}
	p.spent = true
	have, err := p.d.sock.ReadFlags(ctx, program.TableName)
	if err != nil {
		return fmt.Errorf("read table inet %s: %w", program.TableName, err)
	}
	if err := p.d.claim(ctx, program.TableName, have); err != nil {
		return fmt.Errorf("change nftables: %w", err)
	}
	p.d.adopted = 0
	p.d.failures.set(p.d.parts(), rebuildAfter-1) // another one is not built before the table has been tried once more
	if err := p.d.rebuild(ctx, p.want); err != nil {
		return fmt.Errorf("build a fresh table: %w", err)
	}
	p.d.failures = failures{}
	p.d.publishSetAside()
	return nil
}

var _ driver.Plan = (*rebuilding)(nil)
