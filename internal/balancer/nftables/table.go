package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// table is one of the driver's tables, and what the kernel holds of it as far as we know.
type table struct {
	prog   *program
	sock   *nft.Socket
	links  *link.Reader
	refs   chainRefs
	claims claims
	lists  listings
	digest uint64 // of lists' elements
	covers []int  // interfaces with chains
}

// openTable opens sockets in the calling thread's network namespace.
func openTable(p *program) (*table, error) {
	sock, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	sock.Family = p.of
	links, err := link.Open()
	if err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	return &table{prog: p, sock: sock, links: links, refs: chainRefs{}, claims: claims{}}, nil
}

func (t *table) close() error {
	t.links.Close()
	return t.sock.Close()
}

// batch is an empty transaction of the program's family.
func (p *program) batch(table string) *nft.Batch {
	b := nft.NewBatch(table)
	b.Family = p.of
	return b
}

func (t *table) change(refs chainRefs, claims claims, n *numbers) *change {
	return &change{t: t, p: t.prog, numbers: n, batch: t.prog.batch(TableName), refs: refs, claims: begin(claims)}
}

// fresh plans a whole table, under a name.
func (t *table) fresh(name string, want *state.Farms, n *numbers) *change {
	c := t.change(chainRefs{}, claims{}, n)
	c.batch, c.lists = t.prog.batch(name), listChange{before: listings{}, after: listings{}}
	c.fresh = want
	c.build(want)
	return c
}

// update plans what follows of a change of the farms.
func (t *table) update(ctx context.Context, have *state.Farms, d state.FarmsDelta, n *numbers) (*change, error) {
	c := t.change(maps.Clone(t.refs), t.claims, n)
	c.lists = listChange{t.lists, maps.Clone(t.lists), t.digest}
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
	c.covered(devices)
	c.noteLists(true, t.digest)
	if err := c.vanished(ctx); err != nil {
		return nil, err
	}
	c.chains()
	return c, nil
}

// adopt plans the difference between the kernel's table and what is wanted.
func (t *table) adopt(ctx context.Context, want *state.Farms, n *numbers) (*change, error) {
	have, err := t.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", TableName, err)
	}
	switch {
	case have == nil:
		return t.fresh(TableName, want, n), nil
	case have.note != t.prog.note():
		c := t.fresh(TableName, want, n)
		c.beside = t.fresh(nextTable, want, n)
		return c, nil
	}
	c := t.change(chainRefs{}, claims{}, n)
	c.lists = listChange{before: listings{}, after: listings{}}
	if err := c.compareLists(ctx, want.Lists, have); err != nil {
		return nil, err
	}
	c.compare(want, have)
	return c, nil
}

// send has the kernel carry out a change, and returns the number of its transactions. A table of
// another program makes way: one beside it serves meanwhile, as a table cannot be renamed. Where
// that is interrupted, the next adoption goes on from there; the one that succeeds drops the table
// beside. The transactions until the other table is gone do not count, so that Tampered looks
// closer.
func (c *change) send(ctx context.Context) (sent uint32, err error) {
	if c.beside != nil {
		err = c.makeWay(ctx)
	}
	if err == nil && c.fresh != nil {
		err = c.recall(ctx, nextTable)
	}
	if err != nil {
		return 0, err
	}
	if sent, err = c.batch.Send(c.t.sock); err != nil && sent > 0 {
		c.t.refs = chainRefs{} // the kernel has them half: the next adoption takes them as they are
	}
	return sent, err
}

// makeWay has the table beside serve, and drops the one of another program.
func (c *change) makeWay(ctx context.Context) error {
	serving, err := c.t.sock.Entries(ctx, nextTable)
	if err == nil && len(serving) == 0 {
		if err = c.t.sock.Drop(ctx, nextTable); err == nil {
			err = c.beside.recall(ctx, TableName)
		}
		if err == nil {
			err = send(c.beside.batch, c.t.sock)
		}
	}
	if err != nil {
		return err
	}
	return c.t.sock.Drop(ctx, TableName)
}

// settle has a change of the table be done.
func (c *change) settle() {
	t := c.t
	t.refs, t.claims, t.lists, t.digest, t.covers = c.refs.settle(), c.claims.settle(), c.lists.after, c.lists.digest, c.covers
}

// found is what the kernel holds of ours.
type found struct {
	*nft.Table
	note     string
	lists    string // what the note of lists says
	elements map[elementKey]nft.Element
}

// read returns what the kernel holds of ours, or nil if there is no table. Without the elements, if
// it is another program's: one that has other sets or chains than it should counts as that, too.
func (t *table) read(ctx context.Context) (*found, error) {
	table, err := t.sock.ReadTable(ctx, TableName)
	if table == nil || err != nil {
		return nil, err
	}
	have := &found{Table: table, elements: map[elementKey]nft.Element{}}
	if !t.whole(table) {
		return have, nil
	}
	for _, s := range t.prog.sets {
		if t.prog.lists(s) {
			continue
		}
		err := t.sock.ReadSet(ctx, TableName, s, func(e nft.Element) {
			if s == t.prog.notes && e.Key[0]|e.Key[3] == 0 {
				have.note = e.Comment
			} else if s == t.prog.notes {
				have.lists = e.Comment
			} else if !s.Dynamic {
				have.elements[elementKey{s, e.ElementKey}] = e
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("read set %s: %w", s.Name, err)
		}
	}
	return have, nil
}

// whole reports whether a table has the sets of the program, and each chain that we know its rules.
func (t *table) whole(have *nft.Table) bool {
	for _, s := range t.prog.sets {
		if have.Sets[s.Name] != s.Type() {
			return false
		}
	}
	for name, r := range t.refs {
		if have.Chains[name] && have.Rules[name] != r.rules {
			return false
		}
	}
	return true
}

// counts reports whether the table has as many rules as it should have.
func (t *table) counts(ctx context.Context) (bool, error) {
	counts, left := map[string]int{}, 0
	err := t.sock.CountRules(ctx, TableName, counts)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("count rules: %w", err)
	}
	for _, n := range counts {
		left += n
	}
	for _, r := range t.refs {
		left -= r.rules
	}
	return left == 0, nil
}

// purge removes the table.
func (t *table) purge(ctx context.Context) error {
	t.refs, t.claims, t.lists, t.digest, t.covers = chainRefs{}, claims{}, nil, 0, nil
	return errors.Join(t.sock.Drop(ctx, TableName), t.sock.Drop(ctx, nextTable))
}
