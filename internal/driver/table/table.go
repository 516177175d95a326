// Package table keeps a table of nftables in step with what its driver wants it to hold, whatever
// that is: sets with their elements, and chains that come and go. It is beneath the services' table
// and those of farms.
//
// What was programmed outlives the process in the kernel alone. The table identifies its ruleset in
// a set of notes, and has a digest of each set's content there: an adoption compares those with
// what it wants before it reads anything else. Where the kernel has it (Linux 6.9), the table
// belongs to the socket of the process that works on it, and stays when that ends: nobody else can
// change it.
package table

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/probe"
)

// Layout is the part of a ruleset that is the same whatever elements the table holds.
type Layout struct {
	NFProto uint8 // unix.NFPROTO_… of the table
	Sets    []*nft.Set
	Notes   *nft.Set // what the table says of itself: one of Sets, with a mark as key
	MayMiss bool     // it is for kernels that may miss a key while its value changes, see nft.MayMiss
}

// AddSet adds a set; its number is the next one.
func (l *Layout) AddSet(s *nft.Set) *nft.Set {
	s.ID = uint32(len(l.Sets) + 1)
	l.Sets = append(l.Sets, s)
	return s
}

// mayRewrite reports whether all elements of a set may be deleted and added in one transaction, as
// no key is missed for that: maps are looked up again. Those of ranges have no such second look,
// and counters of elements would begin anew.
func (l *Layout) mayRewrite(s *nft.Set) bool {
	return !s.Ranges && !s.Counted && (!l.MayMiss || s.Verdict || len(s.Data) > 0)
}

// Table is a table of ours in one network namespace, and what the kernel holds of it as far as we
// know. It is not safe for concurrent use.
type Table struct {
	*Layout
	Name, Comment string
	Sock          *nft.Socket
	Shared        bool    // it has no owner even where the kernel could protect it from others
	Ours          *uint32 // the transactions of this process: of all its tables in the namespace

	Owned    bool       // nobody else can change it
	Sums     []Sum      // of each set's content, by id
	Refs     *ChainRefs // chains beside the constant ones
	Doubt    bool       // others may have changed what we programmed: no note is trusted
	Compared time.Time  // when it was last compared with what is wanted
	others   uint32     // transactions of other programs up to which none has interfered

	// Building: no packet is judged by it yet. It is filled at once, and its counters begin with
	// Counted.
	Building bool
	Counted  map[string]uint64
}

// New returns a table of which nothing is known. The socket stays the caller's to close.
func New(l *Layout, name, comment string, sock *nft.Socket) *Table {
	sock.Family = l.NFProto
	return &Table{Layout: l, Name: name, Comment: comment, Sock: sock, Ours: new(uint32), Refs: NewChainRefs(), Sums: make([]Sum, len(l.Sets)+1)}
}

// Next is the name of the table that is built beside this one, and serves while it makes way.
func (t *Table) Next() string { return t.Name + "-next" }

// Beside returns a table under another name, of which nothing is known.
func (t *Table) Beside(name string) *Table {
	n := New(t.Layout, name, t.Comment, t.Sock)
	n.Shared, n.Ours, n.Owned = t.Shared, t.Ours, t.CanOwn()
	return n
}

// TakeOver has the table be as another one is that was built under its name.
func (t *Table) TakeOver(ctx context.Context, n *Table) error {
	t.Sums, t.Refs = n.Sums, n.Refs
	t.Owned, t.Doubt = t.CanOwn(), !t.CanOwn()
	return t.look(ctx)
}

// Batch returns an empty transaction for the table.
func (t *Table) Batch() *nft.Batch {
	b := nft.NewBatch(t.Name)
	b.Family = t.NFProto
	return b
}

// Title is how nft and people call a table of the family.
func (t *Table) Title(name string) string {
	if t.NFProto == unix.NFPROTO_NETDEV {
		return "netdev " + name
	}
	return "inet " + name
}

// Protection is what tables go without where they have to.
var Protection = &probe.Requirement{
	Name: "table owner", Since: "6.9", Modules: []string{"nf_tables"},
	Without: "the table is not owned, and is put back within a second if another program flushes it",
	Check: func(context.Context) error {
		s, err := nft.Dial()
		if err != nil {
			return err
		}
		return errors.Join(tryProtection(s), s.Close()) // closing it waits until the kernel has freed what was tried
	},
}

