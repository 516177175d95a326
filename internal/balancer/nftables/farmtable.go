package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// farmTable is one of the driver's tables, and what the kernel holds of it as far as we know.
type farmTable struct {
	*table.Table
	ruleset *ruleset
	links   *link.Reader
	claims  elementClaims
	lists   listings
	covers  []int // interfaces with chains
}

// openPart opens sockets in the calling thread's network namespace.
func openPart(rs *ruleset) (*farmTable, error) {
	sock, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	links, err := link.Open()
	if err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	return &farmTable{Table: table.New(&rs.Layout, TableName, tableComment, sock), ruleset: rs, links: links, claims: elementClaims{}}, nil
}

func (t *farmTable) close() error {
	t.links.Close()
	return t.Sock.Close()
}

// beside is the same part with a table of another name, of which nothing is known.
func (t *farmTable) beside(name string, rs *ruleset) *farmTable {
	n := &farmTable{Table: t.Beside(name), ruleset: rs, links: t.links, claims: elementClaims{}}
	n.Layout = &rs.Layout
	return n
}

// update plans what follows of a change of the farms.
func (t *farmTable) update(ctx context.Context, have *state.Farms, d state.FarmsDelta, n *numbers) *tableChange {
	c := t.begin(t.Change(), t.Refs, t.claims, listChange{t.lists, maps.Clone(t.lists)}, n)
	now, old := c.follow(have, d), map[string]*state.Farm{}
	maps.Copy(now, d.Farms)
	for name := range now {
		old[name] = have.Farms[name]
	}
	c.replace(old, now)
	devices := have.Devices
	if len(d.Devices) > 0 {
		next := state.Farms{Devices: maps.Clone(devices)}
		next.Apply(state.FarmsDelta{Devices: d.Devices})
		devices = next.Devices
	}
	for to, there := range changedTunnels(have, d) {
		c.tunnel(to, there)
	}
	c.claimed()
	c.devices(devices)
	c.covered()
	c.WithDevices(ctx, c.leaving)
	c.leave(c.Close())
	c.done = c.Done
	return c
}

// adopt plans the difference between the kernel's table and what is wanted; first: nothing is known
// of the table. After failures a fresh one takes its place.
func (t *farmTable) adopt(ctx context.Context, want *state.Farms, n *numbers, first bool, failures table.Failures) (*tableChange, error) {
	if failures >= table.RebuildAfter {
		return t.inPlace(want, n, fmt.Sprintf("%d adoptions failed", failures)), nil
	}
	if err := t.Look(ctx, !first); err != nil {
		return nil, err
	}
	have, err := t.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", t.Title(t.Name), err)
	}
	if have == nil {
		return t.fresh(want, n), nil
	}
	before := have.Refs()
	c := t.begin(t.Anew(), before, elementClaims{}, listChange{listings{}, listings{}}, n)
	c.all(want)
	a := table.Adoption{Change: c.Change, Have: have, Deep: t.Doubt}
	if !a.SameRuleset(t.ruleset.note()) {
		return t.inPlace(want, n, "it holds another ruleset"), nil
	}
	a.Reuse()
	if err := a.Fill(ctx, c.elements(want)); err != nil {
		return nil, err
	}
	c.leave(a.PlanChains(before, false, stays))
	a.WriteNotes(t.ruleset.note())
	c.adopts, c.done = true, func() { a.Adopted(first) }
	return c, nil
}

// fresh plans a whole table, where there is none.
func (t *farmTable) fresh(want *state.Farms, n *numbers) *tableChange {
	c := t.begin(t.Anew(), table.NewChainRefs(), elementClaims{}, listChange{listings{}, listings{}}, n)
	c.fresh, c.adopts, c.Batch.Fresh = want, true, true
	c.all(want)
	c.create(t.Flags(), want)
	a := table.Adoption{Change: c.Change}
	a.WriteNotes(t.ruleset.note())
	c.done = func() { a.Adopted(true) }
	return c
}

// inPlace plans a whole table that takes the place of the one that there is.
func (t *farmTable) inPlace(want *state.Farms, n *numbers, why string) *tableChange {
	c := t.fresh(want, n)
	c.replaces = why
	return c
}

// send has the kernel carry out a change.
func (c *tableChange) send(ctx context.Context) error {
	t := c.t
	if c.adopts {
		if err := t.Claim(ctx, t.Name); err != nil {
			return fmt.Errorf("change nftables: %w", err)
		}
	}
	if c.replaces != "" {
		return t.rebuild(ctx, c.fresh, c.numbers)
	}
	if c.fresh != nil {
		return c.sendAfter(ctx, t.Next())
	}
	return c.commit()
}

// sendAfter makes a table that remembers the clients that another one does.
func (c *tableChange) sendAfter(ctx context.Context, old string) error {
	if err := c.recall(ctx, old); err != nil {
		return err
	}
	return c.commit()
}

func (c *tableChange) commit() error {
	if _, err := c.t.Commit(c.Batch); err != nil {
		return err
	}
	c.done()
	c.t.claims, c.t.lists, c.t.covers = c.claims.settle(), c.lists.after, c.covers
	return nil
}

// rebuild has a fresh table take the place of this one.
func (t *farmTable) rebuild(ctx context.Context, want *state.Farms, n *numbers) error {
	var last *farmTable
	serves := func(entries []string) bool { return len(entries) > 0 }
	err := t.Rebuild(ctx, serves, func(name, old string) error {
		last = t.beside(name, t.ruleset)
		if err := t.Drop(ctx, name); err != nil {
			return err
		}
		return last.fresh(want, n).sendAfter(ctx, old)
	})
	if err != nil {
		return err
	}
	t.claims, t.lists, t.covers = last.claims, last.lists, last.covers
	return t.TakeOver(ctx, last.Table)
}
