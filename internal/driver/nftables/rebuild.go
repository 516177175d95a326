package nftables

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/state"
)

// This file is about tables that are built while no packet enters them: to find out what the kernel
// refuses, and to replace a table that can no longer be changed, or holds another ruleset that this
// one does not fit.
//
// Sets of other types cannot take the place of those that are there: a packet sees one generation
// of the ruleset, but the current elements of its sets. One that is on its way in an old chain
// finds nothing in a set that goes with the chain, and is refused or dropped.

// adoptRest adopts what the kernel takes of want, after it refused the whole. It finds out what
// that is in a second table, or in ours where there is none yet.
func (d *Driver) adoptRest(ctx context.Context, want *state.State, keep driver.Keep) error {
	there, err := d.Sock.ReadFlags(ctx, d.Name)
	if err != nil {
		return fmt.Errorf("read table inet %s: %w", d.Name, err)
	}
	of := partsIn(want)
	switch {
	case there == nil && of != d.parts():
		return driver.ErrWhole
	case there == nil:
		n, err := d.replace(ctx, d.Name, d.Next(), want)
		if err == nil {
			err = d.Drop(ctx, d.Next())
		}
		if err != nil {
			return err
		}
		return d.takeOver(ctx, n)
	}
	n, err := d.build(ctx, d.Next(), of.in(want, cmp.Or(d.state, &state.State{})), nil)
	if err != nil {
		return err
	}
	if err := d.Drop(ctx, d.Next()); err != nil {
		return err
	}
	n.aside.addFrom(d.aside, d.parts()&^of)
	d.aside = n.aside
	return d.adoptNow(ctx, d.aside.leaveOut(want, d.state), keep)
}

// takeOver makes d the driver of the table that n built in place of d's own.
func (d *Driver) takeOver(ctx context.Context, n *Driver) error {
	d.state, d.aside, d.adopted = n.state, n.aside, d.parts()
	d.forget.Ask(struct{}{})
	d.offload.Set()
	return d.TakeOver(ctx, n.Table)
}

// rebuild replaces our table by a fresh one.
func (d *Driver) rebuild(ctx context.Context, want *state.State) error {
	var n *Driver
	err := d.Rebuild(ctx, isOpen, func(name, old string) (err error) { n, err = d.replace(ctx, name, old, want); return err })
	if err != nil {
		return err
	}
	return d.takeOver(ctx, n)
}

// replace builds a table that takes the place of another one, if that is there, and inherits what
// it remembers of clients and what it has counted.
func (d *Driver) replace(ctx context.Context, name, old string, want *state.State) (*Driver, error) {
	counted := map[string]uint64{}
	if err := d.Sock.ReadCounters(ctx, old, func(counter string, packets uint64) { counted[counter] = packets }); err != nil {
		return nil, fmt.Errorf("read counters of table inet %s: %w", old, err)
	}
	n, err := d.build(ctx, name, want, counted)
	if err != nil {
		return nil, err
	}
	if err := n.copyAffinity(ctx, old); err != nil {
		return nil, fmt.Errorf("fill table inet %s: %w", name, err)
	}
	if err := n.open(); err != nil {
		return nil, fmt.Errorf("open table inet %s: %w", name, err)
	}
	return n, nil
}

// build makes a table of all of want that the kernel takes, and returns the driver of it. Until the
// table is opened, its base chains accept everything first, but have all of their rules: the kernel
// follows those to check the depth of jumps. Base chains of type nat come only when it is opened,
// as a connection that one of them accepts is never translated. Counters begin with what another
// table has counted.
func (d *Driver) build(ctx context.Context, name string, want *state.State, counted map[string]uint64) (*Driver, error) {
	if err := d.Drop(ctx, name); err != nil {
		return nil, err
	}
	n := &Driver{ruleset: d.ruleset, Table: d.Beside(name), log: d.log, remembered: d.remembered, offload: wake.New(), aside: newAside(), state: state.New()}
	n.Building, n.Counted = true, counted
	if want.Policy != nil {
		n.state.Policy = state.NewPolicy()
		n.state.Policy.PodTunnels = want.Policy.PodTunnels
		sets := d.ruleset.DeniedSetsFor(nil)
		d.ruleset.SetDenied(sets[:])
	}
	c := n.newChange()
	c.Batch.AddTable(d.Flags(), d.Comment)
	d.ruleset.Create(c.Batch, nil, n.state)
	d.ruleset.WriteNote(c.Batch, table.RulesetNote, "", d.ruleset.Note())
	d.ruleset.EachElement(n.state, c.Add)
	p := c.plan(d.parts(), func() {})
	if _, err := n.commit(p.batch, p.of); err != nil {
		return nil, fmt.Errorf("create table inet %s: %w", name, err)
	}
	p.done()
	if err := n.admit(ctx, whole(want)); err != nil {
		return nil, fmt.Errorf("fill table inet %s: %w", name, err)
	}
	return n, nil
}

// copyAffinity copies the clients with session affinity from another table to a new one, or else
// from another program.
func (d *Driver) copyAffinity(ctx context.Context, name string) error {
	a := &adoption{d: d, want: d.state, Adoption: table.Adoption{Change: d.Table.Change()}}
	var sets []*nft.Set
	of := map[*nft.Set]*ruleset.Family{}
	for _, fp := range d.ruleset.Families {
		sets, of[fp.Affinity] = append(sets, fp.Affinity), fp
	}
	there, err := a.Recall(ctx, name, sets, func(e *nft.Element) bool { return remembersRight(d.state, of[e.Set], e) })
	if err != nil {
		return fmt.Errorf("read table inet %s: %w", name, err)
	}
	if !there {
		a.rememberOthers(ctx)
	}
	_, err = d.Commit(a.Batch)
	return err
}

// open has packets enter the table.
func (d *Driver) open() error {
	b := d.Batch()
	for _, c := range slices.Concat(d.ruleset.Chains, d.Refs.Entries()) {
		switch {
		case c.Hook == nil:
		case c.Hook.Type == nft.TypeNAT:
			b.AddChain(c)
			b.AddRules(c)
		default:
			b.RewriteRules(c)
		}
	}
	_, err := d.Commit(b)
	return err
}

// openChain is a base chain of type nat: tables that packets enter have it.
const openChain = "prerouting"

func isOpen(entries []string) bool { return slices.Contains(entries, openChain) }

// renew rebuilds our table. If it fails, the next adoption tries once more with the one that is
// there.
func (d *Driver) renew(ctx context.Context, want *state.State) error {
	d.adopted = 0
	d.failures.set(d.parts(), table.RebuildAfter-1)
	if err := d.rebuild(ctx, want); err != nil {
		return fmt.Errorf("build a fresh table: %w", err)
	}
	d.failures = failures{}
	return nil
}