// tryProtection has the kernel make and delete a table with an owner in one transaction.
func tryProtection(s *nft.Socket) error {
	b := nft.NewBatch("sluice-probe")
	b.AddTable(nft.FlagOwner|nft.FlagPersist|nft.FlagDormant, "")
	b.DeleteTable()
	_, err := b.Send(s)
	return err
}

// CanOwn tells whether the kernel protects a table that asks for it, and this one may ask.
func (t *Table) CanOwn() bool {
	return !t.Shared && Protection.MetBy(func() error { return tryProtection(t.Sock) }) == nil
}

// Flags are those of a table that is created.
func (t *Table) Flags() uint32 {
	if t.CanOwn() {
		return nft.FlagOwner | nft.FlagPersist
	}
	return 0
}

// Claim makes a table ours, if it is there and the kernel knows owners. It is a transaction of its
// own: the kernel takes no base chain in one that changes the table's flags. An error wraps
// driver.ErrBusy if another socket owns the table.
func (t *Table) Claim(ctx context.Context, name string) error {
	have, err := t.Sock.ReadFlags(ctx, name)
	switch {
	case err != nil:
		return fmt.Errorf("read table %s: %w", t.Title(name), err)
	case have == nil:
		return nil
	case have.Flags&nft.FlagOwner != 0 && have.Owner != t.Sock.Port:
		return fmt.Errorf("%w: a running agent (netlink port %d) owns table %s; stop it first", driver.ErrBusy, have.Owner, t.Title(name))
	case !t.CanOwn() || have.Flags != nft.FlagPersist:
		return nil // ours already, or one that cannot be given an owner
	}
	b := nft.NewBatch(name)
	b.Family = t.NFProto
	b.AddTable(nft.FlagOwner|nft.FlagPersist, t.Comment)
	_, err = t.Commit(b)
	return err
}

// Commit sends a batch. Beside an error it returns the number of the batch's transactions that were
// carried out before.
func (t *Table) Commit(b *nft.Batch) (sent uint32, err error) {
	if sent, err = b.Send(t.Sock); err != nil {
		err = fmt.Errorf("change nftables: %w", err)
	}
	*t.Ours += sent
	return sent, err
}

// look has the table be looked at anew: what others did before is no reason for doubt any more.
func (t *Table) look(ctx context.Context) error {
	gen, err := t.Sock.Generation(ctx)
	if err != nil {
		return err
	}
	t.others, t.Compared = gen-*t.Ours, time.Now()
	return nil
}

// Look begins a comparison with what is wanted. It has doubts where others have come in between
// since the last one.
func (t *Table) Look(ctx context.Context, known bool) error {
	before := t.others
	err := t.look(ctx)
	t.Doubt = t.Doubt || known && !t.Owned && t.others != before
	return err
}

// DoubtInterval is how long after the last comparison a doubt is reason for another.
const DoubtInterval = time.Minute

// Tampered reports whether the table may be other than it was left. One with an owner cannot be
// touched by others. Otherwise the generation tells of a transaction of any program; then the rules
// are counted, of which there should be so many. What changed within the sets cannot be told so
// cheaply: it may be reason for a comparison once a minute.
func (t *Table) Tampered(ctx context.Context, rules func() int) (bool, error) {
	if t.Owned {
		return false, nil
	}
	gen, err := t.Sock.Generation(ctx)
	if err != nil {
		return false, err
	}
	if gen-*t.Ours != t.others {
		counts := map[string]int{}
		err = t.Sock.CountRules(ctx, t.Name, counts)
		if errors.Is(err, nft.ErrInterrupted) {
			return false, nil // asked again soon
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("count rules: %w", err)
		}
		found := 0
		for _, n := range counts {
			found += n
		}
		if found != rules() {
			return true, nil
		}
		t.others, t.Doubt = gen-*t.Ours, true
	}
	return t.Doubt && time.Since(t.Compared) >= DoubtInterval, nil
}

// Drop deletes a table, if there is one, without any effect on packets that something else serves.
func (t *Table) Drop(ctx context.Context, name string) error {
	if err := t.Sock.Drop(ctx, name); err != nil {
		return fmt.Errorf("delete table %s: %w", t.Title(name), err)
	}
	return nil
}

// Purge deletes the table, and what a rebuilding has left.
func (t *Table) Purge(ctx context.Context) error {
	for _, name := range []string{t.Name, t.Next()} {
		if err := t.Claim(ctx, name); err != nil {
			return fmt.Errorf("delete table %s: %w", t.Title(name), err)
		}
		if err := t.Drop(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
